"""Small networks with BatchNorm, and a federation of unequal clients for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import evenhand as eh

SIZES = (5, 12, 17)
ONE = (11,)  # the last batch of 4 is smaller
SOLVER = eh.LocalSGD(0.05, epochs=2, batch_size=5, momentum=0.9, weight_decay=0.01, clip=1.0)


def cnn(dtype: torch.dtype = torch.float64, **norm: Any) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, **norm), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2), nn.BatchNorm2d(4, **norm), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3),
    ).to(dtype)  # fmt: skip


def mlp(dtype: torch.dtype = torch.float64, **norm: Any) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6, **norm), nn.ReLU(), nn.Linear(6, 3)
    ).to(dtype)


def arrays(sizes: tuple[int, ...], seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.normal(k, 1 + k, (n, 1, 8, 8)), "y": rng.integers(0, 3, n)}
        for k, n in enumerate(sizes)
    ]


FED = eh.Federation.from_arrays(arrays(SIZES), test=arrays((4, 4, 4), 1))


def trained(module: nn.Module, method: eh.Algorithm, **options: Any) -> eh.Result:
    given = {"rounds": 3, "local": SOLVER, "engine": "loop", **options}
    return eh.fit(module, FED, method, **given)


def models(result: eh.Result) -> list[dict[str, Tensor]]:
    return [result.params, *(result.personal or [])]


def apart(one: eh.Result, other: eh.Result) -> float:
    """The largest difference between two results' models."""
    return max(
        float((a[key].double() - b[key].double()).abs().max())
        for a, b in zip(models(one), models(other), strict=True)
        for key in a
    )


def norm_keys(module: nn.Module) -> set[str]:
    return {
        f"{name}.{key}"
        for name, layer in module.named_modules()
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        for key in layer.state_dict()
    }
