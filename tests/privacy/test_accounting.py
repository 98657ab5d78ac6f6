"""Epsilon: published and closed-form values, and those of Opacus."""

from __future__ import annotations

import math
import warnings

import dp_accounting
import pytest
from dp_accounting import rdp
from scipy import optimize, stats

import evenhand as eh
from evenhand.privacy.accounting import Scheme, epsilon_of, noise_for
from evenhand.privacy.record import Privacy, shown

# rate, noise, rounds, delta; epsilon of PLD
POISSON = [
    (0.1, 1.0, 100, 1e-5, 7.0466),
    (0.01, 1.0, 1000, 1e-5, 1.8282),
    (0.1, 2.0, 100, 1e-3, 1.5439),
    (0.5, 2.0, 100, 1e-3, 10.8914),
]
ORDERS = list(range(2, 64))
EVERYONE = [(5.0, 100, 1e-5, 9.9973), (10.0, 100, 1e-5, 4.3772), (4.0, 20, 1e-3, 3.6051)]


def poisson(rate: float, clients: int = 1000) -> Scheme:
    return Scheme("poisson", clients, rate * clients)


def everyone(clients: int = 1000) -> Scheme:
    return Scheme("everyone", clients, clients)


def closed_form(noise: float, rounds: int, delta: float) -> float:
    """Epsilon of Gaussian releases to everyone (Balle and Wang, 2018, Theorem 8)."""
    mu = math.sqrt(rounds) / noise

    def excess(epsilon: float) -> float:
        first = stats.norm.cdf(mu / 2 - epsilon / mu)
        return float(first - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(optimize.brentq(excess, 0, 200))


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta", "expected"), POISSON)
def test_epsilon_of_poisson_cohorts(
    rate: float, noise: float, rounds: int, delta: float, expected: float
) -> None:
    assert epsilon_of(poisson(rate), noise, rounds, delta) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("noise", "rounds", "delta", "expected"), EVERYONE)
def test_epsilon_of_everyone_is_that_of_the_closed_form(
    noise: float, rounds: int, delta: float, expected: float
) -> None:
    found = epsilon_of(everyone(), noise, rounds, delta)
    assert found == pytest.approx(expected, abs=1e-3)
    assert found == pytest.approx(closed_form(noise, rounds, delta), abs=1e-4)
    # a rate of 1 is everyone
    assert epsilon_of(poisson(1.0), noise, rounds, delta) == found


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta", "expected"), POISSON)
def test_opacus_agrees(
    rate: float, noise: float, rounds: int, delta: float, expected: float
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant, RDPAccountant

        prv, renyi = PRVAccountant(), RDPAccountant()
        prv.history = [(noise, rate, rounds)]
        renyi.history = [(noise, rate, rounds)]
        # PRV adds its own error of 0.01
        above = prv.get_epsilon(delta=delta) - epsilon_of(poisson(rate), noise, rounds, delta)
        theirs = renyi.get_epsilon(delta=delta, alphas=ORDERS)
    assert 0 <= above < 0.0115
    # with the same orders, which are whole so that both compute them, Renyi's bounds are the same
    same = rdp.RdpAccountant(orders=ORDERS)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    same.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
    assert same.get_epsilon(delta) == pytest.approx(theirs, abs=1e-3)
    assert theirs > expected


@pytest.mark.parametrize(("noise", "expected"), [(2.0, 14.05), (4.0, 5.38)])
def test_a_fixed_number_of_clients_counts_twice_the_bound(noise: float, expected: float) -> None:
    scheme = Scheme("without replacement", 1000, 100)
    found = epsilon_of(scheme, noise, 100, 1e-5)
    assert found == pytest.approx(expected, abs=0.005)
    # with one client more or less in a Poisson cohort, epsilon is far smaller
    assert found > 5 * epsilon_of(poisson(0.1), noise, 100, 1e-5)
    # all of them, one replaced: as far apart as with half the noise
    whole = Scheme("without replacement", 1000, 1000)
    assert epsilon_of(whole, 20.0, 100, 1e-5) == pytest.approx(
        rdp_of_everyone(10.0, 100, 1e-5), abs=1e-9
    )


def rdp_of_everyone(noise: float, rounds: int, delta: float) -> float:
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(
    ("scheme", "expected"), [(poisson(0.1), 1.675), (everyone(), 13.906)], ids=["poisson", "all"]
)
def test_noise_for_an_epsilon(scheme: Scheme, expected: float) -> None:
    noise = noise_for(scheme, 3.0, 100, 1e-5)
    assert noise == pytest.approx(expected, abs=1e-3)
    assert 2.99 < epsilon_of(scheme, noise, 100, 1e-5) <= 3


def test_no_rounds_tell_nothing_and_no_noise_protects_nobody() -> None:
    assert epsilon_of(poisson(0.1), 1.0, 0, 1e-5) == 0
    assert epsilon_of(poisson(0.1), 0.0, 1, 1e-5) == math.inf


def test_the_bit_of_adaptive_clipping_is_paid_for_by_the_step() -> None:
    # Andrew et al. (2021): noise (z^-2 - (2 s_b)^-2)^(-1/2) on the step, s_b on the count
    both = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.GaussianDpEvent((1 - (2 * 10.0) ** -2) ** -0.5),
            # a client changes the count by half
            dp_accounting.GaussianDpEvent(2 * 10.0),
        ]
    )
    accountants = dp_accounting.pld.PLDAccountant(), dp_accounting.pld.PLDAccountant()
    accountants[0].compose(both)
    accountants[1].compose(dp_accounting.GaussianDpEvent(1.0))
    first, second = (accountant.get_epsilon(1e-5) for accountant in accountants)
    assert first == pytest.approx(second, abs=1e-4)


