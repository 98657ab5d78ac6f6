"""Every task from data to the report: several labels, masks, tokens, levels, numbers, one output."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand import losses
from evenhand.studies.findings import analyse
from evenhand.targets import Target

CLIENTS = 4
Arrays = tuple[Any, Any]


class Tokens(nn.Module):
    """A class for each token, from the token and the ones before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).cumsum(1).tanh())


class Task(NamedTuple):
    data: Callable[[np.random.Generator, int], Arrays]
    module: Callable[[], nn.Module]
    losses: Sequence[str]
    metrics: Sequence[str]  # that it brings
    measure: str  # that methods are compared by


def features(rng: np.random.Generator, n: int) -> Any:
    return rng.normal(size=(n, 6)).astype("float32")


def labels(rng: np.random.Generator, n: int) -> Arrays:
    x = features(rng, n)
    return x, (x[:, :3] + x[:, 3:] + rng.normal(size=(n, 3)) > 0).astype("int64")


def images(rng: np.random.Generator, n: int) -> Any:
    pool = eh.datasets.digits(clients=2, seed=0, flat=False).train.x
    return np.asarray(pool)[rng.integers(0, len(pool), n)]  # 8 x 8


def masks(rng: np.random.Generator, n: int) -> Arrays:
    x = images(rng, n)
    return x, (x[:, 0] > np.median(x)).astype("int64")


def regions(rng: np.random.Generator, n: int) -> Arrays:
    x = images(rng, n)
    y = np.digitize(x[:, 0], [x.mean(), x.mean() + x.std()])
    y[:, 0] = -100  # the first row is not labelled
    return x, y


def tokens(rng: np.random.Generator, n: int) -> Arrays:
    x = rng.integers(0, 5, (n, 7))
    y = x % 3
    y[:, 5:] = np.where(rng.random((n, 1)) < 0.5, -100, y[:, 5:])  # padding
    return x, y


def levels(rng: np.random.Generator, n: int) -> Arrays:
    x = features(rng, n)
    return x, np.digitize(x[:, 0] + x[:, 1], [-1, 0, 1])


def numbers(rng: np.random.Generator, n: int) -> Arrays:
    x = features(rng, n)
    return x, (x[:, :2] + 0.1 * features(rng, n)[:, :2]).astype("float32")


def signs(rng: np.random.Generator, n: int) -> Arrays:
    x = features(rng, n)
    return x, np.where(x[:, 0] + features(rng, n)[:, 0] > 0, 1, -1)


def pixelwise(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, outputs, 1))


TASKS = {
    "labels": Task(
        labels,
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        ("bce", "focal"),
        ("exact_match", "f1_macro"),
        "accuracy",
    ),
    "masks": Task(
        masks, lambda: pixelwise(1), ("dice", "bce", "focal"), ("iou", "dice_score"), "accuracy"
    ),
    "regions": Task(
        regions,
        lambda: pixelwise(3),
        ("cross_entropy", "dice", "focal"),
        ("iou", "dice_score"),
        "accuracy",
    ),
    "tokens": Task(tokens, Tokens, ("cross_entropy", "focal"), ("iou", "dice_score"), "accuracy"),
    "levels": Task(levels, lambda: nn.Linear(6, 3), ("ordinal",), ("mae",), "accuracy"),
    "numbers": Task(numbers, lambda: nn.Linear(6, 2), ("huber", "mse"), (), "rmse"),
    "one output": Task(signs, lambda: nn.Linear(6, 1), ("bce", "focal"), (), "accuracy"),
}
SHARES = ("labels", "masks", "regions", "tokens")
EVERY = [(task, loss) for task, found in TASKS.items() for loss in found.losses]


def federation(task: str, n: int = 24) -> eh.Federation:
    rng = np.random.default_rng(0)

    def rows(n: int) -> dict[str, Any]:
        x, y = TASKS[task].data(rng, n)
        return {"x": x, "y": y, "group": rng.choice(["a", "b"], n)}

    return eh.Federation.from_arrays(
        [rows(n + k) for k in range(CLIENTS)], test=[rows(12 + k) for k in range(CLIENTS)]
    )


