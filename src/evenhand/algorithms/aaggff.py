"""AAggFF: adaptive aggregation for fair federated learning."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.algorithm import (
    Algorithm,
    Certificate,
    Question,
    Reporting,
    State,
    Weighting,
    normalised,
)
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.errors import require_choice
from evenhand.growth import grown, resettled
from evenhand.messages import Replies, Survey
from evenhand.simplex import min_norm_weights
from evenhand.theory.aggregates import Maximum
from evenhand.tree import Tree

CDFS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: torch.special.ndtr(x - 1),
    "weibull": lambda x: 1 - torch.exp(-(x**2)),
    "exponential": lambda x: 1 - torch.exp(-x),
    "frechet": lambda x: torch.exp(-1 / x.clamp(min=1e-300)),
    "gumbel": lambda x: torch.exp(-torch.exp(1 - x)),
    "logistic": lambda x: torch.sigmoid(x - 1),
}


@dataclass(frozen=True)
class AAggFF(Algorithm, Question, Weighting, Reporting):
    """Let an online learner choose the clients' weights: high losses weigh more, with a regret
    bound.

    The learner sees a bounded response r_i = cdf(f_i / mean f), has loss -log(1 + <lam, r>), and
    chooses, with r / n in place of r in the first case and C r in the second,

        newton:  lam = argmin over the simplex of
                       sum_s <g_s, p> + 2 |p|^2 + (n/8) sum_s <g_s, p - lam_s>^2
        ftrl:    lam ~ w exp(-sum_s g_s sqrt(log n) / ((2 + C) sqrt(t + 1)))
                                                                        (Hahn et al., ICML 2024)

    C is the cohort's share of the clients and g the gradient -r / (1 + <lam, r>); for "ftrl" it is
    linearised around the mean response. Clients that were not asked count with the mean response,
    and those asked are scaled up in return (doubly robust). Losses are asked for before training,
    and the new weights, normalised over the participants, are used in the same round. lam starts at
    the clients' weights (in the paper at 1/n). Two places follow the paper rather than the authors'
    code: the doubly robust response keeps its mean, and the newton term is centred at the past lam.
    The server sees every participant's loss.

    Args:
        solver: "newton" for tens of clients that all take part, "ftrl" for many clients.
        cdf: how a loss relative to the mean becomes a response.
    """

    solver: str = "newton"
    cdf: str = "normal"

    def __post_init__(self) -> None:
        require_choice("solver", self.solver, ("newton", "ftrl"))
        require_choice("cdf", self.cdf, tuple(CDFS))

    def init(self, params: Tree, census: Census) -> State:
        base, zeros = census.weight, torch.zeros_like(census.weight)
        state = {"model": params, "lam": base, "base": base, "linear": zeros}
        if self.solver == "newton":
            return {**state, "curvature": torch.zeros(len(base), len(base), dtype=torch.float64)}
        return {**state, "rounds": torch.zeros((), dtype=torch.float64)}

    def ask(self, state: State) -> Survey | None:
        return Survey({"model": state["model"]})

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        lam, n = state["lam"], len(state["lam"])
        share = len(replies.ids) / n
        heard = CDFS[self.cdf](relative(replies.each["loss"].double())) * (
            1 / n if self.solver == "newton" else share
        )
        mean = heard.mean()
        response = mean.expand(n).index_put((replies.ids,), mean + (heard - mean) / share)  # (n,)
        if self.solver == "ftrl":
            spread = (lam * (response - mean)).sum()
            gradient = -response / (1 + mean) + mean * spread / (1 + mean) ** 2
            linear, rounds = state["linear"] + gradient, state["rounds"] + 1
            exponent = (
                -linear * math.sqrt(math.log(max(n, 2))) / ((2 + share) * torch.sqrt(rounds + 1))
            )
            lam = normalised(state["base"] * torch.exp(exponent - exponent.max()))
            return {**state, "lam": lam, "linear": linear, "rounds": rounds}
        gradient = -response / (1 + (lam * response).sum())
        beta = n / 4
        linear = state["linear"] + gradient * (1 - beta * (gradient * lam).sum())
        curvature = state["curvature"] + torch.outer(gradient, gradient)
        quadratic = 4 * torch.eye(n, dtype=torch.float64) + beta * curvature
        return {
            **state,
            "lam": least_on_simplex(quadratic, linear),
            "linear": linear,
            "curvature": curvature,
        }

    def reweigh(self, state: State, draw: Draw) -> Draw:
        weight = normalised(draw.weight * (state["lam"] / state["base"])[draw.ids])
        return Draw(draw.ids, weight, weight)

    def join(self, state: State, before: State, after: State) -> State:
        """Treat new clients as if they had always been there and never been asked."""
        joined, n, m = grown(state, before, after), len(before["lam"]), len(after["lam"])
        # (m, n)
        mean = torch.cat(
            [torch.eye(n, dtype=torch.float64), torch.full((m - n, n), 1 / n, dtype=torch.float64)]
        )
        past = {"linear": mean @ state["linear"]}
        if "curvature" in state:
            past["curvature"] = mean @ state["curvature"] @ mean.T
        return {**joined, **past, "lam": resettled(joined["lam"], before["base"], after["base"])}

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss",)

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        return Certificate(
            losses.max(), state["lam"], Maximum().gap(losses, census.weight, state["lam"])
        )


def relative(loss: Tensor) -> Tensor:
    """Divide losses by their mean; ones if all are zero."""
    mean = loss.mean()
    return torch.where(mean > 0, loss / mean.clamp(min=1e-300), torch.ones_like(loss))


def least_on_simplex(quadratic: Tensor, linear: Tensor) -> Tensor:
    """Return argmin over the simplex of p' Q p / 2 + <c, p>, Q positive definite.

    Where sum p = 1, <c, p> = p' (c 1' + 1 c') p / 2, and a multiple of 1 1' is a constant. So the
    problem is one of least norm, with the multiple c' Q^-1 c, which makes the matrix positive
    semidefinite.
    """
    ones = torch.ones_like(linear)
    factor = torch.linalg.cholesky(quadratic)
    constant = linear @ torch.cholesky_solve(linear[:, None], factor)[:, 0]
    return min_norm_weights(
        quadratic + torch.outer(linear, ones) + torch.outer(ones, linear) + constant
    )
