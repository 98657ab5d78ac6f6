"""Numbers, verdicts and ranks of records made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evenhand.benchmarking.standing import GROUP, ranked, standing, verdict
from evenhand.benchmarking.summary import answer, scores
from evenhand.metrics.together import Estimate
from tests.support.benchmarks import by_hand, shares

SEEDS = range(5)


def flat(method: str, *accuracies: float, **changes: object):  # type: ignore[no-untyped-def]
    """A method with these accuracies of four clients, a little apart between seeds."""
    jitter = [0.0, 0.005, -0.005, 0.0025, -0.0025]
    right = {seed: shares(*(a + jitter[seed] for a in accuracies)) for seed in SEEDS}
    return by_hand(method, right, **changes)  # type: ignore[arg-type]


RECORDS = [
    flat("fedavg", 0.5, 0.7, 0.7, 0.9, groups=[0, 0, 1, 1]),
    flat("afl", 0.8, 0.8, 0.7, 0.7, groups=[0, 0, 1, 1], seconds=2.0, up=30.0),
    flat("qffl", 0.5, 0.7, 0.7, 0.9, groups=[0, 0, 1, 1]),
    flat("term", 0.2, 0.3, 0.7, 0.9, groups=[0, 0, 1, 1]),
    flat("localonly", 0.6, 0.6, 0.6, 0.6, groups=[0, 0, 1, 1], personal=True),
]


def test_numbers_are_those_of_the_clients_and_groups() -> None:
    found = standing(RECORDS)
    row = found.rows["fedavg"]
    assert row["mean"].value == pytest.approx(0.7)
    assert row["worst10"].value == row["min"].value == pytest.approx(0.5)
    assert row["std"].value == pytest.approx(np.std([0.5, 0.7, 0.7, 0.9]), abs=1e-6)
    assert row[GROUP].value == pytest.approx(0.6)  # (0.5 + 0.7) / 2 against (0.7 + 0.9) / 2
    for interval in row.values():
        assert interval.low <= interval.value <= interval.high or interval.high < 0.2


def test_gains_over_fedavg_have_the_sign_of_better() -> None:
    found = standing(RECORDS)
    assert set(found.to_fedavg) == {"afl", "qffl", "term", "localonly"}
    verdicts = {
        label: {name: one.verdict for name, one in row.items()}
        for label, row in found.to_fedavg.items()
    }
    assert verdicts["afl"] == {"mean": 1, "worst10": 1, "min": 1, "std": 1, GROUP: 1}
    assert set(verdicts["qffl"].values()) == {0}
    assert verdicts["term"]["worst10"] == verdicts["term"]["mean"] == -1
    assert found.to_fedavg["afl"]["std"].interval.value > 0  # a smaller spread is a gain
    assert found.to_fedavg["afl"]["worst10"].interval.value == pytest.approx(0.2)
    assert found.to_alone["afl"]["mean"].verdict == 1
    for row in found.to_fedavg.values():
        for one in row.values():  # significant exactly where the interval excludes 0
            assert (one.interval.low > 0) == (one.verdict > 0)
            assert (one.interval.high < 0) == (one.verdict < 0)


def test_methods_that_are_not_shown_to_differ_share_a_rank() -> None:
    ranks = standing(RECORDS).ranks
    assert ranks["worst10"] == {"fedavg": 3, "afl": 1, "qffl": 3, "term": 5, "localonly": 2}
    assert ranks["mean"] == {"fedavg": 2, "afl": 1, "qffl": 2, "term": 5, "localonly": 4}


def test_a_rank_counts_the_methods_that_are_better_even_where_ties_do_not_chain() -> None:
    # a is not shown to differ from b, nor b from c, but a is better than c
    assert ranked({"a": [], "b": [], "c": ["a"], "d": ["a", "b", "c"]}) == {
        "a": 1,
        "b": 1,
        "c": 2,
        "d": 4,
    }


def test_a_difference_is_significant_below_the_corrected_level() -> None:
    estimate = Estimate(0.1, 0.1, 0.1 / 2.5)  # z = 2.5, p = 0.0124
    assert verdict(estimate, 1, 0.05 / 4) == 1
    assert verdict(estimate, 1, 0.05 / 5) == 0
    assert verdict(estimate, -1, 0.05 / 4) == -1
    assert verdict(estimate._replace(error=math.nan), 1, 0.05) == 0


def test_scores_count_wins_ties_and_losses_and_costs() -> None:
    found = {score.label: score for score in scores([standing(RECORDS)])}
    assert found["afl"].counts["worst10"] == (1, 0, 0)
    assert found["qffl"].counts["worst10"] == (0, 1, 0)
    assert found["term"].counts["worst10"] == (0, 0, 1)
    assert found["afl"].seconds == pytest.approx(2.0)
    assert found["afl"].numbers == pytest.approx((10 + 30) / 20)
    assert found["afl"].beats()
    assert not found["qffl"].beats()
    assert next(iter(found)) == "afl"


def test_costs_over_federations_are_geometric_means_and_of_one_machine() -> None:
    others = [
        flat("fedavg", 0.5, 0.7, 0.7, 0.9),
        flat("afl", 0.8, 0.8, 0.7, 0.7, seconds=8.0),
    ]
    elsewhere = [others[0], flat("afl", 0.8, 0.8, 0.7, 0.7, seconds=500.0, machine="there")]
    found = scores([standing(RECORDS), standing(others), standing(elsewhere)])
    afl = next(score for score in found if score.label == "afl")
    assert afl.seconds == pytest.approx(4.0)  # of 2 and 8
    assert afl.counts["worst10"] == (3, 0, 0)
    assert afl.counts[GROUP] == (1, 0, 0)


def test_the_answer_names_what_helps_and_what_does_not() -> None:
    words = answer([standing(RECORDS)])
    assert words[0] == (
        "With one shared model, afl lifts the worst 10 % of clients above a tuned FedAvg most often:"
        " on 1 of 1 federation."
    )
    assert any(
        "No significant gain over a tuned FedAvg" in one and "qffl" in one and "term" in one
        for one in words
    )
    assert any("lower the mean" in one and "term (1)" in one for one in words)
    assert words[-1] == "Local-only training is better than FedAvg for the worst 10 % on hand."


def test_a_method_that_diverged_counts_nowhere() -> None:
    found = standing([*RECORDS[:2], flat("gifair", *[0.9] * 4, groups=[0, 0, 1, 1], diverged=(0,))])
    assert found.diverged == ("gifair",)
    assert "gifair" not in found.ranks["worst10"]
    score = next(one for one in scores([found]) if one.label == "gifair")
    assert (score.federations, score.diverged, score.beats()) == (0, 1, False)
