"""Metrics of a user: sums of numerators and denominators by client and group."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

import evenhand as eh
from evenhand.data.federation import Federation
from evenhand.metrics import influence, spread
from evenhand.metrics.measuring import are_shares, ratios
from tests.support.federations import network, ragged
from tests.support.own_metrics import METRICS, cost, f1_parts, top2

ROUNDS: dict[str, Any] = {"rounds": 2, "eval_every": 1, "metrics": METRICS}
COLUMNS = list(METRICS)


class Shown(torch.nn.Module):
    """Returns its input, whatever its parameter is."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * self.nothing


def two_clients() -> Federation:
    """Scores of two classes, two clients and the groups f and m."""
    right, wrong = [1.0, 0.0], [0.0, 1.0]  # for label 0
    first = {"x": np.array([right, right, wrong]), "y": [0, 0, 0], "group": ["f", "m", "m"]}
    second = {"x": np.array([right, wrong]), "y": [1, 1], "group": ["f", "m"]}
    return eh.Federation.from_arrays([first, second])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("method", [eh.FedAvg(), eh.Ditto()], ids=["shared", "personal"])
def test_means_and_ratios_by_hand(method: eh.Algorithm, engine: str) -> None:
    def share(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = (output.argmax(1) == 0).float()  # of the samples taken for 0, those that are 0
        return first * (y == 0), first

    metrics = {"wrong": eh.Metric(lambda o, y: o.argmax(1) != y, better="lower"), "share": share}
    result = eh.fit(Shown(), two_clients(), method, rounds=1, metrics=metrics, engine=engine)
    rows = result.scores.set_index("name")
    # client 0: two of three right, both taken for 0 are 0; client 1: one of two, none of one
    assert rows["wrong"].to_dict() == pytest.approx(
        {"0": 1 / 3, "1": 1 / 2, "f": 1 / 2, "m": 1 / 3}
    )
    assert rows["share"].to_dict() == pytest.approx({"0": 1, "1": 0, "f": 1 / 2, "m": 1})
    last = result.history_rows[-1]
    assert last["wrong"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert last["wrong_worst10"] == pytest.approx(1 / 2)  # the largest, as lower is better
    assert (last["share"], last["share_worst10"]) == (0.5, 0.0)


def test_a_client_whose_denominators_are_0_has_no_value_and_is_left_out_of_means() -> None:
    def of_label_1(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (y == 1) & (output.argmax(1) == 1), y == 1

    result = eh.fit(Shown(), two_clients(), eh.FedAvg(), rounds=1, metrics={"found": of_label_1})
    found = result.score_columns["found"]
    assert math.isnan(found[0])
    assert found[1:].tolist() == [0.5, 0.0, 1.0]
    assert result.history_rows[-1]["found"] == 0.5


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_metrics_of_a_clients_predictions_are_scikit_learns(engine: str) -> None:
    federation = ragged()
    result = eh.fit(network(), federation, eh.FedAvg(), engine=engine, **ROUNDS)
    module = network()
    module.load_state_dict(result.params)
    part = federation.judged
    output, y = module(part.x).detach().numpy(), part.y.numpy()
    codes = {"client": part.owners.numpy(), "group": part.group.numpy()}  # type: ignore[union-attr]
    for by, code in codes.items():
        rows = [row for row in result.score_rows if row["by"] == by]
        for place, row in enumerate(rows):
            mine = code == place
            o, t = output[mine], y[mine]
            classes = np.arange(o.shape[1])
            kinds = np.union1d(o.argmax(1), t)  # classes without a denominator do not count
            assert row["top2"] == pytest.approx(
                sk.top_k_accuracy_score(t, o, k=2, labels=classes), rel=1e-12
            )
            assert row["f1"] == pytest.approx(
                sk.f1_score(t, o.argmax(1), average="macro", labels=kinds), rel=1e-12
            )
            assert row["cost"] == pytest.approx(sk.mean_absolute_error(t, o.argmax(1)), rel=1e-12)


@pytest.mark.parametrize("method", [eh.FedAvg(), eh.Ditto()], ids=["shared", "personal"])
def test_engines_and_stacks_agree(method: eh.Algorithm) -> None:
    loop, vmap = (
        eh.fit(network(), ragged(), method, engine=engine, **ROUNDS) for engine in ("loop", "vmap")
    )
    stacked = eh.fit_many(
        network(), ragged(), [eh.Run(method), eh.Run(method, seed=1)], engine="vmap", **ROUNDS
    )[0]
    for other in (vmap, stacked):
        for name in COLUMNS:
            mine, its = loop.score_columns[name], other.score_columns[name]
            assert mine == pytest.approx(its, rel=1e-5, abs=1e-6)
        assert list(loop.history.columns) == list(other.history.columns)
        assert loop.history["f1"].tolist() == pytest.approx(other.history["f1"].tolist(), rel=1e-5)


def test_functions_that_are_not_made_of_torch_are_never_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evenhand.engines.replay.CALLS_BEFORE_TRACING", 1)
    often = {**ROUNDS, "rounds": 5}
    histories = [
        eh.fit(network(), ragged(), eh.Ditto(), engine=engine, **often).history["cost"]
        for engine in ("loop", "vmap")
    ]
    assert histories[0].nunique() > 1
    assert histories[0].tolist() == pytest.approx(histories[1].tolist(), rel=1e-5)


def test_sums_of_clients_are_those_of_their_union() -> None:
    federation = ragged(teams=False)
    apart = eh.fit(network(), federation, eh.FedAvg(), **ROUNDS)
    module = network()
    module.load_state_dict(apart.params)
    part = federation.judged
    whole = eh.Federation.from_arrays([{"x": part.x.numpy(), "y": part.y.numpy()}])
    together = eh.fit(
        module, whole, eh.FedAvg(), rounds=1, local=eh.LocalSGD(lr=1e-30), metrics=METRICS
    )
    for name, better in (("top2", "higher"), ("f1", "higher"), ("cost", "lower")):
        mine = apart.tally[f"{better}:{name}"].sum((0, 1))
        assert mine.tolist() == together.tally[f"{better}:{name}"][0, 0].tolist()
        assert ratios(mine) == together.score_columns[name][0]


def test_metrics_are_evaluated_on_validation_data_too() -> None:
    federation = ragged().with_validation(0.3, 0)
    result = eh.fit(network(), federation, eh.FedAvg(), **ROUNDS)
    assert result.validation is not None
    assert np.isfinite(result.validation["f1"]).any()


def test_without_a_classifier_the_summary_is_of_the_first_metric() -> None:
    def size(output: Tensor, y: Tensor) -> Tensor:
        return (output.squeeze(1) - y).abs()

    fed = eh.Federation.from_arrays(
        [{"x": np.zeros((1, 1)), "y": np.array([y])} for y in (1.0, 2.0, 3.0)]
    )
    module = torch.nn.Linear(1, 1, bias=False)
    for better, worst in (("lower", 3.0), ("higher", 1.0)):
        metrics = {"size": eh.Metric(size, better=better)}
        result = eh.fit(module, fed, eh.FedAvg(), loss="mse", rounds=1, metrics=metrics)
        assert result.summary["worst"] == result.summary["worst10"] == worst
        assert result.summary["mean"] == 2.0


WRONG: dict[str, tuple[Any, str]] = {
    "scalar": (lambda o, y: o.mean(), "must return one value per sample, .*, got one number"),
    "float": (lambda o, y: 0.5, "so that clients add, got float"),
    "width": (lambda o, y: o, r"got shape \[8, 3\]"),
    "three": (lambda o, y: (y, y, y), r"got \(shape \[8\], shape \[8\], shape \[8\]\)"),
    "unlike": (lambda o, y: (o, y), r"got \(shape \[8, 3\], shape \[8\]\)"),
    "raises": (lambda o, y: y.no_such_thing, "metric 'own' fails on outputs .*no_such_thing"),
    "nan": (lambda o, y: y / 0 * 0, "metric 'own' returned nan for finite outputs"),
    "batch": (lambda o, y: y - y.double().mean(), "depends on the other samples"),
    # 0 for every sample of an untrained model that has nothing right
    "share": (lambda o, y: (o.argmax(1) == y) * (o.amax(1) == 1) / len(y), "depends on the other"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_function_that_does_not_fit_is_refused_before_training(name: str) -> None:
    function, message = WRONG[name]
    with pytest.raises(ValueError, match=f"metric 'own'.*{message}|{message}"):
        eh.fit(network(), ragged(), eh.FedAvg(), rounds=1, metrics={"own": function})


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([top2], "metrics must be functions by name"),
        ({"top 2": top2}, "'top 2' cannot be the name of a metric"),
        ({"accuracy": top2}, "metric 'accuracy' has the name of another column"),
        ({"a": top2, "a_worst10": top2}, "metric 'a_worst10' has the name of another column"),
        ({"top2": 5}, "metric 'top2' must be a function"),
    ],
)
def test_bad_metrics_are_refused_when_settings_are_made(metrics: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        eh.Settings(metrics=metrics)


def test_a_metric_that_is_no_function_or_has_another_direction_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a metric needs a function \(output, y\)"):
        eh.Metric("top2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='better must be "higher" or "lower"'):
        eh.Metric(top2, better="more")


def test_a_function_that_fails_later_costs_no_result(caplog: pytest.LogCaptureFixture) -> None:
    def fails_on_many(output: Tensor, y: Tensor) -> Tensor:
        if len(y) > 8:  # more than are tried
            raise RuntimeError("too many")
        return y.float()

    with caplog.at_level(logging.WARNING):
        result = eh.fit(
            network(), ragged(), eh.FedAvg(), rounds=1, metrics={"bad": fails_on_many, "top2": top2}
        )
    assert "bad" not in result.score_columns
    assert np.isfinite(result.score_columns["top2"]).all()
    assert "metric 'bad' is unknown for some samples: too many" in caplog.text
    assert caplog.text.count("too many") == 1


def test_a_value_that_becomes_nan_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def one_is_nan(output: Tensor, y: Tensor) -> Tensor:
        values = torch.zeros(len(y))
        values[8:9] = torch.nan
        return values

    with caplog.at_level(logging.WARNING):
        eh.fit(network(), ragged(), eh.FedAvg(), rounds=1, metrics={"odd": one_is_nan})
    assert "metric 'odd' is not finite for some samples whose outputs are" in caplog.text


def test_a_metric_that_all_samples_lack_has_no_column() -> None:
    def nothing(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(y)), torch.zeros(len(y))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = eh.fit(network(), ragged(), eh.FedAvg(), rounds=1, metrics={"none": nothing})
    assert "none" not in result.score_columns


def test_a_run_is_read_and_resumed_without_its_functions(tmp_path: Any) -> None:
    whole = eh.fit(network(), ragged(), eh.FedAvg(), out=tmp_path, **ROUNDS)
    trial = eh.load(tmp_path).trial()
    for name in COLUMNS:
        assert trial.score_columns[name] == pytest.approx(whole.score_columns[name], nan_ok=True)
    more = {**ROUNDS, "rounds": 3, "metrics": {"cost": cost}}
    longer = eh.fit(network(), ragged(), eh.FedAvg(), out=tmp_path, resume=True, **more)
    assert len(longer.history) == 3
    assert list(eh.load(tmp_path).trial().score_columns)[-1] == "cost"


@pytest.mark.parametrize("entries", [1, 4])
def test_influence_values_average_to_the_ratio_and_vary_like_it(entries: int) -> None:
    """Their variance over the samples is that of the ratio (jackknife)."""
    rng = np.random.default_rng(0)
    m, cell = 300, np.repeat([0, 1], 300)
    below = rng.integers(1, 4, (2 * m, entries)).astype(float)
    above = rng.normal(1, 1, (2 * m, entries)) * below
    stored = np.stack([above, below], 1)
    values = influence.ratio(stored, cell, 2)
    for code in (0, 1):
        mine = stored[cell == code]
        assert values[cell == code].mean() == pytest.approx(ratios(mine.sum(0)), rel=1e-12)
        without = ratios(mine.sum(0) - mine)  # each left out
        jackknife = (m - 1) / m * ((without - without.mean()) ** 2).sum()
        assert values[cell == code].var() / m == pytest.approx(jackknife, rel=0.02)


def test_shares_are_known_by_their_parts() -> None:
    assert are_shares(np.array([0, 1, 1], np.uint8))
    assert not are_shares(np.array([0.2, 0.9]))
    assert are_shares(np.array([[[0, 2], [1, 2]]]))
    assert not are_shares(np.array([[[2], [1]]]))


def test_only_the_mean_is_known_if_the_server_sees_sums() -> None:
    from evenhand.metrics.client_sums import client_sums, from_client_sums

    tables = torch.tensor([[[[2.0], [4.0]]], [[[1.0], [1.0]]], [[[0.0], [0.0]]]])  # (n, A, 2, 1)
    sums: dict[str, Tensor] = {}
    for table in tables.double():
        tally = {"count": torch.ones(1), "loss": torch.ones(1), "higher:share": table}
        for name, value in client_sums(tally).items():
            sums[name] = sums.get(name, torch.zeros(())) + value
    assert from_client_sums(sums) == {"loss": 1.0, "share": 0.75}  # the last has no value


def test_the_history_has_the_means_over_the_worst_clients() -> None:
    result = eh.fit(network(), ragged(), eh.FedAvg(), **ROUNDS)
    clients = [kind == "client" for kind in result.score_columns["by"]]
    last = result.history_rows[-1]
    for name, worst in (("f1", spread.worst), ("cost", spread.best)):
        values = result.score_columns[name][clients]
        assert last[name] == pytest.approx(float(spread.mean(values)))
        assert last[f"{name}_worst10"] == pytest.approx(float(worst(values)))


def test_f1_of_a_function_is_that_of_its_classes() -> None:
    output, y = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 0, 1])
    above, below = (part.sum(0) for part in f1_parts(output, y))
    assert (above / below).tolist() == pytest.approx([0.5, 0.0])


FORMS: dict[str, tuple[Any, torch.nn.Module, str]] = {
    "class": (lambda x: (x[:, 0] > 0).astype(int), torch.nn.Linear(4, 2), "cross_entropy"),
    "one output": (lambda x: (x[:, 0] > 0).astype(int), torch.nn.Linear(4, 1), "bce"),
    "labels": (lambda x: (x[:, :3] > 0).astype(int), torch.nn.Linear(4, 3), "bce"),
    "positions": (
        lambda x: (x[:, :, None] > [[0, 9]]).astype(int) - 100 * (x[:, :, None] < [[-1, -9]]),
        torch.nn.Sequential(torch.nn.Linear(4, 24), torch.nn.Unflatten(1, (3, 4, 2))),
        "cross_entropy",
    ),
    "mask": (
        lambda x: (x.reshape(-1, 2, 2) > 0).astype(int),
        torch.nn.Unflatten(1, (2, 2)),
        "dice",
    ),
    "ordinal": (lambda x: np.digitize(x[:, 0], [-1, 0, 1]), torch.nn.Linear(4, 3), "ordinal"),
    "number": (lambda x: x.sum(1), torch.nn.Linear(4, 1), "mse"),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_metric_is_also_tried_on_outputs_that_are_right(name: str) -> None:
    labels, module, loss = FORMS[name]
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), module)
    x = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")
    fed = eh.Federation.from_arrays([{"x": x, "y": labels(x)}])
    target = eh.fit(module, fed, eh.FedAvg(), loss=loss, rounds=1).target
    shares = []

    def right(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        shares.append(target.right(output, y))
        return shares[-1]

    eh.fit(module, fed, eh.FedAvg(), loss=loss, rounds=1, metrics={"right": right})
    assert (shares[2] == (name != "number")).all()


def test_a_function_may_return_numpy_arrays() -> None:
    def right(output: torch.Tensor, y: torch.Tensor) -> Any:
        return output.numpy().argmax(1) == y.numpy()

    def ratio(output: torch.Tensor, y: torch.Tensor) -> Any:
        return right(output, y).astype(float), np.ones(len(y))

    metrics = {"right": right, "ratio": ratio}
    scores = eh.fit(network(), ragged(), eh.FedAvg(), rounds=1, metrics=metrics).scores
    assert scores["right"].tolist() == scores["accuracy"].tolist() == scores["ratio"].tolist()
