"""A comparison on disk: the same methods, trained with several seeds.

runs/digits/
  spec.toml        what was asked for, with its seeds
  seed-0/          the run of a seed: see rundir
  seed-1/
  comparison.csv   tables of all seeds together, and others like it
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from evenhand.errors import SpecError
from evenhand.studies.runs.directories import claim_comparison
from evenhand.studies.runs.executing import (
    Given,
    Ready,
    check,
    execute,
    execute_together,
    pays,
)
from evenhand.studies.specs.spec import Spec
from evenhand.training.fit import Progress
from evenhand.training.places import alone

# share of the training samples that a sweep sets aside where the data have no validation part
VALIDATION = 0.2


class Planned(NamedTuple):
    """A comparison that was found to work; nothing in it is left to choose."""

    spec: Spec
    first: Ready  # the run of the first seed
    given: GivenBySeed


# what a Python program gives for each seed; data that all seeds share are those of the first
GivenBySeed = Callable[[int], Given]


def check_comparison(
    spec: Spec, references: Sequence[str] = (), given: GivenBySeed = lambda seed: Given()
) -> Planned:
    """Build data and model of the first seed and check every method against them; raises before
    anything is written or trained.

    ``references``: methods to add where they are missing. A sweep whose data have no validation
    part gets one.
    """
    if not spec.seeds:
        raise SpecError("a comparison needs seeds, such as seeds = [0, 1, 2]")
    if spec.folds:
        _refuse_folds(spec)
    seed = spec.seeds[0]
    begun = given(seed)
    first = check(spec.for_seed(seed), begun)
    settled = spec.settled(first.federation).with_reference(*references)
    if settled.select and _without_validation(first):
        settled = dataclasses.replace(settled, validation=settled.validation or VALIDATION)
    first = check(settled.for_seed(seed), begun._replace(federation=first.federation))
    if settled.select and _without_validation(first):
        share = settled.validation
        raise SpecError(
            f"no client has enough training samples to set {share:g} of them aside to choose by;"
            " give a larger validation"
        )
    return Planned(settled, first, given)


def _refuse_folds(spec: Spec) -> None:
    """Raise for data that are split in a way of their own."""
    from evenhand.datasets import DATASETS, FORMATS, loader

    name = spec.data.get("name")
    if name in (*DATASETS, *FORMATS) and "split" not in inspect.signature(loader(name)).parameters:
        raise SpecError(f"data set {name} has a split of its own, and no folds; leave out folds")


def _without_validation(ready: Ready) -> bool:
    return ready.federation.val is None or not len(ready.federation.val.x)


def execute_comparison(planned: Planned, directory: Path, watch: Callable[..., Progress]) -> None:
    """Run, or go on with, every seed of a comparison in ``directory``, runs that are alike together
    where that is faster.

    ``watch(seed, method)`` gives what is called after every round of a run. For several runs
    together it is asked once, with the first of them, their number as ``together``, and the number
    of runs that are done as ``finished``.
    """
    spec, first, given = planned
    claim_comparison(spec, directory)
    first = first.with_engine_of(directory / f"seed-{first.spec.seed}")
    together = pays(first)

    def ready(seed: int) -> Ready:
        if seed == first.spec.seed:
            return first
        found = given(seed)
        if not spec.deals_anew:  # data are read once where all seeds share them
            found = found._replace(federation=first.federation)
        like = seed if spec.deals_anew else first.spec.seed
        return check(spec.for_seed(seed), found).with_engine_of(directory / f"seed-{like}")

    for seeds in (
        [[seed] for seed in spec.seeds] if spec.deals_anew or not together else [list(spec.seeds)]
    ):
        places = [(ready(seed), directory / f"seed-{seed}") for seed in seeds]
        with alone(*(place for _, place in places)):  # a seed's run can be resumed by itself
            if together:
                execute_together(places, watch, spec.seeds.index(seeds[0]) * len(spec.methods))
            else:
                execute(*places[0], partial(watch, seeds[0]))
