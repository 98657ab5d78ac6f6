"""Tallies: by hand, against scikit-learn on pooled predictions, that they add, and that every
engine and path counts the same."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor, nn

import evenhand as eh
from evenhand.algorithm import normalised
from evenhand.data.samples import Batch
from evenhand.engines import pooled, replay, work
from evenhand.engines.base import Engine, Exchange
from evenhand.engines.pooled import BLOCK
from evenhand.engines.simulator import Simulator
from evenhand.engines.work import Evaluate, Work
from evenhand.messages import Replies, Task
from evenhand.metrics import calibration, rates, sample_values, tallies, tally
from evenhand.metrics.calibration import BINS, EDGES, TAIL
from evenhand.metrics.tallies import COUNTS, Tally, dense, judge
from evenhand.model import Model
from evenhand.tree import Tree
from tests.support.federations import METHODS, SIZES, network, ragged

nan = math.nan


class Given(nn.Module):
    """Outputs are the features themselves, next to a weight that changes nothing."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs, self.weight = outputs, nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.outputs] + self.weight


@dataclass(frozen=True)
class Owned(eh.Algorithm):
    """FedAvg whose clients are evaluated one by one, each with its own copy of the model handed
    out."""

    personal: bool = True


def one_client(
    outputs: list[Any], y: list[Any], loss: Any = "cross_entropy", group: list[str] | None = None
) -> tuple[Model, eh.Federation]:
    x = np.asarray(outputs, np.float64)
    entry: dict[str, Any] = {"x": np.nan_to_num(x), "y": np.array(y)} | (
        {"group": group} if group else {}
    )
    federation = eh.Federation.from_arrays([entry])
    model = Model(Given(x.shape[1]), loss)
    model.check(federation)
    # a federation refuses NaN features; here they stand for NaN outputs
    federation.train.x[:] = torch.from_numpy(x)
    return model, federation


def tally_of(model: Model, federation: eh.Federation, client: int = 0) -> Tally:
    """One client's full tally, by the function that it would call."""
    part = federation.train
    index = torch.arange(int(part.offsets[client]), int(part.offsets[client + 1]))
    batch = Batch(part.samples(model.dtype, model.device), index, torch.ones(len(index)))
    return {
        name: sums.numpy()
        for name, sums in tally(model, model.init(), batch, federation.groups, full=True).items()
    }


def exchanged(
    engine: Engine,
    algorithm: eh.Algorithm,
    federation: eh.Federation,
    model: Model,
    part: str = "test",
) -> Tally:
    attached = engine.attach(model, federation, 0)
    asked = getattr(federation, part).sizes.nonzero().flatten()
    kind = Evaluate(algorithm, federation.groups, part, full=True, clients=federation.clients)
    return dense(
        attached.exchange(kind, Task({"model": model.init()}), asked, 0), federation.clients
    )


