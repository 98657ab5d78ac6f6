"""Predictions of test samples by row: where rows come from, and what is written on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import evenhand as eh
from evenhand.data.pool import Pool
from evenhand.files import write_tensors
from evenhand.reading import read_json, read_tensors
from evenhand.training.by_row import samples_of
from evenhand.training.directory import ABOUT, METHOD_FILES, RUN_FILES
from evenhand.training.manifest import Owner, seal
from tests.support.visits import visits

TABLE = visits(80)
ROLES = {"client": "site", "label": "ill", "drop": ["stage", "weight"]}


def part_is(table: pd.DataFrame, part: eh.Part | None, label: str) -> None:
    """Every sample of a split is the row of the table that it says."""
    assert part is not None
    assert part.rows is not None
    assert table[label].iloc[part.rows.numpy()].tolist() == part.y.tolist()


def test_rows_are_those_of_the_users_table() -> None:
    # rows without a label or client are skipped, so that later ones move
    table = TABLE.astype({"ill": "Int64"})
    table.loc[[0, 5, 9], "ill"] = None
    table.loc[7, "site"] = None
    fed = eh.Federation.from_frame(table, split={"val": 0.2, "test": 0.3}, **ROLES)
    for part in (fed.train, fed.val, fed.test):
        part_is(table, part, "ill")
        names = np.array(fed.names)[part.owners.numpy()]
        assert table["site"].iloc[part.rows.numpy()].tolist() == names.tolist()
    found = torch.cat([fed.train.rows, fed.val.rows, fed.test.rows])
    assert sorted(found.tolist()) == sorted({*range(80)} - {0, 5, 7, 9})


def test_rows_follow_every_way_to_split_further() -> None:
    fed = eh.Federation.from_frame(TABLE, **ROLES)
    for later in (fed.with_validation(0.3), fed.pooled()):
        for part in later.parts.values():
            part_is(TABLE, part, "ill")
    part_is(TABLE, fed.train.first(2), "ill")


def test_rows_of_a_pool_and_of_arrays_are_known() -> None:
    y = torch.arange(30) % 3
    x = torch.arange(30.0)[:, None]
    fed = eh.deal(Pool(x, y), {"name": "iid", "clients": 4}, {"test": 0.3})
    assert fed.test is not None
    assert fed.test.rows is not None
    assert fed.test.rows.tolist() == fed.test.x.flatten().long().tolist()
    rows = [{"x": np.eye(3), "y": [0, 1, 2]}, {"x": np.ones((2, 3)), "y": [0, 1]}]
    assert eh.Federation.from_arrays(rows).train.rows.tolist() == [0, 1, 2, 0, 1]


def test_rows_are_no_part_of_the_data() -> None:
    fed = eh.Federation.from_frame(TABLE, **ROLES)
    again = eh.Federation.from_frame(TABLE, **ROLES)
    object.__setattr__(again.train, "rows", None)
    assert again.fingerprint() == fed.fingerprint()
    with pytest.raises(ValueError, match="x has 1 samples; y, group and rows must have as many"):
        eh.Part(torch.eye(1), torch.zeros(1), torch.tensor([0, 1]), None, torch.arange(2))


def fitted(out: Path, **options: object) -> eh.Result:
    fed = eh.Federation.from_frame(TABLE, group="sex", **ROLES)
    net = torch.nn.Linear(fed.train.x.shape[1], 2)
    return eh.fit(net, fed, eh.FedAvg(), rounds=1, out=out, **options)


def test_predictions_are_written_on_request_only(tmp_path: Path) -> None:
    fitted(tmp_path / "plain")
    assert not (tmp_path / "plain" / "predictions.csv").exists()
    assert "keep_predictions" not in (tmp_path / "plain" / "spec.toml").read_text()
    result = fitted(tmp_path / "kept", keep_predictions=True)
    kept = pd.read_csv(tmp_path / "kept" / "predictions.csv")
    assert kept["prediction"].tolist() == result.outcomes["prediction"].tolist()
    assert kept["probability"].tolist() == result.outcomes["score"].tolist()
    assert kept["label"].tolist() == TABLE["ill"].iloc[kept["row"]].tolist()
    assert kept["group"].tolist() == TABLE["sex"].iloc[kept["row"]].tolist()
    assert eh.verify(tmp_path / "kept").whole
    result.save(tmp_path / "saved")
    saved = (tmp_path / "saved" / "predictions.csv").read_bytes()
    assert saved == (tmp_path / "kept" / "predictions.csv").read_bytes()
    both = eh.fit_many(
        torch.nn.Linear(2, 2),
        eh.Federation.from_arrays([{"x": np.eye(2), "y": [0, 1]}]),
        [eh.Run(eh.FedAvg(), seed=s, out=tmp_path / f"many-{s}") for s in (0, 1)],
        rounds=1,
        keep_predictions=True,
    )
    for seed, one in enumerate(both):
        found = pd.read_csv(tmp_path / f"many-{seed}" / "predictions.csv")
        assert found.columns.tolist() == ["row", "client", "label", "prediction", "probability"]
        assert found["prediction"].tolist() == one.outcomes["prediction"].tolist()


def test_names_that_spreadsheets_would_run_are_marked(tmp_path: Path) -> None:
    rows = [{"x": np.eye(2), "y": [0, 1], "name": "=1+1"}]
    fed = eh.Federation.from_arrays(rows)
    eh.fit(
        torch.nn.Linear(2, 2), fed, eh.FedAvg(), rounds=1, out=tmp_path / "x", keep_predictions=True
    )
    assert "\n0,'=1+1," in (tmp_path / "x" / "predictions.csv").read_text()


def test_predictions_that_cannot_be_kept_are_refused_before_training(tmp_path: Path) -> None:
    rows = [{"x": np.eye(2), "y": np.zeros((2, 3))}]
    fed = eh.Federation.from_arrays(rows)
    with pytest.raises(ValueError, match=r"keep_predictions is for one label per sample; here it "):
        eh.fit(torch.nn.Linear(2, 3), fed, eh.FedAvg(), rounds=1, loss="mse", keep_predictions=True)
    with pytest.raises(TypeError, match="keep_predictions must be a bool"):
        eh.Settings(keep_predictions="yes")  # type: ignore[arg-type]


def test_levels_are_kept_by_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [{"x": rng.normal(size=(n, 2)), "y": rng.integers(0, 4, n)} for n in (5, 3)]
    fed = eh.Federation.from_arrays(rows)
    result = eh.fit(
        torch.nn.Linear(2, 3),
        fed,
        eh.FedAvg(),
        rounds=1,
        loss="ordinal",
        out=tmp_path / "x",
        keep_predictions=True,
    )
    kept = pd.read_csv(tmp_path / "x" / "predictions.csv")
    assert kept.columns.tolist() == ["row", "client", "label", "prediction"]
    assert kept["prediction"].tolist() == result.predict(fed.train.x).tolist()
    assert kept["label"].tolist() == fed.train.y.tolist()
    right = (kept["prediction"] == kept["label"]).groupby(kept["client"]).mean()
    assert right.tolist() == result.scores["accuracy"].tolist()


def test_several_numbers_for_one_label_cannot_be_kept(tmp_path: Path) -> None:
    def quantiles(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        error = y[:, None] - output
        return torch.maximum(0.9 * error, -0.1 * error).sum(1)

    fed = eh.Federation.from_arrays([{"x": np.eye(2), "y": np.zeros(2)}])
    with pytest.raises(ValueError, match=r"for one prediction per sample; the module returns 3 nu"):
        eh.fit(
            torch.nn.Linear(2, 3),
            fed,
            eh.FedAvg(),
            rounds=1,
            loss=quantiles,
            keep_predictions=True,
            out=tmp_path / "x",
        )
    assert not (tmp_path / "x").exists()


def test_runs_of_earlier_versions_have_predictions_without_rows(tmp_path: Path) -> None:
    result = fitted(tmp_path / "old")
    path = tmp_path / "old" / "samples.safetensors"
    samples = {name: value for name, value in read_tensors(path)[0].items() if name != "row"}
    write_tensors(path, samples)
    # the manifest lists the file as it is now
    owner = Owner.of(read_json(tmp_path / "old" / ABOUT), "fedavg")
    seal(tmp_path / "old", (*RUN_FILES, *METHOD_FILES), owner)
    found = eh.load(tmp_path / "old").predictions()
    assert found.columns.tolist() == ["client", "group", "label", "prediction", "probability"]
    assert found["prediction"].astype(int).tolist() == result.outcomes["prediction"].tolist()


def test_samples_with_several_labels_have_no_predictions_by_row(tmp_path: Path) -> None:
    rows = [{"x": np.eye(2), "y": np.zeros((2, 3))}]
    fed = eh.Federation.from_arrays(rows)
    eh.fit(torch.nn.Linear(2, 3), fed, eh.FedAvg(), rounds=1, loss="mse", out=tmp_path / "x")
    with pytest.raises(eh.RunError, match=r"kept no predictions of its test samples: .* several"):
        eh.load(tmp_path / "x").predictions()
    assert "label" not in samples_of(fed)


@pytest.mark.parametrize(("outputs", "labels"), [(1, 2), (2, 2), (3, 3)])
def test_probabilities_of_a_result_are_those_of_torch(outputs: int, labels: int) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"x": rng.normal(size=(20, 4)).astype(np.float32), "y": np.arange(20) % labels, "name": n}
        for n in ("a", "b")
    ]
    loss = "brier" if outputs == 1 else "cross_entropy"
    fed = eh.Federation.from_arrays(rows, rows)
    result = eh.fit(torch.nn.Linear(4, outputs), fed, eh.Ditto(lam=0.1), rounds=3, loss=loss)
    x = np.concatenate([rows[1]["x"][:3], rows[0]["x"][:2]])
    client = ["b", "b", "b", "a", "a"]
    with torch.no_grad():
        found = torch.cat(
            [result.module("b")(torch.from_numpy(x[:3])), result.module("a")(torch.tensor(x[3:]))]
        )
        positive = found.sigmoid()
        expected = torch.cat([1 - positive, positive], 1) if outputs == 1 else found.softmax(1)
    chances = result.predict_proba(x, client=client)
    assert chances.shape == (5, labels)
    assert chances == pytest.approx(expected.numpy(), abs=1e-6)
    assert chances.argmax(1).tolist() == result.predict(x, client=client).tolist()
    assert result.predict_proba(x[:0], client=[]).shape == (0, labels)
    with pytest.raises(ValueError, match=r'x holds whole numbers, pass x.astype\("float32"\)'):
        result.predict(np.ones((3, 4), int), client="a")
    for one in ("b", 1):  # one for all samples
        assert (result.predict_proba(x[:3], client=one) == chances[:3]).all()


def test_a_result_predicts_numbers_in_the_unit_of_the_table() -> None:
    fed = eh.Federation.from_frame(TABLE, client="site", label="weight", drop=["stage", "ill"])
    net = torch.nn.Linear(fed.train.x.shape[1], 1)
    result = eh.fit(net, fed, eh.FedAvg(), rounds=20, loss="mse")
    assert fed.test is not None
    assert fed.test.rows is not None
    with pytest.raises(TypeError, match=r"encode a table first: result.encoding.transform\(table"):
        result.predict(TABLE)
    assert fed.encoding is result.encoding
    found = result.predict(fed.test.x)
    truth = TABLE["weight"].iloc[fed.test.rows.numpy()].to_numpy()
    assert fed.encoding is not None
    # the losses of the run are squared errors in units of the label's standard deviation
    mine = ((found - truth) / fed.encoding.label_std) ** 2
    assert mine == pytest.approx(result.values, rel=1e-4, abs=1e-5)
    arrays = eh.Federation.from_arrays([{"x": np.eye(3), "y": np.array([0.5, 1.5, 2.5])}])
    plain = eh.fit(torch.nn.Linear(3, 1), arrays, eh.FedAvg(), rounds=1, loss="mse")
    with torch.no_grad():
        expected = plain.module()(torch.eye(3)).flatten().tolist()
    assert plain.predict(np.eye(3)).tolist() == expected
    half = torch.nn.Linear(3, 1).to(torch.bfloat16)
    short = eh.fit(half, arrays, eh.FedAvg(), rounds=1, loss="mse")
    assert short.predict(np.eye(3)).tolist() == short.outcomes["prediction"].tolist()
