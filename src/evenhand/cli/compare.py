"""evenhand compare."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from evenhand.cli.planning import planned, spec_options
from evenhand.cli.terminal import stopping_cleanly
from evenhand.cli.view import (
    View,
    begin,
    carry_out,
    check_view,
    seed_options,
    view_options,
    with_seeds,
)


@click.command()
@spec_options(
    "Do not add FedAvg and local-only training as references.",
    about_methods="FedAvg and local-only training are added as references.",
    about_seed="The first seed.",
)
@seed_options
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    help=(
        "Cross-validation: split each client's samples into this many folds and test on each fold"
        " once. For small tables."
    ),
)
@click.option(
    "--tune",
    is_flag=True,
    help=(
        "First choose each method's step size and fairness hyper-parameter on validation data, with"
        " the same number of settings for every method. Then compare on test data."
    ),
)
@click.option(
    "--rule",
    type=click.Choice(["mean", "worst10", "min"]),
    help="With --tune: the metric across clients to choose settings by.  [default: mean]",
)
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="KEY=VALUE,...",
    help=(
        "With --tune: the values to try instead of the default ones; repeat for several. Examples:"
        " --grid local.lr=0.01,0.1,1 --grid qffl.q=0.5,2."
    ),
)
@view_options
def compare(
    spec: Path | None,
    out: Path | None,
    no_reference: bool,
    quiet: bool,
    seeds: str | None,
    resplit: bool | None,
    validation: float | None,
    folds: int | None,
    tune: bool,
    rule: str | None,
    grids: tuple[str, ...],
    view: View,
    **options: Any,
) -> None:
    """Compare methods over several seeds, with confidence intervals.

    SPEC is a TOML file, as for evenhand run; without it, the same example is used. Every method is
    trained with every seed, and FedAvg and local-only training are added as references.

    Prints the answer and a short table. The directory runs/NAME gets the report, tables over all
    seeds, and a run directory for each seed.

    \b
    Examples:
      evenhand compare --seeds 5
      evenhand compare --data adult --group sex -a qffl -a afl --seeds 5 --tune
      evenhand compare --data patients.csv --client hospital --label disease --folds 5
      evenhand compare runs/digits/spec.toml --tune --grid local.lr=0.1,0.3,1
    """
    with stopping_cleanly(quiet) as begun:
        from evenhand.studies.runs.comparing import check_comparison
        from evenhand.studies.runs.tuning import plan_tuning

        plan = dataclasses.replace(
            with_seeds(planned(spec, **options), seeds, resplit, validation, folds), select={}
        )
        plan = dataclasses.replace(plan, tune=_tuning(plan.tune, tune, rule, grids))
        check_view(plan, view)
        # before it makes a directory
        ready = check_comparison(plan, () if no_reference else ("fedavg", "localonly"))
        tuning = plan_tuning(ready) if plan.tune else None
        with begin(ready, out) as begun.directory:
            carry_out(ready, begun.directory, quiet, view, tuning)


def _tuning(
    known: dict[str, Any], tune: bool, rule: str | None, grids: tuple[str, ...]
) -> dict[str, Any]:
    """The [tune] table of a spec, with these options."""
    from evenhand.errors import SpecError
    from evenhand.studies.specs.grid import parse_axis

    if not tune and not known:
        if rule or grids:
            option = f"--rule {rule}" if rule else f"--grid {grids[0]}"
            raise SpecError(f"{option} needs --tune; add it")
        return {}
    axes = [parse_axis(text) for text in grids]
    grid = {**known.get("grid", {}), **{axis.key: list(axis.values) for axis in axes}}
    chosen = {"rule": rule or known.get("rule", "mean")}
    return chosen | ({"grid": grid} if grid else {})
