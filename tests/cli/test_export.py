"""evenhand export: models of run directories, and what it refuses."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

import evenhand as eh
from tests.support.commands import invoke

PATIENTS = Path(__file__).parent.parent.parent / "examples" / "patients.csv"
DATA = ("--client", "hospital", "--label", "complication", "--group", "sex")
ASKED = ("-a", "ditto", "-a", "qffl", "--rounds", "2", "--no-report", "--no-reference", "-q")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    data = directory / "patients.csv"
    data.write_bytes(PATIENTS.read_bytes())
    given = ("--data", str(data), *DATA, *ASKED, "--out", str(directory / "run"))
    assert invoke("run", *given) == (0, "", "")
    return directory / "run"


def test_a_named_model_is_rebuilt_and_written(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.pt2"
    given = ("--method", "ditto", "--client", "Harbour", "--out", str(path), "--json")
    code, out, err = invoke("export", str(run), *given)
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["path"], told["format"]) == (str(path), "torch")
    study = eh.load(run)
    federation = study.specs[0].build_data()
    x = federation.test.x[:7]
    module = study.specs[0].build_model(federation)
    extra = {"evenhand.json": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.load(path, extra_files=extra).module()
    expected = study.trial("ditto").module("Harbour", module=module)(x)
    torch.testing.assert_close(program(x), expected, rtol=0, atol=told["tolerance"])
    facts = json.loads(extra["evenhand.json"])
    assert (facts["client"], facts["labels"]) == ("Harbour", ["no", "yes"])
    assert facts["features"] == list(federation.encoding.features)
    assert facts["algorithm"] == "Ditto(lam=1.0)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "choose a method of run: ditto, qffl"),
        (("--method", "qfl"), "unknown method 'qfl'; did you mean 'qffl'?"),
        (("--method", "ditto", "--client", "Harbor"), "unknown client 'Harbor'; did you mean"),
        (("--method", "qffl", "--client", "Harbour"), "all clients share one model"),
        (("--method", "qffl", "--seed", "9"), "qffl was not trained with seed 9"),
        (("--method", "qffl", "--out", "m.zip"), "must end in .pt2 (torch.export) or .onnx"),
    ],
)
def test_mistakes_are_said_in_one_line(given: tuple[str, ...], message: str, run: Path) -> None:
    code, out, err = invoke("export", str(run), "--out", "m.pt2", *given)
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1
    assert not Path("m.pt2").exists()


def test_a_model_that_diverged_is_not_exported(run: Path, tmp_path: Path) -> None:
    data, out = str(run.parent / "patients.csv"), str(tmp_path / "run")
    asked = ("-a", "fedavg:local.lr=1e30", "-a", "qffl", "--rounds", "2", "--no-report")
    asked += ("--no-reference", "-q", "--out", out)
    assert invoke("run", "--data", data, *DATA, *asked)[0] == 0
    path = tmp_path / "model.pt2"
    code, _, err = invoke("export", out, "--method", "fedavg", "--out", str(path))
    assert (code, err.count("\n"), path.exists()) == (1, 1, False)
    assert "fedavg diverged, so there is no model to export; train it again" in err


def test_a_run_of_a_table_is_exported_without_the_table(run: Path, tmp_path: Path) -> None:
    given = {"method": "ditto", "client": "Harbour"}
    data = run.parent / "patients.csv"
    before = data.read_bytes()
    there = eh.export(run, tmp_path / "there.pt2", **given)
    data.unlink()
    try:
        gone = eh.export(run, tmp_path / "gone.pt2", **given)
    finally:
        data.write_bytes(before)
    facts = []
    for made in (there, gone):
        extra = {"evenhand.json": ""}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.load(made.path, extra_files=extra)
        facts.append(json.loads(extra["evenhand.json"]))
    assert facts[0] == facts[1]
    assert facts[1]["labels"] == ["no", "yes"]


def test_runs_of_python_programs_need_their_network(tmp_path: Path) -> None:
    module, fed = torch.nn.Linear(64, 10), eh.datasets.digits(clients=3, seed=0)
    result = eh.fit(module, fed, eh.FedAvg(), rounds=1, out=tmp_path / "own")
    with pytest.raises(
        ValueError, match=r"a module of your own, Linear, .*: in Python, give modul"
    ):
        eh.export(tmp_path / "own", tmp_path / "m.pt2")
    with pytest.raises(ValueError, match="give example=, a few samples as the network takes them"):
        eh.export(tmp_path / "own", tmp_path / "m.pt2", module=module)
    x = fed.test.x[:4]
    made = eh.export(tmp_path / "own", tmp_path / "m.pt2", module=module, example=x)
    assert made.difference <= made.tolerance
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.load(made.path).module()
    torch.testing.assert_close(program(x), result.module()(x), rtol=0, atol=1e-5)
