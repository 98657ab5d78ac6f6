"""FAFL's risk: primal against linear programming and exact arithmetic, dual against minimisation,
smoothing to fifty digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import mpmath as mp
import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenhand.simplex import weighted_quantile
from evenhand.theory import HCVaR, Maximum, Mean, TiltedMean, cvar, superquantile
from tests.support.exact import tensor

RELATIVE = 1e-12

magnitude = st.floats(-300, 300).map(lambda power: 10.0**power)
moderate = st.floats(-3, 5)
extreme = st.sampled_from([0.0, 1.0, 1 + 2**-52, 1e-300, -1e300, 1e300, 5e-324]) | magnitude
grid = st.integers(0, 3).map(float)  # many ties
levels = st.sampled_from([1.0, 0.999, 0.5, 0.3, 0.1, 0.01]) | st.floats(0.01, 1)
floors = st.sampled_from([0.0, 0.0, 0.2, 0.9, 1.0]) | st.floats(0, 1)
widths = st.sampled_from([1e-3, 0.05, 1.0, 30.0])


class Problem(NamedTuple):
    losses: list[float]
    base: list[float]
    alpha: tuple[float, ...]
    floor: tuple[float, ...]

    @property
    def scale(self) -> float:
        return max(1e-300, *(abs(x) for x in self.losses))

    def risk(self, mu: float = 0.0) -> HCVaR:
        return HCVaR(self.alpha, mu, self.floor)


@st.composite
def problems(
    draw: st.DrawFn,
    losses: st.SearchStrategy[float] = moderate,
    alpha: st.SearchStrategy[float] = levels,
) -> Problem:
    n = draw(st.integers(1, 7))
    parts = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    f = draw(st.lists(losses, min_size=n, max_size=n) | st.lists(grid, min_size=n, max_size=n))
    a, b = (tuple(draw(st.lists(levels, min_size=n, max_size=n))) for levels in (alpha, floors))
    return Problem(f, [part / sum(parts) for part in parts], a, b)


def exact_bounds(problem: Problem) -> tuple[list[Fraction], list[Fraction], list[Fraction]]:
    parts = [Fraction(x) for x in problem.base]
    w = [x / sum(parts) for x in parts]
    lower = [x * Fraction(a) for x, a in zip(w, problem.floor, strict=True)]
    return (
        [Fraction(x) for x in problem.losses],
        lower,
        [x / Fraction(a) for x, a in zip(w, problem.alpha, strict=True)],
    )


def greedy(problem: Problem) -> tuple[Fraction, Fraction]:
    """The value and the loss of the last client to receive mass, in rational arithmetic, client by
    client."""
    f, lower, upper = exact_bounds(problem)
    lam, left, last = list(lower), 1 - sum(lower), max(f)
    for i in sorted(range(len(f)), key=lambda i: -f[i]):
        given_now = min(upper[i] - lower[i], left)
        if given_now > 0:
            last = f[i]
        lam[i] += given_now
        left -= given_now
    return sum((x * y for x, y in zip(lam, f, strict=True)), Fraction(0)), last


# ---- mu = 0


@settings(max_examples=150, deadline=None)
@given(problems() | problems(extreme))
def test_the_value_is_greedy_filling_in_exact_arithmetic(problem: Problem) -> None:
    value, _ = greedy(problem)
    found = problem.risk().value(problem.losses, problem.base).item()
    assert abs(Fraction(found) - value) <= Fraction(RELATIVE) * Fraction(problem.scale)


@settings(max_examples=50, deadline=None)
@given(problems())
def test_the_value_is_that_of_the_linear_program(problem: Problem) -> None:
    w = np.array(problem.base)
    bounds = list(zip(w * problem.floor, w / problem.alpha, strict=True))
    solution = scipy.optimize.linprog(
        -np.array(problem.losses), A_eq=np.ones((1, len(w))), b_eq=[1], bounds=bounds
    )
    assert solution.success
    assert problem.risk().value(problem.losses, problem.base).item() == pytest.approx(
        -solution.fun, abs=1e-8
    )


@settings(max_examples=150, deadline=None)
@given(problems() | problems(extreme), st.floats(-4, 6))
def test_primal_equals_dual_at_the_threshold_and_nowhere_exceeds_it(
    problem: Problem, eta: float
) -> None:
    risk, data = problem.risk(), (problem.losses, problem.base)
    value, best = risk.value(*data).item(), risk.threshold(*data)
    tau = risk.tau(problem.base).item()
    assert risk.dual_value(*data, best).item() == pytest.approx(
        value, abs=RELATIVE * problem.scale * tau
    )
    assert risk.duality_gap(*data, best) <= RELATIVE * problem.scale * tau
    assert risk.dual_value(*data, eta).item() >= value - RELATIVE * (problem.scale + abs(eta)) * tau
    assert risk.duality_gap(*data, eta) >= 0


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_dual_is_minimised_by_search(problem: Problem) -> None:
    risk, data = problem.risk(), (problem.losses, problem.base)
    # piecewise linear: least at a loss
    at_losses = min(risk.dual_value(*data, eta).item() for eta in problem.losses)
    assert risk.value(*data).item() == pytest.approx(
        at_losses, abs=1e-12 * (1 + problem.scale) * risk.tau(problem.base).item()
    )
    found = scipy.optimize.minimize_scalar(
        lambda eta: risk.dual_value(*data, eta).item(), bounds=(-4, 6), method="bounded"
    )
    assert found.fun >= risk.value(*data).item() - 1e-9


@settings(max_examples=100, deadline=None)
@given(problems() | problems(extreme))
def test_weights_stay_between_floor_and_cap_and_attain_the_value(problem: Problem) -> None:
    w = tensor(problem.base)
    risk = problem.risk()
    lam = risk.weights(problem.losses, problem.base)
    assert lam.sum().item() == pytest.approx(1, abs=1e-14)
    assert (lam >= w * tensor(problem.floor) * (1 - 1e-14)).all()
    assert (lam <= w / tensor(problem.alpha) * (1 + 1e-14)).all()
    assert (lam @ tensor(problem.losses)).item() == risk.value(problem.losses, problem.base).item()
    assert risk.conjugate(lam, problem.base) == 0
    assert risk.gap(problem.losses, problem.base, lam) <= RELATIVE * problem.scale


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_threshold_is_the_loss_of_the_last_client_to_receive_mass(problem: Problem) -> None:
    eta = problem.risk().threshold(problem.losses, problem.base).item()
    _, last = greedy(problem)
    assert eta in problem.losses
    # filled exactly, up to rounding: every threshold from one loss to the next is optimal
    if eta != float(last):
        assert problem.risk().duality_gap(problem.losses, problem.base, float(last)) <= 1e-12 * (
            1 + problem.scale
        )


def test_greedy_filling_by_hand() -> None:
    f, base = [1.0, 4.0, 2.0], [0.5, 0.25, 0.25]
    # caps 1/2 / 0.8 = .625, .25 / .5 = .5, .25 / .5 = .5: client 1 takes .5, client 2 takes .5
    risk = HCVaR((0.8, 0.5, 0.5))
    assert risk.weights(f, base).tolist() == [0.0, 0.5, 0.5]
    assert risk.value(f, base).item() == 3.0
    assert risk.threshold(f, base).item() == 2.0
    # floors .4 w = .2, .1, .1 leave .6: client 1 takes .4 (to its cap), client 2 the last .2
    risk = HCVaR((0.8, 0.5, 0.5), floor=0.4)
    assert risk.weights(f, base).tolist() == pytest.approx([0.2, 0.5, 0.3])
    assert risk.value(f, base).item() == pytest.approx(0.2 + 2.0 + 0.6)
    assert risk.tau(base).item() == pytest.approx(0.625 + 0.5 + 0.5)


def test_clients_that_tie_share_in_proportion_to_their_room() -> None:
    # client 0 takes its cap .2 / .5 = .4; .6 is left for caps .2 / .25 = .8 and .6 / 1 = .6: shares
    # 6/14 of each
    lam = HCVaR((0.5, 0.25, 1.0)).weights([9.0, 3.0, 3.0], [0.2, 0.2, 0.6])
    assert lam.tolist() == pytest.approx([0.4, 0.6 * 8 / 14, 0.6 * 6 / 14])


def test_a_floor_forgets_no_client_and_costs_its_share() -> None:
    f, base = tensor([1.0, 2.0, 8.0]), tensor([0.5, 0.3, 0.2])
    for a in (0.0, 0.25, 0.75, 1.0):
        risk = HCVaR(0.2, floor=a)
        assert (risk.weights(f, base) >= a * base - 1e-16).all()
    # one floor for all mixes the mean and the risk of level alpha': A_a = a E + (1 - a)
    # HCVaR(alpha'), 1/alpha' = (1/alpha - a)/(1 - a)
    inner = HCVaR((1 - 0.25) / (1 / 0.2 - 0.25))
    mixed = 0.25 * Mean().value(f, base) + 0.75 * inner.value(f, base)
    assert HCVaR(0.2, floor=0.25).value(f, base).item() == pytest.approx(mixed.item(), rel=1e-14)


@settings(max_examples=60, deadline=None)
@given(problems(), st.data())
def test_a_floor_costs_at_most_its_share_of_the_distance_to_the_mean(
    problem: Problem, data: st.DataObject
) -> None:
    args = (problem.losses, problem.base)
    guarded, mean = HCVaR(problem.alpha).value(*args), Mean().value(*args)
    cost = guarded - problem.risk().value(*args)
    assert -1e-12 <= cost <= max(problem.floor) * (guarded - mean) + 1e-12
    # and every improvement counts: A(f') <= A(f) - sum a w (f - f')
    gain = tensor(
        data.draw(st.lists(st.floats(0, 2), min_size=len(problem.base), max_size=len(problem.base)))
    )
    better = problem.risk().value(tensor(problem.losses) - gain, problem.base)
    assert (
        better
        <= problem.risk().value(*args) - tensor(problem.base) * tensor(problem.floor) @ gain + 1e-12
    )


# ---- special cases


def test_two_caps_above_one_give_the_worst_client() -> None:
    """2: all alpha_i <= w_i."""
    f, base = [1.0, 5.0, 2.0], [0.5, 0.2, 0.3]
    for alpha in (base, [0.1, 0.01, 0.3], [5e-324] * 3):
        risk = HCVaR(tuple(alpha))
        assert risk.value(f, base) == Maximum().value(f, base)
        assert risk.weights(f, base).tolist() == [0.0, 1.0, 0.0]


@settings(max_examples=60, deadline=None)
@given(problems(), levels)
def test_one_level_is_the_superquantile(problem: Problem, tail: float) -> None:
    """3: the mean over the worst ``tail`` of the mass, the quantile's client counted in part."""
    f, base = tensor(problem.losses), tensor(problem.base)
    quantile = weighted_quantile(f, base, max(0.0, 1 - tail))
    above = f > quantile
    rest = tail - base[above].sum()
    expected = ((base[above] @ f[above] + rest * quantile) / tail).item()
    assert superquantile(f, base, tail).item() == pytest.approx(expected, abs=1e-10)
    assert HCVaR(tail).value(f, base) == superquantile(f, base, tail)
    if tail < 1:
        assert cvar(f, base, 1 - tail).item() == pytest.approx(expected, abs=1e-10)


