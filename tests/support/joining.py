"""A run in the simulator that a client joins in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evenhand as eh
from evenhand.growth import Extent, first_clients
from tests.support.federations import network

SIZES = (12, 30, 7, 40, 15)  # the last one joins
FEW = Extent(4, 3, 2)
JOINED = 2  # after so many rounds
ROUNDS = 5
SETTINGS: dict[str, Any] = {
    "local": eh.LocalSGD(lr=0.05, batch_size=8, momentum=0.5),
    "seed": 3,
    "eval_every": 2,
    "engine": "loop",
}


class Stopped(Exception):
    """Ends a run after a round."""


def enlarged(
    method: eh.Algorithm,
    out: Path,
    whole: eh.Federation,
    few: Extent = FEW,
    joined: int = JOINED,
    **settings: Any,
) -> eh.Result:
    """A run that begins with few clients and goes on with all after ``joined`` rounds."""

    def stop(done: int, row: dict[str, Any]) -> None:
        if done == joined:
            raise Stopped

    options = {**SETTINGS, "rounds": ROUNDS, "out": out, "checkpoint_every": 1, **settings}
    with pytest.raises(Stopped):
        eh.fit(network(), first_clients(whole, few), method, progress=stop, **options)
    return eh.fit(network(), whole, method, resume=True, **options)
