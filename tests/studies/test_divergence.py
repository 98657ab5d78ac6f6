"""Training that diverged is named, and nothing is judged by numbers that are not finite."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.studies.analysis.diverging import diverged_sentence, smaller_step_sizes
from evenhand.studies.findings import Findings
from evenhand.studies.runs.divergence import first_round, has_diverged
from evenhand.studies.runs.study import Study
from tests.support.commands import invoke
from tests.support.studies import make_study

FAMILIES = (
    *(eh.FedAvg(), eh.AFL(), eh.FAFL(), eh.TERM(), eh.FedProx(mu=0.1), eh.FedAvgM(), eh.Ditto()),
    *(eh.FedMGDA(), eh.FedFV(), eh.AAggFF(), eh.GIFAIR(), eh.PropFair(), eh.DRFA(), eh.AdaFed()),
    *(eh.DeltaFL(), eh.LocalOnly(), eh.QFFL(q=1.0), eh.FedAdam()),
)
FORBIDDEN = ("inf", "nan", "keep FedAvg", "harms", "equally well", "no better than")


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """NumPy's warnings do not reach the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        yield


def _federation(classify: bool) -> eh.Federation:
    rng = np.random.default_rng(0)
    rows = []
    for client in range(4):
        x = rng.normal(size=(30, 3)).astype(np.float32)
        score = x @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=30) * 0.3 + client / 4
        rows.append(
            {
                "x": x,
                "y": (score > 0).astype(np.int64) if classify else score.astype(np.float32),
                "group": ["a", "b"] * 15,
                "name": f"h{client}",
            }
        )
    return eh.Federation.from_arrays(rows, test=rows, val=rows)


def _compare(
    methods: Sequence[eh.Algorithm], lr: float, classify: bool = False, **how: Any
) -> Findings:
    return eh.compare(
        lambda: torch.nn.Linear(3, 2 if classify else 1),
        _federation(classify),
        methods,
        rounds=6,
        loss="cross_entropy" if classify else "mse",
        local=eh.LocalSGD(lr=lr, epochs=1, batch_size=10),
        **{"seeds": 1, **how},
    )


def _words(found: Findings) -> str:
    return " ".join([*found.answer.sentences, *found.sentences])


@pytest.mark.parametrize("classify", [True, False])
@pytest.mark.parametrize("method", FAMILIES, ids=lambda method: type(method).__name__)
def test_no_family_of_methods_shows_numbers_that_are_not_finite(
    method: eh.Algorithm, classify: bool
) -> None:
    methods = [eh.FedAvg()] if isinstance(method, eh.FedAvg) else [eh.FedAvg(), method]
    found = _compare(methods, 1e3, classify)
    text = repr(found)
    for word in ("inf ", "inf]", "nan", "+inf", "-inf"):
        assert word not in text.lower()
    if not classify:  # a classifier's steps are bounded, and may end somewhere
        assert found.answer.sentences[0].startswith("FedAvg")
        assert "diverged" in found.answer.sentences[0]
        assert not any(word in _words(found) for word in FORBIDDEN)
    for row in found.tables().get("comparison", []):
        assert np.isfinite(row["value"]) or np.isnan(row["value"])


def test_the_answer_names_method_round_and_way_out(tmp_path: Path) -> None:
    found = _compare([eh.FedAvg(), eh.LocalOnly()], 1e3, out=tmp_path / "run")
    assert found.answer.sentences == (
        "FedAvg (from round 1) and localonly (from round 1) diverged: their loss exploded, so they"
        " are excluded. Use a smaller step size than"
        " lr = 1000.",
    )
    assert found.study.labels == ()
    assert found.study.trained == ("fedavg", "localonly")
    assert found.comparison.rows == {}
    assert [row["method"] for row in found.tables()["diverged"]] == ["fedavg", "localonly"]
    assert "diverged" in repr(found)


def test_other_methods_are_still_judged() -> None:
    found = _compare([eh.FedAvg(), eh.QFFL(q=1.0), eh.LocalOnly()], 1e3)
    assert found.study.labels == ("qffl",)
    assert found.study.reference is None
    said = " ".join(found.answer.sentences)
    assert "qffl reaches a mean " in said
    assert "train FedAvg" not in said  # it was
    assert np.isfinite(found.comparison.rows["qffl"]["mean"].value)
    assert found.comparison.differences == {}
    assert not found.entries


def _with_nan(study: Study, label: str, seeds: Sequence[int]) -> Study:
    trials = dict(study.trials)
    for seed in seeds:
        trial = trials[label, seed]
        loss = np.array(trial.column("loss", "client"))
        columns = dict(trial.score_columns)
        values = np.asarray(columns["loss"], np.float64).copy()
        values[: len(loss)] = np.nan
        trials[label, seed] = dataclasses.replace(trial, score_columns={**columns, "loss": values})
    return dataclasses.replace(study, trials=trials)


def test_one_seed_of_several_is_named() -> None:
    study = _with_nan(make_study(), "qffl", [1])
    assert [(one.label, one.seeds, one.of) for one in study.diverged] == [("qffl", (1,), 3)]
    assert study.labels == ("fedavg", "afl")
    assert diverged_sentence(study).startswith(
        "qffl (seed 1 of 3 seeds) diverged: its loss exploded"
    )
    found = eh.analyse(study)
    assert set(found.comparison.rows) == {"fedavg", "afl"}
    assert all(entry.method != "qffl" for entry in found.entries)


