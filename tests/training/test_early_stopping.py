"""Early stopping: patience, improvements and modes by hand, and runs that end with the best
model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.studies.analysis.convergence import stopped_early
from evenhand.studies.runs.study import Study
from evenhand.training.stopping import progress_of
from tests.support.federations import network, ragged

NAN = math.nan
LOCAL = eh.LocalSGD(lr=0.5, steps=3, batch_size=16)


def train(algorithm: eh.Algorithm | None = None, **changes: Any) -> eh.Result:
    fed = ragged().with_validation(0.4)
    options = {"rounds": 30, "local": LOCAL, "cohort": eh.Uniform(3), "eval_every": 1, **changes}
    return eh.fit(network(), fed, algorithm or eh.FedAvg(), **options)


def best_and_end(values: list[float], patience: int, sign: int = 1) -> tuple[int, int]:
    """The evaluation of the best value and the one that training ends with, counted from 1."""
    best, at = -math.inf, 0
    for number, value in enumerate(values, 1):
        if sign * value > best:
            best, at = sign * value, number
        if number - at == patience:
            return at, number
    return at, len(values)


# ---- by hand


@pytest.mark.parametrize(
    ("values", "sign", "min_delta", "best", "improved", "waited"),
    [
        ([0.5], 1, 0.0, 0.5, True, 0),
        ([0.5, 0.5], 1, 0.0, 0.5, False, 1),  # no better is no improvement
        ([0.5, 0.4, 0.6], 1, 0.0, 0.6, True, 0),
        ([0.5, 0.4, 0.6, 0.5, 0.55], 1, 0.0, 0.6, False, 2),
        ([0.5, 0.55, 0.58], 1, 0.1, 0.5, False, 2),  # 0.08 is less than 0.1
        ([0.5, 0.55, 0.62], 1, 0.1, 0.62, True, 0),  # small steps add up
        ([2.0, 1.5, 1.6], -1, 0.0, 1.5, False, 1),
        ([2.0, 1.95, 1.8], -1, 0.1, 1.8, True, 0),
        ([NAN, 0.5, NAN, NAN], 1, 0.0, 0.5, False, 2),
        ([NAN, NAN], 1, 0.0, NAN, False, 2),
        (
            [0.5, 0.4, 0.4, 0.4, 0.4],
            1,
            0.0,
            0.5,
            False,
            1,
        ),  # stopped after the fourth, then went on
    ],
)
def test_progress_by_hand(
    values: list[float], sign: int, min_delta: float, best: float, improved: bool, waited: int
) -> None:
    found = progress_of(values, sign, 3, min_delta)
    assert found == pytest.approx((best, improved, waited), nan_ok=True)


def test_every_metric_knows_its_better_side() -> None:
    own = {"top5": "higher", "cost": "lower"}
    run = eh.RunInfo(eh.FedAvg(), ragged(), eh.Settings(), True, "fedavg", better=own)
    smaller = {"loss", "std", "selection_gap", "tpr_gap", "fpr_gap", "cost", "cost_worst10"}
    larger = {"mean", "worst10", "best10", "worst", "worst_group", "top5", "top5_worst10"}
    for metric in smaller | larger:
        assert eh.EarlyStopping(metric).sign(run) == (-1 if metric in smaller else 1)
    assert eh.EarlyStopping("loss", mode="max").sign(run) == 1
    assert eh.EarlyStopping("mean", mode="min").sign(run) == -1


def test_a_metric_of_ones_own_is_watched_on_validation_data() -> None:
    def certainty(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return output.softmax(-1).amax(-1)

    own = {"certainty": eh.Metric(certainty, better="lower")}
    result = train(
        rounds=6, metrics=own, callbacks=[eh.EarlyStopping("certainty_worst10", patience=2)]
    )
    assert result.restored == 1  # training makes it more certain
    assert len(result.history) == 3
    assert "val_certainty" in result.history


def test_an_unknown_metric_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="unknown metric 'wurst10'; did you mean 'worst10'"):
        train(rounds=2, callbacks=[eh.EarlyStopping("wurst10")])


def test_a_metric_with_the_name_of_its_column_is_refused_before_training() -> None:
    def certainty(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return output.softmax(-1).amax(-1)

    with pytest.raises(ValueError, match="writes a column 'val_loss' to the history; rename that"):
        train(rounds=2, metrics={"val_loss": certainty}, callbacks=[eh.EarlyStopping("mean")])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"patience": 0}, "patience must be a whole number >= 1, got 0"),
        ({"min_delta": -0.1}, "min_delta must be a finite number >= 0, got -0.1"),
        ({"mode": "up"}, 'mode must be "auto", "max" or "min"'),
        ({"restore_best": 1}, "restore_best must be True or False, got 1"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        eh.EarlyStopping(**arguments)


# ---- in a run


@pytest.mark.parametrize(("metric", "sign"), [("worst10", 1), ("loss", -1), ("std", -1)])
@pytest.mark.parametrize("patience", [1, 3])
def test_training_ends_when_patience_does(metric: str, sign: int, patience: int) -> None:
    watched = train(rounds=12, callbacks=[eh.EarlyStopping(metric, patience=12)])
    values = watched.history[f"val_{metric}"].tolist()
    best, end = best_and_end(values, patience, sign)
    result = train(rounds=12, callbacks=[eh.EarlyStopping(metric, patience=patience)])
    assert len(result.history) == end
    assert result.history[f"val_{metric}"].tolist() == values[:end]
    assert result.restored == (None if best == end else best)
    if end < 12:
        times = "one evaluation" if patience == 1 else f"{patience} evaluations"
        reason = f"{metric} on validation data did not improve for {times}"
        assert result.stopped == eh.Stopped(end, 12, reason)


@pytest.mark.parametrize(
    "algorithm",
    [
        eh.FedAvg(),
        eh.Ditto(lam=0.5),
        eh.GIFAIR(strength=0.8, personal=True),
        eh.FineTuned(epochs=2),
        eh.FedAvgM(lr=0.5, inner=eh.Averaged(eh.AFL(lr_lambda=0.1))),
    ],
    ids=lambda method: type(method).__name__,
)
def test_the_best_model_is_that_of_a_run_with_so_many_rounds(algorithm: eh.Algorithm) -> None:
    result = train(algorithm, callbacks=[eh.EarlyStopping("worst10", patience=3)])
    assert result.restored is not None
    assert result.restored == len(result.history) - 3
    alone = train(algorithm, rounds=result.restored)
    state, other = eh.tree.flatten(result.state), eh.tree.flatten(alone.state)
    assert state.keys() == other.keys()
    assert all(torch.equal(state[key], other[key]) for key in state)
    assert all(torch.equal(result.params[key], alone.params[key]) for key in result.params)
    assert (result.personal is None) == (not algorithm.personal)
    for mine, yours in zip(result.personal or [], alone.personal or [], strict=True):
        assert all(torch.equal(mine[key], yours[key]) for key in mine)
    assert repr(result.score_rows) == repr(alone.score_rows)
    assert repr(result.validation) == repr(alone.validation)


def test_the_last_model_is_returned_if_asked_for() -> None:
    stop = eh.EarlyStopping("worst10", patience=3, restore_best=False)
    result = train(eh.Ditto(), callbacks=[stop])
    assert result.restored is None
    alone = train(eh.Ditto(), rounds=len(result.history))
    assert all(torch.equal(result.params[key], alone.params[key]) for key in result.params)
    for mine, yours in zip(result.personal or [], alone.personal or [], strict=True):
        assert all(torch.equal(mine[key], yours[key]) for key in mine)


def test_validation_numbers_are_those_of_the_validation_scores() -> None:
    result = train(rounds=4, callbacks=[eh.EarlyStopping(patience=9, restore_best=False)])
    last = result.history_rows[-1]
    assert result.validation is not None
    by = np.array(result.validation["by"]) == "client"
    accuracy = np.asarray(result.validation["accuracy"], float)[by]
    known = accuracy[~np.isnan(accuracy)]
    assert last["val_mean"] == pytest.approx(known.mean())
    assert last["val_worst"] == pytest.approx(known.min())
    assert "val_mean" not in train(rounds=4).history


def test_only_evaluated_rounds_count() -> None:
    result = train(rounds=40, eval_every=4, callbacks=[eh.EarlyStopping("worst10", patience=1)])
    assert result.stopped is not None
    assert result.stopped.round % 4 == 0
    assert result.restored == result.stopped.round - 4


def test_an_interrupted_run_ends_like_one_that_was_not(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(done: int, row: dict[str, Any]) -> None:
        if done == at:
            raise Cut

    stop = eh.EarlyStopping("worst10", patience=3)
    whole = train(eh.Ditto(), callbacks=[stop])
    assert whole.stopped is not None
    for at in (whole.stopped.round - 4, whole.stopped.round - 1):
        out = tmp_path / str(at)
        with pytest.raises(Cut):
            train(eh.Ditto(), out=out, progress=cut, checkpoint_every=1, callbacks=[stop])
        found = train(eh.Ditto(), out=out, resume=True, callbacks=[stop])
        assert (found.stopped, found.restored) == (whole.stopped, whole.restored)
        assert all(torch.equal(found.params[key], whole.params[key]) for key in found.params)
        for mine, yours in zip(found.personal or [], whole.personal or [], strict=True):
            assert all(torch.equal(mine[key], yours[key]) for key in mine)
        assert repr(found.history_rows) == repr(whole.history_rows)


def test_more_rounds_begin_with_fresh_patience(tmp_path: Path) -> None:
    stop = eh.EarlyStopping("worst10", patience=2)
    first = train(rounds=20, out=tmp_path, callbacks=[stop])
    assert first.stopped is not None
    more = train(rounds=21, out=tmp_path, resume=True, callbacks=[stop])
    assert len(more.history) > first.stopped.round + 1


# ---- what is refused before training


def refused(fed: eh.Federation, stop: eh.EarlyStopping, **options: Any) -> str:
    with pytest.raises(ValueError, match="EarlyStopping") as caught:
        eh.fit(network(), fed, eh.FedAvg(), callbacks=[stop], rounds=1, **options)
    return str(caught.value)


def test_a_federation_without_validation_data_is_refused(tmp_path: Path) -> None:
    text = refused(ragged(), eh.EarlyStopping(), out=tmp_path / "run")
    assert text == (
        "EarlyStopping needs validation data, and these clients have none; set some aside with"
        " federation.with_validation(0.2), or with validation = 0.2 in a spec"
    )
    assert not (tmp_path / "run").exists()


def test_metrics_that_do_not_exist_are_refused() -> None:
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(9, 5)).astype(np.float32), "y": rng.normal(size=9)}]
    numbers = eh.Federation.from_arrays(clients * 2).with_validation(0.3)
    with pytest.raises(ValueError, match=r'use EarlyStopping\("loss"\)'):
        eh.fit(torch.nn.Linear(5, 1), numbers, eh.FedAvg(), loss="mse", rounds=1,
               callbacks=[eh.EarlyStopping()])  # fmt: skip
    classes = eh.datasets.digits(clients=3).with_validation(0.3)
    with pytest.raises(
        ValueError, match=r'"tpr_gap"\) needs a classifier of two classes; watch "w'
    ):
        eh.fit(torch.nn.Linear(64, 10), classes, eh.FedAvg(), rounds=1,
               callbacks=[eh.EarlyStopping("tpr_gap")])  # fmt: skip


# ---- comparisons and specs

SPEC = """
name = "small"
rounds = 25
eval_every = 1
validation = 0.3

