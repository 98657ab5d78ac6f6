"""Masked sums when clients, holders or the server drop out: the sum over those that answered, or a
void round, and never anything else."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Message

import evenhand as eh
from evenhand import tree
from evenhand.flower import records
from evenhand.flower.masked.pending import FOLDER, Exponents
from evenhand.flower.tryout.certificates import write_node_key
from tests.support.flower_faults import Dying, Killed
from tests.support.flower_masks import SIZES, Masked, about, vector
from tests.support.flower_nodes import flat

STRICT = eh.flower.SecureSums(mode="strict")
EVERYONE = range(len(SIZES))


def losing(
    work: str, round: int, clients: Iterable[int]
) -> Callable[[int, Message], list[Message]]:
    """Replies of some clients do not arrive: they say that they cannot."""
    lost = {client + 1 for client in clients}

    def spoil(node: int, reply: Message) -> list[Message]:
        known = about(reply)
        if node in lost and (known.get("work"), known.get("round")) == (work, round):
            reply.content = records.fault_content("its power went out")
        return [reply]

    return spoil


def both(*spoils: Callable[[int, Message], list[Message]]) -> Any:
    def spoil(node: int, reply: Message) -> list[Message]:
        for one in spoils:
            (reply,) = one(node, reply)
        return [reply]

    return spoil


def assert_params(result: eh.Result, reference: eh.Result) -> None:
    for key, value in flat(reference).items():
        assert torch.equal(flat(result)[key], value), key


# ---- drop-outs


@pytest.mark.parametrize("gone", [{0}, {4}, {2}])
@pytest.mark.parametrize("silent", [set(), {1}])
def test_a_sum_is_over_those_that_answer_whoever_opens_it(
    gone: set[int], silent: set[int], tmp_path: Path
) -> None:
    """Four of five must answer, and four of five open: a client that trained in vain can."""
    setting = Masked(tmp_path, spoil=both(losing("train", 1, gone), losing("unmask", 1, silent)))
    result = setting.run(eh.TERM(t=1.0))
    lost = [("train", 1, client) for client in gone]
    assert_params(result, setting.plain_sums(eh.TERM(t=1.0), lost=lost))
    assert [row["answered"] for row in result.history_rows] == [5, 4, 5]


@pytest.mark.parametrize(
    ("gone", "silent", "reason"),
    [
        ({0, 3}, set(), "3 of 5 clients have answered, and 4 must; the round has no sum"),
        (set(), {1, 2}, "3 holders have opened masks, and 4 must; the round has no sum"),
        ({4}, {1, 2}, "3 holders have opened masks, and 4 must; the round has no sum"),
    ],
)
def test_beyond_the_threshold_the_round_is_void_and_the_state_stays(
    gone: set[int], silent: set[int], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Masked(tmp_path, spoil=both(losing("train", 1, gone), losing("unmask", 1, silent)))
    result = setting.run()
    everyone = [("train", 1, client) for client in EVERYONE]
    assert_params(result, setting.plain_sums(lost=everyone))
    assert [row["answered"] for row in result.history_rows] == [5, 0, 5]
    assert [row["void"] for row in result.history_rows] == [False, True, False]
    assert f"round 2, train/train: {reason}" in caplog.text


def test_strict_sums_need_everyone_and_one_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Masked(tmp_path, spoil=losing("train", 1, {2}))
    result = setting.run(secure=STRICT)
    everyone = [("train", 1, client) for client in EVERYONE]
    assert_params(result, setting.plain_sums(lost=everyone))
    assert "4 of 5 clients have answered, and 5 must" in caplog.text
    assert {kind for kind, _ in setting.count()} == {
        "query.census",
        "query.count",
        "train",
        "evaluate",
    }


def test_a_round_asks_each_node_twice_and_a_strict_one_once(tmp_path: Path) -> None:
    for secure, opened in ((eh.flower.SecureSums(), 10), (STRICT, 0)):
        setting = Masked(tmp_path / secure.mode)
        setting.run(rounds=10, secure=secure)
        found = setting.count()
        for node in setting.grid.get_node_ids():
            assert found["query.census", node] == 1
            assert found["query.count", node] == 1
            assert found["train", node] == 10
            # and those of the trained model, at the end
            assert found["evaluate", node] == 1
            assert found["query.unmask", node] == opened + (2 if opened else 0)


def test_late_and_repeated_replies_change_nothing(tmp_path: Path) -> None:
    kept: dict[int, list[Message]] = {}

    def spoil(node: int, reply: Message) -> list[Message]:
        known = about(reply)
        if known.get("work") != "train":
            return [reply]
        kept.setdefault(known["round"], []).append(reply)
        if node == 3 and known["round"] == 1:
            return []  # it arrives a round later
        late = [it for it in kept.get(1, []) if about(it)["client"] == 2]
        return [reply, reply, *(late if known["round"] == 2 else [])]

    setting = Masked(tmp_path, spoil=spoil)
    result = setting.run(deadline=0.7)
    assert_params(result, setting.plain_sums(lost=[("train", 1, 2)]))
    assert [row["answered"] for row in result.history_rows] == [5, 4, 5]


def test_an_overflow_is_named_and_the_same_clients_are_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenhand.secure.numbers.FIRST", -20)
    setting = Masked(tmp_path, spoil=losing("train", 0, {1}))
    # the first question leaves a client out; the second is for the other four
    result = setting.run(rounds=2)
    told = [it.message for it in caplog.records if "beyond the range" in it.message]
    assert told == [
        "round 1: the values of 4 clients are beyond the range of the masked sum; ask the same"
        " clients again with larger exponents"
    ]
    asked = [about(it)["round"] for it in setting.grid.sent if about(it).get("work") == "train"]
    assert asked.count(0) == 5 + 4
    assert asked.count(1) == 5
    monkeypatch.undo()
    reference = setting.plain_sums(rounds=2, lost=[("train", 0, 1)])
    for key, value in flat(reference).items():
        torch.testing.assert_close(flat(result)[key], value, rtol=0, atol=1e-9)


def test_a_run_that_stays_beyond_the_range_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenhand.secure.numbers.FIRST", -200)
    with pytest.raises(
        eh.RunError, match=r"beyond the range .* they were asked 3 times\. Has the run"
    ):
        Masked(tmp_path).run(rounds=1)


# ---- a server that starts again


@pytest.mark.parametrize(
    "moment",
    [("push", "train", 1), ("pull", "train", 1), ("push", "unmask", 1), ("pull", "unmask", 1)],
    ids=str,
)
@pytest.mark.parametrize("method", [eh.FedAvg(), eh.Ditto(lam=0.5)], ids=["fedavg", "ditto"])
def test_a_killed_server_goes_on(
    method: eh.Algorithm, moment: tuple[str, str, int], tmp_path: Path
) -> None:
    setting = Masked(tmp_path)
    setting.grid.__class__ = Dying
    setting.grid.moment = moment  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        setting.run(method)
    result = setting.run(method)
    assert_params(result, setting.plain_sums(method))
    # a sum that was on disk is not asked for again
    trained = [about(it)["round"] for it in setting.grid.sent if about(it).get("work") == "train"]
    assert trained.count(1) == (5 if moment[1] == "unmask" else 10)


def test_a_server_that_is_killed_between_the_messages_keeps_the_set_of_clients(
    tmp_path: Path,
) -> None:
    """The client that had dropped out is back, and stays out of the sum: nodes would refuse another
    set."""
    setting = Masked(tmp_path, spoil=losing("train", 1, {3}))
    setting.grid.__class__ = Dying
    setting.grid.moment = ("pull", "unmask", 1)  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        setting.run()
    setting.grid.spoil = None
    result = setting.run()
    assert_params(result, setting.plain_sums(lost=[("train", 1, 3)]))
    assert [row["answered"] for row in result.history_rows] == [5, 4, 5]


def test_without_what_was_on_disk_another_set_is_refused_and_the_round_is_void(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Masked(tmp_path, spoil=losing("train", 1, {3}))
    setting.grid.__class__ = Dying
    setting.grid.moment = ("pull", "unmask", 1)  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        setting.run()
    for path in setting.directory.glob(f"run/*/{FOLDER}/round-1-*"):
        path.unlink()
    setting.grid.spoil = None
    result = setting.run()
    assert [row["void"] for row in result.history_rows] == [False, True, False]
    assert "round 2 was summed over other clients before (rule: one set)" in caplog.text


def test_a_finished_run_is_extended_as_if_it_had_been_longer(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    setting.run(rounds=2)
    assert_params(setting.run(rounds=2), setting.plain_sums(rounds=2))
    result = setting.run(rounds=4)
    assert_params(result, setting.plain_sums(rounds=4))


def test_a_node_that_joins_is_in_the_next_list(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    contexts = dict(setting.grid.contexts)
    del setting.grid.contexts[5]

    def arrive(node: int, reply: Message) -> list[Message]:
        if (about(reply).get("work"), about(reply).get("round")) == ("train", 0):
            setting.grid.contexts[5] = contexts[5]
        return [reply]

    setting.grid.spoil = arrive
    result = setting.run(rounds=4, clients=4, weights="uniform")
    assert [row["answered"] for row in result.history_rows] == [4, 5, 5, 5]
    assert setting.count()["query.census", 1] == 1


def test_a_node_that_has_lost_its_keys_comes_back_with_new_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an identity key that it still has: others recognise that."""
    clock = itertools.count(1_800_000_000)
    monkeypatch.setattr("evenhand.secure.ledger.time.time", lambda: next(clock))
    setting = Masked(tmp_path)
    for node, context in setting.grid.contexts.items():
        key = write_node_key(tmp_path / "keys", f"node-{node}")
        context.node_config["identity-key"] = str(key.private)

    def lose(node: int, reply: Message) -> list[Message]:
        if (about(reply).get("work"), about(reply).get("round"), node) == ("unmask", 1, 3):
            (tmp_path / "state2" / "masks.json").unlink()
        return [reply]

    setting.grid.spoil = lose
    result = setting.run(rounds=4)
    assert [row["answered"] for row in result.history_rows] == [5, 5, 4, 5]
    assert "the list has another key for '2'" in caplog.text