def test_all_seeds_of_the_reference() -> None:
    study = _with_nan(make_study(), "fedavg", [0, 1, 2])
    assert study.reference is None
    assert diverged_sentence(study).startswith("FedAvg (all seeds) diverged")
    found = eh.analyse(study)
    assert found.comparison.differences == {}
    assert not any(word in _words(found) for word in FORBIDDEN)


def test_a_study_of_finite_numbers_has_not_diverged() -> None:
    for regression in (False, True):
        study = make_study(regression=regression)
        assert study.diverged == ()
        assert study.labels == study.trained


def test_an_error_a_million_times_that_of_guessing_is_absurd() -> None:
    trial = _compare([eh.FedAvg()], 0.05).study.trial()
    label = np.asarray(trial.outcomes["label"], np.float64)
    guessed = float(np.mean((label - trial.guess[1]) ** 2))  # type: ignore[index]
    for factor, absurd in ((0.9e6, False), (1.1e6, True)):
        error = np.full(len(trial.score_columns["loss"]), np.sqrt(factor * guessed))
        columns = {**trial.score_columns, "rmse": error}
        assert has_diverged(dataclasses.replace(trial, score_columns=columns)) is absurd


def test_the_round_is_the_first_whose_loss_is_absurd() -> None:
    trial = make_study().trial()
    nothing = {"asked": [4, 4, 4], "answered": [4, 4, 4]}
    history = {"round": [1, 2, 3], "loss": [1.0, np.nan, np.inf], **nothing}
    assert first_round(dataclasses.replace(trial, history_columns=history)) == 3
    history = {"round": [1, 2, 3], "loss": [1.0, 2e9, np.inf], **nothing}
    assert first_round(dataclasses.replace(trial, history_columns=history)) == 2
    history |= {"loss": [np.nan] * 3, "answered": [4, 0, 0]}
    assert first_round(dataclasses.replace(trial, history_columns=history)) == 2
    history |= {"answered": [4, 4, 4]}
    assert first_round(dataclasses.replace(trial, history_columns=history)) is None


def test_step_sizes_to_try_are_below_the_one_that_failed() -> None:
    study = _with_nan(make_study(), "qffl", [1])
    for rate, tried in ((1000.0, "0.001,0.01,0.1"), (0.5, "0.0005,0.005,0.05")):
        specs = tuple(dataclasses.replace(spec, local={"lr": rate}) for spec in study.specs)
        assert smaller_step_sizes(dataclasses.replace(study, specs=specs)) == f"local.lr={tried}"


SPEC = """
name = "r"
rounds = 6
loss = "auto"
data = { name = "table", path = "r.csv", client = "hospital", label = "cost", group = "sex" }
model = { name = "auto" }
local = { lr = 1000.0, batch_size = 16 }
methods = [{ name = "fedavg" }, { name = "fafl", local = { lr = 0.01 } }]
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    rng, lines = np.random.default_rng(0), ["hospital,sex,age,cost"]
    for row in range(160):
        age = rng.normal(50, 10)
        lines.append(f"h{row % 4},{'mf'[row % 2]},{age:.2f},{3 * age + rng.normal(0, 5):.2f}")
    (tmp_path / "r.csv").write_text("\n".join(lines))
    (tmp_path / "r.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return "r.toml"


def test_the_command_line_and_the_page_say_it_first(spec: str) -> None:
    code, out, err = invoke("run", spec, "--out", "r")
    said = (
        "FedAvg (from round 1) diverged: its loss exploded, so it is excluded. Use a smaller step"
        " size than lr = 1000."
    )
    assert code == 0, err
    assert "RuntimeWarning" not in err
    assert said in " ".join(out.split())
    assert "Next:   evenhand compare r/spec.toml --tune --grid local.lr=0.001,0.01,0.1" in out
    assert " inf" not in out
    code, _, err = invoke("report", "r", "--out", "r.html", "--tables", "tables")
    assert code == 0, err
    page = Path("r.html").read_text()
    assert said in page
    assert "Diverged and excluded: <strong>fedavg</strong>" in page
    shown = page.partition("<script")[0].lower()
    assert "infinity" not in shown
    assert "nan" not in shown
    assert "inf" not in Path("tables/methods.csv").read_text()


def test_a_page_of_nothing_but_diverged_methods(spec: str) -> None:
    Path(spec).write_text(SPEC.replace(", local = { lr = 0.01 }", ""))
    code, out, err = invoke("run", spec, "--out", "r")
    assert code == 0, err
    assert " inf" not in out
    assert invoke("report", "r", "--out", "r.html", "--tables", "tables")[0] == 0
    assert "FedAvg (from round 1) and fafl (from round 1) diverged" in (Path("r.html").read_text())


def test_tuning_never_chooses_what_diverged(spec: str) -> None:
    code, out, err = invoke(
        *("compare", spec, "--seeds", "1", "--no-reference", "--out", "r"),
        *("--tune", "--grid", "local.lr=0.01,1000", "--grid", "fafl.alpha=0.3"),
    )
    assert code == 0, err
    assert "lr = 0.01" in Path("r/spec.toml").read_text()
    assert "lr = 1000.0" not in Path("r/spec.toml").read_text().partition("[[methods]]")[2]
    assert "diverged" not in out


def test_a_sweep_leaves_out_points_that_diverged(spec: str) -> None:
    Path(spec).write_text(SPEC.replace("lr = 1000.0", "lr = 0.01"))
    code, out, err = invoke(
        *("sweep", spec, "--seeds", "1", "--validation", "0.2", "--out", "r"),
        *("-a", "fafl", "--grid", "local.lr=0.005,1000"),
    )
    assert code == 0, err
    assert " inf" not in out
    assert "Chosen on validation data: " in out
    assert "fafl local.lr=1000" not in out
