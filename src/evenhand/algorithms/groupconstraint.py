"""Constraints on the differences between groups."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, Memory, Question, State
from evenhand.algorithms.averaged import Averaged
from evenhand.algorithms.cells import (
    by_cell,
    cell_entries,
    cell_totals,
    check_classifier,
    group_count,
    remembering,
    statistics,
)
from evenhand.algorithms.clipped import Clipped
from evenhand.algorithms.fafl import FAFL
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.fedfv import FedFV
from evenhand.algorithms.fedminmax import FedMinMax
from evenhand.algorithms.fedprox import FedProx
from evenhand.algorithms.finalgap import LOCAL_GROUPS, FinalGap, own_sums
from evenhand.algorithms.prices import LABELS, Dual, Scope
from evenhand.algorithms.propfair import PropFair
from evenhand.algorithms.serveroptimizers import ServerOptimizer
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_choice, require_number
from evenhand.messages import Asked, Entries, Replies, Reply, Task
from evenhand.model import Model, mean
from evenhand.tree import Tree

LOSSES = ("group_loss", "loss_parity")
# methods whose clients minimise a sum to which the constraint's term can be added
ADDS = (FedAvg, FAFL, PropFair, FedMinMax, FedFV)
CHANGES = (FedProx, ServerOptimizer, Clipped, Averaged)


@dataclass(frozen=True)
class GroupConstraint(Wrapper):
    """Minimise the inner method's objective, subject to a bound on the gap between groups.

        min over theta of f(theta)  subject to  M_a(theta) - M_b(theta) <= bound  for all groups
        a, b  (augmented Lagrangian with sums over clients)

    M_a is the share of group a that is predicted favourably (class 1): of all its samples
    (demographic parity), of those with label 1 (equal opportunity), or of both labels apart
    (equalised odds). For "group_loss" it is the mean loss, itself bounded; for "loss_parity" its
    differences are. A client adds to its objective the price of each sample's cell times
    sigmoid(s), where s is the log-odds of the favourable class. It returns the statistic summed by
    group and label, at the model received; the server only needs sums. Every bound has a price:

        t_ab <- [t_ab + lr_dual / sqrt(1 + k) (M_a - M_b - bound)]_+,  at most cap

    with which group a pays and group b is paid. The multiplier of the bound is the price times
    n_a n_b / (n_a + n_b), where n is a group's share of the data: steps are as long for small
    groups as for large ones. k counts how often this gap fell from above its bound to below it, so
    that prices settle. Prices start at 0; both steps use the values of one round. For "group_loss",
    the weights of the groups' losses are divided by their mean, so that steps keep their length.

    After the last round, all clients are asked for the same sums at the trained model. The history
    ends with its gap, and a warning says if it exceeds the bound.

    Args:
        notion: "demographic_parity", "equal_opportunity", "equalised_odds", "group_loss" or
            "loss_parity".
        bound: the largest allowed gap; 1 or more gives the inner method for rates.
        scope: "global" bounds the gap over all clients' samples; "local" bounds every client's own
            gap, with prices that stay on the client, and sends nothing about groups.
        compare: "groups" compares all groups, which are intersections if there are several columns;
            "columns" compares the values of each column.
        statistic: "hard" bounds the rates of predictions; "soft" those of probabilities, whose
            gradient the prices follow exactly.
        lr_dual: first step of the ascent.
        damping: how much the current excess adds to a price, at first; it stops prices from
            swinging.
        cap: the largest price; a bound that cannot be reached would let it grow for ever.
        smallest: groups (with a label, where it counts) of fewer training samples are left out,
            because their rate is mostly chance.
        smoothing: how much the sums of earlier rounds count, for small cohorts.
        inner: the method whose objective is minimised.
    """

    notion: str = "equalised_odds"
    bound: float = 0.05
    scope: str = "global"
    compare: str = "groups"
    statistic: str = "hard"
    lr_dual: float = 2.0
    damping: float = 2.0
    cap: float = 10.0
    smallest: int = 10
    smoothing: float = 0.0
    inner: Algorithm = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("notion", self.notion, tuple(LABELS))
        require_choice("scope", self.scope, ("global", "local"))
        require_choice("compare", self.compare, ("groups", "columns"))
        require_choice("statistic", self.statistic, ("hard", "soft"))
        require_number("bound", self.bound, "[0, inf)", "the largest allowed gap, such as 0.05")
        require_number("lr_dual", self.lr_dual, "[0, inf)", "2 is usual")
        require_number("damping", self.damping, "[0, inf)", "0 is plain dual ascent")
        require_number("cap", self.cap, "(0, inf)", "the largest price")
        require_number("smallest", self.smallest, "[0, inf)", "0 bounds every group")
        require_number("smoothing", self.smoothing, "[0, 1)", "0 uses the last round alone")
        refuse_unfit(self.inner)

    # ---- the server

    def init(self, params: Tree, census: Census) -> State:
        groups = group_count("GroupConstraint", census)
        compared = self._compared(groups, census)
        own = {} if self.scope == "local" else self._dual.first(groups, len(compared.pairs))
        assert census.group_counts is not None
        sizes = census.group_counts.sum(0).double()
        if self.scope == "global":
            self._require_groups(sizes, compared)
        constants = {"members": compared.members, "pairs": compared.pairs, "sizes": sizes}
        return {**self.inner.init(params, census), "constraint": {**own, **constants}}

    def task(self, state: State, ids: Tensor) -> Task:
        own = state["constraint"]
        sent = ("members", "pairs") if self.scope == "local" else ("price", "scale")
        task = self.inner.task(state, ids)
        return task._replace(shared={**task.shared, **{name: own[name] for name in sent}})

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        own, total = state["constraint"], replies.total
        after, info = self.inner.server(state, replies)
        if self.scope == "local":
            return {**after, "constraint": own}, info
        compared = Scope(own["members"], own["pairs"])
        risen = self._dual.risen(
            own, total["cell_sum"], total["cell_share"], own["sizes"], compared
        )
        info = {
            **info,
            "group_gap": risen["gap"],  # of "group_loss": the largest loss
            "group_bound": self.bound,
            "price": risen["tilt"].amax(),
            "small_cells": risen["small"],
        }
        return {**after, "constraint": {**own, **risen}}, info

    def join(self, state: State, before: State, after: State) -> State:
        return self.inner.join(state, before, after)

    # ---- one client

    def start(self, task: Task, memory: Memory) -> Tree:
        variables = self.inner.start(task, memory)
        # objective sees no memory, so that the prices go along as a variable that does not move
        return variables | ({"paid": memory["paid"]} if self.scope == "local" else {})

    def rates(self, task: Task) -> dict[str, Tensor]:
        still = {"paid": torch.zeros_like(task.shared["lr"])} if self.scope == "local" else {}
        return {**self.inner.rates(task), **still}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        once = remembering(model)  # the term needs no second pass through the network
        value = self.inner.objective(once, variables, batch, task)
        paid = tree.map(torch.detach, variables["paid"]) if self.scope == "local" else task.shared
        smooth = "loss" if self.notion in LOSSES else "soft"
        values = statistics(once, variables["model"], batch, smooth)
        value = value + mean(by_cell(paid["price"], batch) * values, batch)
        scale: Tensor = paid["scale"]
        return value * scale

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        reply, kept = self.inner.reply(model, start, end, data, task, memory)
        if self.scope == "local":
            return reply, {**kept, **self._risen(model, start["model"], data, task, memory)}
        groups = len(task.shared["price"])
        cells = cell_totals(model, start["model"], data, task, groups, self._bounded)
        return reply._replace(total={**reply.total, **cells}), kept

    def memory(self, params: Tree) -> Memory:
        inner = self.inner.memory(params)
        if self.scope == "global":
            return inner
        own = self._dual.first(LOCAL_GROUPS, LOCAL_GROUPS)
        return {**inner, **_paid(own, next(iter(params.values())).dtype)}

    def entries(self, asked: Asked) -> Entries:
        entries = self.inner.entries(asked)
        if self.scope == "local":
            return entries
        # a client whose samples have a price may move further than the others
        price, scale = asked.task.shared["price"], asked.task.shared["scale"]
        dear = max(1.0, (1 + float(price.abs().max())) * float(scale))
        delta = replace(entries["delta"], slack=entries["delta"].slack * dear)
        return {**entries, "delta": delta, **cell_entries(asked, self._bounded)}

    def check(self, model: Model) -> None:
        self.inner.check(model)
        if self.notion not in LOSSES:
            instead = 'notion="group_loss", FedMinMax or AgnosticFedAvg'
            check_classifier(f'GroupConstraint("{self.notion}")', model, instead)

    # ---- the trained model

    def question(self, moment: str = "before") -> Question | None:
        if moment != "end":
            return super().question(moment)
        return FinalGap(self._dual, self._bounded, self.scope == "local")

    # ---- parts

    def _risen(self, model: Model, params: Tree, data: Batch, task: Task, memory: Memory) -> Memory:
        """Return a client's own prices after a round."""
        total, count, compared = own_sums(model, params, data, task, self._bounded)
        before = {**memory["constraint"], **tree.to(memory["paid"], torch.float64)}
        own = self._dual.risen(before, total, count, count.sum(1), compared)
        return _paid(own, memory["paid"]["price"].dtype)

    def _require_groups(self, sizes: Tensor, compared: Scope) -> None:
        """Raise a ValueError if every group, or all but one, has too few samples."""
        enough = compared.members @ sizes >= self.smallest
        if len(sizes) > 1 and not bool((enough[:, None] & enough & (compared.pairs > 0)).any()):
            raise ValueError(
                "GroupConstraint has nothing to compare: fewer than two groups have"
                f" {self.smallest:g} training samples; lower smallest, or merge groups"
            )

    @property
    def _bounded(self) -> str:
        """The statistic that the bound is about."""
        return "loss" if self.notion in LOSSES else self.statistic

    @property
    def _dual(self) -> Dual:
        """The rule by which prices follow the gaps."""
        return Dual(
            self.notion,
            self.bound,
            self.lr_dual,
            self.damping,
            self.cap,
            self.smallest,
            self.smoothing,
        )

    def _compared(self, groups: int, census: Census) -> Scope:
        """Return which groups are compared, in the size that clients expect."""
        of_columns = self.compare == "columns"
        found = Scope.of_columns(census.group_names) if of_columns else Scope.of_groups(groups)
        if self.scope == "global":
            return found
        if groups > LOCAL_GROUPS or len(found.pairs) > LOCAL_GROUPS:
            raise ValueError(
                f"a client can bound the gaps of at most {LOCAL_GROUPS} groups by itself; there are"
                f' {groups}: use scope="global", or fewer groups'
            )
        rest = LOCAL_GROUPS - len(found.pairs)
        members = F.pad(found.members, (0, LOCAL_GROUPS - groups, 0, rest))
        return Scope(members, F.pad(found.pairs, (0, rest, 0, rest)))


def _paid(own: Tree, dtype: torch.dtype) -> Memory:
    """Return what a client remembers: what its samples pay, and how that came about."""
    paid = {name: own.pop(name).to(dtype) for name in ("price", "scale")}
    return {"paid": paid, "constraint": own}


def refuse_unfit(method: Algorithm) -> None:
    """Raise a ValueError unless the constraint can be added to a method's local objective."""
    while isinstance(method, CHANGES):
        method = method.inner
    if isinstance(method, ADDS):
        return
    name = type(method).__name__
    if isinstance(method, Wrapper):
        why = "it changes models or weights after training"
    elif method.personal:
        why = "clients use models of their own, and the bound is on the shared one"
    else:
        why = "the server reweighs clients, and with them the constraint's term"
    fine = ", ".join(kind.__name__ for kind in ADDS)
    raise ValueError(f"GroupConstraint cannot bound {name}: {why}; use one of {fine} as inner")
