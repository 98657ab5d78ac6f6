"""Intervals of numbers across clients: by hand, against SciPy, and how often they hold the
truth."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from evenhand.metrics import posterior as model
from evenhand.metrics.across import accuracy_intervals, merit_intervals
from evenhand.metrics.kinds import Kinds, Normals, Shares, Squares
from evenhand.metrics.ledger import Gains
from evenhand.metrics.posterior import posterior
from evenhand.metrics.spread import SPREAD
from evenhand.metrics.trials import Trials, trials
from evenhand.metrics.uncertainty import Interval, wilson

# ---- what may be true


def test_a_kind_of_shares_is_beta_binomial_and_one_without_width_binomial() -> None:
    seen, centre = Shares(np.array([7, 2]), np.array([10, 4])), np.array([1.0, 1.1])
    first, mean = np.array([0, 1]), np.sin(centre) ** 2
    width = np.array([0.2, 0.3])
    size = 0.25 / width**2 - 1
    expected = np.stack(
        [stats.betabinom.logpmf(k, m, mean * size, (1 - mean) * size) for k, m in ((7, 10), (2, 4))]
    )
    assert np.diff(seen.fit(first, centre, width)) == pytest.approx(np.diff(expected))
    equal = np.stack([stats.binom.logpmf(k, m, mean) for k, m in ((7, 10), (2, 4))])
    assert np.diff(seen.fit(first, centre, np.zeros(2))) == pytest.approx(np.diff(equal))


def test_a_kind_of_squares_is_what_integration_gives() -> None:
    """The mean of m squared normal errors is chi-squared; of clients with inverse gamma means, the
    chance is an integral."""
    m, seen = 6, 1.7
    squares = Squares(np.array([seen]), np.array([m / 2]))

    def chance(centre: float, width: float) -> float:
        size = width**-2
        kind = stats.invgamma(size, scale=size * math.exp(centre))
        return integrate.quad(
            lambda true: kind.pdf(true) * stats.gamma(m / 2, scale=true / (m / 2)).pdf(seen),
            0,
            np.inf,
        )[0]

    kinds = (np.array([0.0, 0.5, 0.3]), np.array([0.4, 0.4, 0.8]))
    expected = [math.log(chance(c, w)) for c, w in zip(*kinds, strict=True)]
    assert np.diff(squares.fit(np.array([0]), *kinds)[0]) == pytest.approx(
        np.diff(expected), abs=1e-6
    )
    equal = [stats.gamma(m / 2, scale=math.exp(c) / (m / 2)).logpdf(seen) for c in (0.0, 0.5)]
    assert np.diff(squares.fit(np.array([0]), kinds[0][:2], np.zeros(2))[0]) == pytest.approx(
        np.diff(equal)
    )


def test_true_values_given_a_kind_have_the_moments_of_their_posterior() -> None:
    rng = np.random.default_rng(0)
    kinds = Kinds(np.array([0.3, 1.0, 0.7]), np.array([0.1, 0.2, 0.0]))
    many = (kinds, np.ones((20_000, 1), np.int64))
    mean, size = math.sin(1) ** 2, 0.25 / 0.2**2 - 1
    posterior = stats.beta(mean * size + 7, (1 - mean) * size + 3)
    ten = Shares(np.array([7]), np.array([10]))
    drawn = ten.truth(*many, rng)
    assert (drawn.mean(), drawn.std()) == pytest.approx(
        (posterior.mean(), posterior.std()), rel=0.02
    )
    new = ten.member(*many, rng)
    assert (new.mean(), new.std()) == pytest.approx(
        (mean, math.sqrt(mean * (1 - mean) / (size + 1))), rel=0.03
    )
    inverse = stats.invgamma(25 + 5, scale=25 * math.exp(1) + 5 * 2.0)
    square = Squares(np.array([2.0]), np.array([5.0]))
    drawn = square.truth(*many, rng)
    assert (drawn.mean(), drawn.std()) == pytest.approx((inverse.mean(), inverse.std()), rel=0.02)
    for seen, truth in ((ten, math.sin(0.7) ** 2), (square, math.exp(0.7))):
        for draw in (seen.truth, seen.member):
            drawn = draw(kinds, np.array([[1], [2]]), rng)  # one of each kind
            assert drawn[0] != pytest.approx(truth)
            assert drawn[1] == pytest.approx(truth)


def test_with_one_kind_draws_are_those_of_the_posterior_on_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All kinds at all places of the grid, weighed by what they explain: no sampler."""
    monkeypatch.setattr(model, "KINDS", 1)
    right, samples = np.array([9, 8, 4, 10, 7]), np.array([10, 10, 10, 12, 9])
    seen, rng = Shares(right, samples), np.random.default_rng(0)
    drawn = posterior(seen, 4000, rng, 50)
    edges = model._edges(seen.place, seen.error, np.ones(5, np.int64))
    steps = np.concatenate(
        [[0.0], np.geomspace(0.25 * (2 / (seen.error**-4.0).sum()) ** 0.25, 0.4, model.WIDTHS - 1)]
    )
    weigh, expected, population = [], [], []
    for centre, cell in zip((edges[1:] + edges[:-1]) / 2, np.diff(edges), strict=True):
        mean = float(np.clip(math.sin(min(max(centre, 0), math.pi / 2)) ** 2, 1e-4, 1 - 1e-4))
        weigh.append(cell * model.EQUAL * np.exp(stats.binom.logpmf(right, samples, mean).sum()))
        expected.append(np.full(5, mean))
        population.append(mean)
        for low, high in pairwise(steps):
            size = 0.25 / ((low + high) / 2) ** 2 - 1
            a, b = mean * size, (1 - mean) * size
            weigh.append(
                cell
                * (1 - model.EQUAL)
                * (high - low)
                / steps[-1]
                * np.exp(stats.betabinom.logpmf(right, samples, a, b).sum())
            )
            expected.append((right + a) / (samples + a + b))
            population.append(mean)
    assert drawn.clients.mean(0) == pytest.approx(
        np.average(expected, axis=0, weights=weigh), abs=0.01
    )
    assert drawn.population.mean() == pytest.approx(np.average(population, weights=weigh), abs=0.01)


