"""On a small convex problem every method comes within 1 % of the optimum that SciPy finds for its
objective.

Five clients of unequal size with a linear regression each: f_i(theta) = mean over its samples of
(theta . x - y)^2, strongly convex in three parameters. Their targets disagree, so every objective
has a minimiser of its own. Full batches, one local step. The objectives are written down here from
the papers; nothing is taken from the library but the parameters it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import nn

import evenhand as eh

Vector = np.ndarray
Function = Callable[[Vector], float]
SIZES = (40, 26, 20, 14, 20)
TEAMS = ("north", "south", "north", "south", "south")
TARGETS = ((0.0, 0.0, 0.0), (1.0, 0.3, -0.5), (-0.6, 1.6, 0.2), (2.4, -1.2, 1.0), (0.4, 0.8, -1.8))
NOISE = (0.5, 0.3, 0.4, 0.5, 0.3)
# chance of a sample to belong to the smaller group, which lives mostly on one client
FEW = (0.1, 0.15, 0.1, 0.85, 0.1)
P = np.array(SIZES) / sum(SIZES)
FEATURES = 3
WITHIN = 1.01  # of the optimum


@cache
def clients() -> list[dict[str, Any]]:
    generator = np.random.default_rng(8)
    found = []
    for size, target, noise, few in zip(SIZES, TARGETS, NOISE, FEW, strict=True):
        x = generator.normal(size=(size, FEATURES))
        y = x @ np.array(target) + noise * generator.normal(size=size)
        found.append(
            {"x": x, "y": y, "group": np.where(generator.random(size) < few, "few", "many")}
        )
    return found


def residuals(theta: Vector) -> list[Vector]:
    return [client["x"] @ theta - client["y"] for client in clients()]


def losses(theta: Vector) -> Vector:
    """f_i, one per client."""
    return np.array([(error**2).mean() for error in residuals(theta)])


def group_risks(theta: Vector) -> Vector:
    """Mean loss of each group over the samples of all clients."""
    squared = np.concatenate(residuals(theta)) ** 2
    group = np.concatenate([client["group"] for client in clients()])
    return np.array([squared[group == name].mean() for name in ("few", "many")])


@cache
def fedavg_minimiser() -> Vector:
    """Least squares on the pooled data."""
    x, y = (np.concatenate([client[key] for client in clients()]) for key in ("x", "y"))
    return np.linalg.solve(x.T @ x, x.T @ y)


def minimise(objective: Function) -> float:
    """The least value of a smooth convex function of theta."""
    found = scipy.optimize.minimize(
        objective, fedavg_minimiser(), method="BFGS", options={"gtol": 1e-7}
    )
    assert np.abs(found.jac).max() < 1e-4
    return float(found.fun)


def minimise_epigraph(
    cost: Function, constraint: Callable[[Vector], Vector], start: Vector, ftol: float = 1e-12
) -> float:
    """The least cost(z) over z = (theta, extra variables) with every constraint(z) >= 0."""
    found = scipy.optimize.minimize(
        cost,
        start,
        method="SLSQP",
        constraints={"type": "ineq", "fun": constraint},
        options={"ftol": ftol, "maxiter": 500},
    )
    assert found.success, found.message
    return float(found.fun)


def minimax(values: Callable[[Vector], Vector]) -> float:
    """min over theta of the largest of the values: the least t with t >= every value."""
    start = np.append(fedavg_minimiser(), values(fedavg_minimiser()).max())
    return minimise_epigraph(lambda z: z[-1], lambda z: z[-1] - values(z[:-1]), start)


def train(algorithm: eh.Algorithm, lr: float, rounds: int, **settings: Any) -> eh.Result:
    module = nn.Linear(FEATURES, 1, bias=False).double()
    with torch.no_grad():
        module.weight.zero_()
    teams = settings.pop("teams", False)
    rows = [
        {**client, "team": team} if teams else client
        for client, team in zip(clients(), TEAMS, strict=True)
    ]
    local = eh.LocalSGD(lr=lr, steps=1, decay=settings.pop("decay", 1.0))
    fed = eh.Federation.from_arrays(rows)
    return eh.fit(
        module,
        fed,
        algorithm,
        loss="mse",
        rounds=rounds,
        local=local,
        eval_every=rounds,
        engine="vmap",
        **settings,
    )


def parameters(result: eh.Result) -> Vector:
    return result.params["weight"].numpy()[0]


def assert_reaches(objective: Function, optimum: float, theta: Vector) -> None:
    """Within 1 % of the optimum, which FedAvg's solution is not; and SciPy's optimum is not above
    what was found."""
    assert optimum > 0
    assert objective(theta) <= WITHIN * optimum
    assert objective(theta) >= optimum * (1 - 1e-6)
    assert objective(fedavg_minimiser()) > WITHIN * optimum
    assert np.linalg.norm(theta - fedavg_minimiser()) > 0.05


def worst_mixture(values: Vector, caps: Vector) -> float:
    """HCVaR: the largest lam . f over the simplex with lam_i <= cap_i, by filling the caps from the
    highest loss down."""
    left, total = 1.0, 0.0
    for i in np.argsort(-values):
        lam = min(caps[i], left)
        left, total = left - lam, total + lam * values[i]
    return float(total)


def own_minimiser(i: int) -> Vector:
    x, y = clients()[i]["x"], clients()[i]["y"]
    return np.linalg.solve(x.T @ x, x.T @ y)
