"""The numbers that papers print, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenhand.errors import SpecError
from evenhand.papers.numbers import heading, numbers_of, unit_of
from evenhand.studies.runs.trial import Trial
from evenhand.studies.specs.method import Method

# three clients with 10, 30 and 60 test samples, two teams, two groups
COLUMNS = {
    "by": ["client", "client", "client", "group", "group"],
    "name": ["T-shirt/top", "b", "c", "young", "old"],
    "team": ["north", "south", "north", "", ""],
    "count": [10, 30, 60, 50, 50],
    "train_count": [70, 210, 420, 350, 350],
    "accuracy": [0.9, 0.5, 0.7, 0.6, 0.8],
    "loss": [0.1, 0.2, 0.3, 0.45, 0.31],
}
VALIDATION = {**COLUMNS, "count": [5, 15, 30, 25, 25]}
TRIAL = Trial(Method("fedavg", "fedavg"), 0, Path(), COLUMNS, {}, VALIDATION)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("mean", 70.0),
        ("pooled", 66.0),  # (9 + 15 + 42) / 100
        ("worst10", 50.0),
        ("best10", 90.0),
        ("worst", 50.0),
        ("best", 90.0),
        ("variance", 800 / 3),  # (400 + 400 + 0) / 3
        ("std", (800 / 3) ** 0.5),
        ("client:T-shirt/top", 90.0),
        ("team:north", 80.0),  # not pooled, which would be 72.9
        ("team:south", 50.0),
        ("team gap", 30.0),
        ("team variance", 225.0),
        ("clients:north", 2.0),
        ("images:north", (85 + 510) / 2),  # (70 + 10 + 5 and 420 + 60 + 30) / 2
        ("risk:young", 0.45),
        ("risk:worst", 0.45),
        ("risk:best", 0.31),
    ],
)
def test_a_number_is_what_its_name_says(metric: str, value: float) -> None:
    assert numbers_of(TRIAL, [metric])[metric] == pytest.approx(value)


def test_units_and_headings() -> None:
    assert [unit_of(name) for name in ("mean", "variance", "team variance", "risk:a")] == [
        "%",
        "%²",
        "%²",
        "Brier",
    ]
    assert heading("team:male") == "male"


@pytest.mark.parametrize("metric", ["client:nobody", "team:west", "median"])
def test_an_unknown_name_is_an_error_that_names_what_there_is(metric: str) -> None:
    with pytest.raises(SpecError, match=r"b, c|north, south"):
        numbers_of(TRIAL, [metric])