def test_many_samples_speak_for_themselves_and_few_lean_on_others() -> None:
    rng = np.random.default_rng(0)
    samples = np.full(9, 100_000)
    right = rng.binomial(samples, np.linspace(0.5, 0.9, 9))
    drawn = posterior(Shares(right, samples), 1000, rng).clients
    assert drawn.mean(0) == pytest.approx(right / samples, abs=0.001)
    assert drawn.std(0) == pytest.approx(
        np.sqrt(right / samples * (1 - right / samples) / samples), rel=0.25
    )
    few = posterior(
        Shares(np.array([4, *[85] * 30]), np.array([10, *[100] * 30])), 1000, rng
    ).clients
    assert 0.4 < few[:, 0].mean() < 0.85
    assert (
        posterior(Shares(np.full(40, 16), np.full(40, 20)), 500, rng).clients.std(1).mean() < 0.03
    )


def test_thin_matrices_explain_clients_as_the_whole_one_does() -> None:
    """For clients of every size, with errors far smaller and far larger than their differences."""
    rng = np.random.default_rng(0)
    size = np.exp(rng.uniform(0, 14, 300))
    grid = np.repeat(np.linspace(0, 1.5, 40), 25), np.tile([0, *np.geomspace(1e-3, 0.4, 24)], 40)
    for seen in (
        Shares(rng.binomial(size.astype(int) + 1, rng.beta(2, 1, 300)), size.astype(int) + 1),
        Squares(rng.gamma(2, 1, 300), size / 2),
        Normals(rng.normal(0, 3, 300), 3 / np.sqrt(size)),
    ):
        fit = seen.fit(np.arange(300), *grid)
        fit -= fit.max(1, keepdims=True)
        few, of_few = model._thin(fit)
        assert few.shape == (300, 100)
        assert few @ of_few == pytest.approx(fit, abs=1e-3, rel=1e-9)
        alone, same = model._thin(fit[:9])
        assert (alone @ same == fit[:9]).all()


def test_places_on_the_grid_are_drawn_by_their_chance() -> None:
    rng = np.random.default_rng(0)
    chance = np.zeros((3, 4 * model.WIDTHS))
    chance[0, [3, 30, 49]] = 0.1, 0.3, 0.6
    chance[1, 74] = 1
    chance[2] = rng.dirichlet(np.ones(chance.shape[1]))
    with np.errstate(divide="ignore"):
        many = np.log(np.tile(chance, (5000, 1))) - 1e4 * rng.random((15_000, 1))
    found = model._columns(many, rng).reshape(5000, 3)
    counts = np.stack([np.bincount(row, minlength=chance.shape[1]) for row in found.T])
    assert (counts[chance == 0] == 0).all()
    assert counts / 5000 == pytest.approx(chance, abs=0.03)
    assert stats.chisquare(counts[2], 5000 * chance[2]).pvalue > 0.001


