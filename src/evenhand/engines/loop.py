"""The reference engine: one client at a time, no padding, plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evenhand import tree
from evenhand.data.population import Population
from evenhand.engines.base import Engine, Exchange, with_samples
from evenhand.engines.batching import Batching, ChunkFunction, ClientFunction
from evenhand.engines.simulator import Simulator
from evenhand.errors import require_whole
from evenhand.model import Model
from evenhand.models.lstm import LSTM
from evenhand.tree import Tree

RECURRENT_LAYERS = (nn.RNNBase, nn.RNNCellBase, LSTM)
HEAVY_LAYERS = (nn.modules.conv._ConvNd, *RECURRENT_LAYERS)
# parameters; one step of a dense model this large keeps a core busy for a millisecond
LARGE = 200_000


@dataclass(frozen=True)
class Loop(Engine):
    """Clients one after another.

    Args:
        workers: threads that train clients in parallel, each client on one thread. None uses
            torch's number of threads for convolutional, recurrent and large models on a CPU, and
            one for other models, where Python itself is the bottleneck.
    """

    workers: int | None = None

    def __post_init__(self) -> None:
        require_whole("workers", self.workers, 1, optional=True)

    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        gains = model.device.type == "cpu" and (model.has(HEAVY_LAYERS) or model.size > LARGE)
        workers = self.workers or (torch.get_num_threads() if gains else 1)
        return Simulator(model, with_samples(population), seed, OneByOne(workers))


class OneByOne(Batching):
    """Chunks of one client, as long as its data."""

    def widths(self, part: str, sizes: Tensor, all_sizes: Tensor) -> Tensor:
        return sizes

    def plan(self, kinds: Tensor, bytes_of: Callable[[int], int]) -> list[Tensor]:
        return list(torch.arange(len(kinds))[:, None])

    def map(self, function: ClientFunction) -> ChunkFunction:
        def call(shared: Tree, inputs: Tree) -> Tree:
            with torch.no_grad():
                return tree.map(
                    lambda leaf: leaf[None], function(tree.row(shared, 0), tree.row(inputs, 0))
                )

        return call

    def gradient(self, objective: Callable[[Tree, Tree], Tensor]) -> ChunkFunction:
        def call(shared: Tree, inputs: Tree) -> Tree:
            inputs = tree.row(inputs, 0)
            variables = tree.map(lambda leaf: leaf.detach().requires_grad_(), inputs["variables"])
            with torch.enable_grad():
                value = objective(tree.row(shared, 0), {**inputs, "variables": variables})
                gradients = iter(
                    torch.autograd.grad(value, tree.leaves(variables), materialize_grads=True)
                )
            return tree.map(lambda leaf: next(gradients)[None], variables)

        return call
