"""Reweighing of samples, so that label and group are independent."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evenhand.algorithm import Algorithm, Info, LocalWork, Memory, Question, State
from evenhand.algorithms.adafed import AdaFed
from evenhand.algorithms.afl import AFL
from evenhand.algorithms.agnosticfedavg import AgnosticFedAvg
from evenhand.algorithms.averaged import Averaged
from evenhand.algorithms.cells import by_cell, cell_sums, check_classifier, group_count
from evenhand.algorithms.clipped import Clipped
from evenhand.algorithms.ditto import Ditto
from evenhand.algorithms.fairfed import FairFed
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.fedfb import FedFB
from evenhand.algorithms.fedfv import FedFV
from evenhand.algorithms.fedheal import FedHEAL
from evenhand.algorithms.fedlf import FedLF
from evenhand.algorithms.fedmgda import FedMGDA
from evenhand.algorithms.fedminmax import FedMinMax
from evenhand.algorithms.fedprox import FedProx
from evenhand.algorithms.groupconstraint import GroupConstraint
from evenhand.algorithms.groups import group_share
from evenhand.algorithms.localonly import LocalOnly
from evenhand.algorithms.mfairfl import MFairFL
from evenhand.algorithms.qffl import QFFL
from evenhand.algorithms.serveroptimizers import ServerOptimizer
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_choice
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task
from evenhand.model import Model
from evenhand.privacy.bounds import Contribution, Limits
from evenhand.tree import Tree

# methods whose clients minimise a mean over samples, and report losses only after training
FITS = (
    FedAvg, FairFed, AFL, QFFL, FedFV, FedMGDA, AdaFed, FedLF, FedHEAL, Ditto, LocalOnly
)  # fmt: skip
CHANGES = (FedProx, ServerOptimizer, Clipped, Averaged)
BY_GROUP = (FedFB, FedMinMax, AgnosticFedAvg, GroupConstraint, MFairFL)


@dataclass(frozen=True)
class Reweighed(Wrapper):
    """Weight samples so that every group has the same share of favourable labels.

        u[a, y] = n_a n_y / (n n[a, y]),   f_i = (1/m_i) sum_z u[a(z), y(z)] loss(z)
        (Kamiran and Calders, 2012)

    n[a, y] counts samples of group a with label y. The label is favourable (class 1) or not. With
    the weights u, group and label are independent. A group that lacks a label cannot have the
    common share; the others have it, and the weights sum to less than n. Wherever the inner method
    uses a client's loss, it is f_i. Rates of predictions, as in FairFed, are not weighted.

    Global weights act through the size of gradients. Adam's steps do not depend on it and clipping
    bounds it, so a run with either logs a warning.

    The paper has one data set; whether clients count their own samples or everyone's is our choice
    to offer.

    Args:
        scope: "local" counts each client's own samples and sends nothing; "global" counts the
            samples of all clients, in sums asked for before each round, and adds up the cohorts.
        inner: the method that trains on the weighted samples; FairFed is usual.
    """

    scope: str = "local"
    inner: Algorithm = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("scope", self.scope, ("local", "global"))
        refuse_unfit(self.inner)

    def check(self, model: Model) -> None:
        check_classifier("Reweighed", model)
        self.inner.check(model)

    # ---- the server

    def init(self, params: Tree, census: Census) -> State:
        none = torch.zeros(group_count("Reweighed", census), 2, dtype=torch.float64)
        cells = {"share": none, "weight": torch.ones_like(none)}
        return {**self.inner.init(params, census), "cells": cells}

    def task(self, state: State, ids: Tensor) -> Task:
        # of the local scope's table only the size counts
        task = self.inner.task(state, ids)
        return task._replace(shared={**task.shared, "cell_weight": state["cells"]["weight"]})

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        after, info = self.inner.server(state, replies)
        if self.scope == "global":
            info = {**info, "largest_cell_weight": state["cells"]["weight"].max()}
        return {**after, "cells": state["cells"]}, info

    def join(self, state: State, before: State, after: State) -> State:
        # counts start again, since earlier cohorts lack the new clients
        return {**self.inner.join(state, before, after), "cells": after["cells"]}

    # ---- the question

    def question(self, moment: str = "before") -> Question | None:
        if moment != "before" or self.scope == "local":
            return self.inner.question(moment)
        return self

    def ask(self, state: State) -> Survey | None:
        inner = self._asking
        survey = (None if inner is None else inner.ask(state)) or Survey({})
        return survey._replace(shared={**survey.shared, "cell_weight": state["cells"]["weight"]})

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        inner = self._asking
        reply = Reply() if inner is None else inner.answer(model, data, task, memory)
        count = counted(data, len(task.shared["cell_weight"]))
        share = count * (task.own["weight"] / data.weight.sum())
        return reply._replace(total={**reply.total, "label_share": share})

    def answer_entries(self, asked: Asked) -> Entries:
        most = group_share(asked)[:, None].expand(-1, 2)
        inner = self._asking
        known = {} if inner is None else inner.answer_entries(asked)
        return {**known, "label_share": Entry(low=0.0, high=most)}

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        inner = self._asking
        after = state if inner is None else inner.learn(state, replies)
        share = state["cells"]["share"] + replies.total["label_share"]
        return {**after, "cells": {"share": share, "weight": independent(share)}}

    @property
    def _asking(self) -> Question | None:
        """The inner method's own question before training, which only FairFed has."""
        return self.inner.question() if isinstance(_innermost(self.inner), FairFed) else None

    # ---- one client

    def local_work(self) -> LocalWork:
        work = self.inner.local_work()
        if self.scope == "local":
            return replace(work, whole_data=True)
        return replace(work, assumes_scale="weighs groups by scaling the gradient of their losses")

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        whole = batch.whole if self.scope == "local" else batch
        return self.inner.objective(self._weighing(model, whole, task), variables, batch, task)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        weighing = self._weighing(model, data, task)
        return self.inner.reply(weighing, start, end, data, task, memory)

    def contribution(self, limits: Limits) -> Contribution | None:
        return self.inner.contribution(limits)

    def entries(self, asked: Asked) -> Entries:
        entries = self.inner.entries(asked)
        if self.scope == "local":
            return entries  # a client's weights have mean one
        # a client of rare cells may move further than the others
        dear = max(1.0, float(asked.task.shared["cell_weight"].max()))
        return {
            name: replace(entry, slack=entry.slack * dear) if entry.kind == "update" else entry
            for name, entry in entries.items()
        }

    def _weighing(self, model: Model, whole: Batch, task: Task) -> Model:
        """Return the model with weighted losses; ``whole`` is all of the client's data."""
        table = task.shared["cell_weight"]
        if self.scope == "local":
            table = independent(counted(whole, len(table)))

        def losses(params: Tree, batch: Batch) -> Tensor:
            values = model.losses(params, batch)
            return values * by_cell(table, batch).to(values.dtype)

        twin = copy.copy(model)
        twin.losses = losses  # type: ignore[method-assign]
        return twin


