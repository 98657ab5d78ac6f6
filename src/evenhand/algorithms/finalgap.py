"""The question after the last round: does the trained model keep its bound?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from evenhand.algorithm import Info, Memory, Question, State
from evenhand.algorithms.cells import cell_entries, cell_sums, cell_totals, statistics
from evenhand.algorithms.prices import NEAR, Dual, Scope
from evenhand.data.samples import Batch
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task
from evenhand.model import Model
from evenhand.tree import Tree

# groups that a client can bound by itself: its memory has one form for every federation
LOCAL_GROUPS = 16


@dataclass(frozen=True)
class FinalGap(Question):
    """Asks all clients for the gaps of the trained model, in sums.

    Attributes:
        dual: has the notion and the bound.
        statistic: what is bounded: "loss", "soft" or "hard".
        local: whether every client has a bound of its own.
    """

    dual: Dual
    statistic: str
    local: bool

    def ask(self, state: State) -> Survey | None:
        own = state["constraint"]
        shared = {"model": state["model"], "members": own["members"], "pairs": own["pairs"]}
        return Survey(shared, who="everyone")

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        dual, params = self.dual, task.shared["model"]
        if not self.local:
            groups = task.shared["members"].shape[1]
            return Reply(cell_totals(model, params, data, task, groups, self.statistic))
        total, count, compared = own_sums(model, params, data, task, self.statistic)
        found = dual.measured(total, count, count, count.sum(1), compared)
        has, gap = found.counts.any().double(), dual.largest(found.excess, found.counts)
        above = has * (gap > dual.bound * NEAR[0] + NEAR[1]).double()
        return Reply({"gap": has * gap, "compared": has, "above": above})

    def answer_entries(self, asked: Asked) -> Entries:
        if not self.local:
            return cell_entries(asked, self.statistic)
        one = Entry(low=0.0, high=1.0)
        return {"gap": Entry(low=0.0), "compared": one, "above": one}

    def final(self, state: State, replies: Replies) -> Info:
        dual, own, total = self.dual, state["constraint"], replies.total
        name = "final_loss" if dual.notion == "group_loss" else "final_gap"
        if self.local:
            compared = total["compared"]
            return {
                name: total["gap"] / compared.clamp(min=1),  # the mean over clients
                "compared": compared,
                "final_above": total["above"],
                "group_bound": dual.bound,
            }
        share, compared = total["cell_share"], Scope(own["members"], own["pairs"])
        found = dual.measured(total["cell_sum"], share, share, own["sizes"], compared)
        return {
            name: dual.largest(found.excess, found.counts),
            "compared": found.counts.sum().double(),
        }


def own_sums(
    model: Model, params: Tree, data: Batch, task: Task, statistic: str
) -> tuple[Tensor, Tensor, Scope]:
    """Return a client's own sums by cell, its samples in them, and which groups are compared."""
    values = statistics(model, params, data, statistic)
    total, count = (sums.double() for sums in cell_sums(values, data, LOCAL_GROUPS))
    return total, count, Scope(task.shared["members"].double(), task.shared["pairs"].double())
