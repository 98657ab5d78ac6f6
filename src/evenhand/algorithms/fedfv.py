"""FedFV: fair averaging of conflicting updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, Memory, Reporting, State, as_rows, descend
from evenhand.algorithms.directions import nobody, remembered
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_number, require_whole
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree

BLOCK = 64  # updates whose conflicts are removed together


@dataclass(frozen=True)
class FedFV(Algorithm, Reporting):
    """Remove from every update what conflicts with the others; clients with high losses go last.

    With clients in ascending order of loss, an update that points against another loses its
    component along that one, one after the other. Of K participants, all but the ceil((K - 1) (1 -
    alpha)) with the smallest losses keep their updates unchanged. From round ``tau`` on, the plain
    mean is cleared in the same way of conflicts with the summed updates of clients that last took
    part tau, ..., 1 rounds ago. It is then rescaled to the length of the plain mean of the received
    updates (Wang et al., IJCAI 2021, Algorithms 1 to 3).

    The method has no objective. All clients count the same, whatever their data. The server sees
    every participant's update and loss.

    Args:
        alpha: share of participants with the largest losses whose updates stay unchanged; 1 gives
            the plain mean.
        tau: rounds for which updates of absent clients are remembered; 0 forgets them.
    """

    alpha: float = 0.1
    tau: int = 0

    def __post_init__(self) -> None:
        require_number("alpha", self.alpha, "[0, 1]", "1 gives the plain mean")
        require_whole("tau", self.tau, 0)

    def init(self, params: Tree, census: Census) -> State:
        if not self.tau:
            return {"model": params}
        size = sum(leaf.numel() for leaf in tree.leaves(params))
        return {"model": params, "rounds": torch.zeros((), dtype=torch.int64), **nobody(size)}

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
        updates = as_rows(replies.each["delta"])  # (K, P)
        order = replies.each["loss_at_start"].argsort(stable=True).tolist()
        keeps = order[math.ceil((len(order) - 1) * (1 - self.alpha)) :] if self.alpha else []
        products = updates @ updates.T
        kept = torch.zeros(len(order), dtype=torch.bool).index_fill(
            0, torch.tensor(keeps, dtype=torch.int64), True
        )
        direction = mean_without_conflicts(products.cpu(), order, kept).to(updates) @ updates
        memory: State = {}
        if self.tau:
            known = remembered(state, replies.ids, updates, self.tau)
            memory = {"rounds": state["rounds"] + 1, **known}
        # the oldest first
        ages = range(self.tau, 0, -1) if self.tau and state["rounds"] >= self.tau else ()
        for age in ages:
            past = memory["past"][memory["age"] == age]
            against = past[past @ direction < 0]
            if len(against):
                direction = without_conflict(direction, against.sum(0))
        length, wanted = direction.norm(), updates.mean(0).norm()
        direction = torch.where(length > 0, direction * (wanted / length.clamp(min=1e-300)), 0.0)
        info = {"conflicts": (products < 0).sum() // 2}
        return {**state, **memory, "model": descend(state["model"], direction)}, info

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its update", "its loss")


def mean_without_conflicts(products: Tensor, order: Sequence[int], kept: Tensor) -> Tensor:
    """Return (K,) the coefficients of the received updates in the mean of the cleared ones.

    A cleared update is a combination of received ones, and conflicts show in its products with
    them. So only the ``products`` (K, K) are needed, not the vectors of length P. All updates are
    cleared of a block of others at a time; their products with the rest then follow from one matrix
    product.

    Args:
        products: (K, K) inner products of the received updates.
        order: in which the updates are cleared of the others.
        kept: (K,) whose update stays unchanged.
    """
    place = torch.as_tensor(order, dtype=torch.int64)
    G, rank = products[place][:, place], torch.arange(len(place))
    cleared, moving = G.clone(), ~kept[place]  # (K, K) products of the cleared with the received
    weight = torch.ones(len(place), dtype=G.dtype)
    for start in range(0, len(place), BLOCK):
        block = slice(start, start + BLOCK)
        here, among = cleared[:, block].T.contiguous(), G[block, block]  # (B, K), (B, B)
        taken = torch.zeros_like(here)
        for j, own in enumerate(among):
            against = (here[j] < 0) & moving & (rank != start + j)
            taken[j] = torch.where(against, -here[j] / own[j].clamp(min=1e-300), 0.0)
            here[j + 1 :].addr_(own[j + 1 :], taken[j])
        weight[block] += taken.sum(1)
        rest = slice(start + BLOCK, None)
        cleared[:, rest] += taken.T @ G[block, rest]
    return torch.zeros_like(weight).index_put((place,), weight) / len(place)


def without_conflict(vector: Tensor, other: Tensor) -> Tensor:
    """Remove from ``vector`` its component along ``other``, if the two point against each other."""
    product = vector @ other
    return torch.where(
        product < 0, vector - other * (product / (other @ other).clamp(min=1e-300)), vector
    )
