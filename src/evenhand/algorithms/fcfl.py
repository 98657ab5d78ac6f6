"""FCFL: the lowest worst loss under a bound on every client's gap between groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import (
    Algorithm,
    Info,
    LocalWork,
    Memory,
    Reporting,
    State,
    as_rows,
    descend,
    normalised,
)
from evenhand.algorithms.cells import (
    cell_sums,
    check_classifier,
    favourable_score,
    group_count,
)
from evenhand.algorithms.directions import least_norm
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_choice, require_number, require_whole
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree

NOTIONS = ("demographic_parity", "equal_opportunity")
# soft rates are flat where predictions are certain, so honest gradients of gaps differ widely
SLACK = 10.0


@dataclass(frozen=True)
class FCFL(Algorithm, Reporting):
    """Lower the highest loss of a client under a bound on each client's gap between groups; then
    lower all losses.

        stage 1:  min over theta of max_i f_i  subject to  max_i d_i <= bound
        stage 2:  steps that raise no f_i, nor the gap        (Cui et al., NeurIPS 2021)

    d_i is the gap on client i: the largest difference between two of its groups in the mean of
    sigmoid(sharpness * s), where s is the log-odds of the favourable class (class 1); over all
    samples (demographic parity) or those with label 1 (equal opportunity). With g_i and k_i the
    gradients of f_i and d_i:

        u = sum_i softmax(f / delta)_i g_i,   v = sum_i softmax(d / delta)_i k_i
        stage 1:  u while max d <= bound; otherwise, of the directions between u and v that do not
                  raise the loss along u, the one that lowers the gap along v most
        stage 2:  of the combinations of g_1, ..., g_n (and v, if max d > bound) that raise none of
                  their values, the one with the largest product with the mean gradient

    Both steps solve linear programs. In a round of stage 1, the temperature of u falls to decay *
    delta if u is at most delta / ratio long, and that of v likewise. A client without two groups
    (with label 1, where it counts) has no gap; it is skipped in v and in the bound, and the history
    counts such clients. The paper has two groups; with more, the largest difference is our choice.

    With one full-batch step, an update is lr times g_i, as in the paper; with more local steps it
    takes the gradient's place. With Adam, momentum, clipping or a schedule over local steps, its
    length is not that of lr times a gradient, and a run logs a warning. k_i is always one gradient
    over all data at the received model. All participants count the same, whatever their data. The
    server sees every participant's update, loss, gap, and its gradient.

    Args:
        notion: "demographic_parity" or "equal_opportunity".
        bound: the largest allowed gap on any client; 1 or more leaves gaps free.
        minimax_rounds: rounds of stage 1; 0 starts with stage 2, and more than the run has never
            leaves stage 1.
        delta: both temperatures at the start; small ones take the worst client alone.
        decay: factor by which a temperature falls; 1 keeps it.
        ratio: when a temperature falls; 0 lets it fall in every round.
        floor: the smallest temperature.
        sharpness: how close soft rates are to rates of predictions; large ones have flat gradients.
        smallest: groups with fewer samples on a client (with label 1, where it counts) are left out
            of its gap.
    """

    notion: str = "demographic_parity"
    bound: float = 0.05
    minimax_rounds: int = 100
    delta: float = 0.5
    decay: float = 0.01
    ratio: float = 0.1
    floor: float = 1e-4
    sharpness: float = 10.0
    smallest: float = 10

    def __post_init__(self) -> None:
        require_choice("notion", self.notion, NOTIONS)
        require_number("bound", self.bound, "[0, inf)", "1 leaves gaps free")
        require_whole("minimax_rounds", self.minimax_rounds, 0)
        require_number("delta", self.delta, "(0, inf)", "small values take the worst client alone")
        require_number("decay", self.decay, "(0, 1]", "1 keeps delta")
        require_number("ratio", self.ratio, "[0, inf)", "0 lets delta fall in every round")
        require_number("floor", self.floor, "(0, inf)", "the smallest delta")
        require_number("sharpness", self.sharpness, "(0, inf)", "10 is usual")
        require_number("smallest", self.smallest, "[0, inf)", "0 compares all groups")

    def check(self, model: Model) -> None:
        check_classifier("FCFL", model)

    # ---- the server

    def init(self, params: Tree, census: Census) -> State:
        groups = torch.zeros(group_count("FCFL", census), dtype=torch.float64)
        delta = torch.tensor(self.delta, dtype=torch.float64)
        rounds = torch.zeros((), dtype=torch.int64)
        known = {"groups": groups, "loss_delta": delta, "gap_delta": delta}
        return {"model": params, "rounds": rounds, **known}

    def task(self, state: State, ids: Tensor) -> Task:
        return Task({"model": state["model"], "groups": state["groups"]})

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        each = replies.each
        updates, slopes = as_rows(each["delta"]), as_rows(each["gap_gradient"])
        lr = (replies.total["lr"].double() / len(replies.ids)).to(updates)
        losses, has = each["loss_at_start"].double(), each["has_gap"] > 0
        gaps = torch.where(has, each["gap"].double(), 0.0)
        by_gap = softmax(gaps, state["gap_delta"], has)
        unfair, toward_fair = gaps.max() > self.bound, lr * (by_gap.to(slopes) @ slopes)
        info: Info = {
            "largest_loss": losses.max(),
            "group_gap": gaps.max(),
            "group_bound": self.bound,
            "without_gap": (~has).sum(),
            "compared": has.sum(),
        }
        first = bool(state["rounds"] < self.minimax_rounds)
        if first:
            by_loss = softmax(losses, state["loss_delta"], torch.ones_like(has))
            lower = by_loss.to(updates) @ updates
            direction = torch.where(unfair.to(updates.device), between(lower, toward_fair), lower)
            length = lr.clamp(min=1e-300)
            state = {
                **state,
                "loss_delta": self._cooled(state["loss_delta"], lower.norm() / length),
                "gap_delta": torch.where(
                    has.any(),
                    self._cooled(state["gap_delta"], toward_fair.norm() / length),
                    state["gap_delta"],
                ),
            }
        else:
            rows = torch.cat([updates, toward_fair[None]]) if bool(unfair) else updates
            direction = for_everyone(rows, updates.mean(0))
        info |= {"stage": 1 if first else 2, "direction_norm": direction.norm()}
        after = descend(state["model"], direction)
        return {**state, "model": after, "rounds": state["rounds"] + 1}, info

    def _cooled(self, delta: Tensor, length: Tensor) -> Tensor:
        """Return a temperature after a round whose gradient has this length."""
        falls = (self.ratio * length.to(delta) <= delta) & (delta > self.floor)
        return torch.where(falls, (self.decay * delta).clamp(min=self.floor), delta)

    # ---- one client

    def local_work(self) -> LocalWork:
        return LocalWork(assumes_sgd="compares updates with lr times the gradient of gaps")

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        groups = len(task.shared["groups"])

        def gap_of(params: Tree) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            gap, has = self._gap(model, params, data, groups)
            return gap, (gap, has)

        gradient, (gap, has) = torch.func.grad(gap_of, has_aux=True)(start["model"])
        each = {
            "delta": tree.sub(start["model"], end["model"]),
            "loss_at_start": model.loss(start["model"], data),
            "gap": gap,
            "has_gap": has.to(gap.dtype),
            "gap_gradient": gradient,
        }
        # only the round's task knows lr, which turns gradients into steps
        return Reply({"lr": torch.as_tensor(task.shared["lr"])}, each), memory

    def _gap(self, model: Model, params: Tree, data: Batch, groups: int) -> tuple[Tensor, Tensor]:
        """Return a client's gap, 0 if it has none, and whether it has one."""
        score = favourable_score(model.output(params, data.x))
        total, count = cell_sums((self.sharpness * score).sigmoid(), data, groups)
        if self.notion == "equal_opportunity":
            total, count = total[:, 1], count[:, 1]
        else:
            total, count = total.sum(1), count.sum(1)
        here, rate = (count > 0) & (count >= self.smallest), total / count.clamp(min=1)
        high, low = torch.where(here, rate, -1.0).amax(), torch.where(here, rate, 2.0).amin()
        has = here.sum() > 1
        return torch.where(has, high - low, 0.0), has

    def entries(self, asked: Asked) -> Entries:
        return {
            "lr": Entry(known=torch.as_tensor(asked.task.shared["lr"])),
            "delta": Entry(kind="update"),
            "loss_at_start": Entry(kind="loss"),
            "gap": Entry(low=0.0, high=1.0),
            "has_gap": Entry(low=0.0, high=1.0),
            "gap_gradient": Entry(kind="update", slack=SLACK),
        }

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its update", "its loss", "its gap between groups", "this gap's gradient")