def same_tally(a: Tally, b: Tally, tolerance: float = 1e-12) -> None:
    """Counts are equal, sums of real numbers as good as."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype == (np.int64 if name in COUNTS else np.float64), name
        assert a[name].shape == b[name].shape, name
        if name in COUNTS:
            assert np.array_equal(a[name], b[name]), name
        else:
            np.testing.assert_allclose(
                a[name], b[name], rtol=tolerance, atol=tolerance, err_msg=name
            )


# ---- by hand


def test_three_classes_by_hand() -> None:
    log = math.log
    outputs = [
        [log(0.7), log(0.2), log(0.1)],
        [log(0.7), log(0.2), log(0.1)],
        [0.0, nan, 0.0],
        [log(0.25), log(0.25), log(0.5)],
    ]
    found = tally_of(*one_client(outputs, [0, 1, 2, 2]))
    assert found["count"].tolist() == [4]
    assert found["correct"].tolist() == [2]
    # the last column: no prediction
    assert found["confusion"][0].tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 1]]
    right, wrong = 0.3**2 + 0.2**2 + 0.1**2, 0.7**2 + 0.8**2 + 0.1**2
    assert math.isnan(found["brier"][0])  # as the loss: a sample without outputs has none
    assert math.isnan(found["loss"][0])
    assert found["scored"].sum() == 3
    assert found["scored"][0].sum(1).tolist() == [1, 2]  # wrong and right
    assert found["score"].sum((0, 2)).tolist() == pytest.approx([0.7, 1.2], abs=1e-7)
    whole = tally_of(*one_client([outputs[i] for i in (0, 1, 3)], [0, 1, 2]))
    assert whole["brier"].tolist() == pytest.approx(
        [right + wrong + 0.25**2 + 0.25**2 + 0.5**2], rel=1e-12
    )
    assert whole["loss"].tolist() == pytest.approx([-log(0.7) - log(0.2) - log(0.5)], rel=1e-12)


@pytest.mark.parametrize("labels", [(0, 1), (-1, 1)])
def test_a_single_output_by_hand(labels: tuple[int, int]) -> None:
    no, yes = labels
    low, high = (math.log(p / (1 - p)) for p in (0.203, 0.755))
    found = tally_of(*one_client([[high], [high], [low], [nan]], [yes, no, no, no], "hinge"))
    assert found["correct"].tolist() == [2]
    assert found["confusion"][0].tolist() == [[1, 1, 1], [0, 1, 0]]
    fine = len(TAIL)  # the first hundredth is cut into as many bins more
    assert np.argwhere(found["scored"][0]).tolist() == [
        [0, fine + 20],
        [0, fine + 75],
        [1, fine + 75],
    ]
    assert found["score"].sum((0, 2)).tolist() == pytest.approx([0.203 + 0.755, 0.755], abs=1e-7)
    assert "brier" not in found  # a margin is no probability


def test_the_brier_score_of_a_single_output_is_twice_the_squared_error() -> None:
    found = tally_of(*one_client([[math.log(3)], [-math.log(4)]], [1, 1], "brier"))
    assert found["brier"].tolist() == pytest.approx([2 * 0.25**2 + 2 * 0.8**2], rel=1e-12)
    two = tally_of(*one_client([[0.0, math.log(3)], [math.log(4), 0.0]], [1, 1]))
    assert two["brier"].tolist() == pytest.approx(found["brier"].tolist(), rel=1e-12)
    # two outputs have the same probability of class 1
    assert np.array_equal(two["scored"], found["scored"])
    assert np.allclose(two["score"], found["score"], atol=1e-7)


def test_a_regression_by_hand() -> None:
    found = tally_of(*one_client([[1.0], [4.0]], [0.5, 6.0], "mse"))
    assert {name: sums.tolist() for name, sums in found.items()} == {
        "count": [2],
        "loss": [4.25],
        "absolute": [2.5],
    }
    # a mean over the entries of a target, as the loss
    two = tally_of(*one_client([[1.0, 4.0]], [[0.5, 6.0]], "mse"))
    assert two["absolute"].tolist() == [1.25]


def test_an_infinite_output_is_a_prediction() -> None:
    found = tally_of(*one_client([[math.inf, 0.0], [0.0, math.inf]], [0, 0]))
    assert found["confusion"][0].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert found["scored"][0, 0, [0, -1]].tolist() == [1, 1]


def test_a_label_that_is_no_class_of_the_model_is_in_no_table_and_never_right() -> None:
    def ignoring(output: Tensor, y: Tensor) -> Tensor:
        return torch.where(
            y < 0, 0.0, output.logsumexp(1) - output.gather(1, y.clamp(min=0)[:, None])[:, 0]
        )

    model, federation = one_client([[2.0, 1.0], [1.0, 2.0], [1.0, 2.0]], [0, 0, -100], ignoring)
    found = tally_of(model, federation)
    assert found["count"].tolist() == [3]
    assert found["correct"].tolist() == [1]
    assert found["confusion"][0].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert found["scored"].sum() == 2
    assert "brier" not in found  # nobody knows what a user's loss makes of outputs


# ---- a second way


def pooled_predictions(federation: eh.Federation, model: Model) -> tuple[np.ndarray, ...]:
    """Client, group, label, prediction and probabilities of each test sample, from plain torch."""
    assert federation.test is not None
    assert federation.test.group is not None
    with torch.no_grad():
        probability = model.output(model.init(), federation.test.x).softmax(1)
    part = federation.test
    return tuple(
        column.numpy()
        for column in (part.owners, part.group, part.y, probability.argmax(1), probability)
    )


def two_classes(clients: int, seed: int = 0, samples: int = 40) -> eh.Federation:
    """Clients with two groups and their own share of class 1; the last group is empty in the test
    data."""
    rng = np.random.default_rng(seed)

    def part(extra: bool, i: int) -> dict[str, Any]:
        x = rng.normal(size=(samples, 3))
        y = (x[:, 0] + 0.5 * rng.normal(size=samples) > 0.2 * i).astype(np.int64)
        group = rng.choice(["a", "b"], samples).tolist()
        return {
            "x": x,
            "y": y,
            "group": [*group[:-1], "c"] if extra else group,
            **({"team": ["p", "q"][i % 2]} if extra else {}),
        }

    train = [part(True, i) for i in range(clients)]
    test = [
        {key: value for key, value in part(False, i).items() if key != "team"}
        for i in range(clients)
    ]
    return eh.Federation.from_arrays(train, test=test)


def linear(inputs: int, outputs: int, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(inputs, outputs, dtype=torch.float64)


def check(model: Model, federation: eh.Federation) -> Model:
    model.check(federation)
    return model


@pytest.mark.parametrize("clients", [1, 2, 9])
def test_tables_and_scores_are_those_of_pooled_predictions(clients: int) -> None:
    federation = two_classes(clients)
    model = check(Model(linear(3, 2)), federation)
    client, group, label, prediction, probability = pooled_predictions(federation, model)
    found = exchanged(eh.Loop(), eh.FedAvg(), federation, model)
    columns = eh.metrics.score_columns(found, federation)
    assert columns["by"] == ["client"] * clients + ["group"] * 3 + ["team"] * min(clients, 2)
    assert columns["name"][clients:] == ["a", "b", "c", "p", "q"][: 3 + min(clients, 2)]
    assert federation.teams is not None
    masks = [client == i for i in range(clients)] + [group == a for a in range(3)]
    masks += [federation.teams.numpy()[client] == team for team in range(min(clients, 2))]
    for row, mask in enumerate(masks):
        y, p, q = label[mask], prediction[mask], probability[mask, 1]
        assert columns["count"][row] == mask.sum()
        if not mask.any():  # group c has no test data
            assert all(math.isnan(columns[name][row]) for name in list(columns)[5:])
            continue
        assert columns["accuracy"][row] == pytest.approx(sk.accuracy_score(y, p))
        assert columns["balanced_accuracy"][row] == pytest.approx(sk.balanced_accuracy_score(y, p))
        assert columns["precision"][row] == pytest.approx(sk.precision_score(y, p))
        assert columns["recall"][row] == pytest.approx(sk.recall_score(y, p))
        assert columns["brier"][row] == pytest.approx(2 * sk.brier_score_loss(y, q), rel=1e-12)
        assert columns["loss"][row] == pytest.approx(sk.log_loss(y, q), rel=1e-9)
        places = np.searchsorted(EDGES, q, side="right")
        assert columns["auc"][row] == pytest.approx(sk.roc_auc_score(y, places), abs=1e-14)
        both = np.stack([np.bincount(places[y == o], minlength=BINS) for o in (0, 1)])
        assert (
            abs(columns["auc"][row] - sk.roc_auc_score(y, q)) <= calibration.auc_error(both) + 1e-14
        )
        error = sum(
            abs((q[tenth] - y[tenth]).sum())
            for tenth in (np.minimum(q * 10, 9).astype(int) == b for b in range(10))
        ) / len(y)
        assert columns["calibration_error"][row] == pytest.approx(error, abs=1e-6)
        table = found["confusion"]
        if row < clients:
            assert (
                table[row].sum(0)[:, :2].tolist()
                == sk.confusion_matrix(y, p, labels=[0, 1]).tolist()
            )
    train_groups = np.bincount(federation.train.group.numpy(), minlength=3).tolist()  # type: ignore[union-attr]
    teams = np.bincount(federation.teams.numpy(), minlength=min(clients, 2)) * 40
    assert columns["train_count"].tolist() == [40] * clients + train_groups + teams.tolist()


def test_scores_of_three_classes_are_means_over_the_classes_that_have_samples() -> None:
    federation = ragged()
    model = check(Model(network()), federation)
    client, group, label, prediction, probability = pooled_predictions(federation, model)
    columns = eh.metrics.score_columns(exchanged(eh.Vmap(), Owned(), federation, model), federation)
    assert "auc" not in columns
    for row, mask in enumerate([client == i for i in range(10)] + [group == a for a in range(3)]):
        y, p, q = label[mask], prediction[mask], probability[mask]
        there = sorted(set(y.tolist()))
        assert columns["precision"][row] == pytest.approx(
            sk.precision_score(y, p, labels=there, average="macro", zero_division=0)
        )
        assert columns["recall"][row] == pytest.approx(
            sk.recall_score(y, p, labels=there, average="macro")
        )
        assert columns["balanced_accuracy"][row] == pytest.approx(columns["recall"][row])
        assert columns["brier"][row] == pytest.approx(
            ((q - np.eye(3)[y]) ** 2).sum(1).mean(), rel=1e-12
        )
        top, right = q.max(1), p == y
        tenths = [(top * 10).astype(int) == b for b in range(10)]
        error = sum(abs((top[tenth] - right[tenth]).sum()) for tenth in tenths) / len(y)
        assert columns["calibration_error"][row] == pytest.approx(error, abs=1e-6)


def test_a_class_that_is_never_predicted_has_precision_zero_in_the_mean_and_none_alone() -> None:
    three = {"count": np.array([[4]]), "correct": np.array([[2]]), "loss": np.zeros((1, 1))}
    # everything is taken for class 0; class 2 does not occur
    table = np.array([[2, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]])
    federation = eh.Federation.from_arrays([{"x": np.zeros((1, 1)), "y": [0]}])
    columns = eh.metrics.score_columns(three | {"confusion": table[None, None]}, federation)
    assert columns["precision"].tolist() == [(0.5 + 0.0) / 2]
    assert columns["recall"].tolist() == [(1.0 + 0.0) / 2]
    columns = eh.metrics.score_columns(
        three | {"confusion": table[None, None, :2, [0, 1, 3]]}, federation
    )
    assert "precision" not in columns  # it is unknown for everyone
    assert columns["recall"].tolist() == [0.0]


def test_a_regression_has_rmse_and_mae_and_no_columns_of_a_classifier() -> None:
    rng = np.random.default_rng(0)
    clients = [
        {"x": rng.normal(size=(m, 2)), "y": rng.normal(size=m), "team": t}
        for m, t in ((5, "p"), (8, "q"), (2, "q"))
    ]
    federation = eh.Federation.from_arrays(clients)
    result = eh.fit(linear(2, 1), federation, eh.FedAvg(), loss="mse", rounds=2)
    assert list(result.score_columns) == [
        "by",
        "name",
        "team",
        "train_count",
        "count",
        "loss",
        "rmse",
        "mae",
    ]
    module = linear(2, 1)
    module.load_state_dict(result.params)
    guess, y = module(federation.train.x).detach().numpy()[:, 0], federation.train.y.numpy()
    owners = federation.train.owners.numpy()
    assert federation.teams is not None
    for row, mask in enumerate([owners == 0, owners == 1, owners == 2, owners == 0, owners > 0]):
        assert result.score_columns["rmse"][row] == pytest.approx(
            math.sqrt(sk.mean_squared_error(y[mask], guess[mask]))
        )
        assert result.score_columns["mae"][row] == pytest.approx(
            sk.mean_absolute_error(y[mask], guess[mask])
        )
    assert result.counts is None
    assert result.values == pytest.approx((guess - y) ** 2)


def test_a_users_own_loss_that_is_no_classification_has_losses_alone() -> None:
    def absolute(output: Tensor, y: Tensor) -> Tensor:
        return (output.squeeze(1) - y).abs()

    federation = eh.Federation.from_arrays(
        [{"x": np.ones((4, 2)), "y": np.array([20.0, 30.0, 40.0, 90.0])}]
    )
    result = eh.fit(linear(2, 1), federation, eh.FedAvg(), loss=absolute, rounds=1)
    assert list(result.score_columns)[-2:] == ["count", "loss"]
    assert result.tally.keys() == {"count", "loss"}
    assert result.values.mean() == pytest.approx(result.score_columns["loss"][0])


def test_a_model_without_probabilities_has_an_auc_and_no_brier_score() -> None:
    federation = two_classes(4)
    result = eh.fit(linear(3, 1), federation, eh.FedAvg(), loss="hinge", rounds=3)
    assert federation.test is not None
    assert not {"brier", "calibration_error"} & result.score_columns.keys()
    module = linear(3, 1)
    module.load_state_dict(result.params)
    margin = module(federation.test.x).detach()[:, 0]
    for client in range(4):
        mine = federation.test.owners == client
        places = np.searchsorted(EDGES, margin[mine].sigmoid().numpy(), side="right")
        assert result.score_columns["auc"][client] == pytest.approx(
            sk.roc_auc_score(federation.test.y[mine], places), abs=1e-14
        )
        assert result.score_columns["auc"][client] == pytest.approx(
            sk.roc_auc_score(federation.test.y[mine], margin[mine]), abs=0.02
        )


# ---- tallies add, whoever takes them


def test_the_tally_of_a_union_is_the_sum_of_tallies() -> None:
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    outputs[7, 1] = nan
    group = rng.choice(["a", "b"], 60).tolist()
    group[:20] = ["a", "b"] * 10  # every part has both groups
    model, everyone = one_client(outputs.tolist(), y.tolist(), group=group)
    together = tally_of(model, everyone)
    parts = [
        tally_of(*one_client(outputs[i:j].tolist(), y[i:j].tolist(), group=group[i:j]))
        for i, j in ((0, 2), (2, 10), (10, 60))
    ]
    for name, sums in together.items():
        added = sum(part[name] for part in parts)
        if name in (*COUNTS, "score"):  # scores are summed as multiples of 2^-24, which is exact
            assert np.array_equal(sums, added), name
        else:
            np.testing.assert_allclose(sums, added, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("form", ["three classes", "two classes", "one output", "regression"])
def test_every_engine_counts_the_same_with_one_model_for_all_or_one_for_each(form: str) -> None:
    federation = ragged()
    if form == "regression":
        federation = with_labels(federation, lambda y: y.double() / 3)
    elif form != "three classes":
        federation = with_labels(federation, lambda y: (y > 0).long())
    outputs, loss = {
        "three classes": (3, "brier"),
        "two classes": (2, "cross_entropy"),
        "one output": (1, "hinge"),
        "regression": (1, "mse"),
    }[form]
    model = check(
        Model(nn.Sequential(linear(5, 4), nn.Tanh(), linear(4, outputs)), loss), federation
    )
    for part in ("train", "test"):
        reference = exchanged(eh.Loop(), eh.FedAvg(), federation, model, part)
        assert reference["count"].sum() == len(getattr(federation, part).x)
        for engine, algorithm in (
            (eh.Vmap(), eh.FedAvg()),
            (eh.Loop(), Owned()),
            (eh.Loop(workers=2), Owned()),
            (eh.Vmap(), Owned()),
            (eh.Vmap(chunk=2), Owned()),
        ):
            same_tally(exchanged(engine, algorithm, federation, model, part), reference)


def with_labels(federation: eh.Federation, change: Any) -> eh.Federation:
    assert federation.test is not None
    train, test = (replace(part, y=change(part.y)) for part in (federation.train, federation.test))
    return replace(federation, train=train, test=test)


def test_a_traced_tally_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = ragged(sizes=(9, 9, 9, 9, 9, 9))
    model = check(Model(network()), federation)
    expected = exchanged(eh.Vmap(chunk=1, trace=False), Owned(), federation, model)
    monkeypatch.setattr(replay, "CALLS_BEFORE_TRACING", 2)
    found = exchanged(eh.Vmap(chunk=1), Owned(), federation, model)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_blocks_of_samples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = ragged()
    model = check(Model(network()), federation)
    expected = exchanged(eh.Loop(), eh.FedAvg(), federation, model, "train")
    monkeypatch.setattr("evenhand.engines.pooled.BLOCK", 7)
    assert BLOCK > 300
    same_tally(exchanged(eh.Loop(), eh.FedAvg(), federation, model, "train"), expected)


def test_a_plain_tally_has_three_numbers_for_each_client_and_group() -> None:
    federation = ragged()
    model = check(Model(network()), federation)
    samples = federation.train.samples(model.dtype, model.device)
    # the last is padding
    batch = Batch(samples, torch.arange(5), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]))
    plain = tally(model, model.init(), batch, 3)
    assert {name: sums.shape for name, sums in plain.items()} == dict.fromkeys(
        ("count", "correct", "loss"), (3,)
    )
    full = tally(model, model.init(), batch, 3, full=True)
    assert all(torch.equal(plain[name], full[name]) for name in plain)
    assert full["count"].sum() == full["confusion"].sum() == full["scored"].sum() == 4
    assert judge(model, model.init(), batch).keys() == plain.keys()


def test_ten_thousand_classes_have_no_confusion_table() -> None:
    words, offsets = 10_004, torch.tensor([0, 3, 5])
    part = eh.Part(torch.randn(5, 2), torch.tensor([0, 9, words - 1, 1, 2]), offsets)
    federation = eh.Federation(part, part)
    model = check(Model(linear(2, words)), federation)
    found = exchanged(eh.Loop(), eh.FedAvg(), federation, model)
    assert set(found) == {"count", "correct", "loss", "brier", "scored", "score"}
    columns = eh.metrics.score_columns(found, federation)
    assert not {"balanced_accuracy", "precision", "recall"} & set(columns)
    assert np.isfinite(columns["brier"]).all()
    assert eh.metrics.counts_of(found, federation) is None


@pytest.mark.parametrize("algorithm", [eh.FedAvg(), Owned()], ids=["one model", "a model each"])
@pytest.mark.parametrize("engine", [eh.Loop(), eh.Vmap(chunk=3)], ids=["loop", "vmap"])
def test_a_table_that_is_too_large_by_client_is_kept_by_group(
    engine: Engine, algorithm: eh.Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = two_classes(5)
    model = check(Model(linear(3, 2)), federation)
    whole = exchanged(engine, algorithm, federation, model)
    monkeypatch.setattr(work, "MOST_CELLS", 5 * 3 * 2 * 3)  # the confusion counts just fit
    found = exchanged(engine, algorithm, federation, model)
    assert found["confusion"].shape == (5, 3, 2, 3)
    for name in ("scored", "score"):
        assert found[name].shape == (1, 3, 2, BINS)
        assert found[name].dtype == whole[name].dtype
        assert np.array_equal(found[name][0], whole[name].sum(0))
    columns, expected = (eh.metrics.score_columns(each, federation) for each in (found, whole))
    for name in ("auc", "calibration_error"):
        assert np.isnan(columns[name][:5]).all()
        assert np.isnan(columns[name][8:]).all()  # teams are sums over clients
        assert np.array_equal(columns[name][5:8], expected[name][5:8], equal_nan=True)
    for name in ("count", "accuracy", "loss", "balanced_accuracy", "precision", "recall", "brier"):
        assert np.array_equal(columns[name], expected[name], equal_nan=True)
    monkeypatch.setattr(work, "MOST_CELLS", 5 * 3 * 2 * 3 - 1)
    found = exchanged(engine, algorithm, federation, model)
    assert found["confusion"].shape == (1, 3, 2, 3)
    assert found["count"].shape == (5, 3)
    assert eh.metrics.counts_of(found, federation) is None
    assert np.array_equal(
        eh.metrics.score_columns(found, federation)["recall"][5:8],
        expected["recall"][5:8],
        equal_nan=True,
    )


# ---- what a run leaves


def test_a_client_without_test_data_is_counted_nowhere() -> None:
    rng = np.random.default_rng(0)
    rows = [{"x": rng.normal(size=(6, 3)), "y": [0, 1] * 3, "name": name} for name in "xyz"]
    tests = [
        {"x": rng.normal(size=(4, 3)), "y": [0, 1] * 2},
        None,
        {"x": rng.normal(size=(2, 3)), "y": [0, 0]},
    ]
    for algorithm in (eh.FedAvg(), eh.Ditto()):
        result = eh.fit(
            linear(3, 2), eh.Federation.from_arrays(rows, test=tests), algorithm, rounds=2
        )
        assert result.tally["count"].tolist() == [[4], [0], [2]]
        assert result.counts is not None
        assert result.counts.by_client.sum((1, 2)).tolist() == [4, 0, 2]
        row = result.score_rows[1]
        assert (row["count"], row["train_count"]) == (0, 6)
        assert all(math.isnan(value) for value in list(row.values())[5:])
        assert math.isnan(result.score_rows[2]["auc"])  # one class alone
        assert result.values.shape == (6,)


def test_counts_have_names_and_the_rates_of_the_scores() -> None:
    federation = two_classes(3)
    result = eh.fit(linear(3, 2), federation, eh.FedAvg(), rounds=2)
    assert result.counts is not None
    assert (result.counts.clients, result.counts.groups, result.counts.labels) == (
        ("0", "1", "2"),
        ("a", "b", "c"),
        ("0", "1"),
    )
    assert (
        rates.accuracy(result.counts.by_client).tolist()
        == result.score_columns["accuracy"][:3].tolist()
    )
    assert (
        rates.accuracy(result.counts.by_group)[:2].tolist()
        == result.score_columns["accuracy"][3:5].tolist()
    )
    plain = eh.Federation.from_arrays([{"x": np.eye(2), "y": [0, 1]}])
    named = eh.Federation(train=plain.train, label_names=("no",))
    found = eh.fit(nn.Linear(2, 3, dtype=torch.float64), named, eh.FedAvg(), rounds=1).counts
    assert found is not None
    assert (found.groups, found.labels, found.table.shape) == (
        ("",),
        ("no", "1", "2"),
        (1, 1, 3, 4),
    )


def test_names_of_groups_and_teams_that_nobody_is_in_have_rows_without_samples() -> None:
    plain = eh.Federation.from_arrays([{"x": np.eye(2), "y": [0, 1]}])
    named = eh.Federation(train=plain.train, group_names=("a", "b"), team_names=("p",))
    columns = eh.fit(linear(2, 2), named, eh.FedAvg(), rounds=1).score_columns
    assert columns["by"] == ["client", "group", "group", "team"]
    assert columns["train_count"].tolist() == [2, 0, 0, 0]


class Doubtful(nn.Module):
    """A linear model that gives NaN for samples with a large first feature."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 5, nan, self.inner(x))


