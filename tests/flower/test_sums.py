"""Sums of replies: the same bits in whatever order they arrive."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand.flower.sums import OrderedSum
from evenhand.messages import Reply

# in float64, 1e16 + 1 - 1e16 is 0 and 1e16 - 1e16 + 1 is 1
VALUES = {2: 1e16, 5: -1e16, 7: 1.0}


def reply(client: int) -> Reply:
    value = torch.tensor(VALUES[client], dtype=torch.float64)
    return Reply({"delta": {"w": value}}, {"loss": value / 2})


@pytest.mark.parametrize("order", list(permutations(VALUES)))
def test_replies_are_added_in_the_order_of_clients(order: tuple[int, ...]) -> None:
    total = OrderedSum([2, 5, 7])
    for client in order:
        total.add(client, reply(client))
    found = total.replies()
    assert found.ids.tolist() == [2, 5, 7]
    assert found.total["delta"]["w"].item() == 1.0
    assert found.each["loss"].tolist() == [5e15, -5e15, 0.5]


def test_clients_without_a_reply_that_counts_are_left_out() -> None:
    total = OrderedSum([2, 5, 7])
    total.add(7, reply(7))
    total.add(2, None)  # and nothing is heard of client 5
    found = total.replies()
    assert found.ids.tolist() == [7]
    assert found.total["delta"]["w"].item() == 1.0
    assert found.each["loss"].tolist() == [0.5]


def test_no_reply_is_an_empty_sum() -> None:
    total = OrderedSum([2, 5])
    total.add(5, None)
    found = total.replies()
    assert found.ids.tolist() == []
    assert found.ids.dtype == torch.int64
    assert (found.total, found.each) == ({}, {})
