"""evenhand sweep."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from evenhand.studies.specs.spec import Spec


@click.command()
@spec_options(
    "Do not add local-only training. FedAvg is always added.",
    methods=("-a", "--algorithm", "--method"),
    about_methods="FedAvg and local-only training are added as references.",
    about_seed="The first seed.",
)
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="KEY=VALUE,...",
    help=(
        "Values of a hyper-parameter; repeat to try all combinations. Examples: --grid q=0.1,1,5,"
        " --grid local.lr=log:0.01:1:5 (five values, evenly spaced on a log scale), lin:0:1:5"
        " (evenly spaced). With several methods: --grid qffl.q=0.1,1."
    ),
)
@click.option(
    "--rule",
    type=click.Choice(["qffl", "worst10", "min", "std", "mean"]),
    help=(
        "How to choose a point on validation data. qffl: the lowest variance over clients among"
        " points whose mean is not below FedAvg's; others: the best value of that metric. "
        " [default: the spec's, or qffl]"
    ),
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help=(
        "How far a point's mean may fall below FedAvg's, in percentage points or in the label's"
        " unit.  [default: 0 for qffl, else no limit]"
    ),
)
@seed_options
@view_options
def sweep(
    spec: Path | None,
    out: Path | None,
    no_reference: bool,
    quiet: bool,
    grids: tuple[str, ...],
    rule: str | None,
    tolerance: float | None,
    seeds: str | None,
    resplit: bool | None,
    validation: float | None,
    view: View,
    **options: Any,
) -> None:
    """Try a grid of hyper-parameters and choose the best on validation data.

    SPEC is a TOML file, as for evenhand run. Every point of the grid is trained with every seed. A
    rule chooses one point on validation data, which is then compared with FedAvg on test data.

    Prints the choice and a short table. The directory runs/NAME gets the report and the tables;
    sweep.csv has a row for every point.

    \b
    Examples:
      evenhand sweep --method qffl --grid q=0.01,0.1,1,5
      evenhand sweep --method qffl --grid q=0.1,1,5 --rule worst10 --tolerance 1
      evenhand sweep --method afl --grid lr_lambda=log:0.01:1:5 --grid local.lr=0.1,1
    """
    with stopping_cleanly(quiet) as begun:
        from evenhand.errors import SpecError
        from evenhand.studies.runs.comparing import check_comparison

        plan = with_seeds(planned(spec, **options), seeds, resplit, validation)
        given: dict[str, Any] = {"rule": rule, "tolerance": tolerance}
        select = (
            {"rule": "qffl"}
            | plan.select
            | {key: value for key, value in given.items() if value is not None}
        )
        plan = dataclasses.replace(_with_points(plan, grids, no_reference), select=select, tune={})
        check_view(plan, view)
        if validation == 0:
            raise SpecError(
                "a sweep needs validation data; give --validation a share above 0, or leave it out"
            )
        ready = check_comparison(plan)  # before a directory is made
        if ready.spec.validation != plan.validation and not (quiet or view.as_json):
            share = f"{ready.spec.validation:.0%}"
            click.echo(
                f"The data have no validation split, so {share} of each client's training samples"
                " are used for validation."
            )
        with begin(ready, out) as begun.directory:
            carry_out(ready, begun.directory, quiet, view)


def _with_points(plan: Spec, grids: tuple[str, ...], no_reference: bool) -> Spec:
    """The spec with the references and the points of the grid as its methods."""
    from evenhand.errors import SpecError
    from evenhand.studies.specs.grid import parse_axis, swept
    from evenhand.studies.specs.spec import REFERENCES

    if grids and any(method.name == "auto" for method in plan.methods):
        raise SpecError("a grid needs a method; give it with --method NAME, such as --method qffl")
    if not grids and not plan.select:
        raise SpecError(
            "a sweep needs values to try; give --grid KEY=VALUE,VALUE, such as --method qffl --grid"
            " q=0.1,1,5"
        )
    axes = [parse_axis(text) for text in grids]
    return swept(plan, axes, () if no_reference else REFERENCES)