@pytest.mark.parametrize(
    "algorithm", [eh.FedAvg(), eh.LocalOnly()], ids=["one model", "a model each"]
)
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_nan_predictions_are_counted_as_none_and_never_right(
    engine: str, algorithm: eh.Algorithm
) -> None:
    rng = np.random.default_rng(0)
    rows = [{"x": rng.normal(size=(6, 3)), "y": [0, 1] * 3} for _ in range(2)]
    tests = [{"x": rng.normal(size=(6, 3)), "y": [0, 1] * 3} for _ in range(2)]
    tests[0]["x"][:3, 0] = 9.0
    result = eh.fit(
        Doubtful(), eh.Federation.from_arrays(rows, test=tests), algorithm, rounds=2, engine=engine
    )
    assert result.counts is not None
    assert result.counts.table[:, 0, :, 2].tolist() == [[2, 1], [0, 0]]
    assert result.values[:3].tolist() == [0, 0, 0]
    assert (
        result.score_columns["accuracy"][0]
        == result.values[:6].mean()
        == rates.accuracy(result.counts.by_client)[0]
    )
    assert result.tally["scored"].sum((1, 2, 3)).tolist() == [3, 6]
    assert math.isnan(result.score_columns["brier"][0])
    assert not math.isnan(result.score_columns["auc"][0])  # of the samples that have a score


