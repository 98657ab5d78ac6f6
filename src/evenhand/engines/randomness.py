"""Random numbers of a module, such as dropout's, from counters instead of a generator's state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from evenhand.local import fold_key
from evenhand.model import Model


@contextmanager
def randomness(model: Model, seed: Tensor, round: int, client: Tensor) -> Iterator[None]:
    """Seed torch by (seed, round, client) for a stochastic ``model``, and restore it afterwards."""
    if not model.stochastic:
        yield
        return
    device = model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        key = int(fold_key(fold_key(seed, torch.tensor(round)), client))
        # torch.manual_seed takes a millisecond, for kinds of devices that are not there
        torch.default_generator.manual_seed(key)
        if device.type == "cuda":
            torch.cuda.default_generators[
                torch.cuda.current_device() if device.index is None else device.index
            ].manual_seed(key)
        yield
