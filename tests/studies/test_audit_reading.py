"""What an audit reads: labels in several spellings, scores, weights, groups, and questions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

import evenhand as eh
from evenhand.errors import DataError
from evenhand.studies.audits.counting import count_predictions, read_counts
from evenhand.studies.audits.matching import find_label, match

Call = Callable[..., tuple[int, str, str]]

TRUTH = [True, True, False, False, True]
SPELLINGS = {
    "bool": [True, False],
    "number": [1, 0],
    "float": [1.0, 0.0],
    "text": ["1.0", "0.0"],
    "lower": ["true", "false"],
    "yes": ["yes", "no"],
    "capital": ["Yes", "No"],
    "letter": ["t", "f"],
}


def spelt(values: list[bool], spelling: str) -> list[object]:
    yes, no = SPELLINGS[spelling]
    return [yes if value else no for value in values]


@pytest.mark.parametrize("prediction", SPELLINGS)
@pytest.mark.parametrize("label", SPELLINGS)
def test_booleans_are_two_labels_however_they_are_spelt(label: str, prediction: str) -> None:
    guess = [True, False, False, True, True]
    table = pd.DataFrame({"y": spelt(TRUTH, label), "p": spelt(guess, prediction)})
    counts = count_predictions(table, "y", "p")
    assert len(counts.labels) == 2
    assert counts.table[0, 0].tolist() == [[1, 1, 0], [1, 2, 0]]  # the positive label is last
    assert eh.audit(table, "y", "p").code == 1


def test_booleans_of_several_spellings_in_one_column_are_two_labels(call: Call) -> None:
    table = pd.DataFrame({"y": ["True", "1", "no", "0", "yes"], "p": [1, 1, 0, 0, 1]})
    assert count_predictions(table, "y", "p").table[0, 0].tolist() == [[2, 0, 0], [0, 3, 0]]
    table.to_csv("p.csv", index=False)
    code, out, _ = call("audit", "p.csv", "--label", "y", "--prediction", "p")
    assert code == 0
    assert "Accuracy is 100.0 %" in out


def test_labels_are_named_as_the_label_column_names_them() -> None:
    assert match(["False", "True"], ["0", "1"], "y", "p").names == ("False", "True")
    assert match(["1"], ["0", "1"], "y", "p").names == ("0", "1")
    assert match(["Dog", "cat"], ["dog", "CAT"], "y", "p") == (("Dog", "cat"), [0, 1], [0, 1])
    assert match(["1", "2", "3"], ["2.0", "1.0"], "y", "p").of_guess == [1, 0]
    # labels that differ in case alone stay apart where predictions tell them apart
    assert match(["A", "a"], ["a", "A"], "y", "p").names == ("A", "a")


def test_labels_without_a_match_are_shown(call: Call) -> None:
    pd.DataFrame({"y": ["a", "b"] * 3, "p": [0, 1] * 3}).to_csv("p.csv", index=False)
    code, out, err = call("audit", "p.csv", "--label", "y", "--prediction", "p")
    assert (code, out) == (1, "")
    assert err == (
        "evenhand: 'y' and 'p' have no value in common: y has a, b, p has 0, 1; use the same values"
        ' in both, or a condition such as "p == 1"\n'
    )
    code, out, _ = call("audit", "p.csv", "--label", "y", "--prediction", "p == 1")
    assert code == 0
    assert "Accuracy is 100.0 %" in out


def test_a_condition_as_label_matches_booleans() -> None:
    table = pd.DataFrame({"income": [10, 60, 70, 20], "p": [False, True, False, False]})
    counts = count_predictions(table, "income > 50", "p")
    assert counts.labels == ("income <= 50", "income > 50")
    assert counts.table[0, 0].tolist() == [[2, 0, 0], [1, 1, 0]]


def test_counts_match_spellings_too_and_may_have_an_empty_group() -> None:
    table = pd.DataFrame(
        {"label": [True, True, False], "prediction": [1, 0, 0], "count": [3, 2, 4]}
    )
    assert read_counts(table).table[0, 0].tolist() == [[4, 0, 0], [2, 3, 0]]
    assert read_counts(table.assign(group="")).table.tolist() == read_counts(table).table.tolist()


def test_the_positive_label_may_be_spelt_in_another_way() -> None:
    assert find_label("1", ("False", "True")) == "True"
    assert find_label("NO", ("no", "yes")) == "no"
    assert find_label("2.0", ("1", "2")) == "2"
    with pytest.raises(ValueError, match="unknown label 'maybe'; choose from no, yes"):
        find_label("maybe", ("no", "yes"))
    table = pd.DataFrame({"y": TRUTH, "p": TRUTH})
    assert eh.audit(table, "y", "p", positive="0").label == "False"


def test_a_prediction_that_is_a_score_is_asked_about(call: Call) -> None:
    table = pd.DataFrame({"y": ["no", "yes"] * 60, "pred": np.linspace(0.013, 0.987, 120)})
    table.to_csv("p.csv", index=False)
    code, out, err = call("audit", "p.csv", "--label", "y", "--prediction", "pred")
    assert (code, out) == (1, "")
    assert err == (
        "evenhand: 'pred' looks like a score (values 0.013 to 0.987); pass --score pred, and"
        " --threshold if it is not 0.5\n"
    )
    assert call("audit", "p.csv", "--label", "y", "--score", "pred")[0] == 0


def test_numbers_that_are_no_labels_are_asked_about() -> None:
    table = pd.DataFrame({"y": [0, 1] * 10, "p": np.linspace(-3, 4, 20)})
    with pytest.raises(DataError) as found:
        count_predictions(table, "y", "p")
    assert str(found.value) == (
        "'p' holds numbers that are not labels (values -3 to 4; labels 0, 1); pass --score p"
        ' --threshold T, or a condition such as "p >= 0.5"'
    )
    with pytest.raises(DataError, match="'p' holds numbers that are not labels"):
        count_predictions(pd.DataFrame({"y": [0, 1] * 10, "p": range(20)}), "y", "p")
    # classes that never occur are classes of their own
    assert len(count_predictions(pd.DataFrame({"y": [0, 1], "p": [1, 2]}), "y", "p").labels) == 3


def test_texts_that_are_no_labels_are_refused() -> None:
    table = pd.DataFrame({"y": ["a", "b"] * 40, "p": [f"text {i}" for i in range(80)]})
    with pytest.raises(DataError, match="'p' holds 80 values that are not among the labels"):
        count_predictions(table, "y", "p")


def test_a_continuous_label_gets_a_question(call: Call) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"income": rng.gamma(2, 20, 99).round(2), "p": rng.integers(0, 2, 99)})
    table.to_csv("p.csv", index=False)
    code, _, err = call("audit", "p.csv", "--label", "income", "--prediction", "p")
    assert code == 1
    low, high, middle = (f"{value:.4g}" for value in table["income"].quantile([0, 1, 0.5]))
    assert err.startswith("evenhand: 'income' looks continuous (")
    assert err.endswith(
        f' different numbers from {low} to {high}); use a condition such as "income >= {middle}"\n'
    )
    assert call("audit", "p.csv", "--label", "income > 40", "--prediction", "p")[0] == 0


def test_many_texts_are_no_label() -> None:
    table = pd.DataFrame({"y": [f"word{i:03}" for i in range(60)], "p": 0})
    with pytest.raises(DataError, match=r"'y' has 60 different values \(word000, .* and 54 more\)"):
        count_predictions(table, "y", "p")


def test_a_score_makes_predictions_from_a_threshold_on() -> None:
    table = pd.DataFrame({"y": [0, 0, 1, 1, 1], "s": [0.2, 0.5, 0.49, 0.9, math.nan]})
    judged = eh.audit(table, "y", score="s")
    assert judged.counts.table[0, 0].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert "1 predicted for scores of 0.5 or more" in str(judged)
    lower = eh.audit(table, "y", score="s", threshold=0.3)
    assert lower.counts.table[0, 0].tolist() == [[1, 1, 0], [0, 2, 1]]
    # the score is one of label 0
    other = eh.audit(pd.DataFrame({"y": [0, 1], "s": [0.9, 0.1]}), "y", score="s", positive="0")
    assert (other.code, other.counts.table[0, 0].tolist()) == (0, [[1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"score": "deciles"}, "'deciles' ranges from 1 to 10, so 0.5 is no natural threshold"),
        ({"score": "s", "prediction": "p", "threshold": 0.4}, "leave out prediction"),
        ({"prediction": "p", "threshold": 0.4}, "a threshold needs a score"),
        ({"prediction": "p", "weight": "w"}, "row 2: weight w is -1; it must be >= 0"),
        ({"prediction": "p", "weight": "zero"}, "all weights of zero are 0"),
        ({"prediction": "p", "weight": "v", "over": "clients"}, "leave out over='clients'"),
        ({"prediction": "p", "group": "g", "reference": "Male"}, "did you mean 'male'"),
        ({}, "give label and prediction"),
    ],
)
def test_a_slip_is_explained(columns: dict[str, object], words: str) -> None:
    table = pd.DataFrame(
        {
            "y": [0, 1, 1],
            "p": [0, 1, 0],
            "s": [0.1, 0.8, 0.4],
            "deciles": [1, 10, 4],
            "w": [1, -1, 2],
            "v": [1, 2, 3],
            "zero": 0,
            "g": ["male", "female", "male"],
        }
    )
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        eh.audit(table, "y", **columns)


def test_scores_need_two_labels_and_rows() -> None:
    table = pd.DataFrame({"y": ["a", "b", "c"], "s": [0.1, 0.2, 0.3]})
    with pytest.raises(DataError, match=r"a score needs two labels, but 'y' has 3 \(a, b, c\)"):
        eh.audit(table, "y", score="s")
    assert eh.audit(pd.DataFrame({"y": [1, 1], "s": [0.1, 0.9]}), "y", score="s").counts.labels == (
        "0",
        "1",
    )
    counts = pd.DataFrame({"label": [0], "prediction": [0], "count": [1]})
    with pytest.raises(ValueError, match="score and weight need one row per sample"):
        eh.audit(counts, counts=True, weight="w")


def test_thresholds_are_numbers(call: Call) -> None:
    pd.DataFrame({"y": [0, 1], "s": [0.1, 0.9]}).to_csv("p.csv", index=False)
    arguments = ("audit", "p.csv", "--label", "y", "--score", "s", "--thresholds")
    code, _, err = call(*arguments, "0.3,half")
    assert (code, err) == (
        1,
        "evenhand: --thresholds takes numbers separated by commas, such as 0.3,0.5, got '0.3,half'\n",
    )
    assert call(*arguments, "0.3,0.5")[0] == 0