def softmax(values: Tensor, delta: Tensor, counts: Tensor) -> Tensor:
    """Return (K,) weights proportional to exp(values / delta) where ``counts``, 0 elsewhere."""
    top = torch.where(counts, values, -torch.inf).max()
    return normalised(torch.where(counts, ((values - top) / delta).exp(), 0.0))


def between(lower: Tensor, fairer: Tensor) -> Tensor:
    """Return the best step (1 - t) lower + t fairer, t in [0, 1], for the gap.

    It has the largest product with ``fairer`` among those whose product with ``lower`` is not
    negative: the optimum of a linear program in t. If both ends are as good, ``lower`` is taken: it
    also lowers the loss.
    """
    product, square = lower @ fairer, lower @ lower
    most = torch.where(product < fairer @ fairer, 1.0, 0.0)
    # steps up to the one at a right angle to ``lower`` are allowed
    t = torch.where(product < 0, square / (square - product).clamp(min=1e-300), most)
    return (1 - t) * lower + t * fairer


def for_everyone(rows: Tensor, mean: Tensor) -> Tensor:
    """Return the combination of the rows (K, P) with the largest product with ``mean`` among those
    with no negative product with any row.

    Weights are at least 0 and sum to one. The shortest combination always qualifies, so the linear
    program has a solution.
    """
    require(bool(rows.isfinite().all()), "updates must be finite; exclude clients whose is not")
    length = rows.norm(dim=1)
    longest = length.max()
    if longest <= 0:
        return torch.zeros_like(mean)
    from scipy import optimize  # not imported before it is needed

    unit = rows / longest
    gain = unit @ (mean / longest)
    products = (rows / length.clamp(min=1e-300)[:, None]) @ unit.T
    found = optimize.linprog(
        -gain.cpu().numpy(),
        A_ub=-products.cpu().numpy(),
        b_ub=torch.zeros(len(rows)).numpy(),
        A_eq=torch.ones(1, len(rows)).numpy(),
        b_eq=[1.0],
        bounds=(0.0, 1.0),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if found.x is None:  # only rounding is left between the rows
        return least_norm(rows)
    return normalised(torch.from_numpy(found.x).to(rows).clamp(min=0)) @ rows