@pytest.mark.parametrize("method", ["fedavg", "ditto", "gifair_per", "finetuned", "localonly"])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_values_of_samples_add_up_to_the_tally(method: str, engine: str) -> None:
    federation = ragged()
    result = eh.fit(network(), federation, METHODS[method], rounds=3, engine=engine)
    assert federation.test is not None
    assert federation.test.group is not None
    assert result.values.shape == (len(federation.test.x),)
    cell = federation.test.owners.numpy() * 3 + federation.test.group.numpy()
    assert (
        np.bincount(cell, result.values, 30).reshape(10, 3).tolist()
        == result.tally["correct"].tolist()
    )


def test_values_are_those_of_training_samples_where_there_is_no_test_data() -> None:
    federation = eh.Federation.from_arrays(
        [{"x": np.eye(3), "y": [0, 1, 1]}, {"x": np.ones((2, 3)), "y": [0, 1]}]
    )
    result = eh.fit(linear(3, 2), federation, eh.FedAvg(), rounds=2)
    assert result.values.shape == (5,)
    assert result.validation is None
    assert result.tally["correct"].ravel().tolist() == [
        result.values[:3].sum(),
        result.values[3:].sum(),
    ]


def test_values_of_more_samples_than_a_block_keep_their_order_and_constants_and_tied_weights_are_filled_in() -> (
    None
):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = linear(3, 3), linear(3, 3)
            self.fixed = linear(3, 3).requires_grad_(False)
            self.last.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(self.first(x) + self.fixed(x))
            return result

    rng = np.random.default_rng(0)
    federation = eh.Federation.from_arrays(
        [{"x": rng.normal(size=(m, 3)), "y": rng.integers(0, 3, m)} for m in (2 * BLOCK + 5, 3)]
    )
    model = check(Model(Tied()), federation)
    saved = model.state_dict(model.init())
    with torch.no_grad():
        right = (Tied()(federation.train.x).argmax(1) == federation.train.y).double().numpy()
    assert np.array_equal(sample_values(model, federation.train, saved), right)
    assert np.array_equal(sample_values(model, federation.train, saved, [saved, saved]), right)


