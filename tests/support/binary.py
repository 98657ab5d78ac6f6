"""Two labels and demographic groups: eight samples for numbers by hand, and a federation to train.

Eight samples in one dimension, of a model with one weight w > 0 that predicts 1 where x > 0.

    group u: (x, y) = (1, 1), (-1, 1), (-1, 0), (-2, 0)    selected 1/4, TPR 1/2, FPR 0
    group v: (x, y) = (1, 1), (2, 1), (1, 0), (-1, 0)      selected 3/4, TPR 1,   FPR 1/2
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import evenhand as eh

U = ([1.0, -1.0, -1.0, -2.0], [1, 1, 0, 0])
V = ([1.0, 2.0, 1.0, -1.0], [1, 1, 0, 0])
X, Y, GROUP = U[0] + V[0], U[1] + V[1], [0] * 4 + [1] * 4


def eight(*rows: Sequence[int], names: Sequence[Any] = "uv") -> eh.Federation:
    """A federation of the eight samples; every client gets the rows listed for it."""
    return eh.Federation.from_arrays(
        [
            {
                "x": np.array([[X[i]] for i in own]),
                "y": np.array([Y[i] for i in own]),
                "group": [names[GROUP[i]] for i in own],
            }
            for own in rows or (range(8),)
        ]
    )


def weight(value: float = 1.0) -> nn.Module:
    """One weight, one output."""
    module = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        module.weight.fill_(value)
    return module


def brier_slope(w: float, x: float, y: float) -> float:
    """Derivative of 2 (sigmoid(w x) - y)^2 by w."""
    p = 1 / (1 + math.exp(-w * x))
    return 4 * (p - y) * p * (1 - p) * x


SIZES = (12, 30, 7, 23)


def pooled(sizes: Sequence[int] = SIZES, groups: int = 2) -> tuple[Tensor, Tensor, np.ndarray]:
    """Features, labels and groups: higher groups get the favourable label more often."""
    rng = np.random.default_rng(7)
    n = sum(sizes)
    group = np.arange(n) % groups
    x = rng.normal(size=(n, 3)) + 0.7 * group[:, None] * np.array([1.0, 0.3, 0.0])
    y = (x @ [1.0, -0.5, 0.3] + 0.8 * group + rng.normal(size=n) > 0.6).astype(np.int64)
    return torch.from_numpy(x), torch.from_numpy(y), group


def federation(
    sizes: Sequence[int] = SIZES, groups: int = 2, order: Sequence[int] | None = None
) -> eh.Federation:
    """The pooled samples, dealt to clients in turn."""
    x, y, group = pooled(sizes, groups)
    rows = np.arange(len(y)) if order is None else np.asarray(order)
    edges = np.cumsum((0, *sizes))
    return eh.Federation.from_arrays(
        [
            {"x": x[rows[a:b]].numpy(), "y": y[rows[a:b]].numpy(), "group": group[rows[a:b]]}
            for a, b in itertools.pairwise(edges)
        ]
    )


def module(outputs: int = 2, features: int = 3) -> nn.Linear:
    generator = torch.Generator().manual_seed(3)
    linear = nn.Linear(features, outputs).double()
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return linear


def train(
    algorithm: eh.Algorithm,
    engine: str = "loop",
    fed: eh.Federation | None = None,
    start: nn.Module | None = None,
    **settings: Any,
) -> eh.Result:
    settings = {
        "rounds": 4,
        "local": eh.LocalSGD(lr=0.3, steps=1),
        "seed": 5,
        "eval_every": 1000,
        **settings,
    }
    return eh.fit(start or module(), fed or federation(), algorithm, engine=engine, **settings)
