"""The network of an estimator, and the outputs of trained ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenhand.errors import require_choice
from evenhand.metrics.tallies import BLOCK
from evenhand.models.factories import MODELS, seeded
from evenhand.training.deciding import filled

Floats = NDArray[np.float64]
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


def outputs_of(
    network: nn.Module, params: Sequence[Mapping[str, Tensor]], owner: NDArray[np.int64], x: Floats
) -> Floats:
    """Return (N, outputs) of samples; model ``params[k]`` serves the samples whose owner is k."""
    dtype = next(network.parameters()).dtype
    inputs = torch.from_numpy(x).to(dtype)
    found: Tensor | None = None
    with torch.no_grad():
        for code in np.unique(owner).tolist():
            twin = filled(network, params[code])
            for rows in torch.split(torch.from_numpy(np.flatnonzero(owner == code)), BLOCK):
                output = twin(inputs[rows])
                output = output.reshape(len(rows), -1).double()
                if found is None:
                    found = output.new_empty(len(x), output.shape[1])
                found[rows] = output
    assert found is not None  # scikit-learn refuses data without samples
    return found.numpy()
