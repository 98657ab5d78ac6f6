"""q-FFL, solved by q-FedAvg or q-FedSGD."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.func import grad

from evenhand import tree
from evenhand.algorithm import Algorithm, Certificate, LocalWork, Memory, Reporting, State
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_choice, require_number
from evenhand.messages import Asked, Entries, Entry, Reply, Task
from evenhand.model import Model
from evenhand.privacy.bounds import Block, Contribution, Limits, at_least
from evenhand.theory.aggregates import PowerMean
from evenhand.tree import Tree


@dataclass(frozen=True)
class QFFL(Algorithm, Reporting):
    """Weight clients by the q-th power of their loss, so that high losses fall first.

        minimise  sum_i w_i f_i(theta)^(q+1) / (q+1)
        (Li et al., ICLR 2020, Algorithm 2: q-FedAvg)

    With L = 1/lr, F = f_i at the received model on all local data, and g = L (received - local
    model), a client sends F^q g and h = q F^(q-1) |g|^2 + L F^q; the server moves by the ratio of
    the sums. The server only needs sums. q-FedSGD (Algorithm 1) uses the gradient of f_i at the
    received model for g, without local training.

    g is a gradient only if local steps are plain SGD's. Momentum, Adam, clipping and schedules over
    local steps change its length, and h with it; a run that uses them logs a warning.

    The published code draws clients in proportion to their data and adds no further weight. Here
    every term has the cohort's coefficient a_i, which is the same for that scheme and minimises the
    objective above for the others. The ratio normalises itself, so with Uniform(k, unbiased=True),
    q = 0 is FedAvg with coefficients that sum to one.

    Args:
        q: 0 gives FedAvg; larger values favour the worst client. Losses are means, so q has the
            same meaning for clients of any size.
        solver: "fedavg" or "fedsgd".
        lipschitz: L, one over the step size at q = 0; None uses 1 / lr of the round. For "fedavg"
            with q = 0 it cancels.
    """

    q: float = 1.0
    solver: str = "fedavg"
    lipschitz: float | None = None

    def __post_init__(self) -> None:
        require_number("q", self.q, "[0, inf)", "0 gives FedAvg")
        require_choice("solver", self.solver, ("fedavg", "fedsgd"))
        if self.lipschitz is not None:
            require_number("lipschitz", self.lipschitz, "(0, inf)", "None uses 1 / lr")

    def start(self, task: Task, memory: Memory) -> Tree:
        return {"model": task.shared["model"]} if self.solver == "fedavg" else {}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        received = task.shared["model"]
        lipschitz = 1 / task.shared["lr"] if self.lipschitz is None else self.lipschitz
        # a zero loss would make F^(q-1) infinite for q < 1
        loss_at_start = model.loss(received, data) + 1e-10
        if self.solver == "fedavg":
            g = tree.scale(tree.sub(received, end["model"]), lipschitz)
        else:
            g = grad(lambda params: model.loss(params, data))(received)
        h = (
            self.q * loss_at_start ** (self.q - 1) * tree.sqnorm(g)
            + lipschitz * loss_at_start**self.q
        )
        a = task.own["weight"]
        return Reply(
            total={"delta": tree.scale(g, a * loss_at_start**self.q), "weight": a * h}
        ), memory

    def local_work(self) -> LocalWork:
        if self.solver == "fedsgd":  # no local steps
            return LocalWork()
        return LocalWork(assumes_sgd="takes (received model - local model) / lr for the gradient")

    def entries(self, asked: Asked) -> Entries:
        lipschitz = 1 / asked.task.shared["lr"] if self.lipschitz is None else self.lipschitz
        most = asked.task.own["weight"].double() * lipschitz  # h / L is slightly above F^q
        power = max(self.q, 1.0)
        return {
            "delta": Entry(kind="update", per="weight"),
            "weight": Entry(
                kind="loss",
                to_loss=lambda h: (h / most) ** (1 / power),
                from_loss=lambda loss: most * loss**power,
            ),
        }

    def contribution(self, limits: Limits) -> Contribution:
        require(
            self.q == 0 or self.q >= 1,
            "a private QFFL needs q = 0 or q >= 1, got {}; below 1, F^(q-1) has no bound",
            self.q,
        )
        require(
            self.lipschitz is not None,
            "a private QFFL needs lipschitz, a public number: one over the step size is usual",
        )
        assert self.lipschitz is not None
        a, most, long = limits.weight, limits.loss**self.q, self.lipschitz * limits.clip
        curved = self.q * limits.loss ** (self.q - 1) * long**2
        h = a * (curved + self.lipschitz * most)
        # step and weight shrink together, so that a client keeps its direction and counts less
        block = Block({"delta": a * most * long, "weight": h})
        # far below a client whose loss is a tenth of the cap
        least = 0.01 * self.lipschitz * most
        return Contribution((block,), {}, mend=at_least("weight", least))

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        if bool((losses < 0).any()):
            return None  # powers of a user's own, negative loss have no meaning
        return Certificate.of(PowerMean(self.q), losses, census.weight)