def test_possibilities_are_drawn_by_their_chance() -> None:
    chance = np.array([[0.1, 0.0, 1.0], [0.0, 0.5, 0.0], [0.9, 0.5, 0.0]])
    with np.errstate(divide="ignore"):
        ends = model._ends(np.log(chance) - 900)
    drawn = model._between(np.repeat(ends[..., None], 5000, -1), np.random.default_rng(1))
    counts = np.stack([np.bincount(row, minlength=3) for row in drawn], 1)
    assert (counts[chance == 0] == 0).all()
    assert counts / 5000 == pytest.approx(chance, abs=0.03)


# ---- accuracies


def test_one_client_has_wilsons_interval_and_no_spread() -> None:
    """Its variance p q / m leans on itself: as if there were m (m + 7) / (m + 8) samples."""
    found = accuracy_intervals(np.array([9]), np.array([10]))
    low, high = map(float, wilson(0.9 * 10 * 17 / 18, 10 * 17 / 18))
    for name in ("mean", "pooled", "worst10", "best10", "min", "max"):
        assert found[name] == pytest.approx((0.9, low, high)), name
    assert found["std"] == (0, 0, 0)
    assert found["jain"] == found["entropy"] == (1, 1, 1)


def test_means_of_two_clients_by_hand() -> None:
    right, samples = np.array([8, 30]), np.array([10, 40])
    found = accuracy_intervals(right, samples, draws=50)
    everyone = 38 / 50 * 12 / 50
    own = np.array([(10 * 0.8 * 0.2 + 8 * everyone) / 17, (40 * 0.75 * 0.25 + 8 * everyone) / 47])
    for name, weight in (("mean", np.array([0.5, 0.5])), ("pooled", np.array([0.2, 0.8]))):
        mean = weight @ (right / samples)
        size = mean * (1 - mean) / (weight**2 * own / samples).sum()
        assert found[name] == pytest.approx((mean, *map(float, wilson(mean * size, size))))


def test_the_worst_and_best_of_two_clients_have_exact_bounds() -> None:
    found = accuracy_intervals(np.array([8, 30]), np.array([10, 40]), draws=50)
    exact = [
        stats.binomtest(k, m).proportion_ci(0.95, method="exact") for k, m in ((8, 10), (30, 40))
    ]
    assert found["min"] == pytest.approx(
        (0.75, min(e.low for e in exact), min(e.high for e in exact))
    )
    assert found["max"] == pytest.approx(
        (0.8, max(e.low for e in exact), max(e.high for e in exact))
    )
    assert found["worst10"] == found["min"]  # a tenth of two clients is one of them


def test_many_clients_have_upper_bounds_that_hold_at_once() -> None:
    right, samples = np.array([30, *[45] * 49]), np.full(50, 50)
    far = 1 - 0.95 ** (1 / 50)
    found = accuracy_intervals(right, samples, draws=50)["min"]
    assert found.low == pytest.approx(
        stats.binomtest(30, 50, alternative="greater").proportion_ci(0.95 + far, method="exact").low
    )
    assert found.high == pytest.approx(
        stats.binomtest(30, 50, alternative="less").proportion_ci(1 - far, method="exact").high
    )


def test_values_are_those_of_the_spreads() -> None:
    right, samples = np.array([8, 30, 12, 0]), np.array([10, 40, 12, 0])
    found = accuracy_intervals(right, samples, draws=50)
    assert set(found) == {*SPREAD, "pooled"}
    for name, function in SPREAD.items():
        assert found[name].value == pytest.approx(float(function([0.8, 0.75, 1.0])))
    assert found["pooled"].value == pytest.approx(50 / 62)
    nobody = accuracy_intervals(np.array([0]), np.array([0]))
    assert all(np.isnan(interval).all() for interval in nobody.values())


def test_clients_that_may_be_equal_have_intervals_that_reach_that() -> None:
    found = accuracy_intervals(np.full(30, 8), np.full(30, 10), draws=200)
    assert (
        found["std"].low,
        found["gini"].low,
        found["jain"].high,
        found["entropy"].high,
    ) == pytest.approx((0, 0, 1, 1))
    assert found["worst10"].high >= found["mean"].high
    assert found["best10"].low <= found["mean"].low
    differ = accuracy_intervals(np.array([95] * 10 + [60] * 10), np.full(20, 100), draws=200)
    assert differ["std"].low > 0.1
    assert differ["worst10"].high < 0.75


