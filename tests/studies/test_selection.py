"""Choosing a point of a sweep, its grid, and the front."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.errors import SpecError
from evenhand.studies.specs.grid import grid_points, parse_axis
from evenhand.studies.specs.measure import error_measure
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.selection import RULES, Selection, dominated, numbers, off_the_front

# accuracies of four clients with one seed; in percent, mean and variance are
MERITS = {
    "fedavg": [[0.40, 0.80, 0.80, 1.00]],  # 75   475
    "low": [[0.60, 0.70, 0.70, 0.80]],  #     70    50
    "equal": [[0.60, 0.70, 0.80, 0.90]],  #   75   125
    "high": [[0.50, 0.80, 0.90, 1.00]],  #    80   350
    "wide": [[0.20, 1.00, 1.00, 1.00]],  #    80  1200
}


def chosen(
    rule: str, tolerance: float | None = None, merits: Mapping[str, Sequence[Any]] = MERITS
) -> str:
    return Selection(rule, tolerance).choose(numbers(merits), "fedavg").label


def test_numbers_over_clients_by_hand() -> None:
    found = numbers(MERITS)["fedavg"]
    expected = {
        "mean": 0.75,
        "worst10": 0.4,
        "min": 0.4,
        "std": math.sqrt(0.0475),
        "variance": 0.0475,
    }
    assert found == pytest.approx(expected)


def test_numbers_are_taken_over_clients_first_and_then_averaged_over_seeds() -> None:
    found = numbers({"a": [[0.0, 1.0], [1.0, 0.0], [0.2, 0.4]]})["a"]
    assert found["min"] == pytest.approx((0 + 0 + 0.2) / 3)
    assert found["variance"] == pytest.approx((0.25 + 0.25 + 0.01) / 3)
    assert found["std"] == pytest.approx((0.5 + 0.5 + 0.1) / 3)


def test_the_rule_of_q_ffl_takes_the_smallest_variance_among_points_whose_mean_is_not_below_fedavgs() -> (
    None
):
    choice = Selection("qffl").choose(numbers(MERITS), "fedavg")
    # "low" has the smallest variance, but costs accuracy; "wide" has more of both
    assert choice == ("equal", ("equal", "high"))


def test_the_rule_of_q_ffl_keeps_fedavg_where_no_point_qualifies_and_says_so() -> None:
    points = numbers({name: MERITS[name] for name in ("fedavg", "low", "wide")})
    rule = Selection("qffl")
    choice = rule.choose(points, "fedavg")
    assert choice == ("fedavg", ())
    assert (
        rule.reason(choice, points, "fedavg")
        == "fedavg is kept: no point whose mean accuracy is not below FedAvg's (75.0 %) has a"
        " smaller variance over clients (FedAvg: 475.0)."
    )


def test_a_mean_that_differs_from_fedavgs_in_the_last_bit_is_not_below_it() -> None:
    fedavg, even = [0.2, 0.4, 0.3], [0.3, 0.3, 0.3]
    assert np.mean(even) < np.mean(fedavg)
    assert chosen("qffl", merits={"fedavg": [fedavg], "even": [even]}) == "even"
    # no drop of the variance
    assert chosen("qffl", merits={"fedavg": [fedavg], "shuffled": [fedavg[::-1]]}) == "fedavg"


@pytest.mark.parametrize(
    ("rule", "tolerance", "label"),
    [
        ("worst10", None, "equal"),  # 60, as "low", but with the larger mean
        ("worst10", 0.0, "equal"),
        ("min", None, "equal"),
        ("std", None, "low"),
        ("std", 4.9, "equal"),  # low is 5 points below FedAvg
        ("std", 5.0, "low"),
        ("mean", None, "high"),  # as "wide", which stands behind it
        ("qffl", 5.0, "low"),
        ("qffl", 4.9, "equal"),
    ],
)
def test_rules_by_hand(rule: str, tolerance: float | None, label: str) -> None:
    assert chosen(rule, tolerance) == label


def test_of_equal_points_the_one_that_stands_first_is_taken_and_fedavg_stands_first() -> None:
    same = {"fedavg": [[0.5, 0.7]], "a": [[0.7, 0.5]], "b": [[0.5, 0.7]]}
    for rule in RULES:
        assert chosen(rule, merits=same) == "fedavg"
    better = {"fedavg": [[0.5, 0.6]], "b": [[0.7, 0.7]], "a": [[0.7, 0.7]]}
    for rule in RULES:
        assert chosen(rule, merits=better) == "b"


def test_a_point_that_diverged_is_never_chosen_and_a_client_without_validation_data_counts_nowhere() -> (
    None
):
    none = math.nan
    merits = {
        "fedavg": [[0.4, 0.8, none]],
        "lost": [[none, 0.99, none]],
        "gone": [[-math.inf, 0.9, none]],
        "good": [[0.5, 0.8, none]],
    }
    points = numbers(merits)
    assert points["fedavg"]["mean"] == pytest.approx(0.6)
    assert all(math.isnan(value) for label in ("lost", "gone") for value in points[label].values())
    for rule in RULES:
        assert chosen(rule, merits=merits) == "good"
    with pytest.raises(ValueError, match="fedavg has no finite scores on validation data"):
        chosen("mean", merits={"fedavg": [[none, 0.8]], "good": [[0.5, 0.8]]})


def test_errors_of_a_regression_are_judged_the_same_way_and_named_as_errors() -> None:
    measure = error_measure(10.0)  # one standard deviation is 10 units of the label
    merits = {"fedavg": [[-2.0, -1.0]], "even": [[-1.6, -1.4]], "worse": [[-1.56, -1.56]]}
    points = numbers(merits)
    rule = Selection("qffl")
    choice = rule.choose(points, "fedavg", measure)
    assert choice.label == "even"
    assert (
        rule.reason(choice, points, "fedavg", measure)
        == "even is chosen: of 1 point whose mean error is not above FedAvg's (15.00) and whose"
        " variance is below FedAvg's, it has the smallest variance over clients, 1.00 (FedAvg:"
        " 25.00)."
    )
    # 0.6 units of the label above
    assert Selection("std", tolerance=0.6).choose(points, "fedavg", measure).label == "worse"
    assert Selection("std", tolerance=0.5).choose(points, "fedavg", measure).label == "even"


def test_the_reason_names_the_rule_the_number_and_fedavgs() -> None:
    points = numbers(MERITS)
    rule = Selection("worst10", tolerance=1)
    assert (
        rule.reason(rule.choose(points, "fedavg"), points, "fedavg")
        == "equal is chosen: of 3 points whose mean accuracy is not more than 1 point below"
        " FedAvg's (75.0 %), it has the best mean accuracy of the worst 10 % of clients, 60.0 %"
        " (FedAvg: 40.0 %)."
    )
    rule = Selection("std")
    assert (
        rule.reason(rule.choose(points, "fedavg"), points, "fedavg")
        == "low is chosen: of 4 points, it has the smallest standard deviation of accuracy over"
        " clients, 7.1 (FedAvg: 21.8)."
    )
    few = {"fedavg": points["fedavg"], "low": points["low"]}
    for rule, reason in (
        (
            Selection("mean"),
            "fedavg is kept: no point has a better mean accuracy (FedAvg: 75.0 %).",
        ),
        (
            Selection("qffl"),
            "fedavg is kept: no point whose mean accuracy is not below FedAvg's (75.0 %) has a"
            " smaller variance over clients (FedAvg: 475.0).",
        ),
    ):
        assert rule.reason(rule.choose(few, "fedavg"), few, "fedavg") == reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "best"}, 'rule must be "qffl", .* or "mean", got \'best\''),
        ({"rule": "worst10", "tolerance": -1}, r"tolerance must be a finite number >= 0, got -1"),
        ({"rule": "worst10", "tolerance": math.nan}, r"tolerance must be"),
        (
            {"rule": "mean", "tolerance": 1},
            r'the rule "mean" takes the largest mean; leave out tolerance = 1',
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Selection(**settings)


# ---- the front


def by_hand(x: Sequence[float], y: Sequence[float]) -> list[bool]:
    """Every pair, one after the other."""
    found = [False] * len(x)
    for i, j in itertools.permutations(range(len(x)), 2):
        if x[j] >= x[i] and y[j] >= y[i] and (x[j] > x[i] or y[j] > y[i]):
            found[i] = True
    return found


few = st.integers(0, 4).map(float)  # few values, so that there are ties


@given(st.lists(st.tuples(few, few), max_size=12))
def test_dominated_points_are_those_that_a_look_at_every_pair_finds(
    points: list[tuple[float, float]],
) -> None:
    x, y = [a for a, _ in points], [b for _, b in points]
    assert dominated(x, y).tolist() == by_hand(x, y)


@given(st.lists(st.tuples(few, few), min_size=1, max_size=12))
def test_every_dominated_point_is_dominated_by_a_point_of_the_front(
    points: list[tuple[float, float]],
) -> None:
    x, y = (np.array(values) for values in zip(*points, strict=True))
    off = dominated(x, y)
    assert not off.all()
    for i in np.flatnonzero(off):
        assert any(
            x[j] >= x[i] and y[j] >= y[i] and (x[j], y[j]) != (x[i], y[i])
            for j in np.flatnonzero(~off)
        )


def test_equal_points_do_not_dominate_each_other_and_a_missing_number_compares_with_nothing() -> (
    None
):
    assert dominated([1, 1], [2, 2]).tolist() == [False, False]
    assert dominated([1, 2], [2, 2]).tolist() == [True, False]
    assert dominated([1, math.nan, 2], [1, 5, math.nan]).tolist() == [False, False, False]
    assert dominated([], []).tolist() == []


def test_points_off_the_front_depend_on_the_fairness_number() -> None:
    points = numbers(MERITS)
    assert off_the_front(points, "worst10") == {"fedavg", "low", "wide"}
    # "low" has the smallest spread: a small std is good
    assert off_the_front(points, "std") == {"fedavg", "wide"}


# ---- the grid


def points(methods: Sequence[dict[str, Any]], *axes: str) -> list[Method]:
    return grid_points(
        [Method.from_table(entry) for entry in methods], [parse_axis(text) for text in axes]
    )


def labels(methods: Sequence[dict[str, Any]], *axes: str) -> list[str]:
    return [point.label for point in points(methods, *axes)]


def test_several_axes_give_their_product_the_last_one_changing_fastest() -> None:
    found = points([{"name": "qffl", "local": {"epochs": 2}}], "q=0.1,1", "local.lr=0.05, 0.1")
    assert [(point.parameters, point.local) for point in found] == [
        ({"q": q}, {"epochs": 2, "lr": lr}) for q, lr in itertools.product((0.1, 1), (0.05, 0.1))
    ]
    assert [point.label for point in found] == [
        "qffl q=0.1 local.lr=0.05",
        "qffl q=0.1 local.lr=0.1",
        "qffl q=1 local.lr=0.05",
        "qffl q=1 local.lr=0.1",
    ]


def test_a_key_with_a_methods_name_is_for_that_method_alone_and_others_are_for_all() -> None:
    methods = [{"name": "qffl"}, {"name": "afl", "label": "mine"}]
    assert labels(methods, "qffl.q=1,2", "local.lr=0.1") == [
        "qffl q=1 local.lr=0.1",
        "qffl q=2 local.lr=0.1",
        "mine local.lr=0.1",
    ]
    assert labels(methods, "afl.lr_lambda=0.1,0.2") == [
        "qffl",
        "mine lr_lambda=0.1",
        "mine lr_lambda=0.2",
    ]


def test_wrapped_methods_have_a_grid_too() -> None:
    entry = {"name": "fedprox", "mu": 0.1, "inner": {"name": "qffl"}}
    found = points([entry], "inner.q=1,2")
    assert [point.parameters["inner"] for point in found] == [
        {"name": "qffl", "q": 1},
        {"name": "qffl", "q": 2},
    ]
    assert entry["inner"] == {"name": "qffl"}  # what was given stays as it was


def test_ranges_are_even_in_distance_or_ratio_and_rounded_to_what_labels_show() -> None:
    assert parse_axis("q=lin:0:1:5").values == (0, 0.25, 0.5, 0.75, 1)
    assert parse_axis("q=log:0.01:10:7").values == (0.01, 0.03162, 0.1, 0.3162, 1, 3.162, 10)
    assert parse_axis("local.batch_size=log:8:64:4").values == (8, 16, 32, 64)
    assert all(isinstance(value, int) for value in parse_axis("local.batch_size=log:8:64:4").values)
    assert parse_axis("t=lin:1:-1:3").values == (1, 0, -1)


def test_values_may_be_lists_texts_and_switches_and_labels_stay_plain_file_names() -> None:
    assert parse_axis("alpha=[0.1,0.2],[0.3,0.4]").values == ([0.1, 0.2], [0.3, 0.4])
    found = labels(
        [{"name": "fafl"}], "alpha=[0.1,0.2],0.5", "output=last,average", "x=true,1e-5", "y=a/b,-1"
    )
    assert found[0] == "fafl alpha=0.1-0.2 output=last x=True y=a-b"
    assert found[-1] == "fafl alpha=0.5 output=average x=1e-05 y=-1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q", "cannot read the grid 'q'; write KEY=VALUE,VALUE"),
        ("=1,2", "cannot read the grid '=1,2'"),
        ("q=", "the grid 'q=' has no values"),
        ("q=1,2,1", "the grid 'q=1,2,1' has 1 twice"),
        ("q=log:0:1:5", "must have ends above 0, got 0 and 1"),
        ("q=log:1:10", "cannot read the range in 'q=log:1:10'; write log:FROM:TO:COUNT"),
        ("q=lin:a:b:3", "cannot read the range"),
        ("q=lin:0:1:1", "must have 2 to 1000 values, got 1"),
        ("q=lin:0:1:2.5", "must have 2 to 1000 values, got 2.5"),
        ("q=lin:0:inf:3", "must have finite ends"),
        ("q=lin:1:1:3", "has 1 twice"),
        (
            "afl.lr=1",
            "begins with 'afl'; it may begin with local, inner or a method of the sweep .qffl.",
        ),
        ("name=a", "unknown keyword 'name'"),
        ("qffl.name=a", "unknown keyword 'name'"),
        ("k=1,2", "'k' is given twice"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        points([{"name": "qffl", "k": 3}], text)
    assert "\n" not in str(error.value)


def test_a_grid_of_very_many_points_is_refused() -> None:
    with pytest.raises(SpecError, match="more than 1000 points; take fewer values"):
        points([{"name": "qffl"}], *(f"{key}=lin:0:1:100" for key in "ab"))
