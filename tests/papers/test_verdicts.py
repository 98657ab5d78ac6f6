"""The rule by which a published number counts as reproduced."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from evenhand.papers.experiment import find_parts
from evenhand.papers.published import Published, published
from evenhand.papers.verdicts import NOT, ORDERING, SAME_DIGITS, WITHIN, compare, counted


def number(row: str, mean: float, std: float | None = 0.5, digits: int = 1) -> Published:
    return Published(row, "mean", mean, std, 5, "%", digits, "")


def verdicts(numbers: list[Published], ours: dict[str, list[float]]) -> list[str]:
    return [
        line.verdict
        for line in compare(numbers, {row: {"mean": seeds} for row, seeds in ours.items()})
    ]


def test_same_digits_are_those_that_the_paper_prints() -> None:
    assert verdicts([number("a", 87.3)], {"a": [87.34]}) == [SAME_DIGITS]
    assert verdicts([number("a", 87.3)], {"a": [87.26]}) == [SAME_DIGITS]
    assert verdicts([number("a", 87.3, 0.0)], {"a": [87.36]}) == [NOT]


def test_within_spreads_adds_both_standard_deviations() -> None:
    # ours: mean 90, standard deviation 1 (of the population); the paper's is 0.5
    ours = {"a": [89.0, 91.0]}
    assert verdicts([number("a", 88.5)], ours) == [WITHIN]  # 1.5 apart
    assert verdicts([number("a", 88.4)], ours) == [NOT]  # 1.6 apart
    # no published spread counts as 0
    assert verdicts([number("a", 88.9, None)], ours) == [NOT]
    assert verdicts([number("a", 89.1, None)], ours) == [WITHIN]


def test_runs_that_scatter_more_than_five_times_as_much_tell_nothing() -> None:
    # ours: mean 90, standard deviation 2.5 or 2.6; the paper's is 0.5
    assert verdicts([number("a", 89.0)], {"a": [87.5, 92.5]}) == [WITHIN]
    assert verdicts([number("a", 89.0)], {"a": [87.4, 92.6]}) == [NOT]
    assert verdicts([number("a", 90.0)], {"a": [87.4, 92.6]}) == [NOT]  # the same digits by chance
    # a published spread of 0 is one that the digits do not show: five units of the last one
    assert verdicts([number("a", 90.1, 0.0)], {"a": [89.6, 90.4]}) == [WITHIN]
    assert verdicts([number("a", 90.1, 0.0)], {"a": [89.4, 90.6]}) == [NOT]


def test_ordering_counts_rows_that_the_paper_sets_apart() -> None:
    numbers = [number("fedavg", 60.0), number("fair", 70.0), number("near", 70.5)]
    # 10 points lower, but fair is still above FedAvg; near is not set apart from fair
    ours = {"fedavg": [40.0], "fair": [55.0], "near": [50.0]}
    assert verdicts(numbers, ours) == [ORDERING, ORDERING, ORDERING]
    # fair below FedAvg: neither of the two keeps its place
    ours = {"fedavg": [40.0], "fair": [35.0], "near": [50.0]}
    assert verdicts(numbers, ours) == [NOT, NOT, ORDERING]


def test_an_ordering_that_the_paper_does_not_show_cannot_be_reproduced() -> None:
    numbers = [number("a", 60.0, 3.0), number("b", 61.0, 3.0)]
    assert verdicts(numbers, {"a": [20.0], "b": [30.0]}) == [NOT, NOT]


def test_rows_without_our_numbers_have_no_verdict() -> None:
    numbers = [number("a", 60.0), number("b", 80.0)]
    assert verdicts(numbers, {"a": [math.nan]}) == ["", ""]
    lines = compare(numbers, {"a": {"mean": [10.0]}})
    assert [line.verdict for line in lines] == [NOT, ""]  # b does not help a's ordering
    assert counted(lines) == {SAME_DIGITS: 0, WITHIN: 0, ORDERING: 0, NOT: 1, "": 1}


def test_the_interval_over_seeds_is_students() -> None:
    (line,) = compare([number("a", 1.0)], {"a": {"mean": [1.0, 2.0, 6.0]}})
    low, high = stats.t.interval(0.95, 2, loc=3.0, scale=stats.sem([1.0, 2.0, 6.0]))
    assert (line.low, line.high) == pytest.approx((max(0.0, low), high))
    assert line.mean == 3.0
    assert line.std == pytest.approx(math.sqrt(14 / 3))
    assert line.difference == 2.0
    (wide,) = compare([number("a", 1.0)], {"a": {"mean": [0.0, 100.0]}})
    assert (wide.low, wide.high) == (0.0, 100.0)
    (alone,) = compare([number("a", 1.0)], {"a": {"mean": [1.0]}})
    assert math.isnan(alone.low)


def test_published_numbers_are_read_as_printed() -> None:
    (esg,) = find_parts(["003-table1:esg"])
    numbers = {(one.row, one.metric): one for one in published(esg)}
    found = numbers["FedMinMax", "risk:worst"]
    assert (found.mean, found.std, found.unit, found.text) == (0.451, 0.0, "Brier", "0.451 ± 0.000")
    assert numbers["q-FedAvg q=0.2", "risk:best"].text == "0.220 ± 0.002"


def test_runs_that_are_too_small_are_not_judged() -> None:
    (line,) = compare([number("a", 87.3)], {"a": {"mean": [87.3]}}, "nothing")
    assert (line.mean, line.verdict) == (87.3, "")


def test_of_other_data_the_ordering_alone_is_judged() -> None:
    numbers = [number("a", 60.0), number("b", 70.0)]
    values = {"a": {"mean": [60.0]}, "b": {"mean": [80.0]}}
    assert [line.verdict for line in compare(numbers, values, "ordering")] == [ORDERING, ORDERING]
    values["b"]["mean"] = [50.0]
    assert [line.verdict for line in compare(numbers, values, "ordering")] == [NOT, NOT]
