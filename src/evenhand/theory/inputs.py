"""Checked float64 vectors of numbers per client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.errors import require, require_number

Vector = Tensor | Sequence[float] | npt.NDArray[Any]


def loss_and_weight(losses: Vector, base: Vector) -> tuple[Tensor, Tensor]:
    """Return losses (n,) and base weights (n,) as float64.

    A loss whose weight is 0 is replaced by the smallest of the others, which changes nothing.
    """
    f, w = vector(losses), vector(base)
    require(
        f.shape == w.shape,
        "{} losses do not match {} base weights; pass one of each per client",
        len(f),
        len(w),
    )
    require(
        bool((w >= 0).all()) and abs(float(w.sum()) - 1) <= 1e-6,
        "base weights must be >= 0 and sum to 1, got {}",
        w[:10].tolist(),
    )
    return torch.where(w > 0, f, f[w > 0].min()), w / w.sum()


def vector(values: Vector) -> Tensor:
    """Return ``values`` as a float64 tensor (n,) on the CPU."""
    # torch takes no reversed arrays
    values = values.copy() if isinstance(values, np.ndarray) else values
    x = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    require(
        x.dim() == 1,
        "expected one number for each client, got a tensor of shape {}",
        tuple(x.shape),
    )
    return x


def plain(values: Any) -> Any:
    """Return a list, array or tensor as a hashable tuple; anything else unchanged."""
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    return tuple(values) if isinstance(values, list) else values


def read_vector(
    name: str,
    values: float | Vector,
    interval: str,
    hint: str = "",
    length: int | None = None,
    repeat: bool = False,
) -> Tensor:
    """Return (n,) float64, every entry inside ``interval``.

    A single number counts as a vector of length 1 or, with ``repeat``, of any length.
    """
    try:
        # torch takes no reversed or read-only arrays
        values = values.copy() if isinstance(values, np.ndarray) else values
        vector = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must hold numbers, got {values!r}") from error
    require(
        vector.ndim < 2, "{} must be a number or a vector, got shape {}", name, list(vector.shape)
    )
    require(vector.numel() > 0, "{} is empty; give one number per client", name)
    vector = vector.reshape(-1)
    for end in (vector.min(), vector.max()):  # NaN is both
        require_number(name, float(end), interval, hint)
    if repeat and len(vector) == 1 and length is not None:
        vector = vector.expand(length)
    require(
        length in (None, len(vector)), "{} must have {} entries, got {}", name, length, len(vector)
    )
    return vector


def read_weights(
    name: str, values: Vector, length: int | None = None, interval: str = "(0, 1]"
) -> Tensor:
    """Return (n,) weights inside ``interval`` that sum to 1."""
    weight = read_vector(name, values, interval, "weights are shares of 1", length)
    total = float(weight.sum())
    require(abs(total - 1) < 1e-6, "{} must sum to 1, got {:g}; divide it by its sum", name, total)
    return weight


def read_levels(alpha: float | Vector, length: int | None = None) -> Tensor:
    """Return (n,) or (1,) levels alpha_i."""
    return read_vector("alpha", alpha, "(0, 1]", "1 gives the plain average", length, repeat=True)


def counts_and_caps(
    sizes: Vector, base: Vector | None, alpha: float | Vector
) -> tuple[Tensor, Tensor]:
    """Return (n,) samples m_i and (n,) caps w_i / alpha_i, both float64."""
    counts = read_vector("sizes", sizes, "[1, inf)", "leave out clients without samples")
    require(bool((counts == counts.round()).all()), "sizes must be whole numbers, got {}", sizes)
    weight = counts / counts.sum() if base is None else read_weights("base", base, len(counts))
    return counts, weight / read_levels(alpha, len(counts))