def test_the_worst_of_many_clients_with_few_samples_looks_worse_than_it_is() -> None:
    right = np.random.default_rng(1).binomial(10, 0.8, 300)
    found = accuracy_intervals(right, np.full(300, 10), draws=300)["worst10"]
    assert found.value < found.low < 0.8 < found.high


def test_other_clients_have_students_mean_and_no_smallest_one() -> None:
    right, samples = np.array([600, 2400, 500, 700]), np.array([1000, 4000, 1200, 1500])
    found, same = (
        accuracy_intervals(right, samples, over, draws=100) for over in ("clients", "both")
    )
    merits = right / samples
    # near one half, Wilson's is Student's, drawn a little to the middle
    assert (found["mean"].low, found["mean"].high) == pytest.approx(
        stats.t.interval(0.95, 3, merits.mean(), stats.sem(merits)), abs=0.01
    )
    assert np.isnan(found["min"][1:]).all()
    assert found["std"].low <= found["std"].value <= found["std"].high
    assert found["std"] == same["std"]
    assert all(
        np.isnan(interval[1:]).all()
        for interval in accuracy_intervals(np.array([8]), np.array([10]), "both").values()
    )


def test_other_clients_are_less_certain_than_these() -> None:
    rng = np.random.default_rng(0)
    samples = np.full(50, 500)
    right = rng.binomial(samples, rng.uniform(0.6, 0.95, 50))
    these, others = (
        accuracy_intervals(right, samples, over, draws=300) for over in ("samples", "both")
    )
    for name in ("mean", "pooled", "worst10", "std", "gini", "entropy"):
        assert others[name].high - others[name].low > 1.5 * (these[name].high - these[name].low), (
            name
        )