def test_ranges_follow_from_the_last_sum_before_a_round_also_after_a_restart(
    tmp_path: Path,
) -> None:
    known = Exponents(tmp_path)
    assert known.before("train/train", 0) == {}
    known.note("train/train", 0, {"work/delta/a": 3})
    known.note("train/train", 1, {"work/delta/a": 5})
    for found in (known, Exponents(tmp_path)):
        # a round that is repeated begins as it did
        assert found.before("train/train", 1) == {"work/delta/a": 3}
        assert found.before("train/train", 4) == {"work/delta/a": 5}
        assert found.before("survey/train/before", 4) == {}


# ---- what the server keeps


def test_no_file_and_no_log_of_the_server_has_a_value_of_one_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    vectors: list[bytes] = []

    def watch(node: int, reply: Message) -> list[Message]:
        if about(reply).get("work") == "train":
            vectors.append(vector(reply).tobytes())
        return losing("train", 1, {3})(node, reply)

    setting = Masked(tmp_path, spoil=watch)
    setting.grid.__class__ = Dying
    setting.grid.moment = ("pull", "unmask", 2)  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        setting.run()
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(b"boxes" in content for content in files)
    pieces = [content[at : at + 8] for content in vectors for at in range(0, len(content), 800)]
    assert len(pieces) > 30
    text = caplog.text.encode()
    for piece in pieces:
        assert not any(piece in content for content in files)
        assert str(int.from_bytes(piece, "little", signed=True)).encode() not in text
    # nor what was masked: the single updates, as the simulator has them
    single = setting.plain_sums(rounds=1, lost=[("train", 0, it) for it in (1, 2, 3, 4)])
    start = dict(setting.module.state_dict())
    for name, value in single.params.items():
        if torch.equal(value, start[name]):
            continue
        for kind in (np.float64, np.float32):
            moved = (start[name] - value).numpy().astype(kind).tobytes()
            assert not any(moved[:16] in content for content in files)
    assert tree.leaves(single.params)
