"""Gaps between groups in the history of a real federation: the simulator's, and no impossible
ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.engines.work import Evaluate
from evenhand.errors import SpecError
from evenhand.flower.evaluation_checks import check_evaluation
from evenhand.flower.weighing import _fewer
from evenhand.flower.wire import describe_work, read_work
from evenhand.messages import Reply, Task
from evenhand.metrics.round_gaps import GAPS
from evenhand.metrics.tallies import BY_LABEL, tally
from evenhand.model import Model
from tests.support.flower_nodes import SETTINGS, Setting
from tests.training.test_round_gaps import logistic, two_classes


@pytest.mark.parametrize("by_client", [True, False])
@pytest.mark.parametrize("absent", [True, False])
def test_the_gaps_are_the_simulators(by_client: bool, absent: bool, tmp_path: Path) -> None:
    federation = two_classes(absent=absent)
    settings = {**SETTINGS, "eval_every": 1}
    wanted = eh.fit(logistic(), federation, eh.FedAvg(), rounds=3, engine="loop", **settings)
    setting = Setting(tmp_path, federation, logistic())
    found = setting.run(eh.FedAvg(), rounds=3, by_client=by_client, eval_every=1)
    assert "selection_gap" in found.history_rows[0]
    for mine, theirs in zip(found.history_rows, wanted.history_rows, strict=True):
        assert {k: mine.get(k) for k in GAPS} == {k: theirs.get(k) for k in GAPS}


def test_the_work_comes_back_equal_and_an_older_server_does_not_ask_for_it() -> None:
    work = Evaluate(eh.FedAvg(), 2, by_label=True)
    words = describe_work(work, eh.FedAvg())
    assert read_work(words) == work
    older = {key: value for key, value in json.loads(words).items() if key != "by_label"}
    assert read_work(json.dumps(older)) == Evaluate(eh.FedAvg(), 2)
    with pytest.raises(SpecError, match="by_label must be true or false"):
        read_work(json.dumps(older | {"by_label": 1}))


def evaluated() -> tuple[dict[str, torch.Tensor], Task, Model]:
    """An honest evaluation by group and label."""
    federation = two_classes()
    model = Model(logistic(), "cross_entropy")
    model.check(federation)
    x, y, group = federation.test.client(0)  # type: ignore[union-attr]
    data = eh.data.samples.Batch(
        eh.data.samples.Samples(x.double(), y, group),
        torch.arange(len(y)),
        torch.ones(len(y), dtype=torch.float64),
    )
    params = model.init()
    return tally(model, params, data, 2, by_label=True), Task({"model": params}), model


def more(name: str, by: float) -> Callable[[dict[str, Any]], object]:
    return lambda told: told.update({name: told[name] + by})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (more("true_positives", 100.0), "more samples than have the label: true_positives"),
        (more("false_positives", 100.0), "more samples than have the label: false_positives"),
        (more("positives", 1.0), "more samples than it reported: positives"),
        (more("positives", -1.0), "fewer samples than it reported: positives"),
        (
            lambda told: told.update(correct=told["true_positives"] - 1),
            "a number that does not match its predictions by label: correct",
        ),
        (more("correct", 1.0), "a number that does not match its predictions by label: correct"),
        (more("true_positives", 0.5), "fractions of samples: true_positives"),
    ],
)
def test_an_impossible_count_by_label_is_refused(
    change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    told, task, model = evaluated()
    # the numbers of an untrained model, with room on both sides
    assert all(bool((told[name] > 0).all()) for name in BY_LABEL)
    assert check_evaluation(Reply(told), task, model, "client 1") == []
    lie = dict(told)
    change(lie)
    faults = check_evaluation(Reply(lie), task, model, "client 1")
    assert any(reason in fault for fault in faults), faults


def test_a_bounded_evaluation_still_adds_up() -> None:
    """A client with more samples than it may count for is taken as a smaller one with the same
    rates."""
    told, task, model = evaluated()
    told |= {"client_loss": told["loss"].sum() / told["count"].sum()}
    fewer = _fewer(told, 0.4)
    assert check_evaluation(Reply(fewer), task, model, "client 1") == []
    positives, negatives = fewer["positives"], fewer["negatives"]
    assert torch.equal(positives + negatives, fewer["count"])
    for part, whole in (("true_positives", "positives"), ("false_positives", "negatives")):
        rate, before = fewer[part] / fewer[whole], told[part] / told[whole]
        assert torch.allclose(rate, before, atol=1.01 / float(fewer[whole].min()))