# ---- plans


@pytest.mark.parametrize(
    ("clients", "ratio"), [(10, 139), (50, 27.8), (100, 13.9), (1000, 1.39), (10_000, 0.139)]
)
def test_a_plan_says_how_long_the_noise_is(clients: int, ratio: float) -> None:
    found = eh.privacy.plan(clients, 100, noise=13.906, parameters=10_000)
    assert found.ratio == pytest.approx(ratio, rel=0.01)
    assert found.epsilon == pytest.approx(3.0, abs=1e-3)
    assert ("hardly learn" in str(found)) == (ratio > 1)


def test_a_plan_in_words() -> None:
    lines = eh.privacy.plan(1000, 200, per_round=100, noise=1.0).lines
    assert lines[0] == (
        "epsilon = 9.98 at delta = 1e-05 after 200 rounds with noise 1, when one client is added or"
        " removed."
    )
    assert lines[1] == (
        "Each of 1,000 clients takes part in a round with probability 0.1, drawn in secret."
    )
    assert "delta is too large" in str(eh.privacy.plan(10, 5, noise=1.0, delta=0.2))
    assert "protects nobody" in str(eh.privacy.plan(10, 5, noise=0.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give noise or epsilon, one of them"),
        ({"noise": 1.0, "epsilon": 1.0}, "give noise or epsilon, one of them"),
        ({"noise": 1.0, "per_round": 200}, r"per_round must be in \(0, 100\], got 200"),
        (
            {"noise": 1.0, "per_round": 2.5, "cohort": "uniform"},
            "a whole number per round, got 2.5",
        ),
        ({"noise": 1.0, "per_round": 5, "cohort": "full"}, "all clients take part; remove per_r"),
        ({"noise": 1.0, "cohort": "everyone"}, 'cohort must be "poisson", "full" or "uniform"'),
        ({"noise": 1.0, "delta": 1.0}, r"delta must be in \(0, 1\), got 1.0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eh.privacy.plan(100, 10, **options)  # type: ignore[arg-type]


def test_an_epsilon_is_never_rounded_down() -> None:
    assert [shown(value) for value in (7.0411, 0.10001, 3.0, 91.8173, 123.4)] == [
        "7.05",
        "0.101",
        "3.00",
        "91.9",
        "124",
    ]


def test_a_record_survives_its_file() -> None:
    found = Privacy(
        *(1.5, 1e-5, 1.0, 0.3, 20, poisson(0.1), 2.0),
        why_not=(),
        uncovered=("a",),
        assumptions=("b", "c"),
    )
    assert Privacy.from_json(found.to_json()) == found
    assert "Not covered: a." in str(found)
