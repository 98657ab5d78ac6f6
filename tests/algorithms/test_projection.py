"""The projection on the simplex, by enumeration and by a quadratic program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.optimize
import torch

from evenhand.simplex import project_simplex
from tests.support.by_hand import near


def nearest_by_enumeration(v: np.ndarray, floor: float) -> np.ndarray:
    """Try every set of entries above the floor: the rest sit on it, these are shifted equally; keep
    the nearest feasible point."""
    n, best, distance = len(v), None, np.inf
    for support in itertools.chain.from_iterable(
        itertools.combinations(range(n), size) for size in range(1, n + 1)
    ):
        inside = list(support)
        x = np.full(n, floor)
        x[inside] = v[inside] - (v[inside].sum() - (1 - floor * (n - len(inside)))) / len(inside)
        if x.min() >= floor - 1e-12 and ((x - v) ** 2).sum() < distance:
            best, distance = x, ((x - v) ** 2).sum()
    assert best is not None
    return best


@pytest.mark.parametrize("floor", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_projection_is_the_nearest_point_of_the_simplex_by_enumeration(
    floor: float, scale: float
) -> None:
    generator = np.random.default_rng(5)
    for n in (1, 2, 3, 5):
        for _ in range(15):
            v = generator.normal(size=n) * scale
            assert project_simplex(torch.from_numpy(v), floor).numpy() == pytest.approx(
                nearest_by_enumeration(v, floor), abs=1e-12
            )


@pytest.mark.parametrize("floor", [0.0, 0.03])
def test_projection_solves_the_quadratic_program(floor: float) -> None:
    generator = np.random.default_rng(6)
    for _ in range(5):
        v = generator.normal(size=12)
        solution = scipy.optimize.minimize(
            lambda x, v=v: ((x - v) ** 2).sum(),
            np.full(12, 1 / 12),
            jac=lambda x, v=v: 2 * (x - v),
            bounds=[(floor, 1)] * 12,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-12},  # below it, rounding on some processors ends the search
        )
        assert solution.success
        assert project_simplex(torch.from_numpy(v), floor).numpy() == pytest.approx(
            solution.x, abs=1e-6
        )


def test_projection_keeps_points_of_the_simplex_and_breaks_ties_evenly() -> None:
    assert project_simplex(torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)).tolist() == near(
        [0.2, 0.5, 0.3]
    )
    assert project_simplex(torch.tensor([7.0, 7.0, -3.0]).double()).tolist() == near([0.5, 0.5, 0])
    # (.8, .7, .2): the largest two, less (.8 + .7 - 1)/2 each; .2 is below that
    assert project_simplex(torch.tensor([0.8, 0.7, 0.2], dtype=torch.float64)).tolist() == near(
        [0.55, 0.45, 0]
    )
