"""evenhand reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenhand.cli.progress import bars
from evenhand.cli.terminal import WITH_INTERVALS, results_console, stopping_cleanly

if TYPE_CHECKING:
    from evenhand.papers.experiment import Part
    from evenhand.papers.outcome import Outcome

LIST = "list"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--quick", is_flag=True, help="Use a smaller budget, which takes minutes on two CPU cores."
)
@click.option(
    "--data-at-hand",
    is_flag=True,
    help="Run only experiments whose data, or a substitute, are on this machine.",
)
@click.option("--show", is_flag=True, help="Print existing results without running anything.")
@click.option(
    "--again", is_flag=True, help="Also repeat experiments that already have a result in --out."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs") / "reproduce",
    show_default=True,
    help="Directory for runs; its folder results/ gets a JSON file per experiment.",
)
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    help="A different directory for the JSON files.",
)
@click.option(
    "--merge",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="First import the JSON files in this directory, made on another machine.",
)
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an HTML report with all results and the papers' figures, redrawn.",
)
@click.option(
    "--markdown",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results as Markdown.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
def reproduce(
    names: tuple[str, ...],
    quick: bool,
    data_at_hand: bool,
    show: bool,
    again: bool,
    out: Path,
    results: Path | None,
    merge: Path | None,
    device: str,
    html: Path | None,
    markdown: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Repeat a published experiment, and print the paper's results next to ours.

    NAME is a table or figure (fafl-table1, gifair-figure4), a part of one
    (propfair-table6:shakespeare), a paper (propfair) or all. Finished experiments in --out are not
    run again, so after an interruption, run the same command again.

    \b
    Examples:
      evenhand reproduce list                 what there is, whether the data are here, how long
      evenhand reproduce list fafl-table1     what the paper states and leaves open
      evenhand reproduce fafl-table1 --quick
      evenhand reproduce all --show --html papers.html
    """
    with stopping_cleanly(quiet):
        from evenhand.errors import DataError
        from evenhand.files import json_text, write_atomic
        from evenhand.papers.availability import MISSING, data_for
        from evenhand.papers.experiment import ALL, find_parts
        from evenhand.papers.reproduction import RESULTS, Reproduction, found, outcomes
        from evenhand.papers.results import merge as take_over
        from evenhand.papers.tables import show as print_outcome

        folder = results or out / RESULTS
        console = results_console(quiet or as_json, WITH_INTERVALS)
        if merge is not None:
            _report_merge(*take_over(merge, folder), quiet)
        listing = not names or LIST in names
        if listing and merge is not None and not names:
            return
        parts = find_parts([name for name in names if name != LIST] or [ALL])
        if data_at_hand:
            home = {part.title: find_parts([part.home])[0] for part in parts}
            parts = [part for part in parts if data_for(home[part.title]).kind != MISSING]
            if not parts:
                raise DataError(
                    "no data of these experiments are on this machine; leave out --data-at-hand"
                )
        if listing or show:
            told = found(parts, [folder] if folder.is_dir() else [], True if quick else None)
        else:
            told = []
            running = outcomes(
                parts,
                out,
                results=folder,
                quick=quick,
                device=device,
                again=again,
                watch=lambda spec: bars(spec, quiet),
                before=lambda part: _announce(part, quiet or as_json),
            )
            for outcome in running:
                told.append(outcome)
                print_outcome(console, outcome)
        if listing:
            _print_list(told, as_json, details=len(names) > 1)
            return
        if show:
            for outcome in told:
                print_outcome(console, outcome)
        if as_json:
            click.echo(json_text(Reproduction(tuple(told)).rows()))
        if html is not None:
            from evenhand.papers.page import write_page

            write_page([(one.experiment, one.part, one.result) for one in told], html)
            console.print(f"Report: {html}", highlight=False)
        if markdown is not None:
            from evenhand.papers.markdown import document

            write_atomic(markdown, document(told).encode())
        if not any(outcome.result for outcome in told):
            raise click.exceptions.Exit(1)


def _announce(part: Part, quiet: bool) -> None:
    if not quiet:
        note = f" ({part.note})" if part.note else ""
        click.echo(f"Running {part.title}{note}", err=True)


def _report_merge(new: list[str], other: list[str], quiet: bool) -> None:
    """Print what was imported, and what was not."""
    if not quiet:
        click.echo(f"{len(new)} results imported", err=True)
    for name in other:
        click.echo(
            f"warning: kept the existing {name}, whose results or settings differ; to import the"
            " other one, delete it and merge again",
            err=True,
        )


def _print_list(outcomes: list[Outcome], as_json: bool, details: bool) -> None:
    from itertools import groupby

    from evenhand.files import json_text
    from evenhand.papers.availability import data_for
    from evenhand.papers.experiment import find_parts
    from evenhand.papers.tables import LEGEND, brief, describe, list_table

    if as_json:
        click.echo(
            json_text(
                [
                    {
                        "name": one.part.title,
                        "paper": one.experiment.paper.title,
                        "number": one.experiment.number,
                        "about": one.part.about or one.experiment.about,
                        "stated": one.part.stated,
                        "unknown": one.part.unknown,
                        "data": data_for(find_parts([one.part.home])[0])._asdict(),
                        "time": one.part.time,
                        "seeds": one.part.seeds,
                        "result": brief(one),
                    }
                    for one in outcomes
                ]
            )
        )
        return
    console = results_console(width=WITH_INTERVALS)
    known = [
        (experiment, list(parts))
        for experiment, parts in groupby(outcomes, key=lambda outcome: outcome.experiment)
    ]
    console.print(list_table(known))
    console.print(LEGEND, highlight=False, soft_wrap=True)
    if not details:
        console.print(
            "To see what a paper states and leaves open: evenhand reproduce list NAME",
            highlight=False,
            soft_wrap=True,
        )
        return
    for experiment, parts in known:
        console.print(describe(experiment, parts), highlight=False)
