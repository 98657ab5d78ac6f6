"""q-FFL, solved by q-FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from evenhand import tree
from evenhand.algorithm import Algorithm, Memory
from evenhand.data import Batch
from evenhand.errors import require_number
from evenhand.messages import Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class QFFL(Algorithm):
    """Weight clients by the q-th power of their loss, so that high losses fall first.

    minimise  sum_i w_i f_i(theta)^(q+1) / (q+1)                         (Li et al., ICLR 2020, Algorithm 2: q-FedAvg)

    With L = 1/lr, F = f_i at the received model on all local data, and g = L (received - local model), a client sends
    F^q g and h = q F^(q-1) |g|^2 + L F^q; the server moves by the ratio of the sums. Sums only.

    The published code draws clients in proportion to their data and adds no further weight; here every term carries the
    cohort's coefficient a_i, which is the same for that scheme and minimises the objective above for the others. The ratio
    normalises itself, so with Uniform(k, unbiased=True) q = 0 is FedAvg with coefficients that sum to one.

    Args:
        q: 0 gives FedAvg; larger values push towards the worst client. Losses are means, so q keeps its meaning across sizes.
    """

    q: float = 1.0

    def __post_init__(self) -> None:
        require_number("q", self.q, "[0, inf)", "0 gives FedAvg")

    def reply(self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory) -> tuple[Reply, Memory]:
        lipschitz = 1 / task.shared["lr"]
        loss_at_start = model.loss(start["model"], data) + 1e-10  # a zero loss would make F^(q-1) infinite for q < 1
        g = tree.scale(tree.sub(start["model"], end["model"]), lipschitz)
        h = self.q * loss_at_start ** (self.q - 1) * tree.sqnorm(g) + lipschitz * loss_at_start**self.q
        a = task.own["weight"]
        return Reply(total={"delta": tree.scale(g, a * loss_at_start**self.q), "weight": a * h}), memory
