"""A comparison on disk: the same methods, trained with several seeds.

runs/digits/
  spec.toml        the spec, with its seeds
  seed-0/          the run of one seed, see directories.py
  seed-1/
  comparison.csv   and other tables over all seeds
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
from evenhand.training.callbacks import Callback
from evenhand.training.fit import Progress
from evenhand.training.places import alone

# share of the training samples that a sweep sets aside if the data have no validation split
VALIDATION = 0.2


class Planned(NamedTuple):
    """A checked comparison with every choice made."""

    spec: Spec
    first: Ready  # the run of the first seed
    given: GivenBySeed

    def with_callbacks(self, callbacks: Sequence[Callback]) -> Planned:
        """The same with callbacks for every run."""
        first = self.first._replace(callbacks=callbacks)
        return Planned(
            self.spec, first, lambda seed: self.given(seed)._replace(callbacks=callbacks)
        )


# what a Python program passes for each seed
GivenBySeed = Callable[[int], Given]


def check_comparison(
    spec: Spec, references: Sequence[str] = (), given: GivenBySeed = lambda seed: Given()
) -> Planned:
    """Build the first seed's data and model and check every method against them; raises before
    anything is written or trained.

    ``references``: methods to add if they are missing. A sweep whose data have no validation split
    gets one.
    """
    if not spec.seeds:
        raise SpecError("a comparison needs seeds, such as seeds = [0, 1, 2]")
    if spec.folds:
        _refuse_folds(spec)
    seed = spec.seeds[0]
    begun = given(seed)
    first = check(spec.for_seed(seed), begun, begun=False)
    settled = spec.settled(first.federation).with_reference(*references)
    if settled.select and _without_validation(first):
        settled = dataclasses.replace(settled, validation=settled.validation or VALIDATION)
    first = check(settled.for_seed(seed), begun._replace(federation=first.federation))
    if settled.select and _without_validation(first):
        share = settled.validation
        raise SpecError(
            f"no client has enough training samples to set a share of {share:g} aside for"
            " validation; pass a larger validation"
        )
    return Planned(settled, first, given)


def _refuse_folds(spec: Spec) -> None:
    """Raise for data sets with a fixed split."""
    from evenhand.datasets import DATASETS, FORMATS, loader

    name = spec.data.get("name")
    if name in (*DATASETS, *FORMATS) and "split" not in inspect.signature(loader(name)).parameters:
        raise SpecError(f"data set {name} has a fixed split and cannot have folds; leave out folds")


def _without_validation(ready: Ready) -> bool:
    return ready.federation.val is None or not len(ready.federation.val.x)


def execute_comparison(planned: Planned, directory: Path, watch: Callable[..., Progress]) -> None:
    """Run or resume every seed of a comparison in ``directory``; similar runs train together where
    that is faster.

    ``watch(seed, method)`` returns the function to call after every round of a run. For several
    runs that train together it is called once, with the first of them, their number as
    ``together``, and the number of finished runs as ``finished``.
    """
    spec, first, given = planned
    claim_comparison(spec, directory)
    first = first.with_engine_of(directory / f"seed-{first.spec.seed}")
    together = pays(first)

    def ready(seed: int) -> Ready:
        if seed == first.spec.seed:
            return first
        found = given(seed)
        if not spec.deals_anew:  # all seeds share the data, which are read once
            found = found._replace(federation=first.federation)
        like = seed if spec.deals_anew else first.spec.seed
        return check(spec.for_seed(seed), found).with_engine_of(directory / f"seed-{like}")

    for seeds in (
        [[seed] for seed in spec.seeds] if spec.deals_anew or not together else [list(spec.seeds)]
    ):
        places = [(ready(seed), directory / f"seed-{seed}") for seed in seeds]
        with alone(*(place for _, place in places)):  # one seed can also be resumed separately
            if together:
                execute_together(places, watch, spec.seeds.index(seeds[0]) * len(spec.methods))
            else:
                execute(*places[0], partial(watch, seeds[0]))