def test_the_mean_in_three_ways() -> None:
    f, base = [1.0, 5.0, 2.0], [0.5, 0.2, 0.3]
    mean = Mean().value(f, base).item()
    for risk in (
        HCVaR(1.0),
        HCVaR(1.0, mu=0.1),
        HCVaR(0.1, floor=1.0),
        HCVaR(0.1, mu=0.1, floor=1.0),
        HCVaR(1.0, mu=3.0, floor=1.0),
    ):
        assert risk.value(f, base).item() == pytest.approx(mean, rel=1e-15)
        assert risk.weights(f, base).tolist() == pytest.approx(base, rel=1e-15)
    assert cvar(f, base, 0.0).item() == pytest.approx(mean, rel=1e-15)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_small_levels_under_smoothing_are_term(mu: float) -> None:
    """20: alpha -> 0 at fixed ratios: tilt 1/mu, base weights in proportion to w / alpha."""
    f, base = [1.0, 1.7, 0.4, 1.65], tensor([0.1, 0.2, 0.3, 0.4])
    ratio = tensor([1.0, 2.0, 0.5, 1.5])
    term_base = (base / ratio) / (base / ratio).sum()
    for scale in (1e-6, 1e-9, 1e-290):
        risk, term = HCVaR(tuple((ratio * scale).tolist()), mu), TiltedMean(1 / mu)
        assert risk.weights(f, base).tolist() == pytest.approx(
            term.weights(f, term_base).tolist(), abs=10 * scale + 1e-12
        )
        # eta* -> TERM + mu log tau, and A -> eta* + mu
        shift = mu * math.log(risk.tau(base).item())
        assert risk.threshold(f, base).item() == pytest.approx(
            term.value(f, term_base).item() + shift, abs=1e3 * scale + 1e-12 * shift
        )
        assert risk.value(f, base).item() == pytest.approx(
            risk.threshold(f, base).item() + mu, abs=1e3 * scale + 1e-12 * shift
        )


