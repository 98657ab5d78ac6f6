"""Fronts of the mean against a gap between groups: in Python, on the page and in a sweep."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from evenhand.metrics.uncertainty import Interval
from evenhand.page.panels import all_panels
from evenhand.studies.analysis.statistics import front, gap_front
from evenhand.studies.analysis.sweeping import Sweep
from evenhand.studies.findings import analyse
from evenhand.studies.runs.study import Study
from evenhand.studies.tables.sweeps import show_choice
from tests.support.studies import make_study, study_of


def three_methods() -> Study:
    """Two clients with both groups, all labels "yes". Right of 100 f and 100 m at each client:

    fedavg 90, 50 (mean 0.7, gap 0.4); qffl 66, 60 (0.63, 0.06); afl 70, 50 (0.6, 0.2).
    """
    client = np.repeat([0, 1], 200)
    group = np.tile(np.repeat([0, 1], 100), 2)

    def predicted(f: int, m: int) -> list[int]:
        one = [1] * f + [0] * (100 - f) + [1] * m + [0] * (100 - m)
        return one + one

    rows = {"fedavg": (90, 50), "qffl": (66, 60), "afl": (70, 50)}
    return study_of(
        {name: [predicted(*found)] for name, found in rows.items()},
        np.ones(400, np.int64),
        client,
        group,
        ("f", "m"),
    )


def test_a_front_against_a_gap_by_hand() -> None:
    points = {point.label: point for point in front(three_methods(), "equal opportunity")}
    assert {label: point.x for label, point in points.items()} == pytest.approx(
        {"fedavg": 0.7, "qffl": 0.63, "afl": 0.6}
    )
    assert {label: point.y for label, point in points.items()} == pytest.approx(
        {"fedavg": 0.4, "qffl": 0.06, "afl": 0.2}
    )
    # afl is below qffl in the mean and above it in the gap
    assert {label for label, point in points.items() if point.dominated} == {"afl"}


def test_the_same_methods_are_on_another_front_against_the_worst_client() -> None:
    points = front(three_methods(), "min")  # both clients are alike: the mean is all there is
    assert {point.label for point in points if not point.dominated} == {"fedavg"}


def test_an_unknown_gap_is_on_no_front_and_a_wrong_name_is_refused() -> None:
    points = gap_front({"a": 0.5, "b": 0.6}, {"a": Interval(0.1, 0.0, 0.2)})
    assert [point.dominated for point in points] == [False, False]
    assert np.isnan(points[1].y)
    with pytest.raises(ValueError, match="equal chances"):
        front(three_methods(), "equal chances")
    with pytest.raises(ValueError, match="known on test data, not on validation"):
        front(with_validation(three_methods()), "equal opportunity", "validation")


def test_the_page_has_a_front_for_every_gap_with_its_interval() -> None:
    findings = analyse(three_methods())
    panel = next(panel for panel in all_panels(findings) if panel.key == "front")
    variants = {variant.name: variant for variant in panel.variants}
    assert "worst client" in variants
    assert {"gap in true-positive rate", "gap in selection rate", "gap in accuracy"} <= set(
        variants
    )
    assert "gap in false-positive rate" not in variants  # there are no negatives
    found = variants["gap in true-positive rate"]
    edge, *methods = found.figure.data
    assert list(edge.x) == [63, 70]
    assert list(edge.y) == pytest.approx([6, 40])
    gap = findings.groups["group"]["fedavg"].gaps["equal opportunity"].interval
    first = next(trace for trace in methods if trace.name == "fedavg")
    assert first.error_y.array[0] == pytest.approx(100 * (gap.high - gap.value), abs=1e-3)
    assert first.error_y.arrayminus[0] == pytest.approx(100 * (gap.value - gap.low), abs=1e-3)
    assert found.figure.layout.yaxis.title.text == (
        "gap in true-positive rate between groups, points (\u2193\u00a0better)"
    )
    assert "Dominated: afl." in found.finding
    assert "40.0 [" in found.table


def test_without_groups_there_are_no_gaps_to_plot() -> None:
    for study in (make_study(groups=()), make_study(regression=True)):
        panel = next(panel for panel in all_panels(analyse(study)) if panel.key == "front")
        assert not any(variant.name.startswith("gap") for variant in panel.variants)


# ---- sweeps


def with_validation(study: Study, few: bool = False) -> Study:
    """Validation scores like the test scores, with recalls and specificities of groups by hand."""
    recall = {"fedavg": (0.9, 0.5), "qffl": (0.66, 0.6), "afl": (0.7, 0.5)}
    trials = {}
    for (label, seed), trial in study.trials.items():
        scores: dict[str, Any] = dict(trial.score_columns)
        scores["count"] = np.array([200, 200, 200, 9 if few else 200])
        scores["recall"] = np.array([0.6, 0.6, *recall[label]])
        scores["specificity"] = np.array([0.6, 0.6, 0.8, 0.75])
        trials[label, seed] = replace(trial, score_columns=scores, validation=scores)
    return replace(study, trials=trials)


def swept(study: Study) -> Sweep:
    return Sweep.of(study, replace(study.specs[0], select={"rule": "min"}))


def test_a_sweep_has_gaps_and_their_fronts_on_validation_data() -> None:
    sweep = swept(with_validation(three_methods()))
    assert sweep.gaps["validation"]["tpr_gap"] == pytest.approx(
        {"fedavg": 0.4, "qffl": 0.06, "afl": 0.2}
    )
    assert [*sweep.gaps["validation"]["fpr_gap"].values()] == pytest.approx([0.05] * 3)
    assert sweep.gap_fronts == {"tpr_gap": ["fedavg", "qffl"], "fpr_gap": ["fedavg"]}
    row = {row["label"]: row for row in sweep.rows()}["qffl"]
    assert row["validation_tpr_gap"] == row["test_tpr_gap"] == pytest.approx(0.06)
    text = io.StringIO()
    show_choice(Console(file=text, width=120), sweep)
    assert "TPR gap" in text.getvalue()
    assert "Not dominated in the mean and the TPR gap: fedavg, qffl." in text.getvalue()


def test_a_group_with_few_samples_or_no_groups_give_a_sweep_no_gaps() -> None:
    assert swept(with_validation(three_methods(), few=True)).gaps["validation"] == {}
    bare = with_validation(three_methods())
    for trial in bare.trials.values():
        del trial.score_columns["recall"], trial.score_columns["specificity"]
    sweep = swept(bare)
    assert sweep.gaps == {"validation": {}, "test": {}}
    assert sweep.gap_fronts == {}
    assert not any("gap" in name for name in sweep.rows()[0])