def test_validation_columns_are_those_of_scores_on_that_part() -> None:
    full = ragged()
    assert full.test is not None
    for algorithm in (eh.FedAvg(), eh.Ditto()):
        swapped = eh.Federation(
            full.train,
            val=full.test,
            teams=full.teams,
            team_names=full.team_names,
            group_names=full.group_names,
        )
        plain = eh.fit(network(), full, algorithm, rounds=2)
        result = eh.fit(network(), swapped, algorithm, rounds=2)
        assert plain.validation is None
        assert result.validation is not None
        assert list(result.validation) == [
            name for name in plain.score_columns if not name.startswith("shared_")
        ]
        assert all(
            np.array_equal(result.validation[name], plain.score_columns[name])
            for name in result.validation
        )
        assert result.score_columns["count"][:10].tolist() == list(SIZES)  # there is no test data


# ---- weights over rounds


def weighed(**changes: Any) -> eh.Result:
    settings: dict[str, Any] = {
        "rounds": 7,
        "eval_every": 2,
        "engine": "loop",
        "track_weights": True,
        "cohort": eh.Uniform(4),
    }
    algorithm = changes.pop("algorithm", eh.QFFL(q=2.0))
    return eh.fit(network(), ragged(), algorithm, **{**settings, **changes})


@pytest.mark.parametrize("method", ["fedavg", "qffl", "afl", "fafl", "term", "deltafl"])
def test_tracked_weights_are_those_a_run_to_that_round_ends_with(method: str) -> None:
    result = weighed(algorithm=METHODS[method])
    assert result.weight_rounds == [2, 4, 6, 7]
    assert result.weight_history is not None
    assert result.weight_history.shape == (4, 10)
    assert result.weight_history.dtype == np.float64
    np.testing.assert_allclose(result.weight_history.sum(1), 1, rtol=1e-12)
    for place, rounds in enumerate(result.weight_rounds):
        shorter = weighed(algorithm=METHODS[method], rounds=rounds, track_weights=False)
        assert shorter.certificate is not None
        assert (
            result.weight_history[place].tolist()
            == normalised(shorter.certificate.weights).tolist()
        )


