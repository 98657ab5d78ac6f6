"""The network of an estimator."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from evenhand.errors import require_choice
from evenhand.models.factories import MODELS, seeded

Builder = Callable[[int, int], nn.Module]
NAMES = ("linear", "mlp")  # of the models that take a row of a table


def network_of(
    module: str | nn.Module | Builder | None, inputs: int, outputs: int, seed: int
) -> nn.Module:
    """Return the network to train: the module itself, or what its name or function makes."""
    if isinstance(module, nn.Module):
        return module
    if module is None or isinstance(module, str):
        name = "linear" if module is None else module
        require_choice("module", name, NAMES)
        # scikit-learn's models compute in float64
        return MODELS[name]([inputs], outputs, seed).double()
    if not callable(module):
        raise TypeError(
            'module must be "linear", "mlp", a torch.nn.Module or a function (n_features,'
            f" n_outputs) -> Module, got {type(module).__name__}"
        )
    with seeded(seed):
        made = module(inputs, outputs)
    if not isinstance(made, nn.Module):
        raise TypeError(f"module must return a torch.nn.Module, got {type(made).__name__}")
    return made
