"""What privacy costs whom: the numbers of the figure, its table and its sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evenhand.page.document import page
from evenhand.page.panels import all_panels
from evenhand.page.panels.panel import Panel
from evenhand.privacy.accounting import EVERYONE, Scheme
from evenhand.privacy.record import Privacy
from evenhand.studies.analysis.privacy_costs import costs, privacy_series
from evenhand.studies.findings import Findings, analyse
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.method import Method
from tests.support.studies import make_study

SCHEME = Scheme(EVERYONE, 12, 12)
# by label: the method's settings, its epsilon and its noise
PRIVATE: Mapping[str, tuple[dict[str, Any], float | None, float]] = {
    "eps 8": ({"epsilon": 8.0}, 7.9, 2.0),
    "eps 1": ({"noise": 9.0, "inner": {"name": "fedavg"}, "secret": 1}, 0.95, 9.0),
    "clipped": ({"noise": 0.0}, None, 0.0),
    "stopped": ({"noise": 1.0}, None, 1.0),
    "fair 3": ({"epsilon": 3.0, "inner": {"name": "qffl", "q": 1.0}}, 3.0, 5.0),
    "tight 3": ({"epsilon": 3.0, "clip": 0.1}, 3.0, 5.0),
    "tight 1": ({"epsilon": 1.0, "clip": 0.1}, 1.0, 9.0),
}
LEVELS = {"fedavg": 0.9, "qffl": 0.8, "eps 8": 0.85, "eps 1": 0.5, "clipped": 0.88, "stopped": 0.7}
LEVELS |= {"fair 3": 0.7, "tight 3": 0.8, "tight 1": 0.6}


def record(epsilon: float | None, noise: float) -> Privacy:
    why = () if epsilon is not None else ("training was stopped by results",)
    return Privacy(epsilon, 1e-3, noise, 1.0, 10, SCHEME, 0.5, why_not=why)


def study(*labels: str, **made: Any) -> Study:
    """A study nobody trained, of these methods."""
    whole = make_study({label: (LEVELS[label], 0.0) for label in labels}, **made)
    trials = {}
    for (label, seed), trial in whole.trials.items():
        if label in PRIVATE:
            settings, epsilon, noise = PRIVATE[label]
            method, claim = Method("private", label, settings), record(epsilon, noise)
            trials[label, seed] = replace(trial, method=method, privacy=claim)
        else:
            settings = {"q": 1.0} if label == "qffl" else {}
            trials[label, seed] = replace(trial, method=Method(label, label, settings))
    return replace(whole, trials=trials)


@pytest.fixture(scope="module")
def findings() -> Findings:
    return analyse(study(*LEVELS))


def panel_of(findings: Findings) -> Panel:
    return next(panel for panel in all_panels(findings) if panel.key == "privacy-costs")


def test_series_are_methods_by_epsilon_with_their_runs_without_privacy(findings: Findings) -> None:
    found = {
        one.name: [level.label for level in one.levels] for one in privacy_series(findings.study)
    }
    assert found == {
        "FedAvg": ["eps 1", "eps 8", "clipped", "fedavg"],
        "qffl": ["fair 3", "qffl"],
        "FedAvg, clip=0.1": ["tight 1", "tight 3", "fedavg"],
    }
    first = privacy_series(findings.study)[0]
    assert [level.epsilon for level in first.levels] == [0.95, 7.9, math.inf, math.inf]
    assert [level.name for level in first.levels] == [
        "ε = 0.950",
        "ε = 7.90",
        "no noise",
        "no privacy",
    ]


def test_the_figure_has_the_numbers_of_the_study(findings: Findings) -> None:
    panel, whole = panel_of(findings), findings.study
    assert [variant.name for variant in panel.variants] == ["FedAvg", "qffl", "FedAvg, clip=0.1"]
    traces = {trace.name: trace for trace in panel.variants[0].figure.data}
    assert list(traces) == ["mean over clients", "worst client", "north", "south"]
    for place, label in enumerate(["eps 1", "eps 8", "clipped", "fedavg"]):
        clients = 100 * np.mean([whole.merits(label, s) for s in whole.seeds], 1)
        assert traces["mean over clients"].y[place] == pytest.approx(clients.mean(), abs=1e-3)
        groups = 100 * np.mean([whole.merits(label, s, "group") for s in whole.seeds], 0)
        drawn = [traces[name].y[place] for name in ("north", "south")]
        assert drawn == pytest.approx(groups.tolist(), abs=1e-3)
        assert round(traces["north"].x[place]) == place
    for trace in traces.values():
        assert len(trace.error_y.array) == 4
        assert min(trace.error_y.array) > 0 or trace.name == "worst client"
    cell = f"{traces['south'].y[0]:.1f} % ["
    assert cell in panel.variants[0].table


def test_the_sentence_names_the_group_that_pays_most(findings: Findings) -> None:
    series = privacy_series(findings.study)[0]
    entries = costs(findings.study, series, 0.95, 10)
    most = min(entries, key=lambda one: one.gain.value)
    assert {one.against for one in entries} == {"fedavg"}
    assert {one.verdict for one in entries} == {"harmed"}
    lost = -100 * most.gain.value
    sentence = panel_of(findings).variants[0].finding
    assert sentence.startswith(
        "FedAvg: compared with training without privacy, epsilon = 0.950 lowers the accuracy of the"
        f" {most.name} group most, by {lost:.1f} points ["
    )
    assert "; it lowers the mean over clients by" in sentence
    whole = page(findings)
    assert whole.index(sentence.split(",")[0]) < whole.index('id="figure-privacy-costs"')


def test_without_groups_the_worst_client_is_told() -> None:
    found = panel_of(analyse(study("fedavg", "eps 1", groups=())))
    assert [trace.name for trace in found.variants[0].figure.data] == [
        "mean over clients",
        "worst client",
    ]
    assert "epsilon = 0.950 lowers the accuracy of the worst client by" in found.variants[0].finding


@pytest.mark.parametrize(
    "labels", [("fedavg", "qffl"), ("fedavg", "clipped"), ("qffl", "eps 1"), ("fedavg", "stopped")]
)
def test_without_two_levels_and_an_epsilon_there_is_no_figure(labels: tuple[str, ...]) -> None:
    found = analyse(study(*labels, seeds=1))
    assert privacy_series(found.study) == []
    assert "privacy-costs" not in [panel.key for panel in all_panels(found)]
    whole = page(found)
    assert "figure-privacy-costs" not in whole
    assert ("Differential privacy</h2>" in whole) == (labels[1] not in ("qffl", "fedavg"))


def test_what_holds_for_several_methods_is_said_once(findings: Findings) -> None:
    whole = page(findings)
    assert whole.count("all that the server computes from the noisy sums") == 5  # not of two
    one = page(analyse(study("fedavg", "eps 1", "eps 8", seeds=1)))
    assert one.count("all that the server computes from the noisy sums") == 1
    assert "For each of these methods:" in one
