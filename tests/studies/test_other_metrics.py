"""Metrics of a user in a comparison: intervals, tables, CSV files, the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import evenhand as eh
from evenhand import files
from evenhand.errors import SpecError
from evenhand.metrics.across import mean_intervals
from evenhand.metrics.client_values import Means
from evenhand.page.exports import save_tables
from evenhand.studies.specs.spec import Spec
from tests.support import own_metrics
from tests.support.federations import network, ragged
from tests.support.own_metrics import METRICS

NAMED = {
    name: f"tests.support.own_metrics:{function}"
    for name, function in (("top2", "top2"), ("f1", "f1_parts"), ("cost", "cost"))
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[eh.Findings, Path]:
    """FedAvg and q-FFL, with one seed."""
    out = tmp_path_factory.mktemp("compared") / "run"
    found = eh.compare(
        network(),
        ragged(),
        ["fedavg", "qffl:q=2"],
        rounds=3,
        seeds=1,
        references=("fedavg",),
        metrics=METRICS,
        out=out,
    )
    return found, out


def test_a_metric_has_the_value_of_the_scores_with_an_interval(
    compared: tuple[eh.Findings, Path],
) -> None:
    found, _ = compared
    assert list(found.metrics) == list(METRICS)
    for name, view in found.metrics.items():
        assert view.better == ("lower" if name == "cost" else "higher")
        for label in found.study.labels:
            clients = found.study.column(label, 0, name)
            mean, worst = (view.value(label, statistic) for statistic in ("mean", "worst10"))
            assert mean.value == pytest.approx(clients.mean())
            extreme = np.sort(clients)[:: -1 if name == "cost" else 1][0]  # the worst of ten
            assert worst.value == pytest.approx(extreme)
            assert mean.low < mean.value < mean.high
        gain, sign = view.difference("qffl", "mean"), -1 if name == "cost" else 1
        assert gain is not None
        apart = view.value("qffl", "mean").value - view.value("fedavg", "mean").value
        assert gain.interval.value == pytest.approx(sign * apart)


@pytest.mark.parametrize("name", ["f1", "cost"])
def test_the_interval_of_a_difference_is_as_wide_as_that_of_a_bootstrap(
    compared: tuple[eh.Findings, Path], name: str
) -> None:
    """Both resample samples within clients, the same ones for both methods. Ours is somewhat wider:
    it adds pseudo-samples and shrinks the variances of small clients."""
    found, _ = compared
    view, study = found.metrics[name], found.study
    client = study.first.sample_client
    assert client is not None
    parts = []
    for label in ("qffl", "fedavg"):
        stored = study.trials[label, 0].outcomes[view.measure.key].astype(float)
        parts.append(
            np.stack([stored, np.ones_like(stored)], 1)[..., None] if stored.ndim == 1 else stored
        )
    rng, drawn = np.random.default_rng(0), []
    for _ in range(400):
        apart = []
        for code in range(study.clients):
            rows = np.flatnonzero(client == code)
            some = rng.choice(rows, len(rows))
            new, old = (_ratio(one[some].sum(0)) for one in parts)
            apart.append(new - old)
        drawn.append(np.mean(apart))
    low, high = view.difference("qffl", "mean").interval[1:]  # type: ignore[union-attr]
    assert (high - low) / 2 == pytest.approx(1.96 * np.std(drawn), rel=0.35)
    assert (high - low) / 2 > 0.95 * 1.96 * np.std(drawn)


def _page(found: eh.Findings, path: Path) -> str:
    eh.report(found, path)
    return path.read_text(encoding="utf-8")


def _ratio(sums: Any) -> float:
    there = sums[1] > 0
    return float((sums[0][there] / sums[1][there]).mean())


def test_intervals_of_means_cover_the_truth() -> None:
    """Of skewed values, in 92 to 98 % of cases; a difference of two means is one."""
    rng, inside = np.random.default_rng(1), 0
    for _ in range(400):
        truth, sizes = rng.normal(3, 1, 12), rng.integers(8, 30, 12)
        client = np.repeat(np.arange(12), sizes)
        values = truth[client] + rng.exponential(1, len(client)) - 1
        sums = [np.bincount(client, weights=weights) for weights in (values, values**2)]
        low, high = Means.of(sizes, *sums).mean(0.95)
        inside += low <= truth.mean() <= high
    assert 0.92 * 400 <= inside <= 0.98 * 400


def test_intervals_of_the_worst_client_cover_the_truth_in_any_unit() -> None:
    rng, inside = np.random.default_rng(2), 0
    for number in range(30):
        truth = rng.normal(3, 0.5, 12)
        client = np.repeat(np.arange(12), 20)
        values = truth[client] + rng.normal(0, 1, len(client))
        low, high = mean_intervals(values, client, 12, draws=100)["worst10"][1:]
        inside += low <= truth.min() <= high
        if number == 0:
            scaled = mean_intervals(1000 * values, client, 12, draws=100)["worst10"][1:]
            assert scaled == pytest.approx((1000 * low, 1000 * high), rel=1e-6)
    assert inside >= 26  # of 30; 28 or 29 expected


def test_values_that_never_differ_leave_their_mean_uncertain() -> None:
    found = Means.of(np.array([5, 5]), np.array([5.0, 10.0]), np.array([5.0, 20.0]))
    low, high = found.mean(0.95)
    assert low < 1.5 < high


def test_tables_print_every_metric_by_method_and_group(
    compared: tuple[eh.Findings, Path],
) -> None:
    found, _ = compared
    brief = str(found)
    assert re.search(r"cost +lower +fedavg", brief)
    assert re.search(r"f1 +higher +fedavg", brief)
    assert "nan" not in brief
    rows = found.tables()["metrics"]
    assert {(row["metric"], row["better"]) for row in rows} == {
        ("top2", "higher"),
        ("f1", "higher"),
        ("cost", "lower"),
    }
    by_group = [row for row in found.tables()["metric_gains"] if row["by"] == "group"]
    scores = found.study.trial("qffl").scores.set_index("name")
    for row in by_group:
        assert row["merit"] == pytest.approx(scores[row["metric"]][row["name"]])
        sign = -1 if row["metric"] == "cost" else 1
        assert row["gain"] == pytest.approx(sign * (row["merit"] - row["reference"]))


def test_the_page_and_csv_files_have_every_metric(
    compared: tuple[eh.Findings, Path], tmp_path: Path
) -> None:
    found, out = compared
    page = _page(found, tmp_path / "report.html")
    section = page[page.index("Other metrics</h2>") :]
    for name, better in (("top2", "higher"), ("f1", "higher"), ("cost", "lower")):
        assert f"{name} on test data, across clients; {better} is better" in section
        assert f"{name} by group" in section
    mean = found.metrics["f1"].value("fedavg", "mean").value
    assert f"{mean:.3f}" in section
    written = {path.name for path in save_tables([found], tmp_path / "tables")}
    assert {"metrics.csv", "metric_gains.csv"} <= written
    assert files.read_rows(out / "metrics.csv")[0]["metric"] == "top2"


def test_a_report_needs_no_code_of_the_user(
    compared: tuple[eh.Findings, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, out = compared
    monkeypatch.setattr(own_metrics, "top2", None)
    again = eh.analyse(eh.load(out))
    assert again.tables()["metrics"] == found.tables()["metrics"]


def test_two_seeds_have_intervals_over_seeds_and_samples() -> None:
    found = eh.compare(
        network(),
        ragged(),
        ["fedavg", "qffl"],
        rounds=2,
        seeds=2,
        metrics=METRICS,
        references=("fedavg",),
    )
    for view in found.metrics.values():
        assert view.comparison.over == "seeds+samples"
        gain = view.difference("qffl", "mean")
        assert gain is not None
        assert gain.interval.low < gain.interval.value < gain.interval.high


def test_a_spec_names_metrics_and_writes_them_back(tmp_path: Path) -> None:
    text = 'rounds = 2\nmetrics = { top2 = "tests.support.own_metrics:top2" }\n'
    spec = Spec.from_toml(text, "it")
    assert spec.settings()["metrics"] == {"top2": own_metrics.top2}
    assert Spec.from_toml(spec.to_toml(), "again") == spec
    spec = Spec.from_toml("rounds = 2", "it")
    assert "metrics" not in spec.to_toml()
    with pytest.raises(SpecError, match="must name a module and a function, such as"):
        Spec(metrics={"top2": "top2"}).settings()
    with pytest.raises(SpecError, match="there is no module 'no_such' for the metric"):
        Spec(metrics={"top2": "no_such:top2"}).settings()
    with pytest.raises(SpecError, match=r"unknown metric of .*'top3'; did you mean 'top2'"):
        Spec(metrics={"top2": "tests.support.own_metrics:top3"}).settings()


def test_a_regression_shows_nothing_that_does_not_apply(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [
        {"x": rng.normal(size=(30, 2)), "y": rng.normal(size=30), "group": ["a", "b"] * 15}
        for _ in range(3)
    ]

    def pinball(output: Tensor, y: Tensor) -> Tensor:
        error = y - output.squeeze(1)
        return torch.maximum(0.9 * error, -0.1 * error)

    for loss in ("mse", pinball):
        found = eh.compare(
            torch.nn.Linear(2, 1),
            eh.Federation.from_arrays(clients),
            ["fedavg", "qffl"],
            rounds=2,
            seeds=1,
            loss=loss,
            references=("fedavg",),
        )
        columns = set(found.study.trial().score_columns)
        assert not columns & {"accuracy", "brier", "auc", "calibration_error"}
        page = _page(found, tmp_path / "report.html")
        body = re.sub(r"<script.*?</script>", "", page, flags=re.S)
        shown = " ".join(re.sub(r"<[^>]+>", " ", body).split())
        assert not re.search(r"\bnan\b", shown, flags=re.I)
        assert "accuracy" not in shown
        assert "predictions by label" not in shown
        assert "Other metrics" not in shown
