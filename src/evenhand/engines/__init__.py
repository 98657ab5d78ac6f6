"""Engines: ways to carry out an exchange with clients."""

from __future__ import annotations

import warnings

import torch

from evenhand import tree
from evenhand.data import Batch, Federation
from evenhand.engines.base import Engine, Exchange
from evenhand.engines.loop import HEAVY_LAYERS, Loop
from evenhand.engines.vmap import Vmap
from evenhand.errors import first_line
from evenhand.model import Model

__all__ = ["Engine", "Exchange", "Loop", "Vmap", "choose"]


def choose(engine: str | Engine, model: Model, federation: Federation) -> Engine:
    """The engine for a name; "auto" takes the one that was measured to be faster for this kind of model and device.

    docs/engines.md has the measurements: stacking loses on a CPU where convolutions or recurrent layers do the work.
    """
    if isinstance(engine, Engine):
        return engine
    if engine == "loop":
        return Loop()
    if engine == "vmap":
        return Vmap()
    if engine != "auto":
        raise ValueError(f'unknown engine {engine!r}; use "auto", "loop", "vmap" or an engine object')
    if model.device.type == "cpu" and model.has(HEAVY_LAYERS):
        return Loop()
    try:
        _try_stacking(model, federation)
    except Exception as error:
        warnings.warn(f"this module cannot be stacked over clients, training them one by one: {first_line(error)}", stacklevel=3)
        return Loop()
    return Vmap()


def _try_stacking(model: Model, federation: Federation) -> None:
    """One gradient and one loss of two stacked copies of the model; raises if torch.func cannot do it."""
    samples = federation.train.samples(model.dtype, model.device)
    index = torch.zeros(2, 1, dtype=torch.int64, device=model.device)
    params = tree.map(lambda leaf: torch.stack([leaf, leaf]), model.init())
    weight = torch.ones(1, device=model.device, dtype=model.dtype)

    def loss(params: tree.Tree, index: torch.Tensor) -> torch.Tensor:
        return model.loss(params, Batch(samples, index, weight))

    torch.func.vmap(torch.func.grad(loss), randomness="different")(params, index)
    with torch.no_grad():  # some layers take another path here
        torch.func.vmap(loss, randomness="different")(params, index)
