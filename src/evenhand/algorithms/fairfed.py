"""FairFed: weights for clients whose local gap between groups is close to the global one."""

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
    Weighting,
    normalised,
    step,
    weighted,
)
from evenhand.algorithms.cells import (
    cell_entries,
    cell_sums,
    cell_totals,
    check_classifier,
    group_count,
    statistics,
)
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_choice, require_number
from evenhand.growth import grown, resettled
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task, stepped
from evenhand.model import Model
from evenhand.tree import Tree

NOTIONS = ("equal_opportunity", "demographic_parity")
RULES = ("additive", "exponential")


@dataclass(frozen=True)
class FairFed(Algorithm, Question, Weighting, Reporting):
    """Give more weight to clients whose gap between groups is close to the whole federation's.

        additive     w_i <- max(0, w_i - beta (g_i - mean g)), w_i = p_i at first
        exponential  w_i = p_i exp(-beta g_i)          (Ezzeldin et al., AAAI 2023; first version)
        server       theta <- theta - sum_i w_i Delta_i / sum_i w_i

    g_i = |F - F_i|; F = T_0 - T_1 is the difference of two groups' rates of favourable predictions
    over all clients, F_i over client i. With more groups, g_i is the mean over pairs of groups.
    A client that has no such pair counts with the difference between its accuracy and everyone's,
    where predictions and labels are favourable or not. A weight that was cut at 0 stays cut; the
    others are used as shares of their sum.

    It favours clients that are typical, not fair: if all are equally unfair, this is FedAvg.

    Args:
        beta: how strongly gaps count; 0 gives FedAvg.
        notion: "equal_opportunity" compares rates among favourable labels, "demographic_parity"
            among all samples.
        rule: how gaps become weights; "exponential" starts from p_i in every round.
        accumulate: whether additive weights start from the last round's, or from p_i.
        sums_only: let clients update their own weights, so that the server only needs sums; asks
            twice a round. Needs the additive rule.
    """

    beta: float = 1.0
    notion: str = "equal_opportunity"
    rule: str = "additive"
    accumulate: bool = True
    sums_only: bool = False

    def __post_init__(self) -> None:
        require_number("beta", self.beta, "[0, inf)", "0 gives FedAvg")
        require_choice("notion", self.notion, NOTIONS)
        require_choice("rule", self.rule, RULES)
        for name in ("accumulate", "sums_only"):
            value = getattr(self, name)
            require(isinstance(value, bool), "{} must be true or false, got {!r}", name, value)
        require(
            not self.sums_only or self.rule == "additive",
            'sums_only needs rule="additive", got "{}"',
            self.rule,
        )

    def check(self, model: Model) -> None:
        check_classifier("FairFed", model)

    def init(self, params: Tree, census: Census) -> State:
        groups = torch.zeros(group_count("FairFed", census), dtype=torch.float64)
        zero = torch.zeros((), dtype=torch.float64)
        state = {"model": params, "base": census.weight, "rate": groups, "seen": groups}
        state |= {"accuracy": zero, "mean_gap": zero}
        return state if self.sums_only else {**state, "omega": census.weight}

    # ---- the questions

    def question(self, moment: str = "before") -> Question | None:
        if moment == "second" and self.sums_only:
            return GapQuestion(self)
        return self if moment == "before" else None

    def ask(self, state: State) -> Survey | None:
        return Survey({"model": state["model"], "groups": state["rate"]})

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        params, groups = task.shared["model"], len(task.shared["groups"])
        total = cell_totals(model, params, data, task, groups, "hard")
        return Reply(total, {} if self.sums_only else self._own(model, params, data, groups))

    def answer_entries(self, asked: Asked) -> Entries:
        declared = cell_entries(asked, "hard")
        if self.sums_only or asked.groups is None:
            return declared
        most = Entry(low=0.0, high=asked.groups[:, None].expand(-1, 2))
        return {**declared, "own_sum": most, "own_share": most}

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        rate, seen, accuracy = self._rates(replies.total["cell_sum"], replies.total["cell_share"])
        state = {**state, "rate": rate, "seen": seen.double(), "accuracy": accuracy}
        if self.sums_only:
            return state
        gap = self._gap(state, replies.each["own_sum"], replies.each["own_share"])  # (K,)
        base, ids = state["base"], replies.ids
        if self.rule == "exponential":  # only ratios count, so the largest may be 1
            new = base[ids] * (-self.beta * (gap - gap.min())).exp()
        else:
            before = state["omega"][ids] if self.accumulate else base[ids]
            new = (before - self.beta * (gap - gap.mean())).clamp(min=0)
        return {**state, "mean_gap": gap.mean(), "omega": state["omega"].index_put((ids,), new)}

    @staticmethod
    def _own(model: Model, params: Tree, data: Batch, groups: int) -> Tree:
        """Return (A, 2) a client's favourable predictions and samples by cell, as shares."""
        total, count = cell_sums(statistics(model, params, data, "hard"), data, groups)
        size = data.weight.sum()
        return {"own_sum": total / size, "own_share": count / size}

    def _rates(self, total: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (..., A) rates of favourable predictions and where they exist, and accuracy."""
        total, share = total.double(), share.double()
        correct = total[..., 1] + share[..., 0] - total[..., 0]
        accuracy = correct.sum(-1) / share.sum((-1, -2)).clamp(min=1e-300)
        if self.notion == "equal_opportunity":
            top, bottom = total[..., 1], share[..., 1]
        else:
            top, bottom = total.sum(-1), share.sum(-1)
        return top / bottom.clamp(min=1e-300), bottom > 0, accuracy

    def _gap(self, known: Tree, total: Tensor, share: Tensor) -> Tensor:
        """Return (...,) |F - F_i| of clients with these cells, (..., A, 2)."""
        rate, here, accuracy = self._rates(total, share)
        away = known["rate"] - rate
        pair = here[..., :, None] & here[..., None, :]  # the diagonal adds 0 below
        apart = torch.where(pair, (away[..., :, None] - away[..., None, :]).abs(), 0.0)
        groups = here.sum(-1)
        pairs = groups * (groups - 1)
        mean = apart.sum((-1, -2)) / pairs.clamp(min=1)
        return torch.where(pairs > 0, mean, (known["accuracy"] - accuracy).abs())

    # ---- weights

    def weighting(self) -> Weighting | None:
        return None if self.sums_only else self

    def reweigh(self, state: State, draw: Draw) -> Draw:
        weight = normalised(draw.weight * (state["omega"] / state["base"])[draw.ids])
        return Draw(draw.ids, weight, weight)

    def task(self, state: State, ids: Tensor) -> Task:
        shared = {"model": state["model"]}
        if not self.sums_only:
            return Task(shared)
        known = {name: state[name] for name in ("rate", "accuracy", "mean_gap")}
        return Task({**shared, **known}, {"base": state["base"][ids]})

    def memory(self, params: Tree) -> Memory:
        # how far its weight is from p_i, which only the task tells
        return {"shift": torch.zeros((), dtype=torch.float64)} if self.sums_only else {}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        delta = tree.sub(start["model"], end["model"])
        if not self.sums_only:
            return Reply(weighted(delta, task)), memory
        known, base = task.shared, task.own["base"].double()
        own = self._own(model, start["model"], data, len(known["rate"]))
        excess = self._gap(known, own["own_sum"], own["own_share"]) - known["mean_gap"]
        before = base + memory["shift"] if self.accumulate else base
        omega = (before - self.beta * excess).clamp(min=0)
        weight = task.own["weight"] * omega / base.clamp(min=1e-300)
        return Reply({"delta": tree.scale(delta, weight), "weight": weight}), {
            "shift": omega - base
        }

    def entries(self, asked: Asked) -> Entries:
        if not self.sums_only:
            return stepped(asked)
        return {"delta": Entry(kind="update", per="weight"), "weight": Entry(low=0.0)}

    def scales(self, own: Tree) -> dict[str, Tensor]:
        if not self.sums_only:
            return {}
        base = own["base"]  # the reply is multiplied by omega / p_i
        return {"base": torch.where(base > 0, 1 / base, 0.0)}

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        rate, seen = state["rate"], state["seen"] > 0
        high = torch.where(seen, rate, -torch.inf).max()
        gap = (high - torch.where(seen, rate, torch.inf).min()).clamp(min=0)
        info: Info = {"group_gap": gap, "mean_distance": state["mean_gap"]}
        return {**state, "model": step(state["model"], replies)}, info

    def join(self, state: State, before: State, after: State) -> State:
        joined = grown(state, before, after)
        if not self.sums_only:
            joined["omega"] = resettled(joined["omega"], before["base"], after["base"])
        return joined

    def visible(self, census: Census) -> tuple[str, ...]:
        return () if self.sums_only else ("its predictions counted by group and label",)


@dataclass(frozen=True)
class GapQuestion(Question):
    """Asks for the sum of the clients' distances to the global gap, once that is known."""

    method: FairFed

    def ask(self, state: State) -> Survey | None:
        return Survey({name: state[name] for name in ("model", "rate", "accuracy")})

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        known = task.shared
        own = self.method._own(model, known["model"], data, len(known["rate"]))
        gap = self.method._gap(known, own["own_sum"], own["own_share"])
        return Reply({"gap": gap, "clients": torch.ones_like(gap)})

    def answer_entries(self, asked: Asked) -> Entries:
        # a difference of two rates lies between -1 and 1, so two of them are at most 2 apart
        one = torch.ones((), dtype=torch.float64)
        return {"gap": Entry(low=0.0, high=2.0), "clients": Entry(known=one)}

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        return {**state, "mean_gap": replies.total["gap"] / replies.total["clients"]}