def network(task: str) -> nn.Module:
    torch.manual_seed(0)
    return TASKS[task].module()


LOCAL = eh.LocalSGD(lr=0.2, epochs=1, batch_size=10)


@pytest.mark.parametrize("task", TASKS)
def test_early_stopping_watches_what_the_history_has(task: str) -> None:
    fed, found = federation(task).with_validation(0.3), TASKS[task]

    def train(metric: str, rounds: int) -> eh.Result:
        stop = [eh.EarlyStopping(metric, patience=rounds)]
        kept = {"loss": found.losses[0], "local": LOCAL, "callbacks": stop}
        return eh.fit(network(task), fed, eh.FedAvg(), rounds=rounds, **kept)

    columns = train("loss", 1).history.columns
    for metric in ("worst10", "worst_group"):
        if found.measure == "accuracy":
            assert metric in columns
            watched = train(metric, 2).history[f"val_{metric}"]
            assert watched.between(0, 1).all()
        else:
            assert metric not in columns
            with pytest.raises(ValueError, match="needs a classifier"):
                train(metric, 2)
    if "tpr_gap" in columns:
        assert train("tpr_gap", 2).history["val_tpr_gap"].between(0, 1).all()
    else:
        with pytest.raises(ValueError, match="needs a classifier"):
            train("tpr_gap", 2)


@pytest.mark.parametrize(("task", "loss"), EVERY)
def test_both_engines_train_and_score_alike(task: str, loss: str) -> None:
    fed, found = federation(task), TASKS[task]
    of_loop, of_vmap = (
        eh.fit(network(task), fed, eh.QFFL(q=0.5), rounds=2, loss=loss, engine=engine, local=LOCAL)
        for engine in ("loop", "vmap")
    )
    for name, value in of_loop.params.items():
        torch.testing.assert_close(value, of_vmap.params[name], rtol=1e-4, atol=1e-5)
    for row in (*of_loop.score_rows, *of_loop.history_rows):
        bad = [key for key, value in row.items() if isinstance(value, float) and value != value]
        assert not bad, row
    assert set(found.metrics) <= set(of_loop.score_columns)
    assert set(found.metrics) <= set(of_loop.history_rows[-1])
    assert ("auc" in of_loop.score_columns) == (task == "one output")
    assert ("accuracy" in of_loop.score_columns) == (task != "numbers")
    assert (
        of_loop.history_rows[-1]["loss"]
        < eh.fit(
            network(task), fed, eh.FedAvg(), rounds=1, loss=loss, local=eh.LocalSGD(lr=1e-9)
        ).history_rows[-1]["loss"]
    )


@pytest.mark.parametrize("task", TASKS)
def test_scores_are_those_of_the_trained_module(task: str) -> None:
    fed, loss = federation(task), TASKS[task].losses[0]
    result = eh.fit(network(task), fed, eh.FedAvg(), rounds=2, loss=loss, local=LOCAL)
    assert result.target is not None
    assert fed.test is not None
    module = network(task)
    module.load_state_dict(result.params)
    with torch.no_grad():
        output = module(fed.test.x[:])
    predicted, y = result.target.predict(output), fed.test.y
    if task == "one output":
        y = (y > 0).long()
    if task == "numbers":
        error = ((output - y) ** 2).mean(1)
        assert result.values == pytest.approx(error.double(), rel=1e-5)
        return
    hits = (predicted == y) & (y != -100)
    share = hits.reshape(len(y), -1).sum(1) / (y != -100).reshape(len(y), -1).sum(1)
    assert result.values == pytest.approx(share.double())
    clients = [float(share[fed.test.owners == k].mean()) for k in range(CLIENTS)]
    assert result.summary["mean"] == pytest.approx(np.mean(clients))
    assert result.summary["worst"] == pytest.approx(min(clients))
    a = fed.test.group == 0
    of_groups = [row for row in result.score_rows if row["by"] == "group"]
    assert of_groups[0]["accuracy"] == pytest.approx(float(share[a].mean()))