# ---- mu > 0


def smooth_exactly(
    problem: Problem, mu: float
) -> tuple[mp.mpf, mp.mpf, list[mp.mpf], Callable[[float], mp.mpf]]:
    """eta*, the value and the weights, by bisection with fifty digits (losses up to 1e300 need
    more).

    And by which part another threshold misses the mass: where no client is near, the sum is flat,
    and a double cannot tell eta*.
    """
    f, lower, upper = (
        [mp.mpf(x.numerator) / x.denominator for x in values] for values in exact_bounds(problem)
    )
    room, mass = [u - b for u, b in zip(upper, lower, strict=True)], 1 - mp.fsum(lower)
    width = mp.mpf(mu)

    def filled(eta: mp.mpf) -> mp.mpf:
        return mp.fsum(r / (1 + mp.exp(-(x - eta) / width)) for r, x in zip(room, f, strict=True))

    offset = width * mp.log(mp.fsum(room) / mass - 1)
    low, high = min(f) + offset, max(f) + offset
    for _ in range(int(mp.mp.prec) + 10):
        middle = (low + high) / 2
        low, high = (middle, high) if filled(middle) >= mass else (low, middle)
    eta = (low + high) / 2
    terms = [
        b * (x - eta) + r * width * mp.log1p(mp.exp((x - eta) / width))
        for b, r, x in zip(lower, room, f, strict=True)
    ]
    lam = [b + r / (1 + mp.exp(-(x - eta) / width)) for b, r, x in zip(lower, room, f, strict=True)]
    return (
        eta,
        eta + mp.fsum(terms),
        lam,
        lambda other: abs(filled(mp.mpf(other)) - mass) / mp.fsum(room),
    )


