"""Nodes that leave and come back: each client is found again, or skipped at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Error, Message

import evenhand as eh
from tests.support.federations import network, ragged
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import Setting

SIZES = (30, 7, 40, 12)


class Moving(InProcessGrid):
    """A grid that tells which nodes there are as a test says, when it is asked the n-th time (0:
    for the census)."""

    moves: dict[int, Callable[[], None]]
    asked = 0
    refused: int | None = None  # a node that leaves between the question and the message

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        names = super().push_messages(messages)
        return [
            None if message.metadata.dst_node_id == self.refused else name
            for message, name in zip(messages, names, strict=True)
        ]  # type: ignore[misc]

    def get_node_ids(self) -> list[int]:
        self.moves.get(self.asked, lambda: None)()
        self.asked += 1
        return super().get_node_ids()


class Place(Setting):
    """Four nodes in this process, with numbers 1 to 4."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, ragged(SIZES), network(torch.float64))
        self.grid = Moving(
            self.grid.app, [context.node_config for context in self.grid.contexts.values()]
        )
        self.grid.moves = {}

    def train(self, **settings: Any) -> eh.Result:
        return self.run(eh.Ditto(lam=0.5), rounds=3, eval_every=100, **settings)

    def renumber(self, old: int, new: int) -> None:
        self.grid.contexts[new] = self.grid.contexts.pop(old)


def _left_out(result: eh.Result) -> list[str]:
    return [row["left_out"] for row in result.history_rows]


def test_a_node_under_another_number_is_the_same_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed = Place(tmp_path / "undisturbed").train()
    place = Place(tmp_path / "moved")
    # before the second round
    place.grid.moves = {2: lambda: (place.renumber(2, 9), place.renumber(4, 8))}

    result = place.train()

    assert _left_out(result) == ["", "", ""]
    for name, value in undisturbed.params.items():
        assert torch.equal(result.params[name], value)
    assert _warnings(caplog) == ["client 1 has a new node", "client 3 has a new node"]
    asked = [
        message.metadata.dst_node_id
        for message in place.grid.sent
        if message.metadata.message_type == "query.census"
    ]
    assert asked == [1, 2, 3, 4, 8, 9]  # nobody twice


@pytest.mark.parametrize("change", ["name", "counts", "nobody"])
def test_a_client_whose_node_is_gone_is_left_out_at_once(
    change: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)

    def leave() -> None:
        gone = place.grid.contexts.pop(2)
        if change == "name":
            place.grid.contexts[9] = gone
            gone.node_config["name"] = "somebody else"
        elif change == "counts":
            place.grid.contexts[9] = gone
            gone.node_config["partition-id"], gone.node_config["name"] = 0, "1"

    place.grid.moves = {2: leave}
    before = time.monotonic()
    result = place.train(deadline=30)

    assert time.monotonic() - before < 15
    assert _left_out(result) == ["", "1", "1"]
    assert "client 1 has no node any more and is skipped in round 2" in caplog.text
    assert "new node" not in caplog.text


def test_a_node_that_comes_back_under_its_number_goes_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    kept = place.grid.contexts[2]
    place.grid.moves = {
        2: lambda: place.grid.contexts.pop(2),
        3: lambda: place.grid.contexts.update({2: kept}),
    }
    assert _left_out(place.train()) == ["", "1", ""]


def test_a_silent_node_that_flower_still_lists_gives_way_to_its_successor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)

    def come_back() -> None:
        place.grid.contexts[9] = place.grid.contexts[2]
        place.grid.down = {2}

    place.grid.moves = {2: come_back}
    result = place.train(deadline=0.5)

    assert _left_out(result) == ["", "1", ""]
    assert "client 1 has not answered within 0.5 s and is skipped in round 2" in caplog.text
    assert "client 1 has a new node" in caplog.text


def test_so_does_one_for_which_flower_itself_replies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)

    def expired(node: int, reply: Message) -> list[Message]:
        if node == 2 and place.grid.asked == 3:
            reply.__dict__["_error"], reply.__dict__["_content"] = Error(3, "expired"), None
        return [reply]

    place.grid.spoil = expired
    place.grid.moves = {2: lambda: place.grid.contexts.update({9: place.grid.contexts[2]})}

    assert _left_out(place.train()) == ["", "1", ""]
    assert _warnings(caplog)[:2] == [
        "client 1 is skipped: it has not answered in time (Flower's error 3)",
        "client 1 has a new node",
    ]


def test_a_second_node_with_the_name_of_a_client_that_answers_gets_no_work(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.grid.moves = {2: lambda: place.grid.contexts.update({9: place.grid.contexts[2]})}
    assert _left_out(place.train()) == ["", "", ""]
    assert [
        message.metadata.message_type
        for message in place.grid.sent
        if message.metadata.dst_node_id == 9
    ] == ["query.census"]


def test_a_node_that_leaves_at_the_last_moment_is_not_waited_for(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.grid.moves = {
        2: lambda: setattr(place.grid, "refused", 2),
        3: lambda: setattr(place.grid, "refused", None),
    }
    before = time.monotonic()
    assert _left_out(place.train(deadline=30)) == ["", "1", ""]
    assert time.monotonic() - before < 15


def test_messages_that_the_superlink_finds_too_large_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    place.grid.moves = {1: lambda: monkeypatch.setattr(place.grid, "push_messages", lambda _: [])}
    with pytest.raises(eh.RunError, match="refuses messages as large as this model's"):
        place.train()


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]
