"""evenhand audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.cli.terminal import results_console, stopping_cleanly
from evenhand.cli.view import LEVEL, format_option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from evenhand.metrics.uncertainty import Interval
    from evenhand.studies.audit import Audit

MOST_ROWS = 40  # a table of more is no longer read
SHORT = {
    "selection rate": "selected",
    "true-positive rate": "TPR",
    "false-positive rate": "FPR",
    "precision": "precision",
}
SHOWN = {
    "mean": "mean over clients",
    "pooled": "over all samples",
    "worst10": "worst 10 % of clients",
    "min": "worst client",
    "std": "std",
}


@click.command()
@click.argument("table", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--client",
    metavar="COLUMN",
    help=(
        "The column that says which client a row belongs to; without it, all rows are one client's."
    ),
)
@click.option(
    "--label", metavar="COLUMN", help="The column with the true label, or a condition on one."
)
@click.option(
    "--prediction",
    metavar="COLUMN",
    help='The column with the prediction, or a condition on one: "score >= 5".',
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="COLUMN",
    help="A column with a demographic group; repeat for intersections.",
)
@click.option(
    "--counts",
    is_flag=True,
    help=(
        "FILE holds counts: columns label, prediction, count and, where there are any, client and"
        " group."
    ),
)
@click.option(
    "--positive",
    metavar="LABEL",
    help="The label that rates are about.  [default: the last of two]",
)
@click.option(
    "--over",
    type=click.Choice(["samples", "clients", "both"]),
    default="samples",
    show_default=True,
    help="What intervals are over.",
)
@LEVEL
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Of samples or clients, for the intervals.",
)
@click.option(
    "--least",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Mark clients and groups with fewer samples, and leave such groups out of gaps.",
)
@click.option(
    "--suppress",
    is_flag=True,
    help="Leave clients and groups with fewer samples out instead of marking them.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the draws."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write tables clients, groups, summary and counts there.",
)
@format_option("--out writes")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option(
    "--quiet", is_flag=True, help="Print nothing but errors, and JSON where it is asked for."
)
def audit(
    table: Path,
    client: str | None,
    label: str | None,
    prediction: str | None,
    groups: tuple[str, ...],
    counts: bool,
    positive: str | None,
    out: Path | None,
    formats: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Who is served how well by predictions that are there already.

    FILE is a CSV or Parquet table with a row for each sample: its label, what some system
    predicted, and whose it is. Or, with --counts, a table of counts: the same numbers come out.
    """
    with stopping_cleanly(quiet):
        from evenhand.data.tables.files import read_table
        from evenhand.files import check_formats, json_text, write_tables
        from evenhand.studies.audit import Audit, count_predictions, read_counts

        check_formats(formats)
        frame = read_table(table)
        if counts:
            found = read_counts(frame)
        elif label is None or prediction is None:
            raise ValueError(
                "give --label COLUMN and --prediction COLUMN, or --counts for a table of counts"
            )
        else:
            found = count_predictions(frame, label, prediction, client, list(groups) or None)
        judged = Audit(found, positive, **settings)
        if out is not None:
            write_tables(out, _tables(judged), formats)
        if as_json:
            click.echo(json_text(_numbers(judged)))
        elif not quiet:
            console = results_console()
            if not counts and len(frame) > judged.counts.table.sum():
                left_out = len(frame) - int(judged.counts.table.sum())
                console.print(
                    f"{left_out} of {len(frame)} rows have no label and are left out",
                    highlight=False,
                )
            _show(console, judged)
            if out is not None:
                console.print(f"Tables are in {out}", highlight=False, markup=False, soft_wrap=True)


