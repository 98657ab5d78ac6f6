"""Measures as means over samples: against scikit-learn, DeLong's formula and the bootstrap."""

import numpy as np
import pytest
from sklearn import metrics

from evenhand.metrics import influence
from evenhand.metrics.influence import Judgement


def drawn(n=600, classes=2, cells=3, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.choice(classes, n, p=np.r_[0.7, np.full(classes - 1, 0.3 / (classes - 1))])
    score = np.clip(rng.normal(0.35 + 0.2 * (label == 1), 0.2), 0, 1).round(2)  # with ties
    prediction = np.where(rng.random(n) < 0.75, label, rng.integers(0, classes, n))
    return Judgement(label, prediction, score), rng.integers(0, cells, n)


@pytest.mark.parametrize("classes", [2, 4])
def test_means_over_a_cell_are_scikit_learns(classes):
    judged, cell = drawn(classes=classes)
    balanced = influence.balanced_accuracy(judged, cell, 3)
    macro = influence.precision(judged, cell, 3, None)
    of_one = influence.precision(judged, cell, 3, 1)
    found, rows = influence.of_class(judged, 1)
    spared, others = influence.of_class(judged, 1, negatives=True)
    for place in range(3):
        mine = cell == place
        y, p = judged.label[mine], judged.prediction[mine]
        assert balanced[mine].mean() == pytest.approx(metrics.balanced_accuracy_score(y, p))
        assert macro[mine].mean() == pytest.approx(
            metrics.precision_score(y, p, labels=np.unique(y), average="macro", zero_division=0)
        )
        assert of_one[mine].mean() == pytest.approx(
            metrics.precision_score(y == 1, p == 1, zero_division=0)
        )
        assert found[cell[rows] == place].mean() == pytest.approx(
            metrics.recall_score(y == 1, p == 1)
        )
        assert spared[cell[others] == place].mean() == pytest.approx(
            metrics.recall_score(y != 1, p != 1)
        )


def test_auc_is_scikit_learns_and_its_variance_delongs():
    judged, cell = drawn()
    values = influence.auc(judged, cell, 3)
    for place in range(3):
        mine = cell == place
        y, s = judged.label[mine], judged.score[mine]
        assert values[mine].mean() == pytest.approx(metrics.roc_auc_score(y, s))
        above = (s[y == 1][:, None] > s[y == 0]) + 0.5 * (s[y == 1][:, None] == s[y == 0])
        delong = above.mean(1).var() / (y == 1).sum() + above.mean(0).var() / (y == 0).sum()
        assert values[mine].var() / mine.sum() == pytest.approx(delong)


@pytest.mark.parametrize(
    "measure",
    [
        lambda judged, cell: influence.balanced_accuracy(judged, cell, 1),
        lambda judged, cell: influence.precision(judged, cell, 1, 1),
        lambda judged, cell: influence.auc(judged, cell, 1),
    ],
    ids=["balanced accuracy", "precision", "auc"],
)
def test_the_variance_is_that_of_the_bootstrap(measure):
    judged, _ = drawn(n=800, seed=1)
    cell, rng = np.zeros(800, np.int64), np.random.default_rng(2)
    error = measure(judged, cell).std() / np.sqrt(800)
    again = [measure(judged.at(rows), cell).mean() for rows in rng.integers(0, 800, (400, 800))]
    assert np.std(again) == pytest.approx(error, rel=0.12)


def test_a_cell_that_has_nothing_to_judge_by_is_not_a_number():
    judged = Judgement(
        np.array([1, 1, 0, 1]), np.array([1, 1, 0, 0]), np.array([0.9, 0.8, 0.1, 0.4])
    )
    cell = np.array([0, 0, 1, 1])
    assert np.isnan(influence.auc(judged, cell, 2)[:2]).all()  # no negatives
    assert influence.auc(judged, cell, 2)[2:].mean() == 1
    assert np.isnan(influence.precision(judged, cell, 2, 1)[2:]).all()  # never predicted
    # a class that is never predicted has precision 0 in the mean: (1/2 + 0) / 2
    assert influence.precision(judged, cell, 2, None)[2:].mean() == pytest.approx(0.25)
