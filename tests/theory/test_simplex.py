"""Projections, min-norm weights and weighted quantiles, against exact arithmetic and against
SciPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.simplex import (
    min_norm,
    min_norm_weights,
    project_box,
    project_capped,
    project_simplex,
    weighted_quantile,
)
from tests.support.exact import tensor

TOLERANCE = 1e-12

moderate = st.floats(-3, 3)
size = st.integers(-300, 300).map(lambda power: 10.0**power)
extreme = (
    st.sampled_from([0.0, -0.0, 1.0, 1e17, 1e17 + 16, 1e300, 1e300 * (1 + 2**-52), -1e300, 5e-324])
    | size
    | size.map(lambda x: -x)
)
entries = moderate | extreme
levels = st.floats(0, 1)
grid = st.integers(-4, 4).map(lambda k: k / 4)  # many ties


@st.composite
def boxes(draw: st.DrawFn, most: int) -> tuple[list[float], list[float], list[float]]:
    """A vector and bounds that hold a point of sum one."""
    n = draw(st.integers(1, most))
    v = draw(st.lists(entries, min_size=n, max_size=n) | st.lists(grid, min_size=n, max_size=n))
    inside = np.array(draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)), dtype=float)
    inside /= inside.sum()
    below, above = (
        np.array(draw(st.lists(st.sampled_from([0.0, 0.01, 0.3, 1.5]), min_size=n, max_size=n)))
        for _ in range(2)
    )
    return v, (inside - below).tolist(), (inside + above).tolist()


def nearest_exactly(v: list[float], low: list[float], high: list[float]) -> list[Fraction]:
    """Try every choice of entries on a bound; the others are shifted equally. Rational arithmetic,
    nothing is sorted."""
    target, lo, hi = ([Fraction(x) for x in values] for values in (v, low, high))
    # bounds may miss the sum 1 by rounding; exact arithmetic would object
    lo = [x - max(sum(lo) - 1, Fraction(0)) for x in lo]
    hi = [x + max(1 - sum(hi), Fraction(0)) for x in hi]
    best: list[Fraction] | None = None
    distance = Fraction(0)
    for choice in itertools.product("lfh", repeat=len(v)):
        x = [{"l": a, "h": b, "f": Fraction(0)}[c] for c, a, b in zip(choice, lo, hi, strict=True)]
        free = [i for i, c in enumerate(choice) if c == "f"]
        rest = 1 - sum(x)
        if not free and rest != 0:
            continue
        for i in free:
            x[i] = target[i] + (rest - sum(target[j] for j in free)) / len(free)
        if all(a <= y <= b for a, y, b in zip(lo, x, hi, strict=True)):
            d = sum((y - t) ** 2 for y, t in zip(x, target, strict=True))
            if best is None or d < distance:
                best, distance = x, d
    assert best is not None
    return best


def optimality(x: Tensor, slope: Tensor, low: float | Tensor, high: float | Tensor) -> float:
    """By how much moving mass from an entry above its lower bound to one below its upper bound
    still descends."""
    giver = torch.where(x > low, slope, -torch.inf).max()
    taker = torch.where(x < high, slope, torch.inf).min()
    return max(0.0, (giver - taker).item())


def assert_feasible(x: Tensor, low: float | Tensor, high: float | Tensor) -> None:
    assert (x >= low).all()
    assert (x <= high).all()
    assert x.sum().item() == pytest.approx(1, abs=TOLERANCE)


# ---- projections


@settings(max_examples=150, deadline=None)
@given(boxes(most=4))
def test_the_projection_on_a_box_is_the_nearest_point_in_exact_arithmetic(
    problem: tuple[list[float], list[float], list[float]],
) -> None:
    v, low, high = problem
    x = project_box(tensor(v), tensor(low), tensor(high))
    assert x.tolist() == pytest.approx(
        [float(y) for y in nearest_exactly(v, low, high)], abs=TOLERANCE
    )


@settings(max_examples=100, deadline=None)
@given(boxes(most=40))
def test_the_projection_on_a_box_is_feasible_and_optimal(
    problem: tuple[list[float], list[float], list[float]],
) -> None:
    v, low, high = (tensor(values) for values in problem)
    x = project_box(v, low, high)
    assert_feasible(x, low, high)
    scale = max(1.0, v.abs().max().item())
    assert optimality(x, (x - v) / scale, low, high) <= TOLERANCE


@settings(max_examples=60, deadline=None)
@given(st.lists(entries, min_size=1, max_size=4), levels)
def test_simplex_and_capped_simplex_are_boxes(v: list[float], share: float) -> None:
    n = len(v)
    floor, cap = share / n, (1 / n) ** share  # from 0 to 1/n, from 1 to 1/n
    exact = nearest_exactly(v, [floor] * n, [1.0] * n)
    assert project_simplex(tensor(v), floor).tolist() == pytest.approx(
        [float(y) for y in exact], abs=TOLERANCE
    )
    exact = nearest_exactly(v, [0.0] * n, [cap] * n)
    assert project_capped(tensor(v), cap).tolist() == pytest.approx(
        [float(y) for y in exact], abs=TOLERANCE
    )


def test_entries_outside_the_support_have_no_floor() -> None:
    support = torch.tensor([True, False, True])
    found = project_simplex(tensor([0.9, 0.5, -3.0]), 0.25, support)
    assert found.tolist() == [0.75, 0.0, 0.25]


@pytest.mark.parametrize("scale", [1e-300, 1e-5, 1.0, 1e5, 1e300])
@pytest.mark.parametrize(
    "project", [project_simplex, lambda v: project_capped(v, 1.5e-5)], ids=["simplex", "capped"]
)
def test_a_hundred_thousand_entries(project: Callable[[Tensor], Tensor], scale: float) -> None:
    v = (
        torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        * scale
    )
    x = project(v)
    high = x.max() if project is not project_simplex else math.inf
    assert_feasible(x, 0.0, high)
    assert optimality(x, (x - v) / max(1.0, scale), 0.0, high) <= TOLERANCE


def test_projection_agrees_with_scipy() -> None:
    generator = np.random.default_rng(0)
    for _ in range(5):
        v, low = generator.normal(size=8), generator.uniform(0, 0.1, 8)
        high = generator.uniform(0.15, 0.4, 8)
        solution = scipy.optimize.minimize(
            lambda x, v=v: ((x - v) ** 2).sum(),
            np.full(8, 1 / 8),
            jac=lambda x, v=v: 2 * (x - v),
            bounds=list(zip(low, high, strict=True)),
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-15},
        )
        assert project_box(tensor(v), tensor(low), tensor(high)).numpy() == pytest.approx(
            solution.x, abs=1e-6
        )


def test_projection_keeps_what_is_inside_and_shares_ties() -> None:
    inside = tensor([0.2, 0.5, 0.3])
    assert project_box(inside, 0.1, 0.6).tolist() == pytest.approx(inside.tolist(), abs=1e-16)
    assert project_capped(tensor([9.0, 9.0, 9.0, 9.0, 1.0]), 0.25).tolist() == [
        0.25,
        0.25,
        0.25,
        0.25,
        0.0,
    ]
    assert project_capped(tensor([1e300] * 3), 1.0).tolist() == pytest.approx([1 / 3] * 3)
    assert project_box(tensor([7.0]), -3.0, 1.0).tolist() == [1.0]
    assert project_box(tensor([1.7e308, -1.7e308, 0.0]), 0.0, 0.75).tolist() == [0.75, 0.0, 0.25]


def test_bounds_that_meet_leave_one_point() -> None:
    weight = torch.full((7,), 1 / 7, dtype=torch.float64)  # sums to 1 up to rounding
    assert torch.equal(project_box(torch.randn(7).double(), weight, weight), weight)
    assert project_capped(torch.randn(49).double(), 1 / 49).tolist() == [1 / 49] * 49


def test_the_answer_has_the_type_of_the_question_and_nan_for_what_diverged() -> None:
    assert project_simplex(torch.tensor([0.5, 2.0])).dtype == torch.float32
    assert project_box(tensor([math.nan, 1.0]), 0.0, 1.0).isnan().all()
    assert project_simplex(tensor([math.inf, 1.0])).isnan().all()


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (
            0.6,
            1.0,
            "the lower bounds sum to 1.2, more than the mass 1; divide them by at least that",
        ),
        (
            0.0,
            0.4,
            "the upper bounds sum to 0.8, less than the mass 1; raise them; 1 means no bound",
        ),
        (
            torch.tensor([0.0, 0.5]),
            torch.tensor([1.0, 0.25]),
            "lower bound 0.5 of entry 1 exceeds its upper bound 0.25",
        ),
        (-math.inf, 1.0, "lower bounds must be finite"),
        (0.0, math.nan, "lower bound 0 of entry 0 exceeds its upper bound nan"),
    ],
)
def test_an_empty_box_is_explained(low: float | Tensor, high: float | Tensor, message: str) -> None:
    for call in (
        lambda: project_box(tensor([0.5, 0.5]), low, high),
        lambda: min_norm_weights(torch.eye(2), low, high),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(
        ValueError,
        match=r"a floor of 0.6 for each of 2 entries exceeds the mass 1; use at most 0.5",
    ):
        project_simplex(tensor([0.5, 0.5]), 0.6)


# ---- min-norm weights


@st.composite
def vectors(draw: st.DrawFn, most: int = 12) -> np.ndarray:
    """Rows that may repeat, vanish, be parallel or opposite, with sizes that may differ by 1e30."""
    n, d = draw(st.integers(1, most)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    rows = (
        generator.normal(size=(n, d))
        if draw(st.booleans())
        else generator.integers(-2, 3, size=(n, d)).astype(float)
    )
    rows += draw(st.sampled_from([0.0, 0.0, 1.0, 3.0]))
    if draw(st.booleans()):
        rows *= 10.0 ** generator.integers(-15, 16, size=(n, 1))
    if draw(st.booleans()):
        rows = rows[generator.integers(0, n, size=n)]
    return rows * draw(st.sampled_from([1.0, 1e-15, 1e15, 1e-140, 1e130]))


@settings(max_examples=150, deadline=None)
@given(vectors(), st.sampled_from([(0.0, 1.0), (0.5, 1.5), (0.0, 1.2), (1.0, 1.0), (-1.0, 3.0)]))
def test_min_norm_weights_are_feasible_and_optimal(
    rows: np.ndarray, factors: tuple[float, float]
) -> None:
    gram = tensor(rows @ rows.T)
    low, high = (
        (0.0, 1.0) if factors == (0.0, 1.0) else (factors[0] / len(rows), factors[1] / len(rows))
    )
    lam = min_norm_weights(gram, low, high)
    assert_feasible(lam, low, high)
    scale = gram.diagonal().max().item() or 1.0
    assert optimality(lam, (gram / scale) @ lam, low, high) <= TOLERANCE
    assert torch.equal(lam, min_norm_weights(gram, low, high))


def every_step(G: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """What the steps towards the minimum lead to if all of them are taken."""
    rate, ahead, theta = 1 / min_norm._curvature(G), lam, torch.zeros((), dtype=G.dtype)
    for k in range(1, min_norm.GRADIENT_STEPS + 1):
        v = ahead - rate * (G @ ahead)
        least, most = (v - high).min(), (v - low).max()
        for _ in range(min_norm.THETA_STEPS):
            x = v - theta
            excess = x.clamp(low, high).sum() - 1
            least, most = (theta, most) if excess > 0 else (least, theta)
            after = theta + excess / ((x > low) & (x < high)).sum()
            theta = after if least <= after <= most else (least + most) / 2
        after = (v - theta).clamp(low, high)
        ahead, lam = after + (k - 1) / (k + 2) * (after - lam), after
    return lam


def test_a_search_that_stands_still_is_ended_without_changing_a_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    for count, width in itertools.product((2, 3, 6, 30), (1, 2, 50)):
        rows = torch.randn(count, width, generator=generator, dtype=torch.float64)
        gram = rows @ rows.T
        start = torch.full((count,), 1 / count, dtype=torch.float64)
        for high in (torch.ones_like(start), 1.2 * start):
            problem = gram / gram.diagonal().max(), start, 0.3 * start, high
            assert torch.equal(min_norm._descended(*problem), every_step(*problem))


@pytest.mark.parametrize("half", [0.05, 0.2, 1.0])
def test_min_norm_weights_agree_with_scipy(half: float) -> None:
    generator = np.random.default_rng(1)
    for _ in range(5):
        rows = generator.normal(size=(6, 20)) + 0.7
        gram, centre = rows @ rows.T, generator.dirichlet(np.ones(6))
        low, high = np.maximum(centre - half, 0), np.minimum(centre + half, 1)
        solution = scipy.optimize.minimize(
            lambda x, gram=gram: x @ gram @ x,
            centre,
            jac=lambda x, gram=gram: 2 * gram @ x,
            bounds=list(zip(low, high, strict=True)),
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 500},
        )
        assert min_norm_weights(tensor(gram), tensor(low), tensor(high)).numpy() == pytest.approx(
            solution.x, abs=1e-5
        )


def test_orthogonal_vectors_weigh_inversely_to_their_squared_length_over_sixty_decades() -> None:
    squares = tensor([1e30, 1e-30, 4e-30, 1.0, 1e-3, 3e15])
    expected = (1 / squares) / (1 / squares).sum()
    lam = min_norm_weights(torch.diag(squares))
    assert (lam / expected).tolist() == pytest.approx([1.0] * 6, rel=1e-12)


def test_two_vectors_by_hand() -> None:
    # |lam u + (1-lam) v|^2 is least at lam = (v - u).v / |u - v|^2; u = (1, 0), v = (1, 2): the foot is u itself
    assert min_norm_weights(tensor([[1.0, 1.0], [1.0, 5.0]])).tolist() == pytest.approx(
        [1.0, 0.0], abs=1e-15
    )
    # u = (2, 0), v = (0, 1): lam = 1/5
    assert min_norm_weights(tensor([[4.0, 0.0], [0.0, 1.0]])).tolist() == pytest.approx(
        [0.2, 0.8], abs=1e-15
    )
    assert min_norm_weights(tensor([[4.0, 0.0], [0.0, 1.0]]), 0.3, 0.7).tolist() == [0.3, 0.7]


def test_equal_vectors_share_and_zero_ones_take_all() -> None:
    rows = tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert min_norm_weights(rows @ rows.T).tolist() == pytest.approx(
        [1 / 6, 1 / 2, 1 / 6, 1 / 6], abs=1e-15
    )
    rows = tensor([[3.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
    assert min_norm_weights(rows @ rows.T).tolist() == pytest.approx([0, 1, 0], abs=1e-15)
    assert min_norm_weights(torch.zeros(4, 4)).tolist() == [0.25] * 4
    assert min_norm_weights(tensor([[5.0]])).tolist() == [1.0]


@pytest.mark.parametrize("dimension", [3, 30, 200])
@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_a_hundred_vectors(dimension: int, shift: float) -> None:
    rows = (
        torch.randn(100, dimension, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        + shift
    )
    for low, high in ((0.0, 1.0), (0.5 / 100, 2 / 100)):
        gram = rows @ rows.T
        lam = min_norm_weights(gram, low, high)
        assert_feasible(lam, low, high)
        assert optimality(lam, gram @ lam / gram.diagonal().max(), low, high) <= TOLERANCE


def test_a_matrix_that_rounding_made_indefinite_still_gives_weights() -> None:
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(3))
    gram = (rows @ rows.T).double() + 1e-7 * torch.randn(
        30, 30, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    lam = min_norm_weights(gram)
    assert_feasible(lam, 0.0, 1.0)
    assert (lam @ gram @ lam).item() <= 1e-6


def test_renumbering_vectors_renumbers_the_weights() -> None:
    rows = torch.randn(9, 30, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.4
    order = torch.randperm(9, generator=torch.Generator().manual_seed(6))
    gram = rows @ rows.T
    torch.testing.assert_close(
        min_norm_weights(gram[order][:, order]), min_norm_weights(gram)[order], rtol=0, atol=1e-13
    )


def test_what_is_no_gram_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"square matrix, got shape \(2, 3\)"):
        min_norm_weights(torch.ones(2, 3))
    with pytest.raises(ValueError, match="gram must be finite; exclude clients"):
        min_norm_weights(tensor([[math.nan]]))


# ---- weighted quantiles


def quantile_exactly(values: list[float], weights: list[int], level: Fraction) -> float:
    total = sum(weights)
    held = sorted({v for v, w in zip(values, weights, strict=True) if w})
    return next(
        v
        for v in held
        if sum(w for x, w in zip(values, weights, strict=True) if x <= v) >= level * total
    )


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_quantile_is_the_smallest_value_that_reaches_the_level(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    values = data.draw(st.lists(entries | grid, min_size=n, max_size=n))
    weights = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n).filter(any))
    level = data.draw(st.fractions(0, 1, max_denominator=60))
    scale = data.draw(st.sampled_from([1.0, 1e-300, 1e300, 0.1]))
    found = weighted_quantile(tensor(values), tensor(weights) * scale, float(level))
    assert found.item() == quantile_exactly(values, weights, level)


def test_the_ends_of_the_quantile_are_the_extremes_that_have_weight() -> None:
    values, weights = tensor([5.0, -2.0, 9.0, 1.0, 3.0]), tensor([1e-25, 0.0, 0.0, 1e-30, 1.0])
    assert weighted_quantile(values, weights, 0.0).item() == 1.0
    assert weighted_quantile(values, weights, 1.0).item() == 5.0
    assert weighted_quantile(values, weights, 0.5).item() == 3.0
    # three of five, though 1 - 0.4 rounds up
    assert weighted_quantile(values, tensor([1.0] * 5), 1 - 0.4).item() == 3.0


def test_levels_between_two_values_are_reached_though_sums_round() -> None:
    values = tensor([1.0, 2.0, 3.0, 4.0])
    for weights in itertools.product([0.1, 0.2, 0.3, 0.7], repeat=4):
        for below in range(1, 4):
            level = sum(weights[:below]) / sum(weights)
            assert weighted_quantile(values, tensor(weights), level).item() == below
            assert (
                weighted_quantile(values, tensor(weights), min(1.0, level + 1e-9)).item()
                == below + 1
            )


def test_a_quantile_of_a_hundred_thousand() -> None:
    values = torch.randperm(100_000, generator=torch.Generator().manual_seed(7)).double()
    assert weighted_quantile(values, torch.full_like(values, 1e-5), 0.3).item() == 29_999
    assert weighted_quantile(values, torch.full_like(values, 1e-5), 0.95).item() == 94_999


def test_wrong_quantiles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"level must be in \[0, 1\], got 1.5"):
        weighted_quantile(tensor([1.0]), tensor([1.0]), 1.5)
    with pytest.raises(ValueError, match="weights must be >= 0, and one of them positive"):
        weighted_quantile(tensor([1.0]), tensor([0.0]), 0.5)
    with pytest.raises(ValueError, match="do not match"):
        weighted_quantile(tensor([1.0]), tensor([0.5, 0.5]), 0.5)


def plain_gradient(G: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
    """Accelerated projected gradient steps, each projection exact."""
    lam = ahead = project_box(torch.full_like(low, 1 / len(G)), low, high)
    rate = 1 / G.abs().sum(1).max()
    for k in range(1, steps + 1):
        after = project_box(ahead - rate * (G @ ahead), low, high)
        ahead, lam = after + (k - 1) / (k + 2) * (after - lam), after
    return lam


@pytest.mark.parametrize(("count", "size"), [(30, 60), (60, 12), (120, 200)])
@pytest.mark.parametrize("epsilon", [0.02, 0.1, 1.0])
def test_the_shortest_combination_is_that_of_plain_gradient_steps(
    count: int, size: int, epsilon: float
) -> None:
    rng = torch.Generator().manual_seed(count)
    u = torch.randn(count, size, generator=rng, dtype=torch.float64)
    u = u / u.norm(dim=1, keepdim=True)
    prior = torch.full((count,), 1 / count, dtype=torch.float64)
    low, high = (prior - epsilon).clamp(min=0), (prior + epsilon).clamp(max=1)
    found = min_norm_weights(u @ u.T, low, high)
    plain = plain_gradient(u @ u.T, low, high, 2000)
    length, other = ((weights @ u).norm() ** 2 for weights in (found, plain))
    assert length <= other + 1e-10
    assert torch.allclose(found @ u, plain @ u, atol=1e-4)
    assert float(found.sum()) == pytest.approx(1, abs=1e-12)
    assert bool(((found >= low) & (found <= high)).all())
