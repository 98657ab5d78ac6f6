"""Sizes that are met from scarce cells: exact, within what is there, and nearest to what is
wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from evenhand.data.transport import _flow, _scaled, feasible, lowered, transport


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def problem(seed: int) -> tuple[Any, Any, Any]:
    """Sizes of some clients, samples of some cells, who holds what (at least one cell each)."""
    draw = np.random.default_rng(seed)
    clients, cells = draw.integers(1, 6), draw.integers(1, 5)
    members = draw.random((clients, cells)) < 0.6
    members[np.arange(clients), draw.integers(0, cells, clients)] = True
    return draw.integers(1, 12, clients), draw.integers(0, 20, cells), members


def by_linear_programme(wanted: Any, there: Any, members: Any) -> bool:
    """Whether some table has these rows and at most these columns."""
    clients, cells = members.shape
    rows = np.kron(np.eye(clients), np.ones(cells))
    columns = np.kron(np.ones(clients), np.eye(cells))
    bounds = [(0, None if held else 0) for held in members.reshape(-1)]
    found = linprog(
        np.zeros(clients * cells), columns, there, rows, wanted, bounds=bounds, method="highs"
    )
    return bool(found.status == 0)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sizes_are_met_exactly_whenever_a_linear_programme_can(seed: int) -> None:
    wanted, there, members = problem(seed)
    can = by_linear_programme(wanted, there, members)
    assert feasible(wanted, there, members) == can
    for leaning in (members * 1.0, members * (there + 0.5)):
        counts = transport(wanted, there, leaning, rng())
        assert (counts is not None) == can
        if counts is not None:
            assert (counts.sum(1) == wanted).all()
            assert (counts.sum(0) <= there).all()
            assert (counts >= 0).all()
            assert not counts[~members].any()


def test_samples_change_hands_where_scaling_comes_to_no_end() -> None:
    # the only table is diagonal; scaling approaches it ever more slowly
    members = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]])
    wanted = there = np.full(4, 1000)
    counts = transport(wanted, there, members * 1.0, rng())
    assert np.array_equal(counts, 1000 * np.eye(4))
    moved = _flow(
        np.array([0, 2]), np.array([2, 0]), members[:2, :2] > 0, np.array([[0, 2], [0, 0]])
    )
    assert moved.tolist() == [[2, -2], [0, 2]]  # the second client gets what the first held


def test_by_hand_scarce_cells_are_shared_and_others_make_up() -> None:
    there = np.array([50, 1000])
    level = transport(np.array([100, 100]), there, np.ones((2, 2)), rng())
    assert level is not None
    assert level.tolist() == [[25, 75], [25, 75]]
    available = transport(np.array([105, 105]), there, np.tile(there / 2, (2, 1)), rng())
    assert available is not None
    assert available.tolist() == [[5, 100], [5, 100]]  # 1 : 20
    assert transport(np.array([600, 451]), there, np.ones((2, 2)), rng()) is None


def test_the_table_is_nearest_to_what_is_wanted() -> None:
    """Against SciPy's minimiser of sum x log(x / leaning) - x under the same constraints."""
    draw = rng()
    leaning = draw.uniform(0.5, 2, (3, 3))
    wanted, there = np.array([10, 20, 15]), np.array([9, 12, 40])
    found = minimize(
        lambda x: (x * np.log(x / leaning.reshape(-1)) - x).sum(),
        np.full(9, 4.0),
        jac=lambda x: np.log(x / leaning.reshape(-1)),
        bounds=[(1e-9, None)] * 9,
        constraints=[
            {"type": "eq", "fun": lambda x: x.reshape(3, 3).sum(1) - wanted},
            {"type": "ineq", "fun": lambda x: there - x.reshape(3, 3).sum(0)},
        ],
        options={"ftol": 1e-13, "maxiter": 500},
    )
    assert found.success
    scaled = _scaled(wanted, there, leaning)
    assert scaled == pytest.approx(found.x.reshape(3, 3), abs=1e-4)
    counts = transport(wanted, there, leaning, rng())
    assert counts is not None
    assert np.abs(counts - scaled).max() < 1


def test_rounding_favours_nobody_by_its_number() -> None:
    tables = [
        transport(np.ones(2, int), np.full(2, 9), np.ones((2, 2)), np.random.default_rng(seed))
        for seed in range(400)
    ]
    mean = np.mean([table for table in tables if table is not None], 0)
    assert mean == pytest.approx(np.full((2, 2), 0.5), abs=0.1)


def test_sizes_are_lowered_no_more_than_it_takes() -> None:
    sizes = np.array([800, 1000, 600])
    lower = lowered(sizes, lambda tried: tried.sum() <= 1200)
    assert lower is not None
    assert lower.tolist() == [400, 500, 300]
    assert lowered(sizes, lambda tried: bool(tried.sum() <= 2)) is None
    same = lowered(sizes, lambda tried: True)
    assert same is not None
    assert same.tolist() == sizes.tolist()