def test_intervals_are_repeatable_and_checked() -> None:
    first, second, other = (
        accuracy_intervals(np.array([5, 8]), np.array([9, 9]), draws=80, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first == second
    assert first["std"] != other["std"]
    with pytest.raises(
        ValueError, match='over must be "samples", "clients" or "both", got \'seeds\''
    ):
        accuracy_intervals(np.array([5]), np.array([9]), over="seeds")
    with pytest.raises(
        ValueError, match=r"right and samples must be \(n,\), got \(1,\) and \(2,\)"
    ):
        accuracy_intervals(np.array([5]), np.array([9, 9]))


@pytest.mark.parametrize("size", [10, 60])
def test_intervals_hold_the_truth_about_as_often_as_they_say(size: int) -> None:
    """A few trials: 95 % would be below 87 % once in 500 times. Many are in
    benchmarks/coverage.py."""
    rng, trials = np.random.default_rng(size), 80
    hits = dict.fromkeys(("mean", "worst10", "best10", "min", "std", "gini", "jain"), 0)
    for trial in range(trials):
        truth = rng.uniform(0.6, 0.95, 30)
        found = accuracy_intervals(
            rng.binomial(size, truth), np.full(30, size), draws=150, seed=trial
        )
        for name in hits:
            hits[name] += found[name].low <= float(SPREAD[name](truth)) <= found[name].high
    assert min(hits.values()) / trials >= 0.87, hits


# ---- errors


def test_the_error_of_one_client_has_the_chi_squared_interval() -> None:
    """One client's variance leans on that of normal errors; with normal errors it is nearly
    theirs."""
    rng = np.random.default_rng(0)
    squares = rng.standard_normal(5000) ** 2
    found = merit_intervals(squares, np.zeros(5000, np.int64), 1, squared=True)
    low, high = (-math.sqrt(squares.sum() / stats.chi2.ppf(q, 5000)) for q in (0.025, 0.975))
    assert found["pooled"] == pytest.approx((-math.sqrt(squares.mean()), low, high), abs=0.002)
    assert (found["mean"].low, found["mean"].high) == pytest.approx((low, high), abs=0.002)
    assert found["std"] == (0, 0, 0)


def test_errors_are_merits_with_a_minus_and_their_shares_are_of_errors() -> None:
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(30), 40)
    squares = (rng.standard_normal(1200) * (1 + client / 30)) ** 2
    # the last client has no samples
    found = merit_intervals(squares, client, 31, squared=True, draws=200)
    root = np.sqrt(squares.reshape(30, 40).mean(1))
    for name in ("mean", "worst10", "min", "std"):
        assert found[name].value == pytest.approx(float(SPREAD[name](-root)))
    for name in ("jain", "gini", "entropy", "variation"):
        assert found[name].value == pytest.approx(float(SPREAD[name](root)))
    assert found["worst10"].low < found["worst10"].high < found["best10"].low < 0
    truth = 1 + np.arange(30) / 30
    for name in ("mean", "worst10", "best10", "min", "max", "std"):
        assert found[name].low <= float(SPREAD[name](-truth)) <= found[name].high


def test_right_and_wrong_are_accuracies() -> None:
    client = np.repeat([0, 1], [10, 40])
    values = np.concatenate([np.arange(10) < 8, np.arange(40) < 30]).astype(float)
    assert merit_intervals(values, client, 2, draws=50) == accuracy_intervals(
        np.array([8, 30]), np.array([10, 40]), draws=50
    )
    with pytest.raises(
        ValueError,
        match="values must be 0 or 1 for wrong and right; of squared errors say squared=True",
    ):
        merit_intervals(values * 2, client, 2)
    with pytest.raises(ValueError, match="squared errors must not be negative"):
        merit_intervals(-values, client, 2, squared=True)


def test_models_without_error_have_intervals() -> None:
    found = merit_intervals(np.zeros(20), np.repeat([0, 1], 10), 2, squared=True, draws=50)
    assert found["mean"].value == pytest.approx(0, abs=1e-6)
    assert all(math.isfinite(end) for name in ("mean", "std", "min") for end in found[name])


# ---- several trials on the same samples


def test_the_half_width_of_a_difference_by_hand() -> None:
    one = [{"mean": Interval(0.8, 0.7, 0.9)}, {"mean": Interval(0.7, 0.65, 0.73)}]
    both = Trials(one, {"mean": np.array([[1, 0.5], [0.5, 1]])}, 0.95)
    found, p = both.combined("mean", (1, -1))
    half = math.sqrt(0.1**2 + 0.04**2 - 2 * 0.5 * 0.1 * 0.04)
    assert found == pytest.approx((0.1, 0.11 - half, 0.11 + half))
    assert p == pytest.approx(2 * stats.norm.sf(0.11 / (half / stats.norm.ppf(0.975))))
    mean, _ = both.combined("mean", (0.5, 0.5))
    half = math.sqrt(0.1**2 + 0.04**2 + 2 * 0.5 * 0.1 * 0.04) / 2
    assert mean == pytest.approx((0.75, 0.745 - half, 0.745 + half))
    assert both.combined("mean", (0, 1))[0] == one[1]["mean"]
    with pytest.raises(ValueError, match=r"weights must be one for each of 2 trials, got \(3,\)"):
        both.combined("mean", (1, 0, -1))


def test_a_model_that_agrees_on_every_sample_could_differ_on_others() -> None:
    """As in the ledger: one sample that gains and one that loses are added in thought."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(12), 30)
    right = (rng.random((360, 1)) < 0.8).astype(float)
    same = trials(np.concatenate([right, right], 1), client, 12, draws=400)
    for name in (*SPREAD, "pooled"):
        found, p = same.combined(name, (1, -1))
        assert found.value == pytest.approx(0), name
        assert found.low < 0 < found.high, name
        assert p == pytest.approx(1), name
    found, _ = same.combined("mean", (1, -1))
    ledger = Gains.of(np.zeros((360, 1)), np.zeros(360, np.int64), 1).judged()
    assert found.high == pytest.approx(float(ledger.high[0]), rel=0.1)


@pytest.mark.parametrize("over", ["samples", "both"])
def test_models_without_a_mistake_are_not_certain(over: str) -> None:
    client = np.repeat(np.arange(25), 25)
    both = trials(np.ones((625, 2)), client, 25, over=over, draws=200)
    for name in ("mean", "pooled", "worst10", "best10", "std", "gini"):
        one = both.intervals[0][name]
        assert one.low < one.high, name
        found, p = both.combined(name, (1, -1))
        assert found.low < 0 < found.high, name
        assert p == pytest.approx(1), name


def test_the_chance_of_a_difference_is_never_zero_or_unknown() -> None:
    apart = [{"mean": Interval(0.9, 0.9 - 1e-6, 0.9 + 1e-6)}, {"mean": Interval(0.1, 0.0999, 0.11)}]
    both = Trials(apart, {"mean": np.eye(2)}, 0.95)
    assert 0 < both.combined("mean", (1, -1))[1] < 1e-300
    interval, p = both.combined("mean", (0, 1))
    assert interval == apart[1]["mean"]
    assert 0 < p < 1e-9
    one = trials(np.ones((9, 2)), np.zeros(9, np.int64), 1, draws=50)
    assert one.combined("std", (1, -1)) == ((0, 0, 0), 1)  # one client is not apart from itself


def test_differences_of_squared_errors_that_are_the_same_have_a_width() -> None:
    rng = np.random.default_rng(4)
    squares = rng.standard_normal((200, 1)) ** 2
    same = trials(
        np.concatenate([squares, squares], 1), np.repeat(np.arange(10), 20), 10, True, draws=200
    )
    for name in ("mean", "min", "std"):
        found, p = same.combined(name, (1, -1))
        assert found.low < 0 < found.high
        assert p == pytest.approx(1)


def test_the_best_may_be_perfect_if_no_mistake_was_seen() -> None:
    right, samples = np.full(30, 950), np.full(30, 1000)
    right[:3] = 1000
    found = accuracy_intervals(right, samples, draws=200)["best10"]
    assert found.value == found.high == 1
    none = accuracy_intervals(samples - right, samples, draws=200)["worst10"]
    assert none.value == none.low == 0


def test_the_mean_of_such_clients_has_wilsons_interval_with_students_width() -> None:
    right, samples = np.array([18, 20, 15, 19, 20]), np.full(5, 20)
    found = accuracy_intervals(right, samples, "both", draws=50)["mean"]
    share, t, z = right / 20, stats.t.ppf(0.975, 4), stats.norm.ppf(0.975)
    size = share.mean() * (1 - share.mean()) / (t / z * stats.sem(share)) ** 2
    assert (found.low, found.high) == pytest.approx(
        [float(end) for end in wilson(share.mean() * size, size)]
    )
    # clients that all agree are no surer than their samples
    perfect = accuracy_intervals(samples, samples, "both", draws=50)["mean"]
    assert (perfect.low, perfect.high) == pytest.approx((1 - z**2 / (100 + z**2), 1))


@pytest.mark.parametrize("clients", [9, 25])
def test_differences_near_the_ceiling_are_held_as_often_as_they_say(clients: int) -> None:
    """Of two models that nearly agree; zero widths made this 68 to 83 %."""
    rng, hits = np.random.default_rng(0), dict.fromkeys(("mean", "worst10", "min", "std"), 0)
    client = np.repeat(np.arange(clients), 25)
    for seed in range(60):
        first = rng.uniform(0.95, 1, clients)
        truth = np.stack([first, np.clip(first + rng.normal(0, 0.005, clients), 0, 1)], 1)
        luck = rng.random((len(client), 2))
        luck[:, 1] = np.where(rng.random(len(client)) < 0.95, luck[:, 0], luck[:, 1])
        both = trials((luck < truth[client]).astype(float), client, clients, draws=100, seed=seed)
        for name in hits:
            found, _ = both.combined(name, (1, -1))
            expected = float(SPREAD[name](truth[:, 0]) - SPREAD[name](truth[:, 1]))
            hits[name] += found.low <= expected <= found.high
    assert min(hits.values()) >= 55, hits  # 92 %


def test_differences_of_mean_accuracies_are_near_those_of_the_paired_test() -> None:
    rng = np.random.default_rng(1)
    client = np.repeat(np.arange(50), 40)
    luck = rng.random(2000)
    right = np.stack(
        [luck < 0.8, np.where(rng.random(2000) < 0.7, luck, rng.random(2000)) < 0.77], 1
    ).astype(float)
    found, p = trials(right, client, 50, draws=400).combined("mean", (1, -1))
    expected = stats.ttest_rel(right[:, 0], right[:, 1])
    interval = expected.confidence_interval()
    assert found.value == pytest.approx(float((right[:, 0] - right[:, 1]).mean()))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.004)
    assert p == pytest.approx(expected.pvalue, abs=0.05)


def test_trials_of_other_clients_and_of_errors_can_be_compared() -> None:
    rng = np.random.default_rng(2)
    client = np.repeat(np.arange(20), 30)
    squares = rng.standard_normal((600, 2)) ** 2 * np.array([1.0, 4.0])
    for over in ("samples", "both"):
        both = trials(squares, client, 20, squared=True, over=over, draws=150)
        found, p = both.combined("mean", (1, -1))
        assert found.low < 1 < found.high
        assert found.low > 0.5
        assert p < 1e-6
    assert np.isnan(both.combined("min", (1, -1))[0][1:]).all()
