"""FedLF: layer-wise fair federated learning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, Memory, Reporting, State, as_rows, descend
from evenhand.algorithms.directions import (
    ROUNDING,
    angle,
    at_length,
    away_from_unequal,
    least_norm,
    mean_length,
    nobody,
    remembered,
    stretched,
)
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_whole
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class FedLF(Algorithm, Reporting):
    """Lower every participant's loss and make the losses more equal, layer by layer.

    In every layer, the rows are the participants' updates, all scaled to their mean length mu; the
    fairness row sum_i h_i Delta_i, scaled to mu; and the last updates of clients that were absent
    for at most tau rounds, scaled to mu. The step in this layer is the shortest point in the convex
    hull of the rows. All layers together are scaled to the length of the mean update:

        theta <- theta - d |mean Delta| / |d|,    h = gradient of -cos(f, 1) by the losses f
        (Pan et al., AAAI 2024)

    With one full-batch step, an update is lr times the gradient, as in the paper; with more local
    steps it takes the gradient's place. A layer is a tensor of parameters. The method has no
    objective. All clients count the same, whatever their data. The server sees every participant's
    update and loss.

    Args:
        layers: False treats the whole model as one layer.
        fairness: False leaves the fairness row out.
        tau: rounds for which updates of absent clients are remembered. None takes the number of
            clients seen so far over the number of participants, rounded down; 0 forgets them.
    """

    layers: bool = True
    fairness: bool = True
    tau: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "fairness"):
            value = getattr(self, name)
            require(isinstance(value, bool), "{} must be true or false, got {!r}", name, value)
        require_whole("tau", self.tau, 0, optional=True)

    def init(self, params: Tree, census: Census) -> State:
        if self.tau == 0:
            return {"model": params}
        size = sum(leaf.numel() for leaf in tree.leaves(params))
        return {"model": params, "seen": torch.zeros_like(census.weight), **nobody(size)}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        loss_at_start = model.loss(start["model"], data)
        return Reply(
            each={"delta": tree.sub(start["model"], end["model"]), "loss_at_start": loss_at_start}
        ), memory

    def entries(self, asked: Asked) -> Entries:
        return {"delta": Entry(kind="update"), "loss_at_start": Entry(kind="loss")}

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        updates, losses = as_rows(replies.each["delta"]), replies.each["loss_at_start"].double()
        past, known = updates[:0], {}
        if self.tau != 0:
            seen = state["seen"].index_fill(0, replies.ids, 1.0)
            tau = int(seen.sum()) // len(replies.ids) if self.tau is None else self.tau
            known = {"seen": seen, **remembered(state, replies.ids, updates, tau)}
            past = known["past"][known["age"] > 0]
        slope = away_from_unequal(losses).to(updates) if self.fairness else None
        tensors = [leaf.numel() for leaf in tree.leaves(state["model"])]
        sizes = tensors if self.layers else [sum(tensors)]
        direction = torch.cat(
            [
                layer_direction(own, old, slope)
                for own, old in zip(
                    torch.split(updates, sizes, 1), torch.split(past, sizes, 1), strict=True
                )
            ]
        )
        direction = stretched(direction, updates)
        info = {"direction_norm": direction.norm(), "angle": angle(losses)}
        return {**state, **known, "model": descend(state["model"], direction)}, info

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its update", "its loss")


def layer_direction(updates: Tensor, past: Tensor, slope: Tensor | None) -> Tensor:
    """Return the step in one layer, from updates (K, p), those of absent clients, and h (K,).

    Rows of zeros are left out: a client without a gradient in this layer loses nothing by any step.
    """
    mu = mean_length(updates)
    own = at_length(updates, mu)
    rows = [own, at_length(past, mu)]
    if slope is not None:
        fair = slope @ own
        rows.append(at_length(torch.where(fair.norm() > ROUNDING * mu, fair, 0.0), mu)[None])
    return least_norm(torch.cat(rows))
