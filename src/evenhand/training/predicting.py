"""Outputs of a trained network for new samples, and what they say: classes, numbers, chances."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenhand.calls import Call, OutputFunction
from evenhand.data.nested import Nested, inputs_of
from evenhand.data.samples import Features
from evenhand.data.views import View
from evenhand.engines.threads import one_thread
from evenhand.errors import first_line, require
from evenhand.layers.stacked import fast_layers
from evenhand.losses import single_output
from evenhand.metrics.tallies import BLOCK
from evenhand.targets import Target

if TYPE_CHECKING:
    from evenhand.data.tables.encoding import Encoding

CPU = torch.device("cpu")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def probabilities(output: Tensor, target: Target) -> Floats:
    """The probability of each class, label or level; see ``Target.probabilities``. The outputs of a
    hinge loss are margins: their probabilities only tell which class is more certain."""
    exact = output.double()
    if target.kind != "class":
        found = target.probabilities(exact)
        require(found is not None, "probabilities are for classifiers; this run is a regression")
        assert found is not None
        return found.numpy()
    if single_output(output):
        chance = exact.reshape(len(output)).sigmoid()
        return torch.stack([1 - chance, chance], 1).numpy()
    if output.shape[1] == 2:  # as scores are computed, to the last bit
        chance = (exact[:, 1] - exact[:, 0]).sigmoid()
        return torch.stack([1 - chance, chance], 1).numpy()
    return exact.softmax(-1).numpy()


def numbers(output: Tensor, encoding: Encoding | None) -> Floats:
    """(N,) what a regression predicts, in the unit of a table's label; (N, ...) for several
    numbers."""
    found = output.reshape(len(output)) if single_output(output) else output
    exact = found.double().numpy()
    return exact if encoding is None else own_unit(exact, encoding)


def own_unit(values: NDArray[Any], encoding: Encoding, exact: bool = False) -> Floats:
    """Return numbers in the unit of a regression's label.

    ``exact`` rounds to the digits that a label has kept: 133 was scaled, and would become 133.00001
    otherwise.
    """
    found = np.asarray(values, np.float64) * encoding.label_std + encoding.label_mean
    if not exact:
        return found
    return np.asarray(found.round(5 - int(np.floor(np.log10(encoding.label_std)))))


def as_features(x: Any) -> Features:
    """Samples as tensors: an array, or a dict or tuple of arrays for several inputs."""
    if isinstance(x, View | Nested):
        return x
    if isinstance(x, Mapping | tuple):
        inputs = {name: as_features(entry) for name, entry in inputs_of(x).items()}
        return Nested(inputs, isinstance(x, Mapping))
    if hasattr(x, "columns"):
        raise TypeError(
            f"x must be an array or a tensor, got {type(x).__name__}; encode a table first:"
            " result.encoding.transform(table)"
        )
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        x = x.copy()  # torch warns about such arrays, and pandas makes them
    try:
        return torch.as_tensor(x).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"x must be an array or a tensor of numbers, or a dict of them, got"
            f" {type(x).__name__}: {first_line(error)}"
        ) from error


def filled(network: nn.Module, params: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the network with trained parameters, on the CPU and in evaluation mode."""
    twin = copy.deepcopy(network).cpu().eval()
    # a model of peft is known by its adapters; its base model is in the network
    adapts = hasattr(network, "peft_config")
    own = twin.state_dict()
    for name in params if adapts else {**own, **params}:
        mine, trained = (
            f"{name!r} of shape {list(state[name].shape)}" if name in state else f"no {name!r}"
            for state in (own, params)
        )
        require(
            mine == trained,
            "module is not the network that was trained: it has {}, the trained model has {}",
            mine,
            trained,
        )
    twin.load_state_dict(dict(params), strict=not adapts)
    return twin


def outputs(
    network: nn.Module,
    owned: Iterable[tuple[Mapping[str, Tensor], Ints]],
    x: Features,
    output: OutputFunction | None = None,
) -> Tensor:
    """(N, ...) outputs for samples of which each model owns some, on the CPU.

    Args:
        network: the network, with any parameters.
        owned: parameters, and the samples to use them for.
        x: (N, ...) the samples.
        output: takes the output out of what the network returns, as in ``evenhand.Settings``.
    """
    first = next(network.parameters())
    dtype = first.dtype if first.is_floating_point() else torch.get_default_dtype()
    keeps = isinstance(x, Tensor) and not x.is_floating_point()
    inputs = x.to(CPU, x.dtype if keeps else dtype)
    call = Call(network, output)
    parts, rows = [], []
    with torch.no_grad(), one_thread():  # like the evaluation, whose predictions it repeats
        for params, places in owned:
            twin = filled(network, params)
            for some in torch.split(torch.from_numpy(places), BLOCK):
                with fast_layers(twin, CPU), call.stackable():
                    parts.append(_called(twin, call, inputs[some]))
                rows.append(some)
    order = torch.cat(rows).argsort()
    return torch.cat(parts)[order]


def _called(network: nn.Module, call: Call, x: Any) -> Tensor:
    args, kwargs = call.arguments(x)
    try:
        returned = network(*args, **kwargs)
    except Exception as error:  # of the network
        shape = f" of shape {list(x.shape)}" if isinstance(x, Tensor) else ""
        whole = isinstance(x, Tensor) and not x.is_floating_point() and "dtype" in str(error)
        hint = '; x holds whole numbers, pass x.astype("float32")' if whole else ""
        raise ValueError(
            f"the network does not take x{shape}: {first_line(error)}{hint}"
        ) from error
    return call.read(returned)


def require_scores(output: Tensor) -> None:
    """Raise if the model says nothing about some samples."""
    lost = int(output.isnan().reshape(len(output), -1).any(1).sum())
    require(
        not lost,
        "the model predicts nothing (NaN) for {} of {} samples; check x, or train again with a"
        " smaller learning rate",
        lost,
        len(output),
    )
