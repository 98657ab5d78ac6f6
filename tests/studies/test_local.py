"""Gaps over all clients and within clients in findings: the table, the sentence, the page."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from evenhand.page.panels import all_panels
from evenhand.studies.analysis.local import local_views
from evenhand.studies.findings import Findings, analyse
from evenhand.studies.runs.study import Study
from tests.support.studies import make_study, study_of

# of each client and group: samples with label "yes", and how many are predicted so
Cells = list[list[tuple[int, int]]]
SIMPSON: Cells = [[(100, 90), (20, 18)], [(20, 6), (100, 30)]]
CANCELLING: Cells = [[(100, 90), (100, 30)], [(100, 30), (100, 90)]]
EVERYWHERE: Cells = [[(100, 90), (100, 60)], [(100, 80), (100, 50)]]
NOWHERE: Cells = [[(100, 70), (100, 70)], [(100, 70), (100, 70)]]


def study_with(cells: Cells) -> Study:
    """Predictions of FedAvg with these true-positive rates, and no negatives."""
    client, group, predicted = [], [], []
    for i, row in enumerate(cells):
        for a, (of, right) in enumerate(row):
            client += [i] * of
            group += [a] * of
            predicted += [1] * right + [0] * (of - right)
    ones = np.ones(len(client), np.int64)
    return study_of({"fedavg": [predicted]}, ones, client, group, ("f", "m"))


def sentence(findings: Findings) -> str:
    found = [line for line in findings.sentences if "in the true-positive rate" in line]
    assert len(found) <= 1
    return found[0] if found else ""


def shown(findings: Findings) -> str:
    text = io.StringIO()
    findings.show(verbose=True, console=Console(file=text, width=200, force_terminal=False))
    return text.getvalue()


def test_the_table_has_both_sides_and_every_client() -> None:
    rows = analyse(study_with(SIMPSON)).tables()["local_gaps"]
    found = {
        (row["scope"], row["client"]): row for row in rows if row["kind"] == "equal opportunity"
    }
    assert [*found] == [
        ("over all clients", ""),
        ("mean within clients", ""),
        ("largest within a client", "client 0"),
        ("client", "client 0"),
        ("client", "client 1"),
    ]
    whole = found["over all clients", ""]
    assert whole["value"] == pytest.approx(0.4)
    assert (whole["lowest"], whole["highest"]) == ("m", "f")
    assert found["mean within clients", ""]["value"] == pytest.approx(0.0)
    assert {row["method"] for row in rows} == {"fedavg"}


def test_fair_within_clients_and_unfair_over_all_is_said_with_its_reason() -> None:
    text = sentence(analyse(study_with(SIMPSON)))
    assert text.startswith(
        "FedAvg has a gap between groups in the true-positive rate of 40.0 points ["
    )
    assert "over all clients, but within clients the gap is smaller and not significant" in text
    assert text.endswith("groups are spread unevenly over clients that FedAvg serves differently.")


def test_unfair_within_clients_and_fair_over_all_is_said_with_its_reason() -> None:
    text = sentence(analyse(study_with(CANCELLING)))
    assert text.startswith("Over all clients, FedAvg shows no significant gap between groups in")
    assert "but both clients have significant gaps (most of all client 0: 60.0 points [" in text
    assert text.endswith("which cancel because they point in different directions.")


def test_a_gap_on_both_sides_and_on_neither_is_said() -> None:
    both = sentence(analyse(study_with(EVERYWHERE)))
    assert both.startswith("FedAvg has a gap between groups in the true-positive rate of 30.0")
    assert "over all clients and of 30.0 points [" in both
    assert "within clients (most of all client " in both
    neither = sentence(analyse(study_with(NOWHERE)))
    assert neither.startswith(
        "FedAvg shows no significant gap between groups in the true-positive rate, either over all"
        " clients (0.0 points ["
    )
    assert "or within any of 2 clients (mean 0.0 points [0.0, " in neither


def test_a_client_without_a_group_is_left_out_and_named() -> None:
    """Client 1 has no m."""
    findings = analyse(study_with([[(100, 90), (100, 30)], [(100, 60), (0, 0)]]))
    assert sentence(findings).endswith(
        "1 client (client 1) is left out: fewer than two groups have 10 samples for this rate"
        " there."
    )
    text = shown(findings)
    assert "1 of 2" in text
    assert "exclude client 1: fewer than two groups have 10 samples there." in text
    scopes = {(row["scope"], row["client"]) for row in findings.tables()["local_gaps"]}
    assert ("left out", "client 1") in scopes


def test_without_two_groups_two_clients_or_a_classifier_there_is_nothing() -> None:
    for study in (
        make_study(groups=()),
        make_study(clients=1),
        make_study(regression=True),
        make_study(groups=("one",)),
    ):
        findings = analyse(study)
        assert findings.local == {}
        assert "local_gaps" not in findings.tables()
        assert "local-gaps" not in {panel.key for panel in all_panels(findings)}


def test_counts_are_averaged_over_seeds() -> None:
    study = make_study(seeds=2, clients=3, samples=200)
    found = local_views(study)["fedavg"]["accuracy parity"]
    tables = [study.trials["fedavg", seed].counts.table for seed in (0, 1)]  # type: ignore[union-attr]
    mean = (tables[0] + tables[1]) / 2
    right = mean[..., 0, 0] + mean[..., 1, 1]
    rate = right / mean.sum((2, 3))
    gaps = abs(rate[:, 0] - rate[:, 1])
    assert found.mean.value == pytest.approx(gaps.mean())
    assert found.largest.value == pytest.approx(gaps.max())


def test_the_terminal_shows_both_sides() -> None:
    text = shown(analyse(study_with(SIMPSON)))
    part = text[text.index("Gaps between groups over all clients and within clients, points") :]
    row = next(line for line in part.splitlines() if "TPR" in line)
    assert "40.0 [" in row
    assert "0.0 [0" in row
    assert "2 of 2" in row
    assert "an interval that begins at 0 includes no gap at all." in part


def test_the_page_has_a_figure_and_tables_of_both_sides() -> None:
    found: dict[str, Any] = {
        panel.key: panel for panel in all_panels(analyse(study_with(CANCELLING)))
    }
    panel = found["local-gaps"]
    rates = {variant.name: variant for variant in panel.variants}
    assert {"accuracy", "true-positive rate", "selection rate"} <= set(rates)
    drawn = rates["true-positive rate"].figure
    assert drawn.layout.yaxis.ticktext == (
        "over all clients",
        "mean within clients",
        "largest within a client",
    )
    assert drawn.data[0].x == pytest.approx((0.0, 60.0, 60.0))
    assert "m &lt; f" in rates["true-positive rate"].table
    assert "f &lt; m" in rates["true-positive rate"].table
    assert drawn.data[0].error_x.array[0] > 0
    assert "false-positive rate" not in rates  # there are no negative samples
