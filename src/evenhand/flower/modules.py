"""Builds the module that the server and all nodes train."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from evenhand.errors import require_kind


def require_model(model: object) -> None:
    """Raise unless ``model`` is a module or a function."""
    if not callable(model):  # a module is, too
        raise TypeError(
            f"model must be a torch module, or a function that makes it, got {type(model).__name__}"
        )


def build_module(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build the module, with the same random initial values on the server, on every node and in a
    resumed run."""
    if isinstance(model, nn.Module):
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = model()
    require_kind("what model() gives", built, nn.Module, "torch.nn.Linear(12, 2)")
    return built
