"""Modules that a spec can name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import nn


def linear(shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """Logistic regression on flattened samples."""
    return mlp(shape, outputs, seed, hidden=())


def mlp(shape: tuple[int, ...], outputs: int, seed: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Dense layers with ReLU between them."""
    if not isinstance(hidden, list | tuple) or any(not isinstance(width, int) or width < 1 for width in hidden):
        raise ValueError(f"hidden must be a list of widths >= 1, got {hidden}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        widths = [math.prod(shape), *hidden, outputs]
        layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.ReLU(), nn.Linear(*pair))]
    return nn.Sequential(nn.Flatten(), *layers[1:])


MODELS: dict[str, Callable[..., nn.Module]] = {"linear": linear, "mlp": mlp}
