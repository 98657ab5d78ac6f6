"""engine="auto" picks the faster engine for a model and device."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from evenhand import tree
from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.data.samples import Batch
from evenhand.engines.base import Engine, with_samples
from evenhand.engines.loop import HEAVY_LAYERS, RECURRENT_LAYERS, Loop
from evenhand.engines.threads import one_thread
from evenhand.engines.tracing import traced
from evenhand.engines.vmap import Vmap
from evenhand.errors import first_line
from evenhand.layers import choices
from evenhand.layers.grouped import BLOCK
from evenhand.model import Model
from evenhand.torch_private import grad

BATCH = 32  # samples in the step that is timed


ENGINES = ("auto", "loop", "vmap")


def choose(engine: str | Engine, model: Model, population: Population) -> Engine:
    """The engine for a name; "auto" picks the faster one for this model and device.

    That is stacking wherever it works, except for convolutional and recurrent models on a CPU. For
    these, one step of each engine is timed, once per model and machine (see
    :mod:`evenhand.layers.choices`). Engines agree only up to rounding, so the last bits of such a
    run may differ between machines; name the engine to rule that out.
    """
    if isinstance(engine, Engine):
        return engine
    if engine == "loop":
        return Loop()
    if engine == "vmap":
        return Vmap()
    federation = with_samples(population)
    if model.device.type == "cpu" and model.has(HEAVY_LAYERS):
        return Vmap() if _faster(model, federation) == "vmap" else Loop()
    try:
        _try_stacking(model, federation)
    except Exception as error:
        warnings.warn(
            "this module cannot be stacked over clients, training them one by one:"
            f" {first_line(error)}",
            stacklevel=4,
        )
        return Loop()
    return Vmap()


def _faster(model: Model, federation: Federation) -> str:
    """The engine with the faster local step, among those that can train this model."""
    batch = min(BATCH, len(federation.train.x))
    form = hashlib.sha256(
        str([(name, list(leaf.shape)) for name, leaf in model.init().items()]).encode()
    ).hexdigest()[:16]
    question = (
        f"engine for {model.size} parameters, {form}, {batch} samples of"
        f" {list(federation.train.x.shape[1:])}, {model.dtype}"
    )
    return choices.remembered(question, model.device, lambda: _measured(model, federation, batch))


def _measured(model: Model, federation: Federation, batch: int) -> str:
    samples, training = federation.train.samples(model.dtype, model.device), model.training()
    weight = torch.ones(batch, device=model.device, dtype=model.dtype)
    params = tree.map(lambda leaf: torch.stack([leaf] * BLOCK), model.init())
    index = torch.arange(batch, device=model.device).expand(BLOCK, batch)

    def loss(params: tree.Tree, index: Tensor) -> Tensor:
        return training.loss(params, Batch(samples, index, weight))

    def one_by_one() -> None:
        for client in range(BLOCK):
            variables = tree.map(
                lambda leaf: leaf.detach().requires_grad_(), tree.row(params, client)
            )
            torch.autograd.grad(
                loss(variables, index[client]), tree.leaves(variables), allow_unused=True
            )

    stacked = torch.func.vmap(grad(loss), randomness="different")
    operations: list[Callable[..., object]] = []

    def side_by_side() -> None:
        if model.has(
            RECURRENT_LAYERS
        ):  # not traced: tracing every step of a sequence takes too long
            stacked(params, index)
            return
        if not operations:
            operations.append(
                traced(
                    lambda params, inputs: stacked(params, inputs["index"]),
                    params,
                    {"index": index},
                )[0]
            )
        operations[0](*tree.leaves(params), index)

    with torch.random.fork_rng(devices=[]), one_thread():
        return choices.race(model.device, {"vmap": side_by_side, "loop": one_by_one})


def _try_stacking(model: Model, federation: Federation) -> None:
    """One gradient and one loss of two stacked copies; raises if torch.func cannot do it."""
    samples = federation.train.samples(model.dtype, model.device)
    index = torch.zeros(2, 1, dtype=torch.int64, device=model.device)
    params = tree.map(lambda leaf: torch.stack([leaf, leaf]), model.init())
    weight = torch.ones(1, device=model.device, dtype=model.dtype)

    def loss(params: tree.Tree, index: torch.Tensor) -> torch.Tensor:
        return model.loss(params, Batch(samples, index, weight))

    torch.func.vmap(grad(loss), randomness="different")(params, index)
    with torch.no_grad():  # some layers take another path here
        torch.func.vmap(loss, randomness="different")(params, index)
