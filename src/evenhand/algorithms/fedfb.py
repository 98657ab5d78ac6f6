"""FedFB: FairBatch for federations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.algorithm import (
    Algorithm,
    Info,
    LocalWork,
    Question,
    Reporting,
    State,
    Weighting,
    normalised,
)
from evenhand.algorithms.cells import (
    STATISTICS,
    by_cell,
    cell_entries,
    cell_totals,
    check_classifier,
    group_count,
)
from evenhand.algorithms.groups import group_share
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_choice, require_number
from evenhand.growth import grown, resettled
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task, stepped
from evenhand.model import Model, mean
from evenhand.simplex import project_simplex
from evenhand.tree import Tree

NOTIONS = ("demographic_parity", "equal_opportunity", "equalised_odds", "client_parity")


@dataclass(frozen=True)
class FedFB(Algorithm, Question, Weighting, Reporting):
    """Reweigh samples by group and label until groups get the favourable label equally often.

        client i:  minimise (1/m_i) sum_z u[a(z), y(z)] loss(z)      (Zeng, Chen, Lee, 2021)
        before each round r:  v_a <- v_a + alpha / (r + 1)^decay * 2 (s_a - mean s)

    s_a is what must become equal over the groups a, from sums over all clients at the current
    model; v_a is the mass that the notion shifts between groups:

        demographic_parity  s_a = E_0 - E_1 + share of label 1 in a; E_y: summed errors of label y
                            over all samples of a. u[a, 0] = 1 + b_a, u[a, 1] = 1 - b_a with b_a in
                            [-1, 1], v_a = (share of a) b_a
        equal_opportunity   s_a = mean error of label 1 in a; v_a = (share of the cell) u[a, 1],
                            projected on v >= 0 with the sum that u = 1 has
        equalised_odds      the same for both labels
        client_parity       s_i = f_i and v_i the weight of client i, projected on the simplex

    With statistic="hard", errors are wrong predictions, and demographic parity's s_a is exactly
    the share of a with a favourable prediction. With losses it is a surrogate.

    In the authors' code, group (or client) 0 is compared with every other one: v_a gets s_a - s_0
    and v_0 minus the sum of these. Which one comes first should not matter, so the mean over all
    choices of the first is used: for two groups it is the same step. A cell that is absent from a
    cohort counts with its last known error, and shares are means over past cohorts.

    Group weights act through the size of gradients. Adam's steps do not depend on it and clipping
    bounds it, so a run with either logs a warning.

    Args:
        notion: what to make equal.
        alpha: step size; 0 gives FedAvg. Published: 0.001 to 2.
        statistic: errors are the "loss", or the "soft" or "hard" prediction's distance to the
            label.
        normalised: divide the step by the norm of the differences, as declearn reads the paper.
        decay: how fast steps shrink; 0 keeps alpha, the authors' code uses 0.5.
    """

    notion: str = "equal_opportunity"
    alpha: float = 0.1
    statistic: str = "loss"
    normalised: bool = False
    decay: float = 0.5

    def __post_init__(self) -> None:
        require_choice("notion", self.notion, NOTIONS)
        require_number("alpha", self.alpha, "[0, inf)", "0 gives FedAvg")
        require_choice("statistic", self.statistic, STATISTICS)
        require(
            isinstance(self.normalised, bool),
            "normalised must be true or false, got {!r}",
            self.normalised,
        )
        require_number("decay", self.decay, "[0, inf)", "0 keeps the step size")
        require(
            self.statistic == "loss" or not self._by_client,
            'client parity compares losses; use statistic="loss", not "{}"',
            self.statistic,
        )

    @property
    def _by_client(self) -> bool:
        return self.notion == "client_parity"

    def check(self, model: Model) -> None:
        if self._by_client:
            return
        check_classifier("FedFB", model)
        require(
            self.notion != "demographic_parity" or self.statistic != "loss" or model.classes <= 2,
            "FedFB's demographic parity from losses needs two classes, the model has {}; use"
            ' statistic="soft"',
            model.classes,
        )

    def init(self, params: Tree, census: Census) -> State:
        state = {"model": params, "rounds": torch.zeros((), dtype=torch.float64)}
        if self._by_client:
            return {**state, "lam": census.weight, "base": census.weight}
        unknown = torch.zeros(group_count("FedFB", census), 2, dtype=torch.float64)
        known = {"share": unknown, "error": unknown, "seen": unknown}
        return {**state, "cell_weight": torch.ones_like(unknown), **known}

    def task(self, state: State, ids: Tensor) -> Task:
        shared = {"model": state["model"]}
        return Task(shared if self._by_client else {**shared, "cell_weight": state["cell_weight"]})

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        if self._by_client:
            return model.loss(variables["model"], batch)
        losses = model.losses(variables["model"], batch)
        return mean(losses * by_cell(task.shared["cell_weight"], batch).to(losses.dtype), batch)

    def local_work(self) -> LocalWork:
        if self._by_client:  # the server weighs clients
            return LocalWork()
        return LocalWork(assumes_scale="weighs groups by scaling the gradient of their losses")

    def entries(self, asked: Asked) -> Entries:
        if self._by_client:
            return stepped(asked)
        # a client minimises its losses times weights of its cells, at most the larger of a group's
        per = (group_share(asked) * asked.task.shared["cell_weight"].amax(1)).sum()
        delta = Entry(kind="update", per=per, least=0.01 * asked.task.own["weight"])
        return {**stepped(asked), "delta": delta}

    # ---- the question

    def ask(self, state: State) -> Survey | None:
        shared = {"model": state["model"]}
        return Survey(shared if self._by_client else {**shared, "cells": state["cell_weight"]})

    def answer(self, model: Model, data: Batch, task: Task, memory: Tree) -> Reply:
        params = task.shared["model"]
        if self._by_client:
            return Reply(each={"loss": model.loss(params, data)})
        groups = len(task.shared["cells"])
        return Reply(total=cell_totals(model, params, data, task, groups, self.statistic))

    def answer_entries(self, asked: Asked) -> Entries:
        return (
            {"loss": Entry(kind="loss")} if self._by_client else cell_entries(asked, self.statistic)
        )

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        rate = self.alpha / (state["rounds"] + 1) ** self.decay
        learned = {**state, "rounds": state["rounds"] + 1}
        if self._by_client:
            loss = replies.each["loss"].double()
            shift = self._step(rate, loss, torch.ones_like(loss) > 0)
            lam = state["lam"].index_add(0, replies.ids, shift)
            return {**learned, "lam": project_simplex(lam)}
        learned |= self._cells(state, replies)
        return {**learned, "cell_weight": self._reweighed(learned, rate)}

    def _cells(self, state: State, replies: Replies) -> State:
        """Return share and mean error of every cell, and whether it was ever seen."""
        share, total = replies.total["cell_share"], replies.total["cell_sum"]
        if self.statistic != "loss":  # from predictions of label 1 to errors
            favourable = torch.arange(2, device=share.device) == 1
            total = torch.where(favourable, share - total, total)
        here = share > 0
        return {
            "share": state["share"] + (share - state["share"]) / (state["rounds"] + 1),
            "error": torch.where(here, total / share.clamp(min=1e-300), state["error"]),
            "seen": torch.where(here, 1.0, state["seen"]),
        }

    def _reweighed(self, state: State, rate: Tensor) -> Tensor:
        """Return (A, 2) the weights of the cells after a step that makes groups more equal."""
        share, weight, seen = state["share"], state["cell_weight"], state["seen"] > 0
        if self.notion == "demographic_parity":
            size = share.sum(1)
            b = weight[:, 0] - 1
            shift = self._step(rate, self._rates(state), seen.any(1))
            b = torch.where(size > 0, (b + shift / size.clamp(min=1e-300)).clamp(-1, 1), b)
            return torch.stack([1 + b, 1 - b], dim=1)
        moves = torch.tensor(
            [self.notion == "equalised_odds", True], device=share.device
        )  # the labels whose cells are reweighed
        shift = self._step(rate, state["error"], seen & moves)
        mass = share.sum(0)
        columns = []
        for y in range(2):
            whole = torch.where(mass[y] > 0, mass[y], 1.0)
            v = whole * project_simplex((share * weight + shift)[:, y] / whole, support=seen[:, y])
            new = torch.where(seen[:, y], v / share[:, y].clamp(min=1e-300), weight[:, y])
            columns.append(torch.where(moves[y], new, weight[:, y]))
        return torch.stack(columns, dim=1)

    def _rates(self, state: State) -> Tensor:
        """Return (A,) the rate of favourable predictions, or what stands for it with losses."""
        share: Tensor = state["share"]
        errors = share * state["error"]
        rates: Tensor = (errors[:, 0] - errors[:, 1] + share[:, 1]) / share.sum(1).clamp(min=1e-300)
        return rates

    def _step(self, rate: Tensor, values: Tensor, here: Tensor) -> Tensor:
        """Return the shift of mass towards values above the mean of their column."""
        count = here.sum(0).clamp(min=1)
        middle = torch.where(here, values, 0.0).sum(0) / count
        shift = torch.where(here, 2 * (values - middle), 0.0)
        if self.normalised:  # for two groups by |s_1 - s_0|; for both labels at once
            norm = (shift.square().sum() / 2).sqrt()
            shift = torch.where(norm > 0, shift / torch.where(norm > 0, norm, 1.0), 0.0)
        return rate * shift

    # ---- client parity, and reports

    def weighting(self) -> Weighting | None:
        return self if self._by_client else None

    def reweigh(self, state: State, draw: Draw) -> Draw:
        weight = normalised(draw.weight * (state["lam"] / state["base"])[draw.ids])
        return Draw(draw.ids, weight, weight)

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        state, info = super().server(state, replies)
        if self._by_client:
            return state, {"largest_lam": state["lam"].max()}
        if self.notion == "demographic_parity":
            values, seen = self._rates(state)[:, None], (state["seen"] > 0).any(1, keepdim=True)
        else:
            first = 0 if self.notion == "equalised_odds" else 1
            values, seen = state["error"][:, first:], state["seen"][:, first:] > 0
        gap = torch.where(seen, values, -torch.inf).amax(0) - torch.where(
            seen, values, torch.inf
        ).amin(0)
        return state, {
            **info,
            "group_gap": gap.clamp(min=0).max(),
            "largest_cell_weight": state["cell_weight"].max(),
        }

    def join(self, state: State, before: State, after: State) -> State:
        joined = grown(state, before, after)
        if self._by_client:
            joined["lam"] = resettled(joined["lam"], before["base"], after["base"])
        return joined

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss",) if self._by_client else ()