@pytest.mark.parametrize("task", ["labels", "regions", "levels", "numbers"])
def test_methods_are_compared_and_reported_without_nan(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = TASKS[task].losses[0]
    findings = eh.compare(
        lambda: network(task),
        federation(task),
        [eh.FedAvg(), eh.FedMinMax()],
        loss=loss,
        rounds=2,
        local=LOCAL,
        references=(),
        out=tmp_path / "runs",
    )
    study = eh.load(tmp_path / "runs")
    assert study.measure.column == ("mse" if task == "numbers" else "accuracy")
    assert study.measure.whole == (task not in SHARES)
    capsys.readouterr()
    findings.show(verbose=True)
    eh.report(tmp_path / "runs", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    words = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    for text in (capsys.readouterr().out, re.sub(r"<[^>]+>", " ", words)):
        assert not re.search(r"\bnan\b", text, re.IGNORECASE), text
        if task in SHARES:  # a sample is not right or wrong
            assert not re.search(r"\d of \d+ \(\d", text), text
    for entry in findings.entries:
        gain = entry.gain
        assert gain.low <= gain.value <= gain.high, entry
    values = study.trials[study.labels[0], study.seeds[0]].values
    assert values is not None
    assert bool((values % 1 != 0).any()) == (task in (*SHARES, "numbers"))
    if task in SHARES:
        assert "loss" in analyse(study, measure="loss").study.measure.name
        with pytest.raises(ValueError, match="no measure 'auc'; choose one of accuracy, loss"):
            analyse(study, measure="auc")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", [eh.AFL(), eh.AgnosticFedAvg()], ids=lambda m: type(m).__name__)
def test_methods_that_compare_losses_train_every_task(method: eh.Algorithm, task: str) -> None:
    fed, loss = federation(task), TASKS[task].losses[0]
    result = eh.fit(network(task), fed, method, rounds=2, loss=loss, local=LOCAL)
    assert [row["answered"] for row in result.history_rows] == [CLIENTS] * 2
    assert all(np.isfinite(row["loss"]) for row in result.history_rows)


@pytest.mark.parametrize("task", ["labels", "regions", "levels", "numbers"])
@pytest.mark.parametrize(
    "method",
    [eh.FedFB(), eh.GroupConstraint("demographic_parity"), eh.Reweighed()],
    ids=lambda method: type(method).__name__,
)
def test_methods_for_one_class_per_sample_refuse_other_tasks(
    method: eh.Algorithm, task: str
) -> None:
    loss = TASKS[task].losses[0]
    with pytest.raises(ValueError, match="so it needs one class per sample; for other") as error:
        eh.fit(network(task), federation(task), method, rounds=1, loss=loss)
    assert "\n" not in str(error.value)


def test_fedce_takes_the_share_of_labels_as_accuracy() -> None:
    result = eh.fit(network("regions"), federation("regions"), eh.FedCE(), rounds=3, local=LOCAL)
    means = result.state["accuracy"] / result.state["answers"].clamp(min=1)
    assert bool(((means > 0) & (means < 1)).all())


def test_thresholds_are_for_one_class_per_sample() -> None:
    for task, words in (("labels", "predicts several labels"), ("levels", "predicts levels")):
        loss = TASKS[task].losses[0]
        result = eh.fit(network(task), federation(task), eh.FedAvg(), rounds=1, loss=loss)
        with pytest.raises(ValueError, match=f"thresholds are for classifiers; this run {words}"):
            result.thresholds("accuracy")


def test_a_users_own_loss_for_positions_has_an_accuracy() -> None:
    def weighted(output: Tensor, y: Tensor) -> Tensor:
        return 2 * losses.cross_entropy(output, y)

    fed = federation("regions")
    result = eh.fit(network("regions"), fed, eh.FedAvg(), rounds=1, loss=weighted, local=LOCAL)
    assert result.target == Target("positions", 3, (8, 8), 1)
    assert "iou" in result.score_columns
