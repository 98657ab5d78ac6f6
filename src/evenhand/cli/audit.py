"""evenhand audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.cli.options import LEVEL, format_option
from evenhand.cli.terminal import results_console, stopping_cleanly

if TYPE_CHECKING:
    from evenhand.studies.audits.audit import Audit


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
        from evenhand.studies.audits.auditing import audit as judge

        check_formats(formats)
        if not counts and (label is None or prediction is None):
            raise ValueError(
                "give --label COLUMN and --prediction COLUMN, or --counts for a table of counts"
            )
        frame = read_table(table)
        columns = (label, prediction, client, list(groups) or None)
        judged = judge(frame, *columns, counts=counts, positive=positive, **settings)
        if out is not None:
            write_tables(out, judged.tables(), formats)
        if as_json:
            click.echo(json_text(_numbers(judged)))
        elif not quiet:
            console = results_console()
            left_out = len(frame) - int(judged.counts.table.sum())
            if not counts and left_out:
                console.print(
                    f"{left_out} of {len(frame)} rows have no label and are left out",
                    highlight=False,
                )
            judged.show(console)
            if out is not None:
                console.print(f"Tables are in {out}", highlight=False, markup=False, soft_wrap=True)


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