def _show(console: Console, judged: Audit) -> None:
    from rich.markup import escape

    counts, clients = judged.counts, judged.clients()
    total, missing = int(counts.table.sum()), int(counts.table[..., -1].sum())
    none = f", {missing} without a prediction" if missing else ""
    held = f"; {len(clients)} clients" if len(clients) > 1 else ""
    what = "clients and samples" if judged.over == "both" else judged.over
    about = f"labels {', '.join(counts.labels)}; {judged.level:.0%} intervals over {what}"
    console.print(f"{total} samples{none}{held}; {about}", highlight=False, markup=False)
    across = judged.across_clients()
    shown = {
        heading: across[name]
        for name, heading in SHOWN.items()
        if len(clients) > 1 or name == "pooled"
    }
    console.print(_table("Accuracy, %", ("", "accuracy", "interval"), _interval_cells(shown)))
    if any(_outside(value) for value in shown.values()):
        console.print(
            "* Clients with few samples look more different than they are; the interval makes up"
            " for that.",
            highlight=False,
        )
    for title, rows in (("client", clients), ("group", judged.groups())):
        if len(rows) < 2:
            continue
        if len(rows) > MOST_ROWS:
            console.print(
                f"{len(rows)} {title}s are too many for a table; --out writes them all",
                highlight=False,
            )
            continue
        extra = [
            name
            for name in rows[0]
            if name not in ("name", "samples", "accuracy", "low", "high", "small")
        ]
        cells = [
            [
                escape(row["name"]),
                (
                    f"< {judged.least}"
                    if row["samples"] is None
                    else str(row["samples"]) + (" (few)" if row["small"] else "")
                ),
                _share(row["accuracy"]),
                f"{_share(row['low'])} to {_share(row['high'])}",
                *(_share(row[name]) for name in extra),
            ]
            for row in rows
        ]
        about = (
            f"; rates of label {escape(counts.labels[judged.code])}"
            if extra and judged.code is not None
            else ""
        )
        headings = (title, "samples", "accuracy", "interval", *(SHORT[name] for name in extra))
        console.print(_table(f"By {title}, %{about}", headings, cells))
    hidden = sum(row["samples"] is None for row in clients)
    if hidden:
        text = (
            f"Clients with fewer than {judged.least} samples: {hidden}. Their numbers are"
            " suppressed, and left out across clients."
        )
        console.print(text, highlight=False)
    gaps = judged.across_groups()
    if gaps:
        console.print(
            _table("Gaps between groups, points", ("", "gap", "interval"), _interval_cells(gaps))
        )
        few = [row["name"] for row in judged.groups() if row["small"]]
        if few:
            text = (
                f"Gaps leave out groups with fewer than {judged.least} samples: {', '.join(few)}."
            )
            console.print(text, highlight=False, markup=False)


def _table(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, title_justify="left", padding=(0, 0, 0, 1))
    for place, heading in enumerate(headings):
        table.add_column(
            heading, justify="right" if place else "left", no_wrap=not place, overflow="fold"
        )
    for row in cells:
        table.add_row(*row)
    return table


def _interval_cells(values: Mapping[str, Interval]) -> list[list[str]]:
    return [
        [
            name,
            _share(value.value),
            f"{_share(value.low)} to {_share(value.high)}{'*' * _outside(value)}",
        ]
        for name, value in values.items()
    ]


def _outside(value: Interval) -> bool:
    return bool(value.value < value.low or value.value > value.high)


def _share(value: float | None) -> str:
    return "-" if value is None or value != value else f"{100 * value:.1f}"


def _numbers(judged: Audit) -> dict[str, Any]:
    return {
        "samples": int(judged.counts.table.sum()),
        "labels": list(judged.counts.labels),
        "positive": None if judged.code is None else judged.counts.labels[judged.code],
        "across_clients": {
            name: value._asdict() for name, value in judged.across_clients().items()
        },
        "across_groups": {name: value._asdict() for name, value in judged.across_groups().items()},
        "clients": judged.clients(),
        "groups": judged.groups() if len(judged.counts.groups) > 1 else [],
    }


def _tables(judged: Audit) -> dict[str, list[dict[str, Any]]]:
    kinds = {"clients": judged.across_clients(), "groups": judged.across_groups()}
    summary = [
        {"across": kind, "measure": name, **value._asdict()}
        for kind, values in kinds.items()
        for name, value in values.items()
    ]
    return {
        "clients": judged.clients(),
        "groups": judged.groups(),
        "summary": summary,
        "counts": judged.count_rows(),
    }
