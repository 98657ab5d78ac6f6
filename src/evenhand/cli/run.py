"""evenhand run and evenhand resume."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.cli.planning import planned, spec_options
from evenhand.cli.terminal import stopping_cleanly
from evenhand.cli.view import View, carry_out, carry_out_run, check_view, view_options

if TYPE_CHECKING:
    from evenhand.studies.specs.spec import Spec


@click.command()
@spec_options(
    "Do not add FedAvg to the methods given with --algorithm.",
    about_methods="FedAvg is added as the reference.",
    about_seed="Seed for the data split, initial model, cohorts and batch orders.",
)
@view_options
def run(
    spec: Path | None,
    out: Path | None,
    no_reference: bool,
    quiet: bool,
    view: View,
    **options: Any,
) -> None:
    """Train with one or more methods and compare them with FedAvg.

    SPEC is a TOML file; options override it. Without SPEC and --data, FedAvg and four fair methods
    train on an example: scikit-learn's digits, spread unfairly over 20 clients.

    Prints the answer and a short table. The run directory, runs/NAME, gets the report (HTML),
    tables (CSV), models (safetensors) and the spec.

    \b
    Examples:
      evenhand run
      evenhand run --open
      evenhand run --data patients.csv --client hospital --label disease --group sex
      evenhand run --data adult --group sex -a qffl:q=2 -a afl --rounds 100
      evenhand run my-spec.toml --seed 3
    """
    with stopping_cleanly(quiet) as begun:
        from evenhand.studies.runs.directories import new_directory
        from evenhand.studies.runs.executing import check

        plan = planned(spec, **options)
        check_view(dataclasses.replace(plan, seeds=(), resplit=False), view)
        if options["algorithms"] and not no_reference:
            plan = plan.with_reference("fedavg")
        ready = check(_one_run(plan, options["seed"]))  # before it makes a directory
        with new_directory(out or Path("runs") / plan.name, out is None) as begun.directory:
            carry_out_run(ready, begun.directory, quiet, view)


def _one_run(plan: Spec, seed: int | None) -> Spec:
    """The single run of a spec; of a comparison, the run with ``seed``."""
    from evenhand.errors import SpecError

    if plan.seeds and seed is None:
        raise SpecError(
            f"the spec lists seeds {list(plan.seeds)}; train all of them with evenhand compare, or"
            " one of them with --seed"
        )
    return plan.for_seed(plan.seed)


@click.command()
@click.argument(
    "directory", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@view_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def resume(directory: Path, quiet: bool, view: View) -> None:
    """Resume an interrupted run, comparison or sweep.

    RUN is its directory. The results are byte for byte those of an uninterrupted run.

    \b
    Examples:
      evenhand resume runs/digits
      evenhand resume runs/digits --open
    """
    with stopping_cleanly(quiet) as begun:
        from evenhand.engines import processes
        from evenhand.studies.runs.comparing import check_comparison
        from evenhand.studies.runs.directories import load_spec
        from evenhand.studies.runs.executing import check
        from evenhand.studies.runs.tuning import plan_tuning
        from evenhand.training.places import alone

        with alone(directory):
            spec = processes.from_first(lambda: load_spec(directory), "the spec")
            begun.directory = directory
            check_view(spec, view)
            if spec.seeds:
                ready = check_comparison(spec)
                tuning = plan_tuning(ready) if spec.tune else None
                carry_out(ready, directory, quiet, view, tuning)
            else:
                carry_out_run(check(spec), directory, quiet, view)
