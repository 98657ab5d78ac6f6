"""Options for the data, the model and the methods of a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.data.tables.endings import table_ending

if TYPE_CHECKING:
    from evenhand.studies.specs.spec import Spec

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


ALGORITHM_HELP = (
    "Train with this method instead of the spec's; repeat for several. Examples: -a qffl:q=2, -a"
    " fafl:alpha=0.3,local.lr=0.05,label=mild. A method that wraps another: -a"
    " fedprox:mu=0.1,inner=qffl,inner.q=2. Your own: -a mypackage:MyMethod:rate=0.3."
)


def spec_options(
    references: str,
    about_methods: str,
    about_seed: str,
    methods: tuple[str, ...] = ("-a", "--algorithm"),
) -> Callable[..., Any]:
    """Add SPEC and the options that override it to a command; :func:`planned` reads them.

    Args:
        references, about_methods, about_seed: help on --no-reference, the option for methods and
            --seed in this command.
        methods: names of the option for methods.
    """
    options = (
        click.argument("spec", required=False, type=click.Path(dir_okay=False, path_type=Path)),
        click.option(
            "--data",
            metavar="NAME|FILE",
            help=(
                "A data set (NAME[:KEY=VALUE,...]; evenhand data list shows all), a CSV or Parquet"
                " table, or a LEAF directory."
            ),
        ),
        source_options,
        click.option(
            "--model",
            metavar="NAME[:KEY=VALUE,...]",
            help="The model: linear, mlp:hidden=[64], cnn, ...; auto chooses one for the data.",
        ),
        click.option(
            *methods,
            "algorithms",
            multiple=True,
            metavar="NAME[:KEY=VALUE,...]",
            help=f"{ALGORITHM_HELP} {about_methods}",
        ),
        click.option("--rounds", type=click.IntRange(min=1), help="Communication rounds."),
        click.option(
            "--clients",
            type=click.IntRange(min=2),
            help=(
                "Number of clients. If the data come with clients, this many are drawn at random."
            ),
        ),
        click.option("--seed", type=click.IntRange(min=0), help=about_seed),
        click.option(
            "--engine",
            type=click.Choice(["auto", "loop", "vmap"]),
            help="loop trains one client at a time, vmap all at once; auto takes the faster.",
        ),
        click.option(
            "--device",
            metavar="DEVICE",
            help="cpu, cuda, cuda:1, ...  [default: a GPU if there is one]",
        ),
        click.option(
            "--precision",
            type=click.Choice(["fp32", "tf32", "bf16"]),
            help="Of matrix products; tf32 and bf16 are faster on many GPUs.  [default: fp32]",
        ),
        click.option(
            "--metric",
            "metrics",
            multiple=True,
            metavar="NAME=MODULE:FUNCTION",
            help="Also evaluate your own metric.",
        ),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            help="The run directory.  [default: runs/NAME]",
        ),
        click.option("--no-reference", is_flag=True, help=references),
        click.option("-q", "--quiet", is_flag=True, help="Print only errors."),
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def planned(
    spec: Path | None,
    data: str | None,
    model: str | None,
    algorithms: tuple[str, ...],
    rounds: int | None,
    clients: int | None,
    seed: int | None,
    engine: str | None,
    device: str | None,
    precision: str | None,
    metrics: tuple[str, ...] = (),
    **source: Any,
) -> Spec:
    """The spec for these options."""
    import dataclasses

    from evenhand.errors import SpecError
    from evenhand.studies.specs.parsing import parse_method, parse_metric, parse_table
    from evenhand.studies.specs.spec import Spec

    if spec and table_ending(spec.name):
        raise SpecError(
            f"{spec} is a table, not a spec; give it with --data {shlex.quote(str(spec))}"
        )
    table = data_table(data, **source)
    if table and not data and not spec:
        raise SpecError(
            f"{next(iter(table))} needs data; give a table with --data FILE, or a data set with"
            " --data NAME"
        )
    if spec:
        plan = Spec.load(spec)
    elif data:
        plan = Spec.for_data(
            Path(table["path"]).name.split(".")[0] if "path" in table else table["name"]
        )
    else:
        plan = Spec.default()
    plan = dataclasses.replace(plan, data=table if data else plan.data | table)
    if algorithms:
        plan = plan.with_methods(parse_method(text) for text in algorithms)
    given: dict[str, Any] = {
        "rounds": rounds,
        "seed": seed,
        "engine": engine,
        "device": device,
        "precision": precision,
    }
    given |= {
        "model": parse_table(model) if model else None,
        "data": {**plan.data, "clients": clients} if clients else None,
        "metrics": {**plan.metrics, **dict(map(parse_metric, metrics))} if metrics else None,
    }
    return dataclasses.replace(
        plan, **{key: value for key, value in given.items() if value is not None}
    )
