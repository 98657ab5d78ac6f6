"""evenhand compare."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from evenhand.cli.source import planned, spec_options
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
    "Do not add FedAvg and local-only training, which gains and losses are counted against.",
    about_methods="FedAvg and local-only training are added as references.",
    about_seed="The first of the seeds.",
)
@seed_options
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    help=(
        "Cross-validation: split each client's samples into this many folds, and test on each of"
        " them once. For small tables."
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
    view: View,
    **options: Any,
) -> None:
    """Compare methods over several seeds, with intervals.

    SPEC is a TOML file as for evenhand run; without one, the same methods and data as there are
    taken. Every method is trained with every seed. Results go to runs/NAME: a run directory for
    each seed, and tables of all of them.

    evenhand compare --data adult --group sex -a qffl:q=1 -a afl --seeds 5
    """
    with stopping_cleanly(quiet) as begun:
        from evenhand.studies.runs.comparing import check_comparison

        plan = dataclasses.replace(
            with_seeds(planned(spec, **options), seeds, resplit, validation, folds), select={}
        )
        check_view(plan, view)
        # before a directory is made
        ready = check_comparison(plan, () if no_reference else ("fedavg", "localonly"))
        begun.directory = begin(ready, out)
        carry_out(ready, begun.directory, quiet, view)
