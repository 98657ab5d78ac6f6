"""FedMDFG: common descent with fair guidance and a line search."""

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
    Question,
    Reporting,
    State,
    as_rows,
    descend,
)
from evenhand.algorithms.directions import (
    angle,
    at_length,
    away_from_unequal,
    least_norm,
    mean_length,
    nobody,
    remembered,
    stretched,
)
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_number, require_whole
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task
from evenhand.model import Model
from evenhand.tree import Tree

ENOUGH = 1e-4  # share of the decrease predicted by the slope that a step must reach
ENDLESS = 1e30  # a loss that is not finite; the client's other losses still count


@dataclass(frozen=True)
class FedMDFG(Algorithm, Reporting):
    """Lower every participant's loss, make unequal losses more equal, and search for the step size.

        d = shortest point in the convex hull of the rows, at the length of the mean row
        theta <- theta - t d,   t in 2^s, 2^(s-1), ..., 2^-s      (Pan et al., AAAI 2023)

    The rows are the participants' updates, all scaled to their mean length; the last updates of
    clients that took part in the last round but not in this one, at the same length; and, if the
    losses f are more than theta degrees away from equal, the fairness row sum_i h_i Delta_i with h
    the gradient of -cos(f, 1), at length one.

    All step sizes are tried in one question after training. The longest step is taken with which
    every loss falls by enough, f_i(theta) - f_i(theta - t d) >= 1e-4 t <grad f_i, d>, and with the
    fairness row the losses also become more equal. If there is none, the longest that lowers the
    sum of the losses; then the one with the lowest sum. If a client of the last round is absent, t
    starts at 1.

    With one full-batch step, an update is lr times the gradient, as in the paper; with more local
    steps it takes the gradient's place. With Adam, momentum, clipping or a schedule over local
    steps, the slopes in the line search are off, and a run logs a warning. The method has no
    objective. All clients count the same,
    whatever their data. The server sees every participant's update and losses.

    Args:
        theta: the angle between the losses and equal losses, in degrees, above which the fairness
            row is added; 90 never adds it.
        s: number of times the step size may be doubled or halved; 0 takes the step of length 1
            without a question.
        history: False forgets the updates of the last round.
    """

    theta: float = 11.25
    s: int = 5
    history: bool = True

    def __post_init__(self) -> None:
        require_number("theta", self.theta, "[0, 90]", "90 never adds the fairness row")
        require_whole("s", self.s, 0)
        require(self.s <= 30, "s must be at most 30, got {}", self.s)
        require(
            isinstance(self.history, bool), "history must be true or false, got {!r}", self.history
        )

    def init(self, params: Tree, census: Census) -> State:
        state: State = {"model": params}
        if self.history:
            state |= nobody(sum(leaf.numel() for leaf in tree.leaves(params)))
        if self.s:
            none = torch.zeros(0, dtype=torch.float64)
            zero = torch.zeros((), dtype=torch.float64)
            state |= {"direction": tree.zeros_like(params), "trained": none.long(), "loss": none}
            state |= {"slope": none, "guided": zero, "longest": zero, "shortest": zero}
        return state

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        each = {
            "delta": tree.sub(start["model"], end["model"]),
            "loss_at_start": model.loss(start["model"], data),
        }
        # only the round's task knows lr, which turns updates into gradients
        return Reply({"lr": torch.as_tensor(task.shared["lr"])}, each), memory

    def local_work(self) -> LocalWork:
        if not self.s:  # no line search
            return LocalWork()
        return LocalWork(assumes_sgd="takes update / lr for the gradient in its line search")

    def entries(self, asked: Asked) -> Entries:
        lr = torch.as_tensor(asked.task.shared["lr"])
        return {
            "delta": Entry(kind="update"),
            "loss_at_start": Entry(kind="loss"),
            "lr": Entry(known=lr),
        }

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        updates, losses = as_rows(replies.each["delta"]), replies.each["loss_at_start"].double()
        past, known = updates[:0], {}
        if self.history:
            known = remembered(state, replies.ids, updates, 1)
            past = known["past"][known["age"] > 0]
        apart = angle(losses)
        slope = torch.where(apart > self.theta, away_from_unequal(losses), 0.0).to(updates)
        length = mean_length(updates)
        own = at_length(updates, length)
        common = least_norm(torch.cat([own, at_length(past, length), (slope @ own)[None]]))
        direction = stretched(common, own)
        info: Info = {"direction_norm": direction.norm(), "angle": apart}
        if self.s:
            stayed = torch.isin(state["trained"], replies.ids).all()
            lr = (replies.total["lr"].double() / len(replies.ids)).clamp(min=1e-300)
            zeros = tree.zeros_like(state["model"])
            known |= {
                "direction": tree.scale(descend(zeros, direction), -1.0),
                "trained": replies.ids,
                "loss": losses,
                "slope": (updates @ direction).to(losses) / lr.to(losses),
                "guided": slope.any().to(losses),
                "longest": torch.where(stayed, 2.0**self.s, 1.0).to(losses),
                "shortest": self._shortest(common, direction).to(losses),
            }
        return {**state, **known, "model": descend(state["model"], direction)}, info

    def question(self, moment: str = "before") -> Question | None:
        return LineSearch(self.s) if moment == "review" and self.s else None

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its update", "its losses")

    def _shortest(self, common: Tensor, direction: Tensor) -> Tensor:
        """Return the last step size to try: halved s times, without the stretching."""
        scale = common.norm() / direction.norm().clamp(min=1e-300)
        return torch.where(scale > 0, scale.clamp(max=1.0), 1.0) * 0.5**self.s


