"""evenhand data describe."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.cli.source import data_table, source_options

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

MOST_SHARES = 10  # columns of shares that fit next to the sizes


@click.command()
@click.argument("data", metavar="NAME|FILE", default="digits")
@source_options
@click.option(
    "--clients",
    type=click.IntRange(min=1),
    help=("Number of clients. If the data come with clients, this many are drawn at random."),
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the partition and the split.",
)
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="Print at most this many clients, the largest first.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the partition to a .html, .png or .svg file.",
)
@click.option(
    "--by",
    type=click.Choice(["label", "group"]),
    default="label",
    show_default=True,
    help="What the picture shows.",
)
@click.option(
    "--csv",
    "table_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the table, with all clients, as CSV.",
)
def describe(
    data: str,
    clients: int | None,
    seed: int,
    most: int,
    picture: Path | None,
    by: str,
    table_file: Path | None,
    **source: Any,
) -> None:
    """Show the clients of a data set: sizes, labels and groups.

    NAME|FILE is a data set (NAME[:KEY=VALUE,...]), a CSV or Parquet table, or a LEAF directory.

    \b
    Examples:
      evenhand data describe digits
      evenhand data describe patients.csv --client hospital --label disease --group sex
      evenhand data describe mnist --partition dirichlet:clients=10,alpha=0.5 --picture mnist.png
    """
    from rich.console import Console

    from evenhand.files import as_cell
    from evenhand.studies.specs.spec import Spec
    from evenhand.studies.tables.data import show_encoding

    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140)
    chosen = data_table(data, **source) | ({"clients": clients} if clients else {})
    federation = Spec(data=chosen, seed=seed).build_data()
    frame = federation.describe()
    if table_file is not None:
        frame.map(as_cell).rename(columns=as_cell).to_csv(table_file, index=False)
    if federation.encoding is not None:
        show_encoding(console, federation.encoding)
    console.print(_table(frame, most))
    if len(frame) > most:
        console.print(
            f"and {len(frame) - most} more, none of them larger (--most prints more, --csv"
            " writes all)"
        )
    sizes = frame["train"]
    parts = ", ".join(
        f"{int(frame[part].sum())} {part}" for part in ("train", "val", "test") if part in frame
    )
    spread = (
        f"{sizes.min()} to {sizes.max()} training samples per client, median {sizes.median():g}"
    )
    console.print(
        f"{len(frame)} client{'s' * (len(frame) != 1)}; {parts} samples; {spread}", highlight=False
    )
    if picture is not None:
        from evenhand.data.plots import plot_partition, save_figure

        save_figure(plot_partition(federation, by=by), picture)
        console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)


def _table(frame: pd.DataFrame, most: int) -> Table:
    """The largest clients, with shares in percent. If there are too many labels or groups for
    columns, how many a client has and the most frequent one."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Clients", box=box.SIMPLE, title_justify="left", padding=(0, 0, 0, 1))
    shown = (
        frame.sort_values("train", ascending=False, kind="stable").head(most)
        if len(frame) > most
        else frame
    )
    cells: dict[str, list[str]] = {}
    for name in shown.columns:
        if not name.startswith(("label ", "group ")):
            numbers = shown[name]
            cells[name] = [
                f"{value:.3g}" if isinstance(value, float) else str(value) for value in numbers
            ]
    for by in ("label", "group"):
        shares = shown[[name for name in shown.columns if name.startswith(f"{by} ")]]
        if not len(shares.columns):
            continue
        if len(shares.columns) <= MOST_SHARES:
            for name in shares.columns:
                # a label and a group may have one name
                heading = f"{name} %" if f"{name[6:]} %" in cells else f"{name[6:]} %"
                cells[heading] = [f"{100 * value:.0f}" for value in shares[name]]
        else:
            values, names = shares.to_numpy(), [name[6:] for name in shares.columns]
            cells[f"{by}s"] = [str(count) for count in (values > 0).sum(1)]
            cells[f"most frequent {by}"] = [
                f"{names[row.argmax()]} ({100 * row.max():.0f} %)" for row in values
            ]
    for heading in cells:
        words = heading in ("client", "team") or heading.startswith("most")
        table.add_column(
            escape(heading),
            justify="left" if words else "right",
            no_wrap=heading == "client",
            overflow="fold",
        )
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(escape, row))
    return table