def has_choice(problem: Problem) -> bool:
    # closer to 1 what is left to choose is rounding: the mean
    return max(*problem.alpha, *problem.floor) <= 1 - 1e-12


@settings(max_examples=100, deadline=None)
@given(
    problems(alpha=st.sampled_from([0.999999, 0.9, 0.5, 0.3, 0.01, 1e-9])).filter(has_choice),
    widths,
)
# a cap of exactly 1: all flat
@example(
    Problem([0.0, 1.0, 0.0], [0.1, 0.3, 0.6], (0.999999, 0.3, 0.999999), (0.0, 0.0, 0.0)), 1e-3
)
def test_smoothed_to_fifty_digits(problem: Problem, mu: float) -> None:
    eta, value, lam, missed = smooth_exactly(problem, mu)
    risk, data = problem.risk(mu), (problem.losses, problem.base)
    scale = max(1.0, mu, problem.scale, abs(float(eta)))
    found = risk.threshold(*data).item()
    assert found == pytest.approx(float(eta), abs=1e-9 * scale) or missed(found) <= 2**-52
    assert risk.value(*data).item() == pytest.approx(float(value), abs=RELATIVE * scale)
    assert risk.weights(*data).tolist() == pytest.approx(
        [float(x) for x in lam], rel=1e-9, abs=RELATIVE
    )
    assert risk.weights(*data).sum().item() == pytest.approx(1, abs=1e-13)


