"""A small suite, and records made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenhand.benchmarking.record import Record, packed
from evenhand.benchmarking.suite import Suite

TINY: dict[str, Any] = {
    "title": "Tiny",
    "why": "For tests.",
    "quick": True,
    "groups": True,
    "rounds": 2,
    "validation": 0.3,
    "data": {"name": "digits", "clients": 4},
    "model": {"name": "linear"},
    "local": {"lr": 0.1, "epochs": 1, "batch_size": 64},
}
METHODS: dict[str, Any] = {
    "rule": "mean",
    "settings": 3,
    "seeds": 2,
    "methods": {"fedavg": {}, "localonly": {}, "qffl": {"grid": {"q": [0.1, 1.0, 5.0]}}},
}


def tiny(rounds: int = 2, **methods: Any) -> Suite:
    """One federation, three methods, three settings and two seeds."""
    return Suite.of({"tiny": {**TINY, "rounds": rounds}}, {**METHODS, **methods})


def by_hand(
    method: str,
    right: Mapping[int, Sequence[Sequence[int]]],
    groups: Sequence[int] | None = None,
    **changes: Any,
) -> Record:
    """A record of what each client's samples came to, by seed: 1 is right. ``groups``: of each
    client, all of whose samples are of one group."""
    first = next(iter(right.values()))
    cells = np.zeros((len(first), 1 + max(groups or [0])), int)
    for client, samples in enumerate(first):
        cells[client, groups[client] if groups else 0] = len(samples)
    given: dict[str, Any] = {
        "federation": "hand",
        "method": method,
        "name": method,
        "personal": False,
        "identity": "0",
        "data": "d",
        "settings": {"local.lr": 0.1},
        "at_edge": (),
        "tried": 3,
        "validation": 0.5,
        "rule": "mean",
        "rounds": 2,
        "clients": tuple(str(client) for client in range(len(first))),
        "teams": (),
        "groups": tuple("abc"[: cells.shape[1]]) if groups else (),
        "labels": ("no", "yes"),
        "cells": tuple(map(tuple, cells.tolist())),
        "right": {
            str(seed): packed(np.concatenate([np.array(one) for one in clients]))
            for seed, clients in right.items()
        },
        "loss": {str(seed): (1.0,) * len(first) for seed in right},
        "counts": {},
        "diverged": (),
        "down": 10.0,
        "up": 10.0,
        "seconds": 1.0,
        "machine": "here",
        "versions": {"torch": "2"},
        "device": "cpu",
        "engine": "vmap",
        "date": "2026-01-01",
    }
    return Record(**{**given, **changes})


def shares(*accuracies: float, samples: int = 400) -> list[list[int]]:
    """Clients whose samples are right as often as that."""
    return [
        [1] * round(share * samples) + [0] * (samples - round(share * samples))
        for share in accuracies
    ]
