"""Whether a module, a loss and data fit together, found out on a few samples before training."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from evenhand import targets, tree
from evenhand.calls import UnreadableOutput
from evenhand.data.nested import Nested, shapes
from evenhand.data.population import Population
from evenhand.data.samples import Batch, Samples
from evenhand.errors import first_line
from evenhand.label_checks import check
from evenhand.losses import LossFunction
from evenhand.targets import Target
from evenhand.tree import Tree


class Model(Protocol):
    """What is read from, and found out about, an :class:`evenhand.Model`."""

    dtype: torch.dtype
    device: torch.device
    loss_function: LossFunction
    target: Target
    stochastic: bool

    def init(self) -> Tree: ...
    def output(self, params: Tree, x: Any) -> Tensor: ...
    def losses(self, params: Tree, batch: Batch) -> Tensor: ...
    def training(self) -> Model: ...
    def with_precision(self, precision: str) -> Model: ...
    def arithmetic(self) -> AbstractContextManager[None]: ...


def check_fit(model: Model, population: Population) -> None:
    """Raise before training if the module, the loss and the data do not fit together."""
    for given in population.examples():
        samples = given.to(model.dtype, torch.device("cpu"))
        if (
            isinstance(samples.x, Tensor)
            and samples.x.dtype != given.x.dtype
            and not bool(torch.isfinite(samples.x).all())
        ):
            raise ValueError(
                f"some features are too large for the module's {model.dtype}; scale them, or use"
                " module.double()"
            )
        few = samples.first(2).to(model.dtype, model.device)
        probe = Batch(few, *_first(model, len(few.y)))
        with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
            # rounding to few bits may depend on the batch; what the module computes may not
            exact = model.with_precision("fp32")
            with exact.arithmetic():
                _probe(exact, few, given)
            model.target = exact.target
            before = _random_state(model)
            model.training().losses(model.init(), probe)
            model.stochastic |= not torch.equal(before, _random_state(model))


def _first(model: Model, count: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(min(2, count), device=model.device)
    return index, torch.ones(len(index), device=model.device, dtype=model.dtype)


def _random_state(model: Model) -> Tensor:
    return (
        torch.cuda.get_rng_state(model.device)
        if model.device.type == "cuda"
        else torch.get_rng_state()
    )


def _probe(model: Model, samples: Samples, given: Samples) -> None:
    batch = Batch(samples, *_first(model, len(samples.y)))
    rows = len(batch.weight)
    try:
        output = model.output(tree.map(Tensor.requires_grad_, model.init()), batch.x)
    except UnreadableOutput as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        hint = (
            ""
            if given.x.is_floating_point()
            else "; x has integers, so convert it to float unless they are tokens"
        )
        kind = f" ({given.x.dtype})" if not isinstance(given.x, Nested) else ""
        problem = f"the module does not accept samples of shape {shapes(given.x)}{kind}"
        raise ValueError(f"{problem}: {first_line(error)}{hint}") from error
    if not isinstance(output, Tensor) or output.shape[:1] != (rows,):
        got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"the module must return a tensor with one row per sample, got {got} for {rows} samples"
        )
    check(model.loss_function, output, given.y)
    try:
        values = model.loss_function(output, batch.y)
    except Exception as error:
        form = f"outputs {list(output.shape)} and labels {list(batch.y.shape)}"
        raise ValueError(f"the loss fails on {form}: {first_line(error)}") from error
    if not isinstance(values, Tensor) or values.shape != (rows,):
        got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"the loss must return one value per sample, shape [{rows}], got {got} for outputs"
            f" {list(output.shape)}; do not reduce over samples"
        )
    one = Batch(samples, *_first(model, 1))
    alone = model.loss_function(model.output(model.init(), one.x), one.y)
    if not torch.allclose(
        alone[0], values[0], rtol=1e-3, atol=1e-6, equal_nan=True
    ):  # a client whose data are not finite is skipped later
        form = f"output {list(output.shape)}, target {list(batch.y.shape)}"
        raise ValueError(
            "a sample's loss depends on the other samples in its batch; check that module and"
            f" loss treat samples independently ({form})"
        )
    model.target = targets.find(model.loss_function, output, batch.y)
    if not values.requires_grad:
        raise ValueError(
            "the loss does not depend on the module's parameters, so nothing would be trained;"
            " remove .detach()"
        )
