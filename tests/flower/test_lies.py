"""A node that lies: it is found and named, and costs honest clients little (a small piece of
benchmarks/torture/lies.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from benchmarks.torture import lies
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import FAST, Setting, flat

SIZES = (30, 12, 40, 25)
LIAR = 2


def spoilt(folder: Path, change: lies.Change | None) -> Setting:
    setting = Setting(folder, ragged(SIZES), network(torch.float64))
    if change is not None:
        setting.grid.spoil = lambda node, reply: [change(reply) if node == LIAR + 1 else reply]
    return setting


def faults(folder: Path) -> list[dict[str, Any]]:
    [found] = folder.rglob("faults.jsonl")
    return [json.loads(line) for line in found.read_text().splitlines()]


@pytest.mark.parametrize(
    ("method", "change", "kind", "what"),
    [
        ("fedavg", lies.trained(lies.times(1e6)), "refused", "not what the server sent: total/weight; skipped"),
        ("afl", lies.trained(lies.set_to(-1.0, "loss")), "refused", "a negative loss: each/loss_at_start; skipped"),
        ("fafl", lies.trained(lies.set_to(9e29, "eta")), "refused", "out of range: total/eta; skipped"),
        ("fedmgda", lies.trained(lies.times(3.0, "weight")), "refused", "not what the server sent: each/weight; skipped"),
        ("agnosticfedavg", lies.trained(lies.times(2.0, "group_share")), "refused", "not what the server sent: total/group_share; skipped"),
        ("term", lies.trained(lies.times(-1.0, "weight")), "refused", "negative: total/weight; skipped"),
    ],
)  # fmt: skip
def test_what_is_impossible_is_refused_and_the_rest_is_as_without_the_liar(
    method: str, change: lies.Change, kind: str, what: str, tmp_path: Path
) -> None:
    result = spoilt(tmp_path, change).run(METHODS[method], rounds=2, **FAST)
    assert faults(tmp_path) == [
        {"round": round, "client": LIAR, "name": str(LIAR), "kind": kind, "what": what}
        for round in (1, 2)
    ]
    assert [row["left_out"] for row in result.history_rows] == [str(LIAR)] * 2


@pytest.mark.parametrize("method", ["fedavg", "qffl", "term", "drfa", "fedfv", "fedminmax"])
def test_an_update_that_is_too_long_is_named_and_the_model_stays_near(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def moved(name: str, change: lies.Change | None, **options: Any) -> float:
        setting = spoilt(tmp_path / name, change)
        result = setting.run(METHODS[method], rounds=2, **FAST, **options)
        first = network(torch.float64).state_dict()
        return float(sum((result.params[key] - first[key]).norm() ** 2 for key in first) ** 0.5)

    long = lies.trained(lies.times(1000.0, *lies.UPDATES))
    honest, bounded = moved("honest", None), moved("bounded", long)
    assert not list((tmp_path / "honest").rglob("faults.jsonl"))
    assert bounded < 5 * honest
    told = faults(tmp_path / "bounded")
    assert {(row["client"], row["kind"]) for row in told} == {(LIAR, "bounded")}
    assert {row["round"] for row in told} == {1, 2}
    assert "client 2 is bounded in round 1: " in caplog.text
    assert "times as long as the median; it counts as 3" in caplog.text
    if method == "fedavg":
        assert moved("as it is", long, bound=None) > 50 * honest
        assert not list((tmp_path / "as it is").rglob("faults.jsonl"))


def test_a_loss_that_is_not_believed_gains_no_weight(tmp_path: Path) -> None:
    lam = {
        name: spoilt(tmp_path / name, change).run(METHODS["afl"], rounds=3, **FAST, **options).state["lam"]
        for name, change, options in (
            ("honest", None, {}),
            ("lie", lies.told(lies.set_to(9e29, "loss")), {}),
            ("believed", lies.told(lies.set_to(9e29, "loss")), {"bound": None}),
        )
    }  # fmt: skip
    assert float(lam["believed"][LIAR]) == 1.0
    assert float(lam["lie"][LIAR]) < float(lam["honest"][LIAR]) + 0.1
    assert "times the median; it counts as the median" in faults(tmp_path / "lie")[0]["what"]


def test_those_who_are_late_are_noted_too(tmp_path: Path) -> None:
    setting = spoilt(tmp_path, None)
    setting.grid.spoil = lambda node, reply: (
        [] if node == LIAR + 1 and "round" in reply.content.get("about", {}) else [reply]
    )
    setting.run(METHODS["fedavg"], rounds=1, deadline=0.3, **FAST)
    first = faults(tmp_path)[0]
    assert (first["round"], first["client"], first["kind"]) == (1, LIAR, "late")
    assert first["what"] == "has not answered within 0.3 s and is skipped in round 1"


def test_a_reply_that_is_larger_than_its_form_is_refused(tmp_path: Path) -> None:
    def longer(reply: Any) -> Any:
        return reply._replace(total={**reply.total, "more": torch.zeros(1 << 17)})

    spoilt(tmp_path, lies.trained(longer)).run(METHODS["fedavg"], rounds=1, **FAST)
    assert "is skipped: its reply has 525220 bytes, at most 66" in faults(tmp_path)[0]["what"]


def test_a_bounded_run_that_is_interrupted_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    long = lies.trained(lies.times(1000.0, *lies.UPDATES))
    settings = {**FAST, "cohort": eh.Uniform(3)}
    whole = spoilt(tmp_path / "whole", long).run(METHODS["fedavg"], rounds=4, **settings)
    setting = spoilt(tmp_path / "parts", long)
    pull, count = setting.grid.pull_messages, [0]

    def dies(names: Any) -> Any:
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt
        return pull(names)

    setting.grid.pull_messages = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        setting.run(METHODS["fedavg"], rounds=4, **settings)
    result = setting.run(METHODS["fedavg"], rounds=4, **settings)
    for key, value in flat(whole).items():
        assert torch.equal(flat(result)[key], value), key


@pytest.mark.parametrize("bound", [0.5, -1.0, float("nan"), "much"])
def test_a_bound_is_a_number_from_one_on(bound: Any, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match="bound must be"):
        spoilt(tmp_path, None).run(METHODS["fedavg"], bound=bound)


def test_the_worst_honest_client_keeps_its_accuracy() -> None:
    """Made-up patients: the same wherever the test runs."""
    clients = lies._made_up(0)
    known = {lie.name: lie for lie in lies.LIES}

    def worst(name: str, **options: Any) -> float:
        return lies.worst_honest(eh.FedAvg(), known[name], 0, 6, clients, **options)

    honest = worst("nothing")
    assert worst("update x 1000") > honest - 0.1
    assert worst("update x 1000", bound=None) < honest - 0.2
