"""Settings that a paper does not state are chosen on validation data, by the rule of the row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from evenhand.papers.choosing import choose
from evenhand.papers.experiment import Row
from evenhand.papers.running import points_of
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trial import Trial
from evenhand.studies.specs.method import Method

# accuracies of two clients on validation data; on test data, which must not matter, the reverse
Scores = dict[str, Sequence[float]]


def trial(label: str, seed: int, accuracy: Sequence[float], loss: float) -> Trial:
    def columns(values: Sequence[float]) -> dict[str, Any]:
        return {
            "by": ["client", "client", "group", "group"],
            "name": ["a", "b", "x", "y"],
            "team": [""] * 4,
            "count": [5] * 4,
            "accuracy": [*values, 0.5, 0.5],
            "loss": [loss, loss, loss / 2, loss],
        }

    test = [1 - value for value in accuracy]
    method = Method("qffl", label)
    return Trial(method, seed, Path(), columns(test), {}, columns(accuracy))


def chosen(rule: str, scores: Scores, losses: dict[str, float] | None = None) -> str:
    row = Row("q-FFL", {"name": "qffl", "label": "q-FFL"}, {"q": [0.1, 1, 5]}, rule)
    return choose(study(scores, losses), [(row, points_of(row))])["q-FFL"].label


def study(scores: Scores, losses: dict[str, float] | None = None) -> Study:
    found = {
        (label, seed): trial(label, seed, values, (losses or {}).get(label, 1.0))
        for label, values in scores.items()
        for seed in (0, 1)
    }
    return cast(Study, SimpleNamespace(labels=tuple(scores), seeds=(0, 1), trials=found))


SCORES: Scores = {
    "q-FFL q=0.1": (0.4, 0.9),  # the best mean
    "q-FFL q=1": (0.45, 0.7),  # the best worst client
    "q-FFL q=5": (0.4, 0.45),  # the most even
}


@pytest.mark.parametrize(
    ("rule", "best"),
    [("", 0.1), ("mean", 0.1), ("min", 1), ("worst10", 1), ("std", 5)],
)
def test_the_best_on_validation_data_is_chosen(rule: str, best: float) -> None:
    assert chosen(rule, SCORES) == f"q-FFL q={best}"


@pytest.mark.parametrize("rule", ["loss", "group"])
def test_the_smallest_loss_is_chosen(rule: str) -> None:
    losses = {"q-FFL q=0.1": 0.9, "q-FFL q=1": 0.8, "q-FFL q=5": 0.3}
    assert chosen(rule, SCORES, losses) == "q-FFL q=5"


def test_ties_are_broken_by_the_loss() -> None:
    even: Scores = dict.fromkeys(SCORES, (0.5, 0.5))
    assert chosen("mean", even, {"q-FFL q=1": 0.5}) == "q-FFL q=1"


def test_a_setting_that_diverged_is_not_chosen() -> None:
    left = {label: values for label, values in SCORES.items() if label != "q-FFL q=0.1"}
    assert chosen("mean", left) == "q-FFL q=1"
    assert chosen("mean", {**SCORES, "q-FFL q=0.1": (float("nan"), 1.0)}) == "q-FFL q=1"
    assert chosen("mean", {}) == ""


def test_the_rule_of_qffl_keeps_fedavgs_mean() -> None:
    """The smallest variance among settings whose mean is not below FedAvg's; the best mean where
    there is none."""
    average = Row("FedAvg", {"name": "fedavg", "label": "FedAvg"}, {"local.lr": [0.1, 1]})
    fair = Row("q-FFL", {"name": "qffl", "label": "q-FFL"}, {"q": [0.1, 1, 5]}, "qffl")
    rows = [(row, points_of(row)) for row in (average, fair)]

    def q(mean: float) -> str:
        fedavg: Scores = {"FedAvg local.lr=0.1": (mean, mean), "FedAvg local.lr=1": (0.0, 0.0)}
        return choose(study({**fedavg, **SCORES}), rows)["q-FFL"].label

    assert q(0.42) == "q-FFL q=5"  # mean .425
    assert q(0.5) == "q-FFL q=1"  # mean .575
    assert q(0.7) == "q-FFL q=0.1"  # none: the best mean

    single = Row("FedAvg", {"name": "fedavg", "label": "FedAvg", "local": {"lr": 0.1}})
    known = [(single, points_of(single)), rows[1]]
    found = choose(study({"FedAvg": (0.5, 0.5), **SCORES}), known)
    assert found["q-FFL"].label == "q-FFL q=1"  # FedAvg counts also where nothing of it is chosen


def test_values_at_the_edge_of_a_grid_are_named() -> None:
    row = Row("q-FFL", {"name": "qffl", "label": "q-FFL"}, {"q": [0.1, 1, 5]}, "mean")
    choice = choose(study(SCORES), [(row, points_of(row))])["q-FFL"]
    assert (dict(choice.settings), choice.edges) == ({"q": 0.1}, ("q",))
    middle = choose(study(SCORES), [(Row(row.label, row.method, row.grid, "min"), points_of(row))])
    assert middle["q-FFL"].edges == ()
