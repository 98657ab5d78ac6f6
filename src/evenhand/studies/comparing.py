"""A comparison on disk: the same methods, trained with several seeds.

runs/digits/
  spec.toml        what was asked for, with its seeds
  seed-0/          the run of a seed: see rundir
  seed-1/
  comparison.csv   tables of all seeds together, and others like it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from evenhand import files
from evenhand.engines import processes
from evenhand.errors import RunError, SpecError
from evenhand.studies.directories import Ready, check, execute, execute_together, pays
from evenhand.studies.spec import Spec
from evenhand.training.fit import Progress

# share of the training samples that a sweep sets aside where the data have no validation part
VALIDATION = 0.2


class Planned(NamedTuple):
    """A comparison that was found to work; nothing in it is left to choose."""

    spec: Spec
    first: Ready  # the run of the first seed


def check_comparison(spec: Spec, references: Sequence[str] = ()) -> Planned:
    """Build data and model of the first seed and check every method against them; raises before
    anything is written or trained.

    ``references``: methods to add where they are missing. A sweep whose data have no validation
    part gets one.
    """
    if not spec.seeds:
        raise SpecError("a comparison needs seeds, such as seeds = [0, 1, 2]")
    first = check(spec.for_seed(spec.seeds[0]))
    federation = first.federation
    settled = spec.settled(first.federation).with_reference(*references)
    if settled.select and _without_validation(first):
        settled = dataclasses.replace(settled, validation=settled.validation or VALIDATION)
        federation = federation.with_validation(settled.validation, first.spec.data_seed)
    first = check(settled.for_seed(spec.seeds[0]), federation)
    if settled.select and _without_validation(first):
        share = settled.validation
        raise SpecError(
            f"no client has enough training samples to set {share:g} of them aside to choose by;"
            " give a larger validation"
        )
    return Planned(settled, first)


def _without_validation(ready: Ready) -> bool:
    return ready.federation.val is None or not len(ready.federation.val.x)


def execute_comparison(planned: Planned, directory: Path, watch: Callable[..., Progress]) -> None:
    """Run, or go on with, every seed of a comparison in ``directory``, runs that are alike together
    where that is faster.

    ``watch(seed, method)`` gives what is called after every round of a run. For several runs
    together it is asked once, with the first of them, their number as ``together``, and the number
    of runs that are done as ``finished``.
    """
    spec, first = planned
    claim(spec, directory)
    together = pays(first)

    def ready(seed: int) -> Ready:  # data are read once where all seeds share them
        return (
            first
            if seed == first.spec.seed
            else check(spec.for_seed(seed), None if spec.resplit else first.federation)
        )

    for seeds in (
        [[seed] for seed in spec.seeds] if spec.resplit or not together else [list(spec.seeds)]
    ):
        places = [(ready(seed), directory / f"seed-{seed}") for seed in seeds]
        if together:
            execute_together(places, watch, spec.seeds.index(seeds[0]) * len(spec.methods))
        else:
            execute(*places[0], partial(watch, seeds[0]))


@processes.on_first
def claim(spec: Spec, directory: Path) -> None:
    """Write what the comparison is about; refuse a directory that is about something else.

    The runs of the seeds refuse other settings themselves, so seeds can be added to spec.toml, and
    another rule to choose by.
    """
    path, text = directory / "spec.toml", spec.to_toml()
    files.clear_partial(directory, (path.name,))
    if path.exists() and Spec.load(path) != spec:
        raise RunError(
            f"{directory} was begun with other settings; run the changed spec in a directory of"
            " its own"
        )
    files.write_atomic(path, text.encode())
