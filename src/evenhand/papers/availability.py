"""Which data an experiment has here: the paper's, others in their place, or none."""

from __future__ import annotations

from typing import NamedTuple

from evenhand.data.storage.file import data_root
from evenhand.datasets.catalogue import entry
from evenhand.datasets.entry import BY_HAND, FETCH
from evenhand.papers.experiment import Part

PAPERS, SUBSTITUTE, MISSING = "the paper's data", "substitute", "missing"


class Data(NamedTuple):
    """What there is."""

    kind: str  # PAPERS, SUBSTITUTE or MISSING
    about: str  # what is used, or how to get what is missing


def data_for(part: Part) -> Data:
    """Which data a part would run on now."""
    name = part.spec["data"]["name"]
    root = data_root()
    state = entry(name).state(root)
    whole = not part.needs or any(root.glob(part.needs))
    if whole and state.kind not in (FETCH, BY_HAND):
        return Data(PAPERS, name)
    fetch = f"evenhand data fetch {name}"
    if not whole and state.kind not in (FETCH, BY_HAND):
        fetch = f"put {part.needs} into the data root"
    other = part.substituted().spec["data"]["name"] if part.other else ""
    if other and entry(other).state(root).kind not in (FETCH, BY_HAND):
        return Data(SUBSTITUTE, f"{part.other.get('about', other)}; for the paper's data: {fetch}")
    how = "downloads them" if state.kind == FETCH else "says what to put where"
    return Data(MISSING, f"{fetch} {how}")


def variant(part: Part, quick: bool = False) -> Part:
    """The part as it can be run here: with other data where the paper's are missing, and with a
    smaller budget where that is asked for."""
    if data_for(part).kind == SUBSTITUTE:
        part = part.substituted()
    return part.quick() if quick else part
