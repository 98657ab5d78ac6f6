"""Replies that wait: in memory as far as they fit, on disk beyond; the same bits in any case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.flower import link, spool
from evenhand.flower.packing import pack, packed_size
from evenhand.flower.spool import Spool
from evenhand.flower.sums import OrderedSum
from evenhand.messages import Reply
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import FAST, Setting, flat


def reply(client: int) -> Reply:
    torch.manual_seed(client)
    return Reply(
        {"delta": {"w": torch.randn(100), "b": torch.randn(3).double()}, "n": torch.tensor(client)},
        {"loss": torch.randn(()), "nothing": {}},
    )


def test_what_waits_on_disk_comes_back_to_the_bit_and_leaves_no_file(tmp_path: Path) -> None:
    with Spool(tmp_path / "new", in_memory=500) as kept:
        for client in (3, 1, 2):
            kept.put(client, reply(client))
        assert 2 in kept
        assert 4 not in kept
        for client in (1, 2, 3):
            found = kept.take(client)
            for part, told in zip(found, reply(client), strict=True):
                assert eh.tree.flatten(part).keys() == eh.tree.flatten(told).keys()
                for key, leaf in eh.tree.flatten(told).items():
                    assert torch.equal(eh.tree.flatten(part)[key], leaf)
                    assert eh.tree.flatten(part)[key].dtype == leaf.dtype
        assert 2 not in kept
    assert list(tmp_path.rglob("*")) == [tmp_path / "new"]


def test_sums_are_the_same_from_memory_and_from_disk(tmp_path: Path) -> None:
    def total(in_memory: int) -> torch.Tensor:
        sums = OrderedSum([1, 2, 3], Spool(tmp_path, in_memory))
        for client in (3, 1, 2):
            sums.add(client, reply(client))
        found: torch.Tensor = sums.replies().total["delta"]["w"]
        return found

    assert torch.equal(total(0), total(1 << 20))


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    kept = Spool(tmp_path, in_memory=0)
    kept.put(1, reply(1))
    assert kept._file is not None
    kept._file.close()
    kept._file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115 (closed by the spool)

    with kept, pytest.raises(eh.RunError) as error:
        kept.put(2, reply(2))
    assert str(error.value) == (
        f"replies cannot be stored in {tmp_path}: No space left on device; free some space and start"
        " the server again"
    )


def test_the_size_of_a_packed_tree_is_known_without_packing() -> None:
    for tree in ({}, reply(1).total, {"a": {"b": torch.zeros(0, 3)}, "c": torch.ones(2, 2)}):
        assert packed_size(tree) == len(pack(tree).data)


def test_large_replies_are_fetched_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message is larger than what is fetched together, and kept: one at a time, on disk, with
    the same parameters."""
    federation, module = ragged((9, 4, 12, 7)), network(torch.float64)
    expected = Setting(tmp_path / "a", federation, module).run(METHODS["ditto"], 2, **FAST)
    monkeypatch.setattr(link, "FETCHED", 1)
    monkeypatch.setattr(spool, "IN_MEMORY", 0)
    setting, asked = Setting(tmp_path / "b", federation, module), []
    pull = setting.grid.pull_messages

    def watched(names: Any) -> Any:
        names = list(names)
        asked.append(len(names))
        return pull(names)

    setting.grid.pull_messages = watched  # type: ignore[method-assign]
    result = setting.run(METHODS["ditto"], 2, **FAST)
    assert set(asked[1:]) == {1}  # the census comes first
    for key, value in flat(expected).items():
        assert torch.equal(flat(result)[key], value), key
