"""Check the folds of a cross-validation in a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.errors import SpecError


def check_folds(folds: int, seeds: Sequence[int], resplit: bool, select: Any, split: Any) -> None:
    """Raise if folds contradict other keys of a spec; ``split`` is that of its data."""
    if not folds:
        return
    if folds < 2:
        raise SpecError(f"folds must be at least 2, got {folds}")
    if resplit:
        raise SpecError("folds use one split of the data for all seeds; leave out resplit")
    if select:
        raise SpecError("a sweep would choose on samples that other folds test on; leave out folds")
    if len(seeds) not in (0, folds):
        raise SpecError(
            f"{folds} folds need one seed each, got {len(seeds)} seeds; leave out seeds"
        )
    known = isinstance(split, Mapping) and not {"test", "fold"} & {*split}
    if not known or split.get("official") is True:
        raise SpecError(
            f"folds decide which samples are tested; leave out split = {split!r}, or keep only its"
            " val and stratify"
        )
