"""evenhand audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evenhand.cli.options import LEVEL, examples, format_option
from evenhand.cli.terminal import results_console, stopping_cleanly


@click.command(
    epilog=examples(
        "evenhand audit scored.csv --client branch --label repaid --prediction approved --group sex"
    )
)
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
    help="A column with a demographic group; repeat to look at each and at their combinations.",
)
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="GROUP",
    help=(
        "Compare every group with this one; repeat for several group columns.  [default: all pairs;"
        " ratios to the highest rate]"
    ),
)
@click.option(
    "--score",
    metavar="COLUMN",
    help=(
        "A column with scores of the positive label, for AUC, calibration and thresholds; makes the"
        " predictions where there is no --prediction."
    ),
)
@click.option(
    "--threshold",
    type=float,
    help="Predict the positive label from this score on.  [default: 0.5]",
)
@click.option(
    "--thresholds",
    metavar="LIST",
    help="Print gaps at these thresholds: 0.3,0.5,0.7.  [default, in --out: 0.05 to 0.95]",
)
@click.option(
    "--weight",
    metavar="COLUMN",
    help="A column with sample weights; intervals take Kish's effective sample size.",
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
    help=(
        "Mark rates with fewer samples in the denominator, and leave such groups out of their"
        " comparisons."
    ),
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
    help="Write tables (rates, gaps, pairs, ratios, counts, ...) and provenance.json there.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page that opens without a network.",
)
@format_option("--out writes")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option(
    "--quiet", is_flag=True, help="Print nothing but errors, and JSON where it is asked for."
)
def audit(
    table: Path,
    groups: tuple[str, ...],
    references: tuple[str, ...],
    counts: bool,
    thresholds: str | None,
    out: Path | None,
    page: Path | None,
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
        from evenhand.files import check_formats, json_text
        from evenhand.studies.audits.audit import WIDTH
        from evenhand.studies.audits.auditing import audit as judge

        check_formats(formats)
        if not counts and (
            settings["label"] is None
            or (settings["prediction"] is None and settings["score"] is None)
        ):
            raise ValueError(
                "give --label COLUMN and --prediction COLUMN (or --score COLUMN), or --counts for a"
                " table of counts"
            )
        judged = judge(
            table,
            group=_alone(groups),
            reference=_alone(references),
            counts=counts,
            thresholds=None if thresholds is None else _listed(thresholds),
            **settings,
        )
        if out is not None:
            judged.save(out, formats)
        if page is not None:
            from evenhand.page.audit import audit_page

            audit_page(judged, page)
        if as_json:
            click.echo(json_text(judged.numbers()))
        elif not quiet:
            console = results_console(width=WIDTH)
            judged.show(console)
            for path, what in ((out, "Tables are in"), (page, "The page is")):
                if path is not None:
                    console.print(f"{what} {path}", highlight=False, markup=False, soft_wrap=True)


def _alone(names: tuple[str, ...]) -> str | list[str] | None:
    """Nothing, one name, or several."""
    return (names[0] if len(names) == 1 else list(names)) if names else None


def _listed(text: str) -> list[float]:
    """Numbers between commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--thresholds takes numbers between commas, such as 0.3,0.5, got {text!r}"
        ) from None