@settings(max_examples=60, deadline=None)
@given(problems(extreme).filter(has_choice), st.sampled_from([1e-300, 1e-3, 1.0, 1e10]))
def test_smoothed_at_the_extremes(problem: Problem, mu: float) -> None:
    risk, data = problem.risk(mu), (problem.losses, problem.base)
    scale = max(problem.scale, mu * risk.tau(problem.base).item())
    lam = risk.weights(*data)
    assert lam.sum().item() == pytest.approx(1, abs=1e-13)
    assert risk.threshold(*data).isfinite()
    assert risk.duality_gap(*data, risk.threshold(*data)) <= 1e-11 * scale * risk.tau(problem.base)
    assert risk.gap(*data, lam) <= RELATIVE * scale
    exact = problem.risk().value(*data).item()
    assert (
        exact - RELATIVE * scale
        <= risk.value(*data).item()
        <= exact + risk.smoothing_bound(problem.base).item() + RELATIVE * scale
    )


@settings(max_examples=50, deadline=None)
@given(problems(), widths, st.floats(-6, 8))
def test_the_smoothed_threshold_is_best(problem: Problem, mu: float, eta: float) -> None:
    risk, data = problem.risk(mu), (problem.losses, problem.base)
    tau = risk.tau(problem.base).item()
    tolerance = RELATIVE * tau * (10 + mu)
    assert risk.dual_value(*data, eta) >= risk.value(*data) - tolerance
    best = risk.threshold(*data)
    if best.isfinite():
        assert risk.dual_value(*data, best).item() == pytest.approx(
            risk.value(*data).item(), abs=RELATIVE * tau * (10 + mu + best.abs().item())
        )
    else:
        assert risk.duality_gap(*data, best) <= tolerance


def test_without_a_finite_minimiser_the_threshold_is_infinite() -> None:
    f, base = [1.0, 2.0], [0.25, 0.75]
    for risk, end in ((HCVaR(1.0, mu=0.1), -math.inf), (HCVaR(0.5, mu=0.1, floor=1.0), math.inf)):
        assert risk.threshold(f, base).item() == end
        assert risk.dual_value(f, base, end).item() == pytest.approx(1.75)
        assert risk.duality_gap(f, base, end).item() == pytest.approx(0, abs=1e-15)
        assert risk.dual_value(f, base, -end).isinf()
    assert HCVaR(1.0).threshold(f, base).item() == 1.0
    assert HCVaR(0.5).dual_value(f, base, -math.inf).isinf()
    assert HCVaR(0.5).duality_gap(f, base, math.inf).isinf()


@settings(max_examples=60, deadline=None)
@given(problems(), widths)
def test_smoothing_adds_at_most_its_bound(problem: Problem, mu: float) -> None:
    """Lemma 2, with ln 2: F <= F_mu <= F + mu ln 2 sum w (1/alpha - a), and mu tau ln 2 for floor
    0."""
    data = (problem.losses, problem.base)
    exact, smooth = problem.risk().value(*data).item(), problem.risk(mu).value(*data).item()
    bound = problem.risk(mu).smoothing_bound(problem.base).item()
    assert (
        exact - 1e-12 * (1 + problem.scale)
        <= smooth
        <= exact + bound + 1e-12 * (1 + problem.scale + bound)
    )
    plain = HCVaR(problem.alpha, mu)
    assert plain.smoothing_bound(problem.base).item() == pytest.approx(
        mu * math.log(2) * plain.tau(problem.base).item(), rel=1e-14
    )
    assert bound <= plain.smoothing_bound(problem.base).item() * (1 + 1e-14)


