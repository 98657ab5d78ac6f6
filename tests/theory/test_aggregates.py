"""What methods minimise: values and weights against fifty digits and autograd, conjugates against
their definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.theory import (
    Aggregate,
    HCVaR,
    LogMean,
    Maximum,
    Mean,
    PowerMean,
    RankSpread,
    TiltedMean,
)
from tests.support.exact import tensor

RELATIVE = 1e-12
Clients = tuple[list[float], list[float]]

magnitude = st.floats(-300, 300).map(lambda power: 10.0**power)
moderate = st.floats(0, 5)
extreme = (
    st.sampled_from([0.0, 1.0, 1 + 2**-52, 1e-300, 1e300, 1e300 * (1 - 2**-53), 5e-324]) | magnitude
)


def weights_of(count: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.integers(1, 9), min_size=count, max_size=count).map(
        lambda parts: [part / sum(parts) for part in parts]
    )


@st.composite
def clients(draw: st.DrawFn, losses: st.SearchStrategy[float] = moderate, most: int = 6) -> Clients:
    """Losses and base weights of a few clients; often some tie."""
    n = draw(st.integers(1, most))
    f = draw(st.lists(losses, min_size=n, max_size=n))
    if n > 1 and draw(st.booleans()):
        f[0] = f[-1]
    return f, draw(weights_of(n))


def exact_base(base: Sequence[float]) -> list[mp.mpf]:
    parts = [mp.mpf(x) for x in base]
    return [x / sum(parts) for x in parts]


def close(
    found: Tensor,
    expected: Sequence[mp.mpf],
    scale: float | None = None,
    relative: float = RELATIVE,
) -> None:
    """Each entry to ``relative`` of itself (of ``scale``, where given), or to the smallest normal
    number."""
    for x, y in zip(found.reshape(-1).tolist(), expected, strict=True):
        assert abs(mp.mpf(x) - y) <= relative * (abs(y) if scale is None else scale) + mp.mpf(
            "1e-307"
        ), (x, float(y))


def power_mean(q: float, f: Sequence[float], base: Sequence[float]) -> tuple[mp.mpf, list[mp.mpf]]:
    w, x, p = exact_base(base), [mp.mpf(y) for y in f], mp.mpf(q) + 1
    value = sum(a * y**p for a, y in zip(w, x, strict=True)) ** (1 / p)
    return value, [
        a * (y / value) ** mp.mpf(q) if value and q else a for a, y in zip(w, x, strict=True)
    ]


def tilted_mean(t: float, f: Sequence[float], base: Sequence[float]) -> tuple[mp.mpf, list[mp.mpf]]:
    w, x = exact_base(base), [mp.mpf(y) for y in f]
    if t == 0:
        return mp.fdot(w, x), w
    pivot = max(x) if t > 0 else min(x)
    parts = [a * mp.exp(t * (y - pivot)) for a, y in zip(w, x, strict=True)]
    with mp.workdps(700):  # log(1 + tiny) / t for t and losses down to 1e-300
        precise = mp.fsum(a * mp.exp(t * (y - pivot)) for a, y in zip(w, x, strict=True)) / mp.fsum(
            w
        )
        return pivot + mp.log(precise) / t, [part / mp.fsum(parts) for part in parts]


def log_mean(M: float, f: Sequence[float], base: Sequence[float]) -> tuple[mp.mpf, list[mp.mpf]]:
    w, x = exact_base(base), [mp.mpf(y) for y in f]
    with mp.workdps(400):  # M - G for large M
        total = mp.fsum(w)
        G = mp.exp(mp.fsum(a / total * mp.log(mp.mpf(M) - y) for a, y in zip(w, x, strict=True)))
        return M - G, [a * G / (mp.mpf(M) - y) for a, y in zip(w, x, strict=True)]


# ---- values and weights, to fifty digits


@settings(max_examples=70, deadline=None)
@given(
    clients(moderate) | clients(extreme),
    st.sampled_from([0.0, 1e-9, 0.001, 0.5, 1.0, 5.0, 1e3, 1e6]),
)
def test_power_mean_to_fifty_digits(problem: Clients, q: float) -> None:
    value, lam = power_mean(q, *problem)
    close(PowerMean(q).value(*problem), [value])
    close(PowerMean(q).weights(*problem), lam)


@settings(max_examples=70, deadline=None)
@given(
    clients(moderate) | clients(extreme) | clients(st.floats(-1e3, 1e3)),
    st.sampled_from([0.0, 1e-300, -1e-12, 1e-6, 0.1, -0.5, 1.0, -7.0, 1e3, -1e3, 1e300]),
)
def test_tilted_mean_to_fifty_digits(problem: Clients, t: float) -> None:
    value, lam = tilted_mean(t, *problem)
    close(TiltedMean(t).value(*problem), [value], scale=max(abs(x) for x in problem[0]))
    close(TiltedMean(t).weights(*problem), lam)


@settings(max_examples=70, deadline=None)
@given(
    clients(moderate) | clients(st.sampled_from([0.0, 1e-300, 1e-9, 4.999999, 5 - 2**-50, 3.0])),
    st.sampled_from([5.1, 6.0, 1e3, 1e12]),
)
def test_log_mean_to_fifty_digits(problem: Clients, M: float) -> None:
    value, lam = log_mean(M, *problem)
    close(LogMean(M).value(*problem), [value], scale=max(problem[0]))
    close(LogMean(M).weights(*problem), lam)


def test_a_worst_client_of_little_weight_keeps_its_digits() -> None:
    f, base = [3.0, 0.0], [1e-13, 1 - 1e-13]
    for aggregate, exact in (
        (TiltedMean(10.0), tilted_mean(10.0, f, base)),
        (PowerMean(40.0), power_mean(40.0, f, base)),
    ):
        close(aggregate.value(f, base), [exact[0]])
        close(aggregate.weights(f, base), exact[1])


def test_log_mean_of_a_client_almost_without_utility() -> None:
    f, base = [5 - 2**-50, 1.0, 0.0], [0.2, 0.3, 0.5]
    value, lam = log_mean(5.0, f, base)
    close(LogMean(5.0).value(f, base), [value])
    close(LogMean(5.0).weights(f, base), lam)
    assert lam[0] > 1e10


# ---- gradients


FORMULAS: dict[str, tuple[Aggregate, Callable[[Tensor, Tensor], Tensor]]] = {
    "mean": (Mean(), lambda f, w: w @ f),
    "q=0.5": (PowerMean(0.5), lambda f, w: (w @ f**1.5) ** (1 / 1.5)),
    "q=3": (PowerMean(3.0), lambda f, w: (w @ f**4) ** (1 / 4)),
    "t=2": (TiltedMean(2.0), lambda f, w: (w @ (2 * f).exp()).log() / 2),
    "t=-1": (TiltedMean(-1.0), lambda f, w: -(w @ (-f).exp()).log()),
    "M=6": (LogMean(6.0), lambda f, w: 6 - (w @ (6 - f).log()).exp()),
    "max": (Maximum(), lambda f, w: f.max()),
    "gifair": (
        RankSpread(0.7),
        lambda f, w: (
            w @ f
            + 0.7
            * w.min()
            / (len(f) - 1)
            * sum(((a - b).abs() for a, b in itertools.combinations(f, 2)), start=f[0] * 0)
        ),
    ),
    "gifair teams": (
        RankSpread(0.4, (3, 0, 3, 0, 1)),
        lambda f, w: (
            w @ f
            + (0.4 * min(w[0] * 2, w[1] * 2, w[2] * 2, w[3] * 2, w[4]) / 2)
            * sum(
                (a - b).abs()
                for a, b in itertools.combinations([(f[0] + f[2]) / 2, (f[1] + f[3]) / 2, f[4]], 2)
            )
        ),
    ),
}
every_formula = pytest.mark.parametrize(
    ("aggregate", "formula"), FORMULAS.values(), ids=FORMULAS.keys()
)


@every_formula
def test_weights_are_the_gradient_of_the_value(
    aggregate: Aggregate, formula: Callable[[Tensor, Tensor], Tensor]
) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        f = (torch.rand(5, generator=generator, dtype=torch.float64) * 5 + 0.1).requires_grad_()
        w = torch.rand(5, generator=generator, dtype=torch.float64) + 0.1
        w = w / w.sum()
        value = formula(f, w)
        value.backward()
        torch.testing.assert_close(aggregate.value(f, w), value.detach(), rtol=1e-13, atol=0)
        torch.testing.assert_close(aggregate.weights(f, w), f.grad, rtol=1e-11, atol=1e-14)


# ---- the identities of the dual weights


ALL = {
    "mean": Mean(),
    "q=0": PowerMean(0.0),
    "q=0.3": PowerMean(0.3),
    "q=1": PowerMean(1.0),
    "q=1e6": PowerMean(1e6),
    "t=0": TiltedMean(0.0),
    "t=3": TiltedMean(3.0),
    "t=1e3": TiltedMean(1e3),
    "M=7": LogMean(7.0),
    "M=1e9": LogMean(1e9),
    "max": Maximum(),
    "gifair": RankSpread(0.9),
    "hcvar": HCVaR(0.4),
    "hcvar floor": HCVaR(0.3, floor=0.25),
    "hcvar smooth": HCVaR(0.4, mu=0.1),
    "hcvar smooth floor": HCVaR(0.3, mu=0.5, floor=0.25),
}
every = pytest.mark.parametrize("aggregate", ALL.values(), ids=ALL.keys())
of_mass_one = pytest.mark.parametrize(
    "aggregate",
    [a for a in ALL.values() if not isinstance(a, PowerMean | LogMean)],
    ids=[k for k in ALL if k[0] not in "qM"],
)


def domain(aggregate: Aggregate) -> st.SearchStrategy[float]:
    return moderate if isinstance(aggregate, LogMean) else moderate | extreme


@of_mass_one
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_weights_are_a_distribution(aggregate: Aggregate, data: st.DataObject) -> None:
    f, base = data.draw(clients(domain(aggregate)))
    lam = aggregate.weights(f, base)
    assert (lam >= 0).all()
    assert lam.sum().item() == pytest.approx(1, abs=1e-13)


@settings(max_examples=60, deadline=None)
@given(clients(moderate) | clients(magnitude), st.sampled_from([0.01, 0.5, 1.0, 5.0, 100.0]))
def test_power_mean_weights_have_dual_norm_one(problem: Clients, q: float) -> None:
    f, base = problem
    lam, w = PowerMean(q).weights(f, base), tensor(base)
    if max(f) > 0 and (lam > 1e-250).all():
        p = (q + 1) / q
        assert torch.logsumexp(w.log() + p * (lam / w).log(), 0).item() / p == pytest.approx(
            0, abs=1e-11
        )
    assert lam.sum() <= 1 + 1e-13


@settings(max_examples=60, deadline=None)
@given(clients(moderate), st.sampled_from([5.01, 6.0, 100.0]))
def test_log_mean_weights_have_geometric_mean_one(problem: Clients, M: float) -> None:
    f, base = problem
    lam, w = LogMean(M).weights(f, base), tensor(base)
    assert (w @ (lam / w).log()).item() == pytest.approx(0, abs=1e-12)
    assert lam.sum() >= 1 - 1e-13


@every
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_higher_losses_weigh_no_less_and_renumbering_renumbers(
    aggregate: Aggregate, data: st.DataObject
) -> None:
    f, base = data.draw(clients(domain(aggregate)))
    uniform = [1 / len(f)] * len(f)
    lam = aggregate.weights(f, uniform)
    assert lam.isfinite().all()
    in_order = lam[tensor(f).argsort()]
    assert (in_order.diff() >= -1e-13 * in_order.max()).all()
    for x, y in itertools.combinations(range(len(f)), 2):
        assert f[x] != f[y] or lam[x] == lam[y]
    order = data.draw(st.permutations(range(len(f))))
    shuffled = aggregate.weights([f[i] for i in order], [base[i] for i in order])
    torch.testing.assert_close(
        shuffled, aggregate.weights(f, base)[list(order)], rtol=1e-12, atol=1e-14
    )
    value = aggregate.value([f[i] for i in order], [base[i] for i in order])
    torch.testing.assert_close(value, aggregate.value(f, base), rtol=1e-12, atol=1e-300)


@every
@pytest.mark.parametrize("scale", [1.0, 1e300, 1e-300])
def test_a_hundred_thousand_clients(aggregate: Aggregate, scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    f = torch.rand(100_000, generator=generator, dtype=torch.float64) * min(
        scale, getattr(aggregate, "M", scale)
    )
    w = torch.rand(100_000, generator=generator, dtype=torch.float64) + 0.01
    w = w / w.sum()
    value, lam = aggregate.value(f, w), aggregate.weights(f, w)
    smoothing = aggregate.smoothing_bound(w).item() if isinstance(aggregate, HCVaR) else 0.0
    assert f.min() <= value <= f.max() * (1 + 1e-13) + smoothing
    assert lam.isfinite().all()
    if not isinstance(aggregate, PowerMean | LogMean):
        assert lam.sum().item() == pytest.approx(1, abs=1e-12)
    assert aggregate.gap(f, w, lam) <= 1e-11 * max(
        f.max().item(), getattr(aggregate, "mu", 0.0), getattr(aggregate, "M", 0.0)
    )


@every
def test_equal_losses_give_the_base_weights(aggregate: Aggregate) -> None:
    base = [0.1, 0.2, 0.7]
    for loss in (0.0, 1e-300, 0.3, 5.0):
        assert aggregate.weights([loss] * 3, base).tolist() == pytest.approx(base, rel=1e-13)
        if getattr(aggregate, "mu", 0.0) == 0:
            assert aggregate.value([loss] * 3, base).item() == pytest.approx(loss, rel=1e-14)


@every
def test_one_client_is_alone(aggregate: Aggregate) -> None:
    assert aggregate.weights([3.0], [1.0]).item() == pytest.approx(1, abs=1e-15)
    assert aggregate.gap([3.0], [1.0], [1.0]).item() == pytest.approx(0, abs=1e-14)


@every
def test_a_client_without_weight_counts_for_nothing(aggregate: Aggregate) -> None:
    f, base = [1.0, 2.0, 4.0], [0.5, 0.25, 0.25]
    if isinstance(aggregate, RankSpread):  # such a client leaves GIFAIR no room: c_max = 0
        assert aggregate.weights([*f, 9.0], [*base, 0.0]).tolist() == [*base, 0.0]
        return
    for stray in (0.0, 1.5, 1e9, math.nan):
        torch.testing.assert_close(
            aggregate.value([*f, stray], [*base, 0.0]), aggregate.value(f, base), rtol=1e-14, atol=0
        )
        lam = aggregate.weights([*f, stray], [*base, 0.0])
        torch.testing.assert_close(lam[:3], aggregate.weights(f, base), rtol=1e-13, atol=0)
        assert lam[3] == 0
    assert aggregate.gap([*f, 0.0], [*base, 0.0], [0.25] * 4).isinf()


# ---- conjugates and gaps


@every
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_gap_is_zero_at_the_dual_weights_and_nowhere_below(
    aggregate: Aggregate, data: st.DataObject
) -> None:
    f, base = data.draw(clients(moderate))
    lam = aggregate.weights(f, base)
    value = aggregate.value(f, base)
    scale = max(1.0, *f, lam.sum().item(), getattr(aggregate, "M", 0.0))
    assert aggregate.gap(f, base, lam) <= 1e-12 * scale
    # the size of lam is a matter of step sizes
    assert aggregate.gap(f, base, 17.5 * lam) <= 1e-12 * scale
    assert (lam @ tensor(f) - aggregate.conjugate(lam, base) - value).abs() <= 1e-12 * scale
    other, _ = data.draw(
        clients(moderate, most=len(f)).filter(lambda drawn: len(drawn[0]) == len(f))
    )
    # Fenchel and Young: no weights do better anywhere
    assert (
        lam @ tensor(other) - aggregate.conjugate(lam, base)
        <= aggregate.value(other, base) + 1e-12 * scale
    )


@every
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_gap_survives_rounding_of_weights_on_the_boundary(
    aggregate: Aggregate, data: st.DataObject
) -> None:
    f, base = data.draw(clients(moderate))
    lam = aggregate.weights(f, base)
    for nudge in (1 + 2**-52, 1 - 2**-53, 1 + 1e-13):
        nudged = lam.clone()
        nudged[data.draw(st.integers(0, len(f) - 1))] *= nudge
        assert aggregate.gap(f, base, nudged) <= 1e-11 * max(1.0, lam.sum().item()) * getattr(
            aggregate, "M", 1.0
        )


def test_conjugates_by_hand() -> None:
    base = [0.5, 0.5]
    assert Mean().conjugate(base, base) == 0
    assert Mean().conjugate([0.6, 0.4], base).isinf()
    # KL((1, 0) || (1/2, 1/2)) = log 2
    assert TiltedMean(4.0).conjugate([1.0, 0.0], base).item() == pytest.approx(
        math.log(2) / 4, rel=1e-15
    )
    assert TiltedMean(-4.0).conjugate([1.0, 0.0], base).item() == pytest.approx(
        -math.log(2) / 4, rel=1e-15
    )
    assert TiltedMean(4.0).conjugate([0.6, 0.6], base) == math.inf
    assert TiltedMean(-4.0).conjugate([0.6, 0.6], base) == -math.inf
    # (lam / w) = (2, 1/2): geometric mean 1
    assert LogMean(3.0).conjugate([1.0, 0.25], base).item() == pytest.approx(3 * 0.25)
    assert LogMean(3.0).conjugate([1.0, 0.2], base).isinf()
    assert LogMean(3.0).conjugate([1.0, -0.5], base).isinf()
    # dual norm of order 2: sqrt(1/2 (2 * 0.7)^2 + 1/2 (2 * 0.1)^2) = 1
    assert PowerMean(1.0).conjugate([0.7, 0.1], base) == 0
    assert PowerMean(1.0).conjugate([0.71, 0.1], base).isinf()
    assert PowerMean(1.0).conjugate([0.7, -9.0], base) == 0
    assert PowerMean(0.0).conjugate([0.5, 0.4], base) == 0
    assert PowerMean(0.0).conjugate([0.6, 0.4], base).isinf()
    assert Maximum().conjugate([1.0, 0.0], base) == 0
    assert Maximum().conjugate([1.1, -0.1], base).isinf()
    assert Maximum().conjugate([1.0, 0.1], base).isinf()


def test_the_conjugate_of_the_tilted_mean_is_the_supremum_by_search() -> None:
    base, lam = tensor([0.2, 0.3, 0.5]), tensor([0.6, 0.3, 0.1])
    f = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([f], lr=1, max_iter=200, tolerance_grad=1e-12, tolerance_change=0)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (base @ (2 * f).exp()).log() / 2 - lam @ f
        loss.backward()
        return loss

    optimiser.step(closure)
    assert TiltedMean(2.0).conjugate(lam, base).item() == pytest.approx(
        -closure().item(), abs=1e-10
    )


def test_the_relative_entropy_keeps_its_digits_between_close_weights() -> None:
    base = tensor([0.25, 0.75])
    lam = base + tensor([1e-9, -1e-9])
    with mp.workdps(60):
        a, b = mp.mpf(lam[0].item()), mp.mpf(lam[1].item())
        exact = a * mp.log(a / mp.mpf("0.25")) + b * mp.log(b / mp.mpf("0.75"))
    assert TiltedMean(1.0).conjugate(lam, base).item() == pytest.approx(float(exact), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(clients(moderate, most=5), st.floats(0, 1))
def test_gifair_is_the_maximum_over_orders_of_clients(problem: Clients, strength: float) -> None:
    f, base = tensor(problem[0]), tensor(problem[1])
    n, spread = len(f), RankSpread(strength)
    c = strength * base.min() / max(n - 1, 1)
    vertices = [
        base + c * tensor([n - 1.0 - 2 * place for place in places])
        for places in itertools.permutations(range(n))
    ]
    assert spread.value(f, base).item() == pytest.approx(
        max((vertex @ f).item() for vertex in vertices), rel=1e-13, abs=1e-300
    )
    for vertex in vertices[:6]:
        assert spread.conjugate(vertex, base) == 0
        assert spread.conjugate(0.3 * vertex + 0.7 * vertices[-1], base) == 0
        if n > 1 and c > 1e-6:
            assert spread.conjugate(base + 1.01 * (vertex - base), base).isinf()


def test_gifair_domain_asks_for_even_teams() -> None:
    base, teams = [0.2, 0.2, 0.3, 0.3], (0, 0, 1, 1)
    spread = RankSpread(0.5, teams)  # c_max = min(.2, .3) * 2 / 1 = 0.4; c = 0.2
    assert spread.weights([1.0, 2.0, 5.0, 0.0], base).tolist() == pytest.approx(
        [0.1, 0.1, 0.4, 0.4]
    )
    assert spread.conjugate([0.1, 0.1, 0.4, 0.4], base) == 0
    assert spread.conjugate([0.05, 0.15, 0.4, 0.4], base).isinf()
    assert spread.conjugate([0.09, 0.09, 0.41, 0.41], base).isinf()


def test_gifair_at_its_limit_is_the_mean_of_the_larger_loss_over_pairs() -> None:
    f = [3.0, 1.0, 4.0, 1.0, 5.0]
    pairs = [max(a, b) for a, b in itertools.combinations(f, 2)]
    assert RankSpread(1.0).value(f, [0.2] * 5).item() == pytest.approx(
        sum(pairs) / len(pairs), rel=1e-15
    )


def test_gifair_ties_do_not_depend_on_the_order_of_clients() -> None:
    # added in this order the first two teams would differ in the last digit
    f = [0.1, 0.2, 0.3, 0.3, 0.2, 0.1, 0.6]
    lam = RankSpread(1.0, (0, 0, 0, 1, 1, 1, 2)).weights(f, [1 / 7] * 7)
    assert len(set(lam[:6].tolist())) == 1


# ---- limits: the numbers are those of our list of special cases


F, W = [0.3, 2.0, 1.7, 1.99], [0.4, 0.1, 0.3, 0.2]


def test_mean_is_the_limit_of_all() -> None:
    """10: t -> 0; and q -> 0, M -> inf, strength -> 0."""
    mean = Mean().value(F, W).item()
    for aggregate in (
        PowerMean(1e-9),
        TiltedMean(1e-9),
        TiltedMean(-1e-9),
        LogMean(1e9),
        RankSpread(1e-9),
    ):
        assert aggregate.value(F, W).item() == pytest.approx(mean, rel=1e-8)
        assert aggregate.weights(F, W).tolist() == pytest.approx(W, rel=1e-7)
        assert aggregate.value(F, W).item() != mean
    for aggregate in (PowerMean(0.0), TiltedMean(0.0), RankSpread(0.0)):
        assert aggregate.value(F, W).item() == pytest.approx(mean, rel=1e-15)
        assert aggregate.weights(F, W).tolist() == W


def test_maximum_is_the_limit_of_power_and_tilt() -> None:
    """9: q -> inf, t -> inf."""
    for aggregate in (PowerMean(1e6), TiltedMean(1e6)):
        assert aggregate.value(F, W).item() == pytest.approx(2.0, rel=1e-5)
        assert aggregate.normalised(F, W).tolist() == pytest.approx([0, 1, 0, 0], abs=1e-12)
        assert aggregate.normalised([2.0, 2.0, 1.0], [0.5, 0.25, 0.25]).tolist() == pytest.approx(
            [2 / 3, 1 / 3, 0]
        )
    assert TiltedMean(-1e6).value(F, W).item() == pytest.approx(0.3, rel=1e-5)


def test_log_mean_beyond_its_baseline() -> None:
    f, base = [1.0, 3.0, 3.5], [0.5, 0.375, 0.125]
    assert LogMean(3.0).value(f, base).isinf()
    assert LogMean(3.0).weights(f, base).tolist() == [0.0, 0.75, 0.25]
    almost = LogMean(3.0).normalised([1.0, 3 - 1e-14, 3 - 1e-14], base)
    assert almost.tolist() == pytest.approx([0.0, 0.75, 0.25], abs=1e-13)
    assert LogMean(3.0).gap(f, base, base).isinf()


# ---- what is refused


@every
def test_losses_that_diverged_give_nan(aggregate: Aggregate) -> None:
    for bad in (math.nan, math.inf):
        assert aggregate.value([1.0, bad], [0.5, 0.5]).isnan()
        assert aggregate.weights([1.0, bad], [0.5, 0.5]).isnan().all()
        assert aggregate.gap([1.0, bad], [0.5, 0.5], [0.5, 0.5]).isnan()


def test_wrong_arguments_are_explained() -> None:
    with pytest.raises(ValueError, match="3 losses do not match 2 base weights"):
        Mean().value([1.0, 2.0, 3.0], [0.5, 0.5])
    with pytest.raises(ValueError, match="base weights must be >= 0 and sum to 1"):
        Mean().value([1.0, 2.0], [0.5, 0.6])
    with pytest.raises(ValueError, match="base weights must be >= 0 and sum to 1"):
        Mean().value([1.0, 2.0], [1.5, -0.5])
    with pytest.raises(
        ValueError, match=r"PowerMean needs losses >= 0, got -1\.0; use TiltedMean, which takes any"
    ):
        PowerMean(1.0).value([-1.0, 2.0], [0.5, 0.5])
    with pytest.raises(ValueError, match="teams has 3 entries for 2 clients"):
        RankSpread(0.5, (0, 1, 1)).value([1.0, 2.0], [0.5, 0.5])
    with pytest.raises(
        ValueError, match=r"expected one number for each client, got a tensor of shape \(1, 2\)"
    ):
        Mean().value(torch.ones(1, 2), [0.5, 0.5])
    for make, message in (
        (lambda: PowerMean(-1.0), "q must be a finite number >= 0"),
        (lambda: TiltedMean(math.inf), "t must be a finite number"),
        (lambda: LogMean(0.0), "M must be a finite number > 0"),
        (lambda: RankSpread(1.5), r"strength must be in \[0, 1\]"),
        (lambda: RankSpread(0.5, (0, -1)), "a team must be a whole number >= 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_aggregates_print_compare_and_hash() -> None:
    assert RankSpread(0.5, (0, 1)) == RankSpread(0.5, (0, 1)) != RankSpread(0.5)
    assert repr(PowerMean(2.0)) == "PowerMean(q=2.0)"
    assert len(set(ALL.values())) == len(ALL)
