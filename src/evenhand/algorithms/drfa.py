"""DRFA: distributionally robust federated averaging."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import (
    Algorithm,
    Certificate,
    Info,
    LocalWork,
    Memory,
    Question,
    Reporting,
    State,
    Weighting,
    mean_step,
    step,
    weighted,
)
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_number, require_whole
from evenhand.growth import grown, resettled
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task, stepped
from evenhand.model import Model
from evenhand.simplex import project_simplex
from evenhand.theory.aggregates import Maximum
from evenhand.tree import Tree


@dataclass(frozen=True)
class DRFA(Algorithm, Question, Weighting, Reporting):
    """AFL with fewer messages: draw clients by their dual weights, updated from losses at one
    snapshot.

        min over theta, max over lam in the simplex, of  sum_i lam_i f_i(theta)
        (Deng, Kamani, Mahdavi, NeurIPS 2020)

    Clients are drawn in proportion to lam (with Proportional(k); other cohorts use lam as the
    clients' weights). Their local models are averaged, and so are their models at a random step of
    the round. Then ``sample`` clients, drawn uniformly, report their loss f at that averaged
    snapshot, and lam <- projection(lam + lr_lambda (n / sample) f), with f = 0 for the others. The
    server sees the losses of the clients it asks.

    Args:
        lr_lambda: ascent step of a whole round, that is the paper's step times its number of local
            steps; 0 gives FedAvg.
        sample: clients asked for their loss after a round; None asks all.
        floor: the smallest lam of any client; the authors' code uses 0.001.
    """

    lr_lambda: float = 0.1
    sample: int | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        require_number("lr_lambda", self.lr_lambda, "[0, inf)", "0 gives FedAvg")
        require_whole("sample", self.sample, 1, optional=True)
        require_number("floor", self.floor, "[0, 1)", "at most one over the number of clients")

    def init(self, params: Tree, census: Census) -> State:
        n = census.clients
        require(
            self.sample is None or self.sample <= n,
            "sample asks {} clients, but the federation has {}; lower sample",
            self.sample,
            n,
        )
        require(
            self.floor * n <= 1,
            "floor {} for {} clients exceeds the mass 1; use at most {:g}",
            self.floor,
            n,
            1 / n,
        )
        lam = project_simplex(census.weight, self.floor)
        return {
            "model": params,
            "lam": lam,
            "snapshot": params,
            "started": torch.zeros((), dtype=torch.float64),
        }

    def chances(self, state: State) -> Tensor | None:
        lam: Tensor = state["lam"]
        return lam

    def ask(self, state: State) -> Survey | None:
        """Ask for losses at the last round's snapshot."""
        who = "everyone" if self.sample is None else self.sample
        return Survey({"model": state["snapshot"]}, who=who, needed=state["started"] > 0)

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        scale = len(state["lam"]) / len(replies.ids)
        ascent = torch.zeros_like(state["lam"]).index_put(
            (replies.ids,), scale * replies.each["loss"].double()
        )
        return {**state, "lam": project_simplex(state["lam"] + self.lr_lambda * ascent, self.floor)}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        total = weighted(tree.sub(start["model"], end["model"]), task)
        until_then = weighted(tree.sub(start["model"], end["snapshot"]["model"]), task)
        return Reply(total={**total, "snapshot": until_then["delta"]}), memory

    def entries(self, asked: Asked) -> Entries:
        snapshot = Entry(kind="update", per=asked.task.own["weight"])
        return {**stepped(asked), "snapshot": snapshot}

    def local_work(self) -> LocalWork:
        return LocalWork(snapshot=True)

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        before = state["model"]
        snapshot = tree.map(
            lambda p, d: (p.double() - d).to(p.dtype), before, mean_step(replies, "snapshot")
        )
        after = {
            "model": step(before, replies),
            "snapshot": snapshot,
            "started": torch.ones_like(state["started"]),
        }
        return {**state, **after}, {
            "largest_lam": state["lam"].max(),
            "clients_with_lam": (state["lam"] > 0).sum(),
        }

    def join(self, state: State, before: State, after: State) -> State:
        joined = grown(state, before, after)
        lam = resettled(joined["lam"], before["lam"], after["lam"])
        return {**joined, "lam": project_simplex(lam, self.floor) if self.floor else lam}

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss, when asked",)

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        return Certificate(
            losses.max(), state["lam"], Maximum().gap(losses, census.weight, state["lam"])
        )