def test_the_smoothing_bound_is_attained_where_all_losses_are_eta() -> None:
    base, mu = [0.2, 0.3, 0.5], 0.7
    for risk in (HCVaR((0.1, 0.5, 1.0), mu), HCVaR((0.1, 0.5, 1.0), mu, floor=(0.0, 0.5, 0.9))):
        exact = HCVaR(risk.alpha, 0.0, risk.floor)
        added = risk.dual_value([2.0] * 3, base, 2.0) - exact.dual_value([2.0] * 3, base, 2.0)
        assert added.item() == pytest.approx(risk.smoothing_bound(base).item(), rel=1e-14)
    # alpha = 1/2 puts eta* there: half of every cap is filled
    assert HCVaR(0.5, mu).value([2.0] * 3, base).item() == pytest.approx(
        2.0 + HCVaR(0.5, mu).smoothing_bound(base).item(), rel=1e-14
    )
    assert HCVaR(0.5, mu).threshold([2.0] * 3, base).item() == pytest.approx(2.0, abs=1e-14)


def test_smoothed_weights_are_the_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    for risk in (HCVaR((0.2, 0.5, 0.9, 0.4), 0.3), HCVaR(0.3, 0.8, (0.1, 0.9, 0.0, 0.4))):
        f = torch.rand(4, generator=generator, dtype=torch.float64) * 3
        base, step = tensor([0.1, 0.2, 0.3, 0.4]), 1e-5
        slopes = [
            (risk.value(f + step * e, base) - risk.value(f - step * e, base)) / (2 * step)
            for e in torch.eye(4).double()
        ]
        torch.testing.assert_close(torch.stack(slopes), risk.weights(f, base), rtol=0, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems(), widths, st.data())
def test_the_smoothed_conjugate_is_that_of_fenchel_and_young(
    problem: Problem, mu: float, data: st.DataObject
) -> None:
    risk, base = problem.risk(mu), problem.base
    lam = risk.weights(problem.losses, base)
    scale = (1 + problem.scale + mu) * risk.tau(base).item()
    assert risk.gap(problem.losses, base, lam) <= RELATIVE * scale
    other = data.draw(st.lists(moderate, min_size=len(base), max_size=len(base)))
    assert risk.gap(other, base, lam) >= 0
    assert (
        lam @ tensor(other) - risk.conjugate(lam, base)
        <= risk.value(other, base) + RELATIVE * scale
    )
    assert -risk.smoothing_bound(base) * (1 + 1e-12) <= risk.conjugate(lam, base) <= 0


def test_the_smoothed_conjugate_by_hand() -> None:
    base = [0.5, 0.5]
    # room (1, 1): shares (1/4, 3/4), entropy of each log 4 - 3/4 log 3
    entropy = math.log(4) - 0.75 * math.log(3)
    assert HCVaR(0.5, mu=2.0).conjugate([0.25, 0.75], base).item() == pytest.approx(
        -2 * 2 * entropy, rel=1e-15
    )
    assert HCVaR(0.5, mu=2.0).conjugate([0.0, 1.0], base).item() == 0
    # floors .1, room .9: shares 0 and 8/9
    share = 8 / 9
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert HCVaR(0.5, 2.0, 0.2).conjugate([0.1, 0.9], base).item() == pytest.approx(
        -2 * 0.9 * entropy, rel=1e-14
    )
    # tiny shares keep their digits: s = 1e-14 of a room 1e14 / 2 each, entropy s (1 - log s)
    assert HCVaR(1e-14, 1.0).conjugate(base, base).item() == pytest.approx(
        -(1 - math.log(1e-14)), rel=1e-12
    )


def test_weights_outside_the_set_have_an_infinite_gap() -> None:
    f, base = [1.0, 2.0], [0.5, 0.5]
    for mu in (0.0, 0.3):
        risk = HCVaR(0.6, mu, 0.3)  # 0.15 <= lam <= 0.8333
        assert risk.conjugate([0.15, 0.85], base).isinf()
        assert risk.conjugate([0.14, 0.86], base).isinf()
        assert risk.conjugate([0.5, 0.6], base).isinf()
        assert risk.gap(f, base, [0.1, 0.9]).isinf()
        assert risk.gap(f, base, [5.0, 5.0]).isfinite()  # scaled to sum one


