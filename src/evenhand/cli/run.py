"""evenhand run and evenhand resume."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.cli.options import examples
from evenhand.cli.source import planned, spec_options
from evenhand.cli.terminal import stopping_cleanly
from evenhand.cli.view import View, carry_out, carry_out_run, check_view, view_options

if TYPE_CHECKING:
    from evenhand.studies.specs.spec import Spec


@click.command()
@spec_options(
    "Do not add FedAvg to methods given with --algorithm.",
    about_methods="FedAvg is added as the reference.",
    about_seed="Seed of data split, initial model, cohorts and batch orders.",
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
    """Train with one or several methods and compare them.

    SPEC is a TOML file; without one and without --data, FedAvg and fair methods run on
    scikit-learn's digits, spread unfairly over 20 clients. Options override the spec. Results go to
    runs/NAME: the spec, tables as CSV, models as safetensors.

    Your own table, one row per sample: evenhand run --data patients.csv --client hospital --label
    disease --group sex
    """
    with stopping_cleanly(quiet) as begun:
        from evenhand.studies.runs.directories import new_directory
        from evenhand.studies.runs.executing import check

        plan = planned(spec, **options)
        check_view(dataclasses.replace(plan, seeds=(), resplit=False), view)
        if options["algorithms"] and not no_reference:
            plan = plan.with_reference("fedavg")
        ready = check(_one_run(plan, options["seed"]))  # before a directory is made
        with new_directory(out or Path("runs") / plan.name, out is None) as begun.directory:
            carry_out_run(ready, begun.directory, quiet, view)


def _one_run(plan: Spec, seed: int | None) -> Spec:
    """The run that a spec asks for; of a comparison, the one of ``seed``."""
    from evenhand.errors import SpecError

    if plan.seeds and seed is None:
        raise SpecError(
            f"the spec lists seeds {list(plan.seeds)}; run them all with evenhand compare, or one"
            " of them with --seed"
        )
    return plan.for_seed(plan.seed)


@click.command(epilog=examples("evenhand resume runs/digits"))
@click.argument(
    "directory", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@view_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def resume(directory: Path, quiet: bool, view: View) -> None:
    """Go on with an interrupted run, comparison or sweep.

    RUN is its directory. The outcome is byte for byte that of a run that was never interrupted.
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