@pytest.mark.parametrize("method", ["ditto", "localonly", "gifair_per", "finetuned"])
def test_methods_that_cannot_tell_have_no_weights(method: str) -> None:
    result = weighed(algorithm=METHODS[method])
    assert result.weight_rounds == []
    assert result.weight_history is None


def test_weights_are_not_kept_unless_asked_for() -> None:
    result = weighed(track_weights=False)
    assert (result.weight_rounds, result.weight_history) == ([], None)
    tracked = weighed()
    assert repr(tracked.history_rows) == repr(result.history_rows)
    assert repr(tracked.score_rows) == repr(result.score_rows)


class Stop(Exception):
    """What interrupts a run here."""


@pytest.mark.parametrize("at", [1, 3, 4, 6, 7])
def test_tracked_weights_survive_an_interruption_bit_for_bit(at: int, tmp_path: Path) -> None:
    def stop(done: int, row: dict[str, Any]) -> None:
        if done == at:
            raise Stop

    whole = weighed()
    with pytest.raises(Stop):
        weighed(out=tmp_path, checkpoint_every=3, progress=stop)
    resumed = weighed(out=tmp_path, checkpoint_every=3, resume=True)
    assert whole.weight_history is not None
    assert resumed.weight_history is not None
    assert resumed.weight_rounds == whole.weight_rounds
    assert resumed.weight_history.tobytes() == whole.weight_history.tobytes()
    assert resumed.values.tobytes() == whole.values.tobytes()
    assert all(resumed.tally[name].tobytes() == whole.tally[name].tobytes() for name in whole.tally)


