"""What a spec may say of the folds of a cross-validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.errors import SpecError


def check_folds(folds: int, seeds: Sequence[int], resplit: bool, select: Any, split: Any) -> None:
    """Raise where folds do not go with the rest of a spec; ``split`` is that of its data."""
    if not folds:
        return
    if folds < 2:
        raise SpecError(f"folds must be at least 2, got {folds}")
    if resplit:
        raise SpecError("folds split the data once for all seeds; leave out resplit")
    if select:
        raise SpecError("a sweep would choose by samples that other folds test on; leave out folds")
    if len(seeds) not in (0, folds):
        raise SpecError(
            f"each of {folds} folds has a seed of its own, got {len(seeds)} seeds; leave out seeds"
        )
    known = isinstance(split, Mapping) and not {"test", "fold"} & {*split}
    if not known or split.get("official") is True:
        raise SpecError(
            f"folds say which samples are tested; leave out split = {split!r}, or keep val and"
            " stratify of it"
        )
