"""The local solver against torch.optim.SGD, and its order of samples."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import evenhand as eh
from evenhand.local import permutation
from tests.support.by_hand import (
    B,
    assert_frequency,
    assert_same,
    g_b,
    near,
    network,
    numbers,
    run,
    value,
)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_momentum_and_weight_decay_are_those_of_torch_sgd(
    engine: str, momentum: float, weight_decay: float
) -> None:
    clients = numbers([6])
    local = eh.LocalSGD(lr=0.2, steps=4, momentum=momentum, weight_decay=weight_decay)
    result = eh.fit(
        network(),
        eh.Federation.from_arrays(clients),
        eh.FedAvg(),
        rounds=1,
        local=local,
        engine=engine,
    )
    module = network()
    optimizer = torch.optim.SGD(
        module.parameters(), lr=0.2, momentum=momentum, weight_decay=weight_decay
    )
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            module(torch.from_numpy(clients[0]["x"])), torch.from_numpy(clients[0]["y"])
        ).backward()
        optimizer.step()
    assert_same(result.params, module.state_dict())


def test_momentum_in_numbers(engine: str) -> None:
    # B alone, lr .05, momentum .5: v1 = -16, w1 = 1.8; slope 4 (3.6 - 6) = -9.6, v2 = -8 - 9.6 =
    # -17.6, w2 = 1.8 + .88 = 2.68 a new round starts its momentum at zero: slope 4 (5.36 - 6) =
    # -2.56, w = 2.808
    local = eh.LocalSGD(lr=0.05, steps=2, momentum=0.5)
    assert value(run(eh.FedAvg(), engine, B, local=local).params) == near(2.68)
    first = 2.68 - 0.05 * -2.56
    velocity = 0.5 * -2.56 + g_b(first)
    assert value(run(eh.FedAvg(), engine, B, local=local, rounds=2).params) == near(
        first - 0.05 * velocity
    )


def test_the_order_of_samples_is_a_permutation_of_its_own_for_every_seed_round_client_and_epoch() -> (
    None
):
    ids, sizes, width = torch.arange(3), torch.tensor([20, 13, 20]), 20
    seen = set()
    for seed, round in itertools.product(range(2), range(2)):
        order = permutation(ids, sizes, width, 2, round, seed)
        for client, epoch in itertools.product(range(3), range(2)):
            visited = order[client, epoch, : sizes[client]].tolist()
            assert sorted(visited) == list(range(int(sizes[client])))
            seen.add(tuple(visited))
    assert len(seen) == 2 * 2 * 3 * 2


def test_every_place_in_the_order_is_equally_likely() -> None:
    trials, size = 2000, 4
    first = permutation(torch.arange(trials), torch.full((trials,), size), size, 1, 0, 0)[:, 0, 0]
    for position in range(size):
        assert_frequency(int((first == position).sum()), trials, 1 / size)