def counted(data: Batch, groups: int) -> Tensor:
    """Return (A, 2) the number of samples of each group and label."""
    _, count = cell_sums(data.weight, data, groups)
    return count


def independent(count: Tensor) -> Tensor:
    """Return (A, 2) the weights with which group and label are independent; 1 for empty cells."""
    expected = count.sum(1, keepdim=True) * count.sum(0, keepdim=True)
    found = count.sum() * count
    return torch.where(found > 0, expected / torch.where(found > 0, found, 1.0), 1.0)


def refuse_unfit(method: Algorithm) -> None:
    """Raise a ValueError unless a method's clients minimise a mean over samples."""
    method = _innermost(method)
    asks = isinstance(method, AFL) and method.order == "before"
    if isinstance(method, FITS) and not asks:
        return
    name = type(method).__name__
    if isinstance(method, BY_GROUP):
        why = "it weights samples by group itself"
    elif isinstance(method, Wrapper):
        why = "it changes models or weights after training; put Reweighed inside"
    else:
        why = "it asks for losses before training, or its clients do not minimise a mean loss"
    fine = ", ".join(kind.__name__ for kind in FITS)
    raise ValueError(f"Reweighed cannot weight the samples of {name}: {why}; use one of {fine}")


def _innermost(method: Algorithm) -> Algorithm:
    while isinstance(method, CHANGES):
        method = method.inner
    return method
