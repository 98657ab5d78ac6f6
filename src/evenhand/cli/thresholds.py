"""evenhand thresholds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from evenhand.cli.terminal import stopping_cleanly
from evenhand.errors import plain, unknown

NOTIONS = (
    *("equalised-odds", "equal-opportunity", "demographic-parity", "false-positive-parity"),
    *("accuracy-parity", "accuracy"),
)


def _notion(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """A notion in any spelling."""
    known = {plain(name): name for name in NOTIONS}
    if plain(value) not in known:
        raise click.BadParameter(unknown("notion", value, NOTIONS))
    return known[plain(value)]


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="LABEL",
    help="A method of the run; repeat for several.  [default: all]",
)
@click.option(
    "--notion",
    metavar=f"[{'|'.join(NOTIONS)}]",
    callback=_notion,
    default="equalised-odds",
    show_default=True,
    help=(
        "What is to be alike: true- and false-positive rates (equalised-odds), true-positive rates"
        " (equal-opportunity), selection rates (demographic-parity), false-positive rates or"
        " accuracies. accuracy looks for the most accurate thresholds only."
    ),
)
@click.option(
    "--bound",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="How far rates may be apart: 0.05 for 5 percentage points.",
)
@click.option(
    "--by",
    type=click.Choice(["group", "client"]),
    default="group",
    show_default=True,
    help="A threshold for each group, or for each client.",
)
@click.option(
    "--common", is_flag=True, help="One threshold for everyone, which needs no group to decide."
)
@click.option(
    "--least",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Groups with fewer samples for a rate keep the threshold 0.5.",
)
@click.option(
    "--no-save",
    "save",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Only print; do not write thresholds.json.",
)
@click.option(
    "--remove",
    is_flag=True,
    help="Delete saved thresholds instead; predictions then compare with 0.5.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the thresholds as JSON, and nothing else."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors, and JSON with --json.")
@click.pass_context
def thresholds(
    context: click.Context,
    /,
    run: Path,
    methods: tuple[str, ...],
    save: bool,
    remove: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Find thresholds that treat groups alike, and what they cost in accuracy.

    RUN is the directory of a run, comparison or sweep with two classes. No training and no data are
    needed: a run keeps the score histograms of its validation data, or of its training data without
    any. Thresholds are written to thresholds.json next to the model.

    Thresholds that differ by group are not allowed everywhere; --common finds one for everyone.

    \b
    Examples:
      evenhand thresholds runs/patients --notion equal-opportunity --bound 0.02
      evenhand thresholds runs/patients --method fedavg --common
      evenhand thresholds runs/patients --remove
    """
    with stopping_cleanly(quiet):
        import json

        from evenhand.studies.runs import deciding
        from evenhand.studies.runs.deciding import decide, lines

        if remove:
            _refuse_others(context)
            gone = deciding.remove(run, methods)
            if not quiet:
                click.echo(_removed(gone))
            return
        found = decide(run, methods, save, **options)
        if as_json:
            rows = [
                {
                    "method": trial.method.label,
                    "seed": trial.seed,
                    "thresholds": json.loads(one.to_json()),
                }
                for trial, one in found
            ]
            click.echo(json.dumps(rows, indent=2))
        elif not quiet:
            for line in lines(found):
                click.echo(line)
            if save:
                many = f" ({len(found)} files)" if len(found) > 1 else ""
                click.echo(f"\nThresholds: {found[0][0].folder / 'thresholds.json'}{many}")
                click.echo(f"Undo:       evenhand thresholds {shlex.quote(str(run))} --remove")


def _refuse_others(context: click.Context) -> None:
    """Raise if options to find thresholds are given with --remove."""
    given = click.core.ParameterSource.COMMANDLINE
    for parameter in context.command.params:
        name = str(parameter.name)
        here = context.get_parameter_source(name) == given
        if here and name not in ("run", "methods", "remove", "quiet"):
            raise click.UsageError(f"--remove only deletes; drop {parameter.opts[0]}")


def _removed(files: Sequence[Path]) -> str:
    if not files:
        return "There are no thresholds to remove; predictions compare with 0.5 already."
    listed = "".join(f"\n  {path}" for path in files)
    return f"Predictions compare with 0.5 again. Removed:{listed}"
