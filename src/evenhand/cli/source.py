"""Options for the data of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from evenhand.data.tables.endings import table_ending

_OPTIONS = (
    click.option(
        "--client",
        metavar="COLUMN",
        help="Table: the column with the name of the client.",
    ),
    click.option(
        "--label",
        metavar="COLUMN",
        help='Table: the column to predict, or a condition on one: "stage > 2".',
    ),
    click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="COLUMN",
        help="Column with a demographic group; repeat for their intersections.",
    ),
    click.option("--team", metavar="COLUMN", help="Table: a column that puts clients into teams."),
    click.option(
        "--drop",
        "dropped",
        multiple=True,
        metavar="COLUMN",
        help="Table: ignore this column; repeat for several.",
    ),
    click.option(
        "--categorical",
        multiple=True,
        metavar="COLUMN",
        help="Table: treat numbers in this column as categories; repeat for several.",
    ),
    click.option(
        "--numeric",
        multiple=True,
        metavar="COLUMN",
        help="Table: treat this column as numbers; repeat for several.",
    ),
    click.option(
        "--missing",
        multiple=True,
        metavar="TEXT",
        help=(
            "Table: treat cells with exactly this TEXT, such as 999 or '<0.5', as missing, in all"
            " columns; repeat for several."
        ),
    ),
    click.option(
        "--encoding",
        metavar="NAME",
        help=(
            "Table: encoding of a text file, such as cp1252.  [default: UTF-8, UTF-16 or cp1252,"
            " detected from the file]"
        ),
    ),
    click.option(
        "--held-out",
        metavar="COLUMN",
        help="Table: the rows to test on: a column of true and false, or a condition.",
    ),
    click.option(
        "--task",
        type=click.Choice(["auto", "classification", "regression"]),
        help="Table: the kind of label.",
    ),
    click.option(
        "--partition",
        metavar="NAME[:KEY=VALUE,...]",
        help=(
            "How to distribute samples over clients. Example: --partition"
            " dirichlet:clients=10,alpha=0.5."
        ),
    ),
    click.option(
        "--split",
        metavar="KEY=VALUE,...",
        help="Shares of each client's samples, such as val=0.1,test=0.2; or official.",
    ),
)


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command; :func:`data_table` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def data_table(
    data: str | None,
    client: str | None,
    label: str | None,
    groups: tuple[str, ...],
    team: str | None,
    dropped: tuple[str, ...],
    categorical: tuple[str, ...],
    numeric: tuple[str, ...],
    missing: tuple[str, ...],
    encoding: str | None,
    held_out: str | None,
    task: str | None,
    partition: str | None,
    split: str | None,
) -> dict[str, Any]:
    """The [data] table of a spec from these options; empty if there are none. ``data`` is a name, a
    file or a directory."""
    from evenhand.datasets import DATASETS, FORMATS
    from evenhand.errors import SpecError
    from evenhand.studies.specs.parsing import parse_table

    table: dict[str, Any] = {}
    path = None if data is None else Path(data).expanduser()
    if data is not None and path is not None:
        # even if there is a folder of that name here; ./adult is the folder
        if data.partition(":")[0] in (*DATASETS, *FORMATS):
            table = parse_table(data)
        elif table_ending(data) or path.is_file():
            if not path.is_file():
                raise SpecError(f"there is no file {data}; check the path")
            table = {"name": "table", "path": str(path.resolve())}  # a run is resumed from anywhere
        elif path.is_dir():
            table = {"name": "leaf", "path": str(path.resolve())}
        else:
            table = parse_table(data)
    columns: dict[str, Any] = {
        "client": client,
        "label": label,
        "team": team,
        "task": task,
        "held_out": held_out,
        "encoding": encoding,
        "missing": list(missing),
    }
    columns |= {"drop": list(dropped), "categorical": list(categorical), "numeric": list(numeric)}
    given = {key: value for key, value in columns.items() if value}
    if table.get("name") == "table" and "label" not in table | given:
        raise SpecError("a table needs a label to predict; give it with --label COLUMN")
    if (
        table.get("name") == "table"
        and partition is None
        and not {"client", "partition"} & {*table, *given}
    ):
        raise SpecError(
            "a table needs clients; name their column with --client COLUMN, or distribute the rows"
            " with --partition iid:clients=10"
        )
    if groups:
        given["group"] = groups[0] if len(groups) == 1 else list(groups)
    if partition is not None:
        given["partition"] = parse_table(partition)
    if split is not None:
        given["split"] = "official" if split == "official" else parse_table(split)
    return table | given