@dataclass(frozen=True)
class LineSearch(Question):
    """Asks for the losses at all step sizes; the server has already taken the step of length 1."""

    s: int

    def ask(self, state: State) -> Survey | None:
        moved = torch.stack([leaf.any() for leaf in tree.leaves(state["direction"])]).any()
        shared = {"model": state["model"], "direction": state["direction"]}
        return Survey({**shared, "steps": self._steps(state)}, needed=moved)

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        told = task.shared
        losses = torch.stack(
            [model.loss(at_step(told["model"], told["direction"], t), data) for t in told["steps"]]
        )
        return Reply(each={"loss": torch.where(losses.isfinite(), losses, ENDLESS)})

    def answer_entries(self, asked: Asked) -> Entries:
        # a long step may raise a loss by any factor, so losses are not compared
        return {"loss": Entry()}

    def learn(self, state: State, replies: Replies) -> State:
        still = {**state, "direction": tree.zeros_like(state["direction"])}
        if not len(replies.ids):
            return still
        steps = self._steps(state)
        who = torch.searchsorted(state["trained"], replies.ids)
        before, slope = state["loss"][who], state["slope"][who]
        after = replies.each["loss"].double().to(before.device)  # (K, T)
        falls = (before[:, None] - after >= ENOUGH * steps * slope[:, None]).all(0)
        fairer = torch.stack([angle(losses) for losses in after.T]) < angle(before)
        total, tried = after.sum(0), steps <= state["longest"]
        lowest = torch.where(tried, total, torch.inf)
        for good in (
            falls & (fairer | (state["guided"] == 0)),
            total < before.sum(),
            lowest <= lowest.min(),
        ):
            if bool((good & tried).any()):
                chosen = steps[(good & tried).nonzero()[0, 0]]
                break
        return {**still, "model": at_step(state["model"], state["direction"], chosen)}

    def _steps(self, state: State) -> Tensor:
        """Return (2s + 2,) the step sizes, longest first."""
        halved = 2.0 ** torch.arange(self.s, -self.s - 1, -1, dtype=torch.float64)
        return torch.cat([halved.to(state["shortest"]), state["shortest"][None]])


def at_step(moved: Tree, direction: Tree, t: Tensor) -> Tree:
    """Return theta - t d, from theta - d."""
    return tree.map(lambda p, d: p + ((1 - t) * d).to(p.dtype), moved, direction)