def test_a_run_that_tracks_weights_does_not_go_on_from_one_that_does_not(tmp_path: Path) -> None:
    weighed(out=tmp_path, track_weights=False)
    with pytest.raises(eh.RunError, match="other settings"):
        weighed(out=tmp_path, resume=True)


class Watched(Engine):
    """An engine that remembers which evaluations it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def attach(self, model: Model, federation: eh.Federation, seed: int) -> Exchange:
        attached, asked = eh.Loop().attach(model, federation, seed), self.asked

        class Watching:
            here, by_client = True, True
            memories: dict[int, Tree] = attached.memories

            def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
                if isinstance(work, Evaluate):
                    asked.append((work.part, work.full))
                return attached.exchange(work, task, ids, round)

        return Watching()


@pytest.mark.parametrize(("method", "looks"), [("qffl", 4), ("localonly", 0)])
def test_training_data_are_looked_at_once_for_each_evaluated_round_and_only_where_weights_come_of_it(
    method: str, looks: int
) -> None:
    engine = Watched()
    weighed(algorithm=METHODS[method], engine=engine)
    assert engine.asked.count(("train", False)) == looks
    assert engine.asked.count(("test", False)) == 3  # the history
    assert engine.asked.count(("test", True)) == 1  # its last row, and the scores


@dataclass(frozen=True)
class LateToTell(eh.Algorithm, eh.Reporting):
    """FedAvg that knows its weights once every loss is below a bound."""

    bound: float = 1.0

    def certificate(self, state: Tree, losses: Tensor, census: eh.Census) -> eh.Certificate | None:
        return (
            eh.FedAvg().certificate(state, losses, census)
            if bool((losses < self.bound).all())
            else None
        )


def test_rounds_in_which_a_method_cannot_tell_are_left_out() -> None:
    losses = [
        max(weighed(algorithm=eh.FedAvg(), rounds=rounds).weight_columns["loss"])
        for rounds in (2, 4, 6, 7)
    ]
    assert losses[1] < losses[0]
    result = weighed(algorithm=LateToTell(bound=(losses[0] + losses[1]) / 2))
    assert result.weight_rounds == [
        rounds
        for rounds, loss in zip((2, 4, 6, 7), losses, strict=True)
        if loss < (losses[0] + losses[1]) / 2
    ]
    assert 2 not in result.weight_rounds
    assert result.weight_history is not None
    assert len(result.weight_history) == len(result.weight_rounds)


def test_methods_with_own_models_also_report_their_shared_one() -> None:
    fed = ragged()
    module = linear(fed.train.x.shape[1], int(fed.train.y.max()) + 1)
    result = eh.fit(module, fed, eh.algorithms.Ditto(lam=0.1), rounds=3, seed=0)
    plain = eh.fit(module, fed, eh.algorithms.FedAvg(), rounds=3, seed=0)
    for name in ("accuracy", "loss"):  # Ditto's shared model is FedAvg's
        np.testing.assert_allclose(
            result.score_columns[f"shared_{name}"], plain.score_columns[name], rtol=1e-6
        )
    assert not np.allclose(result.score_columns["shared_loss"], result.score_columns["loss"])
    assert "shared_loss" not in plain.score_columns
    # nobody trained it
    assert (
        "shared_loss"
        not in eh.fit(module, fed, eh.algorithms.LocalOnly(), rounds=1, seed=0).score_columns
    )


# ---- in pieces and in place


@pytest.mark.parametrize("clients", [1, 2, 7, 9])
def test_scores_and_tallies_do_not_depend_on_pieces(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> tuple[Tally, dict[str, Any]]:
        tally = exchanged(eh.Loop(), eh.FedAvg(), federation, model)
        return tally, eh.metrics.score_columns(tally, federation)

    federation = two_classes(clients)
    model = check(Model(linear(3, 2)), federation)
    whole, columns = found()
    monkeypatch.setattr(tallies, "PIECE", 2)
    assert [rows.stop - rows.start for rows in tallies.pieces(7)] == [2, 2, 3]
    assert [list(tallies.pieces(n)) for n in (0, 1)] == [[slice(0, 0)], [slice(0, 1)]]
    same_tally(found()[0], whole, 0)
    assert found()[1].keys() == columns.keys()
    for name, values in found()[1].items():
        assert np.array_equal(values, columns[name], equal_nan=name not in ("by", "name", "team"))


def test_a_tally_takes_the_tables_out_of_the_replies() -> None:
    loss = torch.tensor([[0.5], [0.25]], dtype=torch.float64)
    confusion = torch.tensor([[[[1.0, 0.0]]], [[[2.0, 3.0]]]], dtype=torch.float64)
    for ids, clients in (([0, 1], 2), ([0, 2], 3)):
        each = {"loss": loss.clone(), "confusion": confusion.clone(), "count": loss[:, :1].int()}
        replies = Replies(torch.tensor(ids), {"scored": torch.ones(1, 2)}, each)
        found = dense(replies, clients)
        assert not each
        assert found["loss"][ids].tolist() == loss.tolist()
        assert found["confusion"][ids].tolist() == confusion.tolist()
        assert found["scored"].tolist() == [[[1, 1]]]
        assert {name: values.dtype for name, values in found.items()} == {
            "loss": np.float64, "confusion": np.int64, "count": np.int64, "scored": np.int64
        }  # fmt: skip
        assert all(len(found[name]) == clients for name in ("loss", "confusion", "count"))
        assert not any(found[name][1:-1].any() for name in ("loss", "confusion", "count"))


@pytest.mark.parametrize("grouped", [False, True])
def test_samples_are_counted_in_the_same_cells_whether_their_order_is_kept_or_not(
    grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = two_classes(9)
    if not grouped:
        parts = {name: replace(part, group=None) for name, part in federation.parts.items()}
        federation = replace(federation, **parts, group_names=())
    model = check(Model(linear(3, 2)), federation)
    kind = Evaluate(eh.FedAvg(), federation.groups, "test", full=True, clients=9)
    found = []
    for kept in (0, 1 << 20):
        monkeypatch.setattr(pooled, "KEPT", kept)
        attached = eh.Loop().attach(model, federation, 0)
        asked = [torch.arange(9), torch.arange(9), torch.tensor([1, 2, 6, 8]), torch.arange(9)]
        task = Task({"model": model.init()})
        found.append([dense(attached.exchange(kind, task, ids, 0), 9) for ids in asked])
    for kept_not, kept_one in zip(*found, strict=True):
        same_tally(kept_not, kept_one, 0)
    for client in range(9):
        own = tally_of(model, replace(federation, train=federation.test), client)
        for few, tables in zip((False, False, True, False), found[0], strict=True):
            for name, table in tables.items():
                expected = 0 * own[name] if few and client not in (1, 2, 6, 8) else own[name]
                np.testing.assert_allclose(table[client], expected, rtol=1e-12, err_msg=name)


def test_training_losses_come_from_the_tallies_if_these_are_of_the_same_model_and_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Evaluate] = []
    exchange = Simulator.exchange

    def counting(self: Simulator, work: Work, *rest: Any) -> Replies:
        asked.extend([work] if isinstance(work, Evaluate) else [])
        return exchange(self, work, *rest)

    monkeypatch.setattr(Simulator, "exchange", counting)
    tested = two_classes(5)
    for method, federation, times in (
        (eh.FedAvg(), replace(tested, test=None), 1),
        (eh.QFFL(q=1.0), replace(tested, test=None), 1),
        (eh.FedAvg(), tested, 3),  # of test samples, losses, and scores to find thresholds on
        (eh.Ditto(), replace(tested, test=None), None),
    ):
        asked.clear()
        result = eh.fit(linear(3, 2), federation, method, rounds=2, eval_every=2)
        assert times is None or len(asked) == times
        model = check(Model(linear(3, 2)), federation)
        task = Task({"model": dict(result.params)})
        plain = Evaluate(eh.FedAvg(), federation.groups, "train")
        alone = exchange(
            eh.Vmap().attach(model, federation, 0),  # type: ignore[arg-type]
            plain, task, torch.arange(5), 0,
        )  # fmt: skip
        losses = alone.each["loss"].sum(1) / alone.each["count"].sum(1)
        if result.weight_columns:
            assert np.array_equal(result.weight_columns["loss"], losses.numpy())
        assert bool(result.weight_columns) == (times is not None)
