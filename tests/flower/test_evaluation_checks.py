"""The server skips and names an impossible evaluation; the run continues, also after a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Message

import evenhand as eh
from evenhand.flower import records
from evenhand.flower.evaluation_checks import check_evaluation
from evenhand.flower.weighing import _fewer
from evenhand.messages import Reply, Task
from evenhand.metrics.client_sums import client_sums
from evenhand.metrics.tallies import tally
from evenhand.model import Model
from tests.support.federations import network, ragged
from tests.support.flower_nodes import FAST, Setting

SIZES = (10, 12, 14)
Change = Callable[[dict[str, Any]], object]


def put(name: str, value: float, cell: int | None = None) -> Change:
    def change(told: dict[str, Any]) -> None:
        told[name] = told[name].clone()
        told[name].view(-1)[slice(None) if cell is None else cell] = value

    return change


def times(name: str, factor: float) -> Change:
    return lambda told: told.update({name: told[name] * factor})


def moved(name: str) -> Change:
    """One more in the first cell, one less where there are some."""

    def change(told: dict[str, Any]) -> None:
        told[name] = told[name].clone()
        cells = told[name].view(-1)
        cells[int(cells.argmax())] -= 1
        cells[0] += 1

    return change


LIES: dict[str, tuple[Change, str]] = {
    "-5 correct": (put("correct", -5.0), "negative: total/correct"),
    "half a sample": (put("correct", 0.5), "fractions of samples: correct"),
    "1000 x correct": (times("correct", 1000.0), "more samples than it reported: correct"),
    "NaN": (put("loss", math.nan), "no finite value: loss"),
    "infinite loss": (put("loss", math.inf), "no finite value: loss"),
    "negative loss": (put("loss", -1.0), "values out of range: loss"),
    "huge loss": (put("loss", 1e12), "values out of range: loss"),
    "4e9 in a histogram": (
        put("client_accuracies", 4e9, 3),
        "a histogram that does not match its accuracy",
    ),
    "two clients in a histogram": (
        put("client_accuracies", 1.0, 3),
        "a histogram that does not match its accuracy",
    ),
    "the wrong cell": (moved("client_accuracies"), "a histogram that does not match its accuracy"),
    "-4 clients": (put("clients", -4.0), "values that do not match its tally: clients"),
    "two clients": (put("clients", 2.0), "values that do not match its tally: clients"),
    "accuracy 1e300": (
        put("client_accuracy", 1e300),
        "values that do not match its tally: client_acc",
    ),
    "its square": (
        put("client_accuracy_squared", 7.0),
        "values that do not match its tally: client_acc",
    ),
    "client loss": (put("client_loss", 9.0), "values that do not match its tally: client_loss"),
    "count": (times("count", 2.0), "not what the node reported at the start: total/count"),
}
OF_TABLES: dict[str, tuple[Change, str]] = {
    "confusion": (times("confusion", 2.0), "more samples than it reported: confusion"),
    "less confusion": (times("confusion", 0.0), "fewer samples than it reported: confusion"),
    "diagonal": (
        times("correct", 0.0),
        "a number that does not match its table of predictions: correct",
    ),
    "scored": (times("scored", 100.0), "more samples than it reported: scored"),
    "score": (times("score", 100.0), "values out of range: score"),
    "brier": (put("brier", 1e5), "values out of range: brier"),
}


def lying(change: Change) -> Callable[[int, Message], list[Message]]:
    """Node 2 changes every evaluation."""

    def spoil(node: int, message: Message) -> list[Message]:
        if node == 2 and message.has_content() and "about" in message.content:
            reply, about = records.read_reply(message.content)
            if about.get("work") == "evaluate":
                told = dict(reply.total)
                change(told)
                message.content = records.reply_content(Reply(told, reply.each), about)
        return [message]

    return spoil


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_is_left_out_and_named_and_so_after_a_restart(
    lie: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, reason = LIES[lie]
    setting = Setting(tmp_path, ragged(SIZES), network(torch.float64), spoil=lying(change))
    options = {**FAST, "rounds": 2, "by_client": False}
    result = setting.run(eh.FedAvg(), **options)
    assert result.score_columns["count"][0] == 2 * 9  # without client 1
    row = result.history_rows[-1]
    assert 0 <= row["worst"] <= row["mean"] <= 1
    assert 0 < row["loss"] < 10
    about = [line.getMessage() for line in caplog.records if "client 1" in line.getMessage()]
    assert any(reason in line for line in about)
    assert all(line.endswith("; skipped") for line in about)
    faults = (tmp_path / "run/fedavg/faults.jsonl").read_text().splitlines()
    assert json.loads(faults[0])["client"] == 1
    assert json.loads(faults[0]).keys() == {"round", "client", "name", "kind", "what"}
    again = setting.run(eh.FedAvg(), **options)
    assert again.score_columns["count"][0] == 2 * 9


def evaluated(full: bool = True) -> tuple[Reply, Task, Model]:
    """An honest evaluation of a model that has been trained a little."""
    federation = ragged((12,))
    module = network(torch.float64)
    model = Model(module, "cross_entropy")
    model.check(federation)
    params = model.init()
    x, y, group = federation.test.client(0)  # type: ignore[union-attr]
    data = eh.data.samples.Batch(
        eh.data.samples.Samples(x.double(), y, group),
        torch.arange(len(y)),
        torch.ones(len(y), dtype=torch.float64),
    )
    found = tally(model, params, data, 3, full)
    return Reply(found | client_sums(found)), Task({"model": params}), model


@pytest.mark.parametrize("lie", OF_TABLES)
def test_tables_add_up(lie: str) -> None:
    reply, task, model = evaluated()
    assert check_evaluation(reply, task, model, "client 1") == []
    change, reason = OF_TABLES[lie]
    told = dict(reply.total)
    change(told)
    faults = check_evaluation(Reply(told), task, model, "client 1")
    assert any(reason in fault for fault in faults), faults
    assert all(fault.startswith("client 1: its evaluation has ") for fault in faults)


def test_a_model_that_has_diverged_may_have_any_loss() -> None:
    reply, task, model = evaluated(full=False)
    told = dict(reply.total)
    told["loss"] = told["loss"] * math.nan
    told["client_loss"] = told["client_loss"] * math.nan
    assert check_evaluation(Reply(told), task, model, "client 1")
    huge = Task({"model": eh.tree.scale(task.shared["model"], 1e30)})
    assert check_evaluation(Reply(told), huge, model, "client 1") == []


SHARES: dict[str, tuple[float, list[str]]] = {
    "as computed": (1.5, []),
    "more than all labels": (3.1, ["share_correct"]),
    "less than none": (-0.1, ["share_correct"]),
    "NaN": (math.nan, ["share_correct"]),
}


@pytest.mark.parametrize("case", SHARES)
def test_shares_of_right_labels_lie_between_none_and_all(case: str) -> None:
    value, names = SHARES[case]
    module, y = torch.nn.Linear(2, 2), torch.tensor([[0, 1], [1, 1], [0, 0]])
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)  # label 0 is predicted
    fed = eh.Federation(eh.Part(torch.zeros(3, 2), y, torch.tensor([0, 3])))
    model = Model(module, "bce")
    model.check(fed)
    samples = fed.train.samples(model.dtype, model.device)
    batch = eh.Batch(samples, torch.arange(3), torch.ones(3))
    told = tally(model, model.init(), batch, 0, full=True)
    assert told["share_correct"].tolist() == [1.5]
    told["share_correct"] = torch.tensor([value], dtype=torch.float64)
    found = check_evaluation(Reply(told), Task({"model": model.init()}), model, "node")
    assert found == [f"node: its evaluation has values out of range: {name}" for name in names]


def test_fewer_samples_keep_the_share_that_is_right() -> None:
    told = {"count": torch.tensor([10.0]), "share_correct": torch.tensor([7.3])}
    fewer = _fewer({**told, "loss": torch.tensor([5.0])}, 0.4)
    assert fewer["count"].tolist() == [4]
    assert fewer["share_correct"].tolist() == pytest.approx([4 * 0.73])
    assert fewer["loss"].tolist() == pytest.approx([2])