[data]
name = "digits"
clients = 4

[model]
name = "linear"

[local]
lr = 0.5
steps = 1
batch_size = 8

[early_stopping]
metric = "worst10"
patience = 2

[[methods]]
name = "fedavg"
"""


def test_a_spec_can_stop_early(tmp_path: Path) -> None:
    spec = eh.Spec.from_toml(SPEC, "the test")
    assert eh.Spec.from_toml(spec.to_toml(), "again") == spec
    found = eh.compare(spec, seeds=2, references=(), out=tmp_path / "run")
    trial = found.study.trial("fedavg", 1)
    assert trial.stopped is not None
    assert trial.stopped.round < 25
    assert len(trial.history) == trial.stopped.round
    lines = [line for line in found.sentences if "stopped after" in line]
    assert len(lines) == 1
    assert lines[0].endswith("worst10 on validation data did not improve for 2 evaluations.")
    assert "in 2 of 2 seeds" in lines[0]
    # the same in Python, whose early stopping becomes a part of the spec
    plain = eh.Spec.from_toml(SPEC.replace("[early_stopping]\n", "[cohort]\nname='full'\n").replace(
        'metric = "worst10"\npatience = 2\n', ""), "the test")  # fmt: skip
    stop = eh.EarlyStopping("worst10", patience=2)
    again = eh.compare(plain, seeds=2, references=(), callbacks=[stop])
    assert again.study.trial("fedavg", 1).stopped == trial.stopped
    assert again.study.specs[0].early_stopping["patience"] == 2
    with pytest.raises(eh.RunError, match="other settings"):
        eh.compare(plain, seeds=2, references=(), out=tmp_path / "run", resume=True)


def test_a_sweep_sets_validation_data_aside_before_it_stops_early() -> None:
    text = SPEC.replace("validation = 0.3\n", "")
    spec = eh.Spec.from_toml(text.replace('"fedavg"', '"qffl"'), "the test")
    with pytest.raises(ValueError, match="EarlyStopping needs validation data"):
        eh.compare(spec, seeds=1)
    found = eh.sweep(spec, grid={"q": [0.1, 1]}, seeds=1)
    assert any(trial.stopped is not None for trial in found.study.trials.values())


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("patience = 0", "patience must be a whole number >= 1"),
        ("epochs = 3", "unknown early_stopping setting|unknown .*epochs"),
    ],
)
def test_a_wrong_table_is_refused(table: str, text: str) -> None:
    with pytest.raises(eh.SpecError, match=text):
        eh.Spec.from_toml(f"[early_stopping]\n{table}\n", "the test")


def test_a_stopped_run_is_not_called_unfinished(tmp_path: Path) -> None:
    """A run with a steep loss would be 'still improving', had it not been stopped."""

    class Stop(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            if moment.round == 12:
                moment.stop("the budget is spent")

    spec = eh.Spec.from_toml(SPEC.partition("[early_stopping]")[0] + '[[methods]]\nname="fedavg"\n',
                             "the test")  # fmt: skip
    long = eh.compare(spec, seeds=1, references=(), rounds=12)
    assert any("still improving" in line for line in long.sentences)
    cut = eh.compare(spec, seeds=1, references=(), callbacks=[Stop()], out=tmp_path / "run")
    assert not any("still improving" in line for line in cut.sentences)
    line = "fedavg stopped after 12 of 25 rounds: the budget is spent."
    assert line in cut.sentences
    assert stopped_early(Study.load([tmp_path / "run"]), "fedavg") == line