# ---- shape


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.1, 2.0]), st.data())
def test_the_value_falls_as_levels_and_floors_rise(
    problem: Problem, mu: float, data: st.DataObject
) -> None:
    risk, args = problem.risk(mu), (problem.losses, problem.base)
    i = data.draw(st.integers(0, len(problem.base) - 1))
    share = data.draw(st.floats(0, 1))
    alpha, floor = list(problem.alpha), list(problem.floor)
    alpha[i] += share * (1 - alpha[i])
    floor[i] += share * (1 - floor[i])
    tolerance = 1e-12 * (10 + mu) * risk.tau(problem.base)
    assert HCVaR(tuple(alpha), mu, problem.floor).value(*args) <= risk.value(*args) + tolerance
    assert HCVaR(problem.alpha, mu, tuple(floor)).value(*args) <= risk.value(*args) + tolerance


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.5]))
def test_deviation_is_what_the_value_adds_to_the_mean(problem: Problem, mu: float) -> None:
    risk = HCVaR(problem.alpha, mu)
    cap = tensor(problem.base) / tensor(problem.alpha)
    mean = (cap / cap.sum()) @ tensor(problem.losses)
    deviation = risk.deviation(problem.losses, problem.base)
    assert (deviation + mean).item() == pytest.approx(
        risk.value(problem.losses, problem.base).item(), abs=1e-12
    )
    assert deviation >= -1e-12
    centred = risk.value(tensor(problem.losses) - mean, problem.base)  # HCVaR of the centred losses
    assert deviation.item() == pytest.approx(centred.item(), abs=1e-11)


@pytest.mark.parametrize("mu", [0.0, 0.01])
def test_a_hundred_thousand_clients(mu: float) -> None:
    generator = torch.Generator().manual_seed(2)
    f = torch.randn(100_000, generator=generator, dtype=torch.float64)
    base = torch.full((100_000,), 1e-5, dtype=torch.float64)
    risk = HCVaR(0.05, mu, 0.1)
    lam = risk.weights(f, base)
    assert lam.sum().item() == pytest.approx(1, abs=1e-13)
    assert risk.duality_gap(f, base, risk.threshold(f, base)) <= 1e-12
    assert risk.gap(f, base, lam) <= 1e-12


def test_losses_that_diverged_have_no_threshold() -> None:
    for mu in (0.0, 0.1):
        assert HCVaR(0.5, mu).threshold([1.0, math.nan], [0.5, 0.5]).isnan()
        assert HCVaR(0.5, mu).duality_gap([1.0, math.inf], [0.5, 0.5], 0.0).isnan()


def test_wrong_arguments_are_explained() -> None:
    for make, message in (
        (lambda: HCVaR(0.0), r"alpha must be in \(0, 1\], got 0.0; 1 gives the mean"),
        (lambda: HCVaR((0.5, 1.5)), r"alpha must be in \(0, 1\], got 1.5"),
        (lambda: HCVaR(0.5, mu=-1.0), "mu must be a finite number >= 0"),
        (lambda: HCVaR(0.5, floor=1.1), r"floor must be in \[0, 1\], got 1.1"),
        (
            lambda: HCVaR((0.5, 0.5)).value([1.0] * 3, [1 / 3] * 3),
            "alpha has 2 entries for 3 clients; pass one number, or one per client",
        ),
        (
            lambda: HCVaR(0.5, floor=(0.1, 0.2)).value([1.0], [1.0]),
            "floor has 2 entries for 1 clients",
        ),
        (lambda: cvar([1.0], [1.0], 1.0), r"level must be in \[0, 1\), got 1.0"),
        (lambda: superquantile([1.0], [1.0], 0.0), r"tail must be in \(0, 1\], got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
