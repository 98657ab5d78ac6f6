"""Thresholds from score histograms: by hand, against fairlearn, and against a second linear
program."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize
from sklearn.base import BaseEstimator

from evenhand.errors import RunError
from evenhand.metrics.calibration import BINS, EDGES
from evenhand.metrics.cuts import HALF, accepted, chances
from evenhand.metrics.threshold_search import NOTIONS, find_thresholds, notion_of
from evenhand.metrics.threshold_words import LAWFUL
from evenhand.metrics.thresholds import Thresholds
from evenhand.metrics.uncertainty import wilson

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CENTRES = np.convolve([0.0, *EDGES, 1.0], [0.5, 0.5], "valid")


def binned(scores: Floats, labels: Ints, of: Ints, units: int) -> Ints:
    """(units, 2, BINS) counts, sample by sample."""
    counts = np.zeros((units, 2, BINS), np.int64)
    for score, label, unit in zip(scores, labels, of, strict=True):
        counts[unit, label, sum(score >= edge for edge in EDGES)] += 1
    return counts


def cells(*groups: dict[tuple[int, float], int]) -> Ints:
    """Counts by (label, score) of each group."""
    counts = np.zeros((len(groups), 2, BINS), np.int64)
    for row, group in zip(counts, groups, strict=True):
        for (label, score), count in group.items():
            row[label, np.searchsorted(EDGES, score, side="right")] += count
    return counts


def drawn(seed: int, groups: int = 2, samples: int = 600) -> tuple[Floats, Ints, Ints]:
    """Scores at the centres of bins, labels and groups of samples; groups differ in both."""
    rng = np.random.default_rng(seed)
    of = rng.integers(0, groups, samples)
    labels = (rng.random(samples) < 0.3 + 0.4 * of / groups).astype(np.int64)
    logits = rng.normal(1.2 * labels - 0.6 + 0.3 * of, 1.0)
    place = np.searchsorted(EDGES, 1 / (1 + np.exp(-logits)), side="right")
    return CENTRES[place], labels, of


def names(counts: Ints) -> list[str]:
    return [f"g{place}" for place in range(len(counts))]


def said(found: Thresholds) -> str:
    """What is printed, with lines joined."""
    return " ".join(str(found).split())


def found_in(counts: Ints, notion: str, bound: float = 0.0, **options: Any) -> Thresholds:
    return find_thresholds(counts, counts, names(counts), notion, bound, least=1, **options)


def acceptance(found: Thresholds) -> Floats:
    """(A, BINS) the chance that each bin is accepted, by asking for its centre."""
    units = len(found.names)
    return np.stack([found.probabilities(CENTRES, np.full(BINS, unit)) for unit in range(units)])


def right(counts: Ints, chance: Floats) -> float:
    """Accuracy under chances of acceptance."""
    hits = (counts[:, 1] * chance).sum() + (counts[:, 0] * (1 - chance)).sum()
    return float(hits / counts.sum())


def rates_of(counts: Ints, chance: Floats, notion: str) -> Floats:
    """(R, A) the rates that a notion is about."""
    negative, positive = ((counts[:, y] * chance).sum(-1) for y in (0, 1))
    n0, n1 = counts[:, 0].sum(-1), counts[:, 1].sum(-1)
    kinds = {
        "selection rate": (negative + positive) / (n0 + n1),
        "true-positive rate": positive / n1,
        "false-positive rate": negative / n0,
        "accuracy": (positive + n0 - negative) / (n0 + n1),
    }
    return np.stack([kinds[rate] for rate in NOTIONS[notion]])


def gap_of(counts: Ints, chance: Floats, notion: str) -> float:
    return float(np.ptp(rates_of(counts, chance, notion), axis=1).max())


# ---- by hand

# a model that separates the labels: 10 of 20 in group 0 and 10 of 40 in group 1 are positive
SEPARATED = cells({(1, 0.9): 10, (0, 0.1): 10}, {(1, 0.9): 10, (0, 0.1): 30})


def test_demographic_parity_costs_the_smaller_group_half_of_its_positives() -> None:
    # selecting a quarter of group 0 costs 5 of 60 decisions; half of group 1 would cost 10
    found = found_in(SEPARATED, "demographic parity")
    # 0.91 is the threshold nearest to 0.5 that nobody in the data reaches
    assert found.rules[0] == (pytest.approx((0.5, 0.5)), pytest.approx((0.5, 0.91)))
    assert found.rules[1] == ((1.0, 0.5),)
    change = found.effect_rows[0]
    assert (change["before"], change["after"]) == pytest.approx((1.0, 55 / 60))
    assert change["change"] == pytest.approx(-5 / 60)
    gap = found.effect_rows[1]
    assert (gap["before"], gap["after"]) == pytest.approx((0.25, 0.0))


def test_a_bound_of_a_tenth_leaves_group_0_seven_of_its_ten() -> None:
    found = found_in(SEPARATED, "demographic parity", 0.1)
    assert found.rules[0] == (pytest.approx((0.7, 0.5)), pytest.approx((0.3, 0.91)))
    assert found.gap == pytest.approx(0.1)
    assert found.effect_rows[0]["change"] == pytest.approx(-3 / 60)


@pytest.mark.parametrize("notion", ["equalised odds", "equal opportunity", "accuracy"])
def test_a_perfect_model_keeps_one_half_where_rates_are_equal_already(notion: str) -> None:
    found = found_in(SEPARATED, notion)
    assert found.rules == (((1.0, 0.5),),) * 2
    assert found.effect_rows[0]["change_low"] == found.effect_rows[0]["change_high"] == 0


def test_equalised_odds_with_a_group_without_information_ignores_the_score() -> None:
    # group 1's ROC curve is the diagonal, so group 0 must be on it; with 25 positives of 40 the
    # best point is "everybody"
    counts = cells({(1, 0.9): 15, (0, 0.1): 5}, {(1, 0.9): 10, (0, 0.9): 10})
    found = found_in(counts, "equalised odds")
    assert right(counts, acceptance(found)) == pytest.approx(25 / 40)
    assert gap_of(counts, acceptance(found), "equalised odds") < 1e-9
    assert found.rules[0] == ((1.0, 0.1),)  # nobody is below


def test_the_change_in_accuracy_has_bonett_and_prices_paired_interval() -> None:
    found = found_in(SEPARATED, "demographic parity")
    # 60 samples of which 5 lose, and two pseudo-samples, one that gains and one that loses
    centre, square = -5 / 62, 7 / 62
    half = 1.959964 * math.sqrt((square - centre**2) / 62)
    row = found.effect_rows[0]
    assert row["change_low"] == pytest.approx(centre - half, abs=1e-6)
    assert row["change_high"] == pytest.approx(centre + half, abs=1e-6)
    low, high = wilson(55, 60)
    assert (row["after_low"], row["after_high"]) == pytest.approx((float(low), float(high)))


def test_effect_is_judged_on_the_other_histogram() -> None:
    test = cells({(1, 0.9): 4, (0, 0.6): 4}, {(1, 0.9): 4, (0, 0.1): 4})
    found = find_thresholds(SEPARATED, test, ["a", "b"], "accuracy")
    assert found.effect_rows[0]["before"] == pytest.approx(12 / 16)
    rates = {(row["name"], row["measure"]): row for row in found.effect_rows}
    assert rates["a", "false-positive rate"]["before"] == 1
    assert rates["b", "selection rate"]["samples"] == 8


def test_a_gap_that_grows_on_test_data_is_admitted() -> None:
    # found on SEPARATED, half of group 0's positives are rejected; the test data had no gap
    test = cells({(1, 0.9): 10, (0, 0.1): 30}, {(1, 0.9): 10, (0, 0.1): 30})
    found = find_thresholds(SEPARATED, test, ["a", "b"], "demographic parity")
    assert found.effect_rows[1]["after"] == pytest.approx(0.125)
    assert "On test data the gap is not smaller" in said(found)


# ---- against others

FAIRLEARN = {
    "demographic parity": "demographic_parity",
    "equal opportunity": "true_positive_rate_parity",
    "false-positive parity": "false_positive_rate_parity",
    "equalised odds": "equalized_odds",
}


class Scores(BaseEstimator):
    """An estimator whose input is its score."""

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, *_: Any) -> Scores:
        return self

    def predict_proba(self, x: Floats) -> Floats:
        return np.hstack([1 - x, x])


@pytest.mark.parametrize("notion", FAIRLEARN)
@pytest.mark.parametrize("groups", [2, 3])
def test_as_accurate_as_fairlearns_threshold_optimizer(notion: str, groups: int) -> None:
    fairlearn = pytest.importorskip("fairlearn.postprocessing", reason="compares with fairlearn")
    scores, labels, of = drawn(groups, groups)
    theirs = fairlearn.ThresholdOptimizer(
        estimator=Scores(),
        constraints=FAIRLEARN[notion],
        objective="accuracy_score",
        predict_method="predict_proba",
        prefit=True,
    )
    theirs.fit(scores[:, None], labels, sensitive_features=of)
    chance = theirs._pmf_predict(scores[:, None], sensitive_features=of)[:, 1]
    accuracy = float(np.where(labels == 1, chance, 1 - chance).mean())
    counts = binned(scores, labels, of, groups)
    found = acceptance(found_in(counts, notion))
    assert gap_of(counts, found, notion) < 1e-8
    # theirs searches a grid of 1001 rates, ours is exact
    assert accuracy - 1e-9 <= right(counts, found) <= accuracy + 1e-3


@pytest.mark.parametrize("notion", [notion for notion in NOTIONS if NOTIONS[notion]])
@pytest.mark.parametrize("bound", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("groups", [2, 4])
def test_the_optimum_is_that_of_a_program_over_acceptance_by_bin(
    notion: str, bound: float, groups: int
) -> None:
    """The second program has a chance for each bin, which never falls with the score."""
    counts = binned(*drawn(7 + groups, groups), groups)
    size = groups * BINS
    units = np.eye(size).reshape(groups, BINS, size)  # q[a, b] as a vector of the variables
    falls = (units[:, :-1] - units[:, 1:]).reshape(-1, size)
    n0, n1 = counts[:, 0].sum(-1), counts[:, 1].sum(-1)
    of = {
        "selection rate": counts.sum(1) / (n0 + n1)[:, None],
        "true-positive rate": counts[:, 1] / n1[:, None],
        "false-positive rate": counts[:, 0] / n0[:, None],
        "accuracy": (counts[:, 1] - counts[:, 0]) / (n0 + n1)[:, None],
    }
    # a constant: what a group that accepts nobody has
    base = {"accuracy": n0 / (n0 + n1)}
    rows, limits = [falls], [np.zeros(len(falls))]
    for rate in NOTIONS[notion]:
        value = np.einsum("ab,abv->av", of[rate], units)
        constant = base.get(rate, np.zeros(groups))
        for a in range(groups):
            for b in range(groups):
                rows.append((value[a] - value[b])[None])
                limits.append(np.array([bound - constant[a] + constant[b]]))
    solved = optimize.linprog(
        -(counts[:, 1] - counts[:, 0]).reshape(-1) / counts.sum(),
        A_ub=np.vstack(rows),
        b_ub=np.concatenate(limits),
        bounds=(0, 1),
    )
    found = acceptance(found_in(counts, notion, bound))
    assert gap_of(counts, found, notion) <= bound + 1e-8
    assert right(counts, found) == pytest.approx(n0.sum() / counts.sum() - solved.fun, abs=1e-8)


@given(st.integers(0, 10_000), st.sampled_from(list(NOTIONS)), st.sampled_from([0.0, 0.05, 1.0]))
@settings(max_examples=30, deadline=None)
def test_the_most_accurate_common_cut_of_all(seed: int, notion: str, bound: float) -> None:
    scores, labels, of = drawn(seed, 3, 120)
    counts = binned(scores, labels, of, 3)
    found = found_in(counts, notion, bound, common=True)
    assert len(set(found.rules)) == 1
    assert len(found.rules[0]) == 1
    accuracies, gaps = [], []
    for edge in EDGES:
        chance = np.tile((edge <= CENTRES).astype(float), (3, 1))
        if 0 < (counts.sum(1) * chance).sum() < counts.sum():
            accuracies.append(right(counts, chance))
            gaps.append(gap_of(counts, chance, notion) if NOTIONS[notion] else 0.0)
    positive = counts[:, 1].sum() / counts.sum()
    constant = min(max(positive, 1 - positive), max(accuracies))
    useful = np.array(accuracies) >= (constant + max(accuracies)) / 2 - 1e-9
    accuracies, gaps = (np.array(values)[useful].tolist() for values in (accuracies, gaps))
    limit = max(bound, min(gaps)) + 1e-9
    assert found.reached == (min(gaps) <= bound + 1e-9)
    allowed = [value for value, gap in zip(accuracies, gaps, strict=True) if gap <= limit]
    assert right(counts, acceptance(found)) == pytest.approx(max(allowed))


# ---- properties


@pytest.mark.parametrize("notion", NOTIONS)
def test_the_division_over_clients_changes_nothing(notion: str) -> None:
    scores, labels, of = drawn(3, 2)
    rng = np.random.default_rng(0)
    found = []
    for clients in (1, 2, 10):
        owner = rng.integers(0, clients, len(of))
        parts = [
            binned(scores[owner == c], labels[owner == c], of[owner == c], 2)
            for c in range(clients)
        ]
        found.append(found_in(np.sum(parts, axis=0), notion, 0.02))
    assert found[0] == found[1] == found[2]


def test_a_bound_of_one_and_the_notion_of_accuracy_give_each_group_its_best_threshold() -> None:
    counts = binned(*drawn(5), 2)
    free, best = found_in(counts, "equalised odds", 1.0), found_in(counts, "accuracy")
    assert free.rules == best.rules
    for unit, steps in zip(counts, best.rules, strict=True):
        hits = [
            unit[1, edge <= CENTRES].sum() + unit[0, edge > CENTRES].sum()
            for edge in (0.0, *EDGES, math.inf)
        ]
        chance = (steps[0][1] <= CENTRES).astype(float)
        assert right(unit[None], chance[None]) == pytest.approx(max(hits) / unit.sum())


def test_groups_with_the_same_histogram_share_a_threshold_at_no_cost_in_parity() -> None:
    one = binned(*drawn(6, 1), 1)
    counts = np.concatenate([one, 3 * one])
    found = found_in(counts, "equalised odds")
    assert found.rules[0] == found.rules[1] == found_in(one, "accuracy").rules[0]


def test_more_room_never_costs_accuracy() -> None:
    counts = binned(*drawn(8, 3), 3)
    values = [
        right(counts, acceptance(found_in(counts, "equalised odds", bound)))
        for bound in (0.0, 0.02, 0.1, 0.3, 1.0)
    ]
    assert values == sorted(values)
    assert values[0] < values[-1]


def test_cuts_count_the_scores_from_their_edge_on() -> None:
    counts = binned(np.array([0.5, 0.499, 0.2]), np.array([1, 0, 1]), np.zeros(3, np.int64), 1)
    assert accepted(counts[0])[:, HALF].tolist() == [0, 1]
    assert accepted(counts[0])[:, 0].tolist() == [1, 2]
    assert accepted(counts[0])[:, BINS].tolist() == [0, 0]
    assert chances(((0.25, 0), (0.75, HALF))).tolist() == [0.25] * HALF + [1.0] * (BINS - HALF)


# ---- using them


def test_randomised_decisions_have_their_chances() -> None:
    found = found_in(SEPARATED, "demographic parity", 0.1)
    scores, of = np.full(20_000, 0.9), np.repeat(["g0", "g1"], 10_000)
    assert found.probabilities([0.9, 0.9, 0.1], ["g0", "g1", "g0"]) == pytest.approx([0.7, 1, 0])
    drawn_ = found.predict(scores, of, seed=1)
    assert drawn_[:10_000].mean() == pytest.approx(0.7, abs=0.02)  # four standard errors
    assert drawn_[10_000:].all()
    assert (drawn_ == found.predict(scores, of, seed=1)).all()
    assert (drawn_ != found.predict(scores, of)).any()
    assert found.predict(scores, np.repeat([0, 1], 10_000), seed=1).tolist() == drawn_.tolist()
    assert found.probabilities([math.nan], ["g0"]).tolist() == [0.0]


def test_thresholds_survive_json() -> None:
    for found in (
        found_in(SEPARATED, "demographic parity", 0.1),
        found_in(SEPARATED, "equal opportunity", common=True, by="client"),
    ):
        assert Thresholds.from_json(found.to_json()) == found
    with pytest.raises(RunError, match="not the JSON of thresholds"):
        Thresholds.from_json("{}")
    with pytest.raises(RunError, match="later version"):
        Thresholds.from_json(found.to_json().replace('"format": 1', '"format": 2'))


def test_words_state_gap_cost_and_law() -> None:
    found = found_in(SEPARATED, "demographic parity", positive="ill")
    text = str(found)
    assert "from 25.0 [" in text
    assert "Accuracy over all samples changes by -8.3 [" in text
    assert "g0     0.5 (50 %), 0.91 (50 %)  50.0 → 25.0" in text
    assert "the positive label is ill" in text
    assert LAWFUL in said(found)
    assert LAWFUL not in said(found_in(SEPARATED, "demographic parity", 1.0, common=True))
    assert LAWFUL not in said(found_in(SEPARATED, "demographic parity", by="client"))
    assert "overfits" in said(found_in(SEPARATED, "demographic parity", found_on="training"))
    assert "not smaller" not in text
    assert "overfits" not in text
    assert "within" not in text
    assert "within 0.1," in said(found_in(SEPARATED, "demographic parity", 0.1))
    assert list(found.table["name"]) == ["g0", "g0", "g1"]
    assert found.effect["after"][0] == pytest.approx(55 / 60)


# ---- bad input


def test_one_group_cannot_be_equal() -> None:
    with pytest.raises(
        ValueError,
        match='at least 2 groups with 1 validation sample for each rate; only group "g0" has that',
    ):
        found_in(SEPARATED[:1], "equalised odds")
    assert found_in(SEPARATED[:1], "accuracy").rules == (((1.0, 0.5),),)


def test_no_samples_at_all() -> None:
    with pytest.raises(ValueError, match=r"at least 2 groups .* no group has that many"):
        found_in(np.zeros_like(SEPARATED), "demographic parity")
    with pytest.raises(ValueError, match=r"at least 1 group with .* no group has that many"):
        found_in(np.zeros_like(SEPARATED), "accuracy")


def test_a_group_without_positives_keeps_one_half_and_is_named() -> None:
    counts = np.concatenate([SEPARATED, cells({(0, 0.8): 30})])
    found = found_in(counts, "equal opportunity")
    assert found.rules[2] == ((1.0, 0.5),)
    assert found.notes == (
        "Group g2 has 30 validation samples, too few for equal opportunity; it keeps the threshold"
        " 0.5 and is left out of the gap.",
    )
    # selection rates exist for it, so it counts there: nobody can be selected
    assert not found_in(counts, "demographic parity").notes


def test_a_group_that_is_absent_keeps_one_half_and_is_named() -> None:
    counts = np.concatenate([SEPARATED, np.zeros((1, 2, BINS), np.int64)])
    found = found_in(counts, "equalised odds", common=True)
    assert "Group g2 has 0 validation samples" in found.notes[0]
    assert "not bounded" in found.notes[0]
    assert "no samples" in said(found)
    assert found_in(counts, "equalised odds").rules[2] == ((1.0, 0.5),)


def test_a_bound_that_no_common_threshold_reaches_is_said_with_the_best_one() -> None:
    found = found_in(SEPARATED, "demographic parity", 0.1, common=True)
    assert not found.reached
    assert found.gap == pytest.approx(0.25)
    assert found.rules == (((1.0, 0.5),),) * 2
    assert (
        "No useful common threshold keeps demographic parity within 10 percentage points on"
        " validation data; the smallest gap is 25.0. A threshold is useful if"
    ) in said(found)
    # halfway between 40 of 60, which "nobody" gets right, and 60
    assert "at least 83.3 % there" in said(found)
    assert found_in(SEPARATED, "demographic parity", 0.25, common=True).reached


@pytest.mark.parametrize("notion", [notion for notion in NOTIONS if NOTIONS[notion]])
def test_a_common_threshold_for_a_bound_of_zero_does_not_destroy_the_model(notion: str) -> None:
    counts = binned(*drawn(11, 2, 2000), 2)
    found = found_in(counts, notion, 0.0, common=True)
    best = found_in(counts, "accuracy", common=True).effect_rows[0]["after"]
    constant = counts.sum((0, 2)).max() / counts.sum()
    assert found.effect_rows[0]["after"] >= (constant + best) / 2 > constant + 0.05
    assert not [line for line in found.sentences() if "gets a yes" in line]
    gap = found.effect_rows[1]
    assert gap["after"] == pytest.approx(found.gap)
    assert gap["after"] <= gap["before"] + 1e-9


def test_a_smallest_gap_just_above_the_bound_is_shown_with_enough_digits() -> None:
    found = found_in(SEPARATED, "demographic parity", 0.249_96, common=True)
    assert "within 24.996 percentage points" in said(found)
    assert "the smallest gap is 25.0." in said(found)
    counts = cells({(1, 0.9): 10, (0, 0.1): 20}, {(1, 0.9): 10, (0, 0.1): 30})
    found = found_in(counts, "demographic parity", 0.083_33, common=True)
    assert "the smallest gap is 8.3333." in said(found)  # 1/3 - 1/4


def test_scores_that_are_all_alike_have_no_common_threshold_and_that_is_said() -> None:
    counts = cells({(1, 0.6): 10, (0, 0.6): 20}, {(1, 0.6): 20, (0, 0.6): 20})
    found = found_in(counts, "accuracy parity", common=True)
    assert found.rules == (((1.0, 0.5),),) * 2
    assert "The validation scores are all alike" in said(found)


def test_decisions_worse_than_a_constant_and_the_same_for_all_are_said() -> None:
    judged = cells({(1, 0.9): 300, (0, 0.6): 700}, {(1, 0.9): 300, (0, 0.6): 699, (0, 0.1): 1})
    found = find_thresholds(SEPARATED, judged, ["a", "b"], "accuracy")
    assert (
        "These decisions are less accurate than the same answer for everyone, which is right for"
        " 70.0 % of the test samples. With these thresholds nearly everybody gets a yes: 99.95 %"
        " of the test samples."
    ) in said(found)
    judged = cells({(1, 0.4): 30, (0, 0.1): 70}, {(1, 0.4): 30, (0, 0.1): 70})
    found = find_thresholds(SEPARATED, judged, ["a", "b"], "accuracy")
    assert "With these thresholds nobody gets a yes: 0 % of the test samples." in said(found)
    assert "less accurate" not in said(found)
    assert "gets a yes" not in said(found_in(SEPARATED, "accuracy"))


def test_fewer_samples_than_least_are_not_trusted() -> None:
    counts = np.concatenate([SEPARATED, cells({(0, 0.8): 5, (1, 0.9): 4})])
    named = names(counts)
    assert find_thresholds(counts, counts, named, "demographic parity").notes
    assert not find_thresholds(counts, counts, named, "demographic parity", least=9).notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bound": -0.1}, r"bound must be in \[0, 1\]"),
        ({"bound": math.nan}, "bound must be"),
        ({"notion": "fairness"}, 'notion must be "demographic parity"'),
        ({"notion": "predictive parity"}, "notion must be"),
        ({"by": "team"}, 'by must be "group" or "client"'),
        ({"common": "yes"}, "common must be true or false, got 'yes'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_thresholds(SEPARATED, SEPARATED, ["a", "b"], **options)


def test_wrong_shapes_groups_and_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="histograms must be"):
        find_thresholds(SEPARATED, SEPARATED[:1], ["a", "b"])
    found = found_in(SEPARATED, "demographic parity")
    for scores, of, message in (
        ([0.5], None, "differ by group: give the group"),
        ([0.5], ["g7"], "unknown group 'g7'"),
        ([0.5], [2], "codes of a group go from 0 to 1"),
        ([0.5], ["g0", "g1"], "one group for each of 1 samples"),
        ([1.5], ["g0"], "probabilities between 0 and 1"),
        ([[0.5]], ["g0"], "one number per sample"),
    ):
        with pytest.raises(ValueError, match=message):
            found.probabilities(scores, of)
    common = dataclasses.replace(found, common=True)
    assert common.probabilities([0.9]).tolist() == [0.5]


def test_names_of_notions() -> None:
    assert notion_of("Equalized-odds") == "equalised odds"
    assert notion_of("false_positive_parity") == "false-positive parity"
