"""--track and --stop-early on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evenhand as eh
from evenhand.cli.tracking import early_stopping

Call = Callable[..., tuple[int, str, str]]
FAST = ("--data", "digits", "--clients", "3", "--model", "linear", "-a", "afl", "--no-report")


def test_a_run_is_tracked_in_its_directory(call: Call, tmp_path: Path) -> None:
    code, _, err = call("run", *FAST, "--rounds", "2", "--out", "one", "--track", "tensorboard")
    assert code == 0, err
    places = sorted(path.parent.relative_to(tmp_path / "one") for path in tmp_path.rglob("events*"))
    assert [str(place) for place in places] == [
        "tensorboard/one/afl",
        "tensorboard/one/fedavg",
    ]
    assert eh.verify(tmp_path / "one").damages == []
    assert eh.load(tmp_path / "one").labels == ("fedavg", "afl")


def test_a_comparison_is_tracked_with_mlflow(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = (tmp_path / "store").as_uri()
    code, _, err = call(
        "compare", *FAST, "--rounds", "1", "--seeds", "2", "--no-reference", "--out", "some",
        "--track", f"mlflow:{uri}",
    )  # fmt: skip
    assert code == 0, err
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("some")
    assert experiment is not None
    names = {run.info.run_name for run in client.search_runs([experiment.experiment_id])}
    assert names == {"afl seed 0", "afl seed 1"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--track", "tensorbord"), "unknown tracker in --track 'tensorbord'; did you mean"),
        (("--track", "mlflow:"), "--track mlflow: names no place; write --track mlflow"),
        (("--stop-early", "worst10:soon"), "cannot read --stop-early 'worst10:soon'"),
        (("--stop-early", "wurst10"), "unknown metric 'wurst10'; did you mean 'worst10'?"),
        (("--stop-early", "worst10:0"), "patience must be a whole number >= 1, got 0"),
    ],
)
def test_mistakes_are_one_line_before_training(
    call: Call, tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    code, _, err = call("run", *FAST, *options)
    assert code == 1
    assert text in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_training_stops_early_and_says_so(call: Call, tmp_path: Path) -> None:
    arguments = ("run", *FAST, "--rounds", "40", "--out", "one", "--stop-early", "worst10:2")
    code, out, err = call(*arguments)
    assert code == 0, err
    trial = eh.load(tmp_path / "one").trial("afl", 0)
    assert trial.stopped is not None
    line = f"afl {trial.stopped}"
    assert line in " ".join(out.split())
    spec = eh.Spec.load(tmp_path / "one" / "spec.toml")
    assert spec.early_stopping == {"metric": "worst10", "patience": 2}
    assert spec.validation == 0.2
    code, out, err = call("resume", "one", "--json", "--no-report")
    assert code == 0, err
    assert json.loads(out)["methods"] == ["fedavg", "afl"]


@pytest.mark.parametrize(
    ("text", "share", "wanted"),
    [
        ("mean", 0.0, {"early_stopping": {"metric": "mean"}, "validation": 0.2}),
        ("std:3", 0.1, {"early_stopping": {"metric": "std", "patience": 3}, "validation": 0.1}),
    ],
)
def test_the_text_of_the_option(text: str, share: float, wanted: dict[str, Any]) -> None:
    assert early_stopping(text, share) == wanted
