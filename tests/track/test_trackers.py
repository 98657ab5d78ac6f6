"""Trackers, read back from real stores: MLflow's files and database, and TensorBoard's events."""

from __future__ import annotations

import copy
import logging
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import evenhand as eh
from evenhand.track.tracker import Tracker, numbers_in, scores_in, settings_in
from tests.support.federations import network, ragged
from tests.support.own_metrics import METRICS

SETTINGS: dict[str, Any] = {
    "local": eh.LocalSGD(lr=0.25, steps=2, batch_size=16),
    "cohort": eh.Uniform(4),
    "seed": 3,
    "eval_every": 2,
}


def train(tracker: eh.Callback, **changes: Any) -> eh.Result:
    options = {"rounds": 4, **SETTINGS, **changes}
    method = eh.FedProx(mu=0.1, inner=eh.QFFL(q=1.5))
    return eh.fit(network(), ragged(), method, callbacks=[tracker], **options)


# ---- MLflow


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow with stores in folders, and without messages to its makers."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def client_of(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def runs_of(uri: str, experiment: str = "evenhand") -> list[Any]:
    client = client_of(uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    found: list[Any] = client.search_runs([number], order_by=["attributes.start_time ASC"])
    return found


@pytest.mark.usefixtures("folders")
def test_mlflow_has_parameters_metrics_tags_and_tables(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    result = train(eh.track.MLflow("heart", uri=uri))
    (run,) = runs_of(uri, "heart")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "fedprox seed 3"
    params = run.data.params
    wanted = {
        "method.name": "fedprox",
        "method.mu": "0.1",
        "method.inner.name": "qffl",
        "method.inner.q": "1.5",
        "rounds": "4",
        "seed": "3",
        "local.lr": "0.25",
        "cohort.name": "uniform",
        "cohort.k": "4",
        "clients": "10",
    }
    assert {name: params[name] for name in wanted} == wanted
    tags = run.data.tags
    assert (tags["method"], tags["seed"], tags["evenhand"]) == ("fedprox", "3", eh.__version__)
    assert tags["data"] == ragged().fingerprint()
    client = client_of(uri)

    def metric(name: str) -> dict[int, float]:
        return {one.step: one.value for one in client.get_metric_history(run.info.run_id, name)}

    rows = result.history_rows
    assert metric("lr") == {row["round"]: row["lr"] for row in rows}
    assert metric("worst10") == {row["round"]: row["worst10"] for row in rows if "worst10" in row}
    assert set(metric("worst10")) == {2, 4}
    assert metric("final/worst10") == {4: result.summary["worst10"]}
    for row in result.score_rows:
        assert metric(f"{row['by']}/{row['name']}/accuracy") == {4: row["accuracy"]}
    tables = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert tables == {"history.csv", "scores.csv"}
    place = client.download_artifacts(run.info.run_id, "scores.csv", str(tmp_path))
    assert Path(place).read_text().count("\n") == 1 + len(result.score_rows)


@pytest.mark.usefixtures("folders")
def test_every_run_of_a_comparison_is_a_run_of_mlflow(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    tracker = eh.track.MLflow(uri=uri)
    fed = eh.datasets.digits(clients=3)
    eh.compare("linear", fed, ["afl"], seeds=2, references=(), rounds=2, callbacks=[tracker])
    names = [run.info.run_name for run in runs_of(uri)]
    assert names == ["afl seed 0", "afl seed 1"]
    assert tracker._open is None  # the runs have copies


@pytest.mark.usefixtures("folders")
def test_a_resumed_run_is_tracked_from_its_first_round(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, row: Mapping[str, Any]) -> None:
        if done == 2:
            raise Stop

    uri, out = (tmp_path / "store").as_uri(), tmp_path / "run"
    with pytest.raises(Stop):
        train(eh.track.MLflow(uri=uri), out=out, checkpoint_every=1, progress=stop)
    train(eh.track.MLflow(uri=uri), out=out, resume=True)
    first, second = runs_of(uri)
    steps = [one.step for one in client_of(uri).get_metric_history(second.info.run_id, "lr")]
    assert (first.info.status, second.info.status) == ("RUNNING", "FINISHED")
    assert steps == [1, 2, 3, 4]


@pytest.mark.usefixtures("folders")
def test_a_store_that_goes_away_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Removes(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            if moment.round == 2:
                shutil.rmtree(tmp_path / "store")

    uri = (tmp_path / "store").as_uri()
    with caplog.at_level(logging.WARNING, "evenhand"):
        result = eh.fit(network(), ragged(), eh.FedAvg(), rounds=4, **SETTINGS,
                        callbacks=[Removes(), eh.track.MLflow(uri=uri)])  # fmt: skip
    assert len(result.history_rows) == 4
    found = [record.getMessage() for record in caplog.records if "MLflow" in record.getMessage()]
    assert len(found) == 1
    assert found[0].startswith("MLflow has failed after round 2 (")
    assert found[0].endswith("training continues and is tracked no more")


@pytest.mark.slow  # MLflow makes a database
def test_mlflow_in_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)  # where MLflow puts tables
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    result = train(eh.track.MLflow(uri=uri, run_name="mine"), rounds=2)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (run,) = runs_of(uri)
    assert run.info.run_name == "mine"
    assert run.data.metrics["final/mean"] == result.summary["mean"]


def test_a_folder_that_mlflow_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    uri = (tmp_path / "store").as_uri()
    with pytest.raises(eh.CallbackError) as caught:
        train(eh.track.MLflow(uri=uri))
    assert str(caught.value) == (
        f"MLflow does not write to folders any more ({uri}); use a database, such as"
        ' uri="sqlite:///mlflow.db", or set MLFLOW_ALLOW_FILE_STORE=true'
    )


def test_another_unusable_store_is_one_line() -> None:
    with pytest.raises(
        eh.CallbackError, match=r"^MLflow cannot track at nonsense://x: .+"
    ) as caught:
        train(eh.track.MLflow(uri="nonsense://x"))
    assert "\n" not in str(caught.value)


# ---- TensorBoard


def events(place: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(place), size_guidance={"scalars": 0})
    found.Reload()
    return found


def scalars(found: Any, name: str) -> dict[int, float]:
    return {one.step: one.value for one in found.Scalars(name)}


def test_tensorboard_has_scalars_settings_and_scores(tmp_path: Path) -> None:
    result = train(eh.track.TensorBoard(tmp_path))
    found = events(tmp_path / "fedprox-seed-3")
    rows = result.history_rows
    assert scalars(found, "lr") == {row["round"]: row["lr"] for row in rows}
    wanted = {row["round"]: row["worst10"] for row in rows if "worst10" in row}
    assert scalars(found, "worst10") == pytest.approx(wanted, rel=1e-6)  # float32
    for row in result.score_rows:
        name = f"{row['by']}/{row['name']}/accuracy"
        assert scalars(found, name) == pytest.approx({4: row["accuracy"]}, rel=1e-6)
    (text,) = found.Tensors("settings/text_summary")
    table = text.tensor_proto.string_val[0].decode()
    assert "| method.inner.q | 1.5 |" in table
    assert f"| data | {ragged().fingerprint()} |" in table
    assert "_hparams_/session_start_info" in found.summary_metadata


def test_another_run_of_the_same_name_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        train(eh.track.TensorBoard(tmp_path), rounds=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fedprox-seed-3",
        "fedprox-seed-3-2",
    ]


def test_a_resumed_run_continues_its_curves(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, row: Mapping[str, Any]) -> None:
        if done == 3:
            raise Stop

    board, out = eh.track.TensorBoard(tmp_path / "board"), tmp_path / "run"
    with pytest.raises(Stop):  # the last checkpoint is that of round 2
        train(board, out=out, checkpoint_every=2, progress=stop)
    board._open[0].close()  # as the end of the process does
    train(eh.track.TensorBoard(tmp_path / "board"), out=out, resume=True, checkpoint_every=2)
    (place,) = (tmp_path / "board").iterdir()
    assert list(scalars(events(place), "lr")) == [1, 2, 3, 4]
    assert len(events(place).Scalars("lr")) == 4  # round 3 once


def test_a_comparison_has_a_folder_for_each_run(tmp_path: Path) -> None:
    fed = eh.datasets.digits(clients=3)
    board = eh.track.TensorBoard(tmp_path)
    eh.compare("linear", fed, ["afl"], seeds=2, references=(), rounds=1, callbacks=[board])
    places = sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("events*"))
    assert places == ["seed-0/afl", "seed-1/afl"]


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(eh.CallbackError, match=r"^TensorBoard cannot write to .*file"):
        train(eh.track.TensorBoard(tmp_path / "file"))


# ---- any tracker


@pytest.mark.parametrize(
    ("tracker", "package", "advice"),
    [
        (eh.track.MLflow(), "mlflow", "mlflow-skinny (extra: evenhand[mlflow])"),
        (
            eh.track.TensorBoard(),
            "torch.utils.tensorboard",
            "tensorboard (extra: evenhand[tensorboard])",
        ),
    ],
)
def test_a_missing_package_is_one_line(
    tracker: Tracker, package: str, advice: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install {re.escape(advice)}$"):
        train(tracker, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tracking_changes_nothing(tmp_path: Path) -> None:
    tracked = train(eh.track.TensorBoard(tmp_path))
    plain = train(eh.Callback())
    assert repr(tracked.history_rows) == repr(plain.history_rows)
    assert repr(tracked.score_rows) == repr(plain.score_rows)


def test_metrics_are_tracked_by_name() -> None:
    settings = eh.Settings(metrics=METRICS)
    run = eh.RunInfo(eh.FedAvg(), ragged(), settings, True, "fedavg")
    assert settings_in(run)["metrics"] == ", ".join(METRICS)
    plain = eh.RunInfo(eh.FedAvg(), ragged(), eh.Settings(), True, "fedavg")
    assert "metrics" not in settings_in(plain)


def test_a_tracker_of_your_own() -> None:
    told: list[Any] = []

    class Own(Tracker):
        def begin(self, run: eh.RunInfo) -> None:
            told.append(run.label)

        def log(self, round: int, numbers: Mapping[str, float]) -> None:
            told.append((round, numbers))

        def end(self, result: eh.Result) -> None:
            told.append(scores_in(result)["final/mean"])

    result = train(copy.deepcopy(Own()))
    rows = [(row["round"], numbers_in(row)) for row in result.history_rows]
    assert told == ["fedprox", *rows, result.summary["mean"]]
