"""FAFL (RC-FL), solved by rFedFair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

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
    mean_step,
    step,
    weighted,
)
from evenhand.algorithms.levels import by_client, checked_levels, lowest
from evenhand.algorithms.threshold import (
    FirstThreshold,
    one_step_first,
    positive_part,
    risk_of,
    slope,
    warn_of_idle_caps,
)
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_choice, require_number
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task, stepped
from evenhand.model import Model
from evenhand.privacy.bounds import Block, Contribution, Limits
from evenhand.tree import Tree


@dataclass(frozen=True)
class FAFL(Algorithm, Reporting):
    """Guard against every reweighting of clients up to w_i / alpha_i (HCVaR), using only sums.

        minimise over (theta, eta)  eta + sum_i (w_i / alpha_i) phi_mu(f_i(theta) - eta)

        server:    sends theta and eta, averages what comes back
        client i:  in every local step, with  s = sigma((f - eta) / mu) / alpha_i,
                   theta <- theta - lr s grad f,   eta <- eta - lr_eta (1 - s)    (rFedFair)

    phi_mu(x) = mu log(1 + e^(x/mu)) smooths (x)_+: a client minimises phi_mu(f - eta)/alpha_i + eta
    jointly over model and eta. No client's loss leaves the client (except once, at the start, with
    eta0="quantile").

    Beyond the papers, ``floor`` bounds every client's weight from below, a_i w_i <= lam_i <= w_i /
    alpha_i: the client's objective becomes a_i (f - eta) + (1/alpha_i - a_i) phi_mu(f - eta) + eta,
    and the loop stays the same (proof: docs/explanation/hcvar.md).

    With Adam or clipping, a model's step no longer grows with s, so clients above the threshold
    count less than they should, and a run logs a warning. Eta always takes plain steps.

    The papers leave mu, the step size of eta and its start open, and return the mean of the models:
    Averaged(FAFL()).

    Args:
        alpha: level in (0, 1], one number or one per client. 1 gives FedAvg, small values the worst
            client. The step of a client above the threshold grows by 1 / alpha, so lower lr with
            alpha. Below w_i the exact objective no longer changes. Or a table by client number,
            from
            0: ``{"others": 1.0, "5": 0.01}``. With ``{"random": 123, "low": 0.05, "high": 1.0}``,
            levels are drawn uniformly with seed 123; add ``"some": 8`` to draw them for only eight
            random clients (``evenhand.algorithms.random_levels``).
        mu: smoothing width. 0 is the exact positive part: a client above eta has weight 1 /
            alpha_i, one below has none. Choose mu well below the spread of client losses.
        lr_eta: step size of eta; None uses the round's lr.
        eta0: where eta starts: a number, the "mean" of the first cohort's losses (a sum), or their
            "quantile", the best eta for them (each client's loss, once). 0 lies below every loss;
            from there eta rises quickly. From above it falls slowly: if all losses drop below it in
            the first steps, clients wait until it has come down by lr_eta per step.
        floor: a_i in [0, 1], one number or one per client: the least that a client counts, as a
            multiple of its weight. Or a table as for alpha; other clients have 0.
        sigma: what a client compares with eta: the loss of its "batch", or its whole "local" loss
            at every step. The former is cheaper, but biased unless batch noise is small compared
            with mu.
        short_first_round: one local step in the first round, as in a literal reading of the papers'
            pseudo-code.
    """

    alpha: float | Sequence[float] | Mapping[str, float] = 0.3
    mu: float = 0.05
    lr_eta: float | None = None
    eta0: float | str = 0.0
    floor: float | Sequence[float] | Mapping[str, float] = 0.0
    sigma: str = "batch"
    short_first_round: bool = False

    _smooth: ClassVar[bool]

    def __post_init__(self) -> None:
        for name, interval, hint in (
            ("alpha", "(0, 1]", "1 gives the plain average"),
            ("floor", "[0, 1]", "0 sets no floor"),
        ):
            levels = checked_levels(name, getattr(self, name), interval, hint)
            object.__setattr__(self, name, levels)
        require_number("mu", self.mu, "[0, inf)", "0 does not smooth")
        if isinstance(self.eta0, str):
            known = self.eta0 in ("mean", "quantile")
            require(known, 'eta0 must be a number, "mean" or "quantile", got {!r}', self.eta0)
        else:
            require_number("eta0", self.eta0, "(-inf, inf)")
        if self.lr_eta is not None:
            require_number("lr_eta", self.lr_eta, "[0, inf)", "None takes the round's lr")
        require_choice("sigma", self.sigma, ("batch", "local"))
        short = self.short_first_round
        require(isinstance(short, bool), "short_first_round must be true or false, got {!r}", short)
        object.__setattr__(
            self, "_smooth", self.mu > 0
        )  # fixed here, because mu may be a tensor later: see Algorithm

    def init(self, params: Tree, census: Census) -> State:
        alpha, floor = (
            by_client(name, getattr(self, name), census.clients, others)
            for name, others in (("alpha", 1.0), ("floor", 0.0))
        )
        warn_of_idle_caps(alpha, census)
        asks = isinstance(self.eta0, str)
        eta = torch.tensor(0.0 if asks else self.eta0, dtype=torch.float64)
        state = {"model": params, "eta": eta, "alpha": alpha, "floor": floor}
        return {**state, "started": torch.zeros_like(eta)} if asks else state

    def task(self, state: State, ids: Tensor) -> Task:
        own = {"alpha": state["alpha"][ids], "floor": state["floor"][ids]}
        return Task(shared={"model": state["model"], "eta": state["eta"]}, own=own)

    def start(self, task: Task, memory: Memory) -> Tree:
        return {"model": task.shared["model"], "eta": task.shared["eta"]}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        eta, alpha, floor = variables["eta"], task.own["alpha"], task.own["floor"]
        excess = model.loss(variables["model"], batch) - eta
        if self.sigma == "batch":
            above = positive_part(excess, self._width)
        else:  # slope from the whole local loss, direction from the batch
            with torch.no_grad():
                whole = model.loss(variables["model"], batch.whole) - eta
            above = slope(whole.detach(), self._width) * excess
        value: Tensor = floor * excess + (1 / alpha - floor) * above + eta
        return value

    def rates(self, task: Task) -> dict[str, Tensor]:
        if self.lr_eta is None:
            return {}
        return {"eta": torch.zeros_like(task.shared["lr"]) + self.lr_eta}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        total = weighted(tree.sub(start["model"], end["model"]), task)
        eta = task.own["weight"] * (start["eta"] - end["eta"])
        return Reply(total={**total, "eta": eta}), memory

    def entries(self, asked: Asked) -> Entries:
        shared, own = asked.task.shared, asked.task.own
        a, most = own["weight"].double(), 1 / own["alpha"].double()
        # steps: lr_eta (1 - s) of eta, lr s times a gradient of the model, floor <= s <= most
        way = a * asked.steps * (shared["lr"] if self.lr_eta is None else self.lr_eta)
        rounding = 1e-6 * a * asked.steps * shared["eta"].abs()
        moved = Entry(low=way * (1 - most) - rounding, high=way * (1 - own["floor"]) + rounding)

        def slopes(total: Tree) -> Tensor:
            mean = torch.where(way > 0, 1 - total["eta"] / way, most)
            found: Tensor = a * mean.clamp(max=most)
            return found

        # batches with high losses count for more, and their gradients are longer
        delta = Entry(kind="update", per=slopes, least=0.001 * a * most, slack=1.5)
        return {**stepped(asked), "delta": delta, "eta": moved}

    def scales(self, own: Tree) -> dict[str, Tensor]:
        # the slope of a client far below eta, and of one far above it
        return {"floor": own["floor"], "alpha": 1 / own["alpha"]}

    def contribution(self, limits: Limits) -> Contribution:
        require(
            self.lr_eta is not None, "a private FAFL needs lr_eta: it bounds how far eta can move"
        )
        assert self.lr_eta is not None
        # steps of eta: lr_eta (1 - s), 0 <= s <= 1 / alpha
        moved = self.lr_eta * max(1.0, 1 / lowest("alpha", self.alpha) - 1) * limits.steps
        step, eta = Block({"delta": limits.weight * limits.clip}, 0.95), limits.weight * moved
        return Contribution((step, Block({"eta": eta}, 0.05)), {"weight": 1.0})

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        model, eta = step(state["model"], replies), state["eta"] - mean_step(replies, "eta")
        return {**state, "model": model, "eta": eta}, {"eta": eta}

    def question(self, moment: str = "before") -> Question | None:
        first = moment == "before" and isinstance(self.eta0, str)
        return FirstThreshold(str(self.eta0)) if first else None

    def local_work(self) -> LocalWork:
        why = "weighs a client by scaling the gradient of its loss"
        work = LocalWork(whole_data=self.sigma == "local", assumes_scale=why)
        return replace(work, solver=one_step_first) if self.short_first_round else work

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss at the first model, once",) if self.eta0 == "quantile" else ()

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        risk, floor, base = risk_of(state, self.mu), state["floor"], census.weight
        above = slope(losses - state["eta"], self._width)
        weights = base * (floor + (1 / state["alpha"] - floor) * above)
        gap = risk.duality_gap(losses, base, state["eta"])
        return Certificate(risk.value(losses, base), weights, gap)

    @property
    def _width(self) -> float | None:
        """The smoothing width, if any."""
        return self.mu if self._smooth else None
