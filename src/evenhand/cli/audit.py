"""evenhand audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evenhand.cli.options import LEVEL, format_option
from evenhand.cli.terminal import results_console, stopping_cleanly


@click.command()
@click.argument("table", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--client",
    metavar="COLUMN",
    help=("The column with the name of the client; without it, all rows belong to one client."),
)
@click.option(
    "--label",
    metavar="COLUMN",
    help='The column with the true label, or a condition on one: "stage > 2".',
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
    help="A column with a demographic group; repeat for several and their combinations.",
)
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="GROUP",
    help=(
        "Compare every group with this one; repeat for several group columns.  [default: compare"
        " all pairs, and ratios with the highest rate]"
    ),
)
@click.option(
    "--score",
    metavar="COLUMN",
    help=(
        "A column with scores of the positive label, for AUC, calibration and thresholds. Without"
        " --prediction, the scores make the predictions."
    ),
)
@click.option(
    "--threshold",
    type=float,
    help="Predict the positive label at this score or above.  [default: 0.5]",
)
@click.option(
    "--thresholds",
    metavar="LIST",
    help=(
        "Print gaps at these thresholds, such as 0.3,0.5,0.7.  [default: only in --out, 0.05 to"
        " 0.95]"
    ),
)
@click.option(
    "--weight",
    metavar="COLUMN",
    help="A column with sample weights; intervals use Kish's effective sample size.",
)
@click.option(
    "--counts",
    is_flag=True,
    help=(
        "FILE is a table of counts, with the columns label, prediction and count, and optionally"
        " client and group."
    ),
)
@click.option(
    "--positive",
    metavar="LABEL",
    help=(
        "The label that rates, and the scores of --score, are about.  [default: the second of two]"
    ),
)
@click.option(
    "--over",
    type=click.Choice(["samples", "clients", "both"]),
    default="samples",
    show_default=True,
    help="What intervals allow for: other samples, other clients, or both.",
)
@LEVEL
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Bootstrap draws for the intervals.",
)
@click.option(
    "--least",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help=(
        "Mark rates with fewer samples in the denominator, and exclude these groups from"
        " comparisons of the rate."
    ),
)
@click.option(
    "--suppress",
    is_flag=True,
    help="Exclude clients and groups with fewer samples instead of marking them.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draws."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write tables (rates, gaps, pairs, ratios, counts, ...) and provenance.json here.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an HTML report that needs no network.",
)
@format_option("in --out")
@click.option(
    "--json", "as_json", is_flag=True, help="Print all results as JSON, and nothing else."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors, and JSON with --json.")
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
    """Audit the predictions of any system, by client and by group.

    FILE is a CSV or Parquet table with one row per sample: its true label, the prediction, and
    optionally its client and group. Nothing is trained. With --counts, FILE holds counts instead of
    samples.

    \b
    Examples:
      evenhand audit predictions.csv --label ill --prediction predicted --group sex
      evenhand audit scores.csv --client hospital --label ill --score risk --group sex
      evenhand audit predictions.csv --label ill --prediction "score >= 5" --html audit.html
      evenhand audit counts.csv --counts --json
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
            for path, what in ((page, "Report"), (out, "Tables")):
                if path is not None:
                    console.print(f"{what}: {path}", highlight=False, markup=False, soft_wrap=True)


def _alone(names: tuple[str, ...]) -> str | list[str] | None:
    """None, one name, or a list of several."""
    return (names[0] if len(names) == 1 else list(names)) if names else None


def _listed(text: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--thresholds takes numbers separated by commas, such as 0.3,0.5, got {text!r}"
        ) from None
