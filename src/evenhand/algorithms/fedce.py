"""FedCE: weights by estimated contribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import (
    Algorithm,
    Info,
    Memory,
    Question,
    Reporting,
    State,
    as_rows,
    descend,
    normalised,
)
from evenhand.algorithms.directions import at_length
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_choice
from evenhand.growth import grown, resettled
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task
from evenhand.model import Model, mean
from evenhand.tree import Tree

FLOOR = 1e-6  # least novelty and error; smaller ones are rounding


@dataclass(frozen=True)
class FedCE(Algorithm, Reporting):
    """Give more weight to clients whose updates point elsewhere, and whose data the model predicts
    badly without them.

        novelty  d_i = 1 - mean over rounds of cos(Delta_i, sum over others j of g_j Delta_j)
        error    e_i = 1 - mean over rounds of the accuracy on client i's data of the model without
                 it, (theta - w_i theta_i) / (1 - w_i); its first round counts as accuracy 0
        weight   w_i ~ d_i / sum d + e_i / sum e  ("plus")  or  d_i e_i  ("times"), sum_i w_i = 1
        server   theta <- theta - sum_i w_i Delta_i              (Jiang et al., CVPR 2023)

    theta_i is the client's last local model and g_i its last weight, 1/n at first, whatever its
    data. After the server's step, participants answer with the accuracy of the model without them,
    which enters the weights of their next round. Published code measures it at the beginning of the
    next round: the same number if everybody takes part.

    The paper assumes full participation. With a sampled cohort, means are over a client's own
    rounds, sums are over the participants, and these share the last weights they had together. A
    round with one participant changes no mean. d_i and e_i are at least 1e-6.

    The server sees every participant's update and accuracy. Its ``state["contribution"]`` has the
    last weight g_i of every client.

    Args:
        combination: "plus" adds novelty and error, "times" multiplies them.
        part: the data on which clients measure accuracy: "train", or "val" as in the paper, which
            every client must then have.
    """

    combination: str = "plus"
    part: str = "train"

    def __post_init__(self) -> None:
        require_choice("combination", self.combination, ("plus", "times"))
        require_choice("part", self.part, ("train", "val"))

    def check(self, model: Model) -> None:
        require(
            model.target.kind != "number",
            "FedCE compares models by their accuracy, so it needs a classifier; for regression, use"
            " FedHEAL",
        )

    # ---- the client

    def memory(self, params: Tree) -> Memory:
        return {"model": params}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        delta = tree.sub(start["model"], end["model"])
        return Reply(each={"delta": delta}), {"model": end["model"]}

    def entries(self, asked: Asked) -> Entries:
        return {"delta": Entry(kind="update")}

    # ---- the server

    def init(self, params: Tree, census: Census) -> State:
        zeros = torch.zeros_like(census.weight)
        return {
            "model": params,
            "contribution": torch.full_like(census.weight, 1 / census.clients),
            "used": zeros,  # weights in the step just taken, until the answers to it are known
            "cosine": zeros,  # summed over a client's rounds
            "rounds": zeros,
            "accuracy": zeros,  # summed over a client's answers
            "answers": zeros,
        }

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        ids, rows = replies.ids, as_rows(replies.each["delta"])
        last = state["contribution"][ids]
        cosine = cosines_to_others(rows, normalised(last).to(rows)).to(last)
        counted = torch.full_like(last, float(len(ids) > 1))
        cosines = added(state["cosine"], ids, counted * cosine)
        rounds = added(state["rounds"], ids, counted)

        novelty = 1 - (cosines / rounds.clamp(min=1))[ids]
        error = 1 - (state["accuracy"] / (state["answers"] + 1))[ids]
        weight = self._weights(novelty, error)
        state = {
            **state,
            "model": descend(state["model"], weight.to(rows) @ rows),
            "contribution": state["contribution"].index_put((ids,), weight * last.sum()),
            "used": torch.zeros_like(state["used"]).index_put((ids,), weight),
            "cosine": cosines,
            "rounds": rounds,
        }
        info = {"cosine": cosine.mean(), "error": error.mean(), "largest_weight": weight.max()}
        return state, info

    def _weights(self, novelty: Tensor, error: Tensor) -> Tensor:
        """Return (K,) the participants' weights."""
        d, e = (normalised(values.clamp(min=FLOOR)) for values in (novelty, error))
        return normalised(d + e if self.combination == "plus" else d * e)

    def question(self, moment: str = "before") -> Question | None:
        return WithoutThem(self.part) if moment == "review" else None

    def join(self, state: State, before: State, after: State) -> State:
        joined = grown(state, before, after)
        shares = (before["contribution"], after["contribution"])
        return {**joined, "contribution": resettled(joined["contribution"], *shares)}

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its update", "the accuracy of the model without it")


@dataclass(frozen=True)
class WithoutThem(Question):
    """Asks each participant for the accuracy of the new model without its local model."""

    part: str

    def ask(self, state: State) -> Survey | None:
        used = state["used"]
        # without its only participant there is no model
        needed = ((used > 0) & (used < 1)).any()
        return Survey({"model": state["model"]}, {"used": used}, needed=needed, part=self.part)

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        used = task.own["used"].double()
        others = torch.where(used < 1, 1 - used, 1.0)

        def without(p: Tensor, mine: Tensor) -> Tensor:
            moved: Tensor = p + used / others * (p.double() - mine)  # (p - used mine) / others
            return moved.to(p.dtype)

        params = tree.map(without, task.shared["model"], memory["model"])
        right = model.target.right(model.output(params, data.x), data.y)
        return Reply(each={"accuracy": mean(right, data)})

    def answer_entries(self, asked: Asked) -> Entries:
        return {"accuracy": Entry(low=0.0, high=1.0)}

    def learn(self, state: State, replies: Replies) -> State:
        asked_once = {**state, "used": torch.zeros_like(state["used"])}
        if not len(replies.ids):
            return asked_once
        used = state["used"][replies.ids]
        counts = ((used > 0) & (used < 1)).to(used)
        heard = counts * replies.each["accuracy"].to(used)
        return {
            **asked_once,
            "accuracy": added(state["accuracy"], replies.ids, heard),
            "answers": added(state["answers"], replies.ids, counts),
        }


def cosines_to_others(rows: Tensor, weight: Tensor) -> Tensor:
    """Return (K,) the cosine of each row with the weighted sum of the others; 0 for rows of
    zeros."""
    others = weight * (1 - torch.eye(len(rows), dtype=rows.dtype, device=rows.device))
    one = torch.ones((), dtype=rows.dtype, device=rows.device)
    return (at_length(rows, one) * at_length(others @ rows, one)).sum(1)


def added(sums: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Return the clients' sums (n,) with the values (K,) of clients ``ids`` added."""
    return sums.index_put((ids,), sums[ids] + values)
