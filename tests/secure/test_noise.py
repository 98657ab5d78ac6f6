"""Noise in shares: the right moments and probabilities, on the grid, the same when repeated."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from evenhand.secure import Format, SecureSums
from evenhand.secure.noise import Bits, add_noise, discrete_gaussian
from tests.support.masked import Party, context_of, party

DRAWS = 1_000_000


@pytest.mark.parametrize("sigma", [3.0, 1000.5, 2.0**30, 2.0**52])
def test_moments(sigma: float) -> None:
    drawn = discrete_gaussian(sigma, DRAWS, Bits(b"seed" * 8)).astype(np.float64) / sigma
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.var() - 1) < 0.02
    assert abs((drawn**4).mean() - 3) < 0.05
    assert stats.kstest(
        drawn + np.random.default_rng(0).uniform(-0.5, 0.5, DRAWS) / sigma, "norm"
    ).pvalue > (1e-3 if sigma > 100 else 0)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.5])
def test_probabilities_are_those_of_a_discrete_gaussian(sigma: float) -> None:
    drawn = discrete_gaussian(sigma, DRAWS, Bits(bytes(32)))
    support = np.arange(-60, 61)
    weight = np.exp(-(support**2) / (2 * sigma**2))
    expected = weight / weight.sum() * DRAWS
    counts = np.array([(drawn == x).sum() for x in support])
    common = expected > 20
    assert (
        stats.chisquare(
            np.append(counts[common], counts[~common].sum() + 1e-9),
            np.append(expected[common], expected[~common].sum() + 1e-9),
        ).pvalue
        > 1e-3
    )


def test_uniform_integers_have_no_bias() -> None:
    bits = Bits(bytes(32))
    counts = np.bincount(bits.below(7, DRAWS), minlength=7)
    assert stats.chisquare(counts).pvalue > 1e-3
    large = 3 << 61  # a quarter of all words must be drawn again
    assert abs((bits.below(large, 100_000) < large // 3).mean() - 1 / 3) < 0.01
    uniform = bits.below_one(DRAWS)
    assert uniform.min() > 0
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3


def noised(team: Party, deviations: dict[str, float]) -> Party:
    """The exchange with fixed-point leaves where there is noise."""
    format = Format.of(team.totals[0], len(team.nodes), noised=list(deviations))
    return replace(team, format=format, context=context_of(team.cohort, format, team.settings))


@pytest.mark.parametrize(("colluding", "dropped"), [(0, 0), (0, 1), (1, 1)])
def test_the_sum_has_at_least_the_noise_that_is_wanted(colluding: int, dropped: int) -> None:
    """Sums of zeros: variance sigma^2 |U| / (t - m), mean zero, multiples of the grid."""
    settings = SecureSums(colluding=colluding, least=3 + colluding)
    totals = [{"delta": {"w": np.zeros(100_000)}, "loss": np.zeros(1), "free": np.ones(1)}] * 5
    deviations = {"delta/w": 0.3, "loss": 2.0}
    team = noised(party(5, settings, totals), deviations)
    server = team.collection()
    for client in range(5 - dropped):
        masked = team.mask(client, noise=deviations, format=team.format)
        again = team.mask(client, noise=deviations, format=team.format)
        assert (masked.vector == again.vector).all()  # the same noise
        server.keep(client, masked)
    chosen, requests = server.choose(), server.requests()
    for holder in range(5):
        server.learn(holder, team.open(holder, chosen, requests[holder]))
    found = server.result().total
    values, wanted = found["delta"]["w"], 0.3 * math.sqrt((5 - dropped) / (4 - colluding))
    assert abs(values.mean()) < 0.02 * wanted
    assert values.std() == pytest.approx(wanted, rel=0.01)
    assert stats.kstest(values / wanted, "norm").pvalue > 1e-6
    grid = values * 2.0 ** team.format.scale(team.format.leaves[0])
    assert (grid == np.rint(grid)).all()
    assert found["loss"][0] != 0
    assert found["free"][0] == 5 - dropped  # no noise where none is wanted


def test_every_context_has_its_own_noise() -> None:
    totals = [{"delta": {"w": np.zeros(1000)}}] * 3
    team = noised(party(3, SecureSums(mode="strict"), totals), {"delta/w": 1.0})
    sums = []
    for exchange in (1, 2):
        again, server = team.again(exchange=exchange), None
        server = again.collection()
        for client in range(3):
            server.keep(client, again.mask(client, noise={"delta/w": 1.0}, format=team.format))
        sums.append(server.result().total["delta"]["w"])
    assert abs(np.corrcoef(sums)[0, 1]) < 0.15
    assert (sums[0] != sums[1]).all()


def test_deviations_may_differ_by_entry() -> None:
    form = {"model": {"w": np.zeros((2, 50_000))}}
    format = Format.of(form, 4)
    deviations = {"model/w": np.array([[0.5], [3.0]])}
    noisy = add_noise(format.encode(form)[0], format, deviations, 4, bytes(32))
    noisy = noisy + np.uint64(3) * np.eye(1, format.size, 1, dtype=np.uint64)[0]  # four clients
    noisy[0] += np.uint64(3)
    found = format.decode(noisy, 4).total["model"]["w"]
    assert found.std(1) == pytest.approx([0.25, 1.5], rel=0.02)


def test_noise_that_does_not_fit_the_grid_is_refused() -> None:
    form = {"model": {"w": np.zeros(2)}, "loss": np.zeros(1)}
    vector = Format.of(form, 4).encode(form)[0]
    cases = [
        ({"model/w": 1e-12}, 20, "too coarse"),
        ({"model/w": 1e9}, 20, "at most 2\\^52 steps"),
        ({"loss": 1.0}, 20, r"fixed-point leaves; \['loss'\] are not"),
    ]
    for deviations, exponent, match in cases:
        with pytest.raises(ValueError, match=match):
            add_noise(vector, Format.of(form, 4, {"model/w": exponent}), deviations, 4, bytes(32))
    same = add_noise(vector, Format.of(form, 4), {"model/w": 0.0}, 4, bytes(32))
    assert (same == vector).all()
