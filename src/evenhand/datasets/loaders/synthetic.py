"""Synthetic(a, b) of FedProx and q-FFL: two parameters set how much clients differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.pool import Pool
from evenhand.errors import require_memory, require_number, require_whole

Array = np.ndarray[Any, Any]
FEATURES, CLASSES = 60, 10


def rules(
    a: float, b: float, clients: int, iid: bool, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw what distinguishes clients: their rules (n, 61, 10), last row the bias, and their
    feature means (n, 60)."""
    if iid:
        return np.repeat(rng.normal(size=(1, FEATURES + 1, CLASSES)), clients, 0), np.zeros(
            (clients, FEATURES)
        )
    weight = rng.normal(rng.normal(0, a, (clients, 1, 1)), 1, (clients, FEATURES + 1, CLASSES))
    return weight, rng.normal(rng.normal(0, b, (clients, 1)), 1, (clients, FEATURES))


def read(
    a: float = 1.0, b: float = 1.0, clients: int = 30, iid: bool = False, seed: int = 0
) -> Pool:
    """Generate all samples, client by client."""
    require_number("a", a, "[0, inf)", "0 centres the rules of all clients on 0")
    require_number("b", b, "[0, inf)", "0 centres the features of all clients on 0")
    require_whole("clients", clients, 1)
    require_whole("seed", seed, 0)
    # rules, and about 450 samples per client on average
    require_memory(f"{clients} clients", clients * 8 * ((FEATURES + 1) * CLASSES + 450 * FEATURES))
    rng = np.random.default_rng([seed, FEATURES])
    weight, mean = rules(a, b, clients, iid, rng)
    sizes = np.exp(rng.normal(4, 2, clients)).astype(np.int64) + 50
    owner = np.repeat(np.arange(clients), sizes)
    spread = np.arange(1, FEATURES + 1) ** -0.6  # standard deviations; the variances are j^-1.2
    x = (
        rng.standard_normal((len(owner), FEATURES), np.float32) * spread.astype(np.float32)
        + mean.astype(np.float32)[owner]
    )
    y = np.empty(len(owner), np.int64)
    for client, rows in enumerate(np.split(np.arange(len(owner)), sizes.cumsum()[:-1])):
        y[rows] = (x[rows] @ weight[client, :-1] + weight[client, -1]).argmax(1)
    labels, names = tuple(map(str, range(CLASSES))), tuple(map(str, range(clients)))
    return Pool(
        torch.from_numpy(x),
        torch.from_numpy(y),
        labels,
        client=torch.from_numpy(owner),
        client_names=names,
    )


def synthetic(
    a: float = 1.0,
    b: float = 1.0,
    clients: int = 30,
    iid: bool = False,
    seed: int = 0,
    split: str | Mapping[str, Any] | None = None,
) -> Federation:
    """Generate Synthetic(a, b): ten classes in 60 dimensions, with a linear rule drawn by each
    client.

    Client k draws  u ~ N(0, a²),  W and c ~ N(u, 1) entry by entry,  m ~ N(0, b²),  v_j ~ N(m, 1);
    its samples are  x ~ N(v, diag(j^-1.2)),  y = argmax_i (W x + c)_i
    (Li et al., MLSys 2020, section 5.1)

    N(mean, variance): a and b are standard deviations, as in the code of both papers, although
    their text says N(0, a). This makes no difference for 0 and 1, but Synthetic(0.5, 0.5) has
    variances 0.25. Sizes are 50 plus a log-normal number (logarithm with mean 4 and standard
    deviation 2), rounded down: median 104, rarely above 10,000. The random generator differs from
    the papers', so the samples do too.

    Args:
        a: how much the clients' rules differ.
        b: how much their features differ.
        clients: FedProx has 30, q-FFL 100.
        iid: use one rule W, c ~ N(0, 1) and v = 0 for all clients, whatever a and b; only sizes
            differ.
        seed: of all draws.
        split: None keeps 10 % of each client's samples for testing, as in the papers' code.
    """
    return deal(
        read(a, b, clients, iid, seed), None, {"test": 0.1} if split is None else split, seed
    )
