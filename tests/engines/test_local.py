"""The order of batches and the steps of the local solver."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evenhand as eh
from evenhand.local import fold_key, permutation


def splitmix(key: int, value: int) -> int:
    """SplitMix64 in Python's own integers, for comparison with the tensors' wrapped arithmetic."""
    mask = (1 << 64) - 1
    z = (key + (value + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_hash_is_splitmix64_with_wrapped_products(key: int, value: int) -> None:
    assert int(fold_key(torch.tensor(key), torch.tensor(value))) % 2**64 == splitmix(key, value)


def test_order_sorts_the_keys_of_seed_round_client_epoch_and_position() -> None:
    seed, round, client, epoch, size = 5, 7, 11, 1, 6
    key = splitmix(splitmix(splitmix(seed, round), client), epoch)
    expected = sorted(range(size), key=lambda position: splitmix(key, position) >> 1)
    assert (
        permutation(torch.tensor([client]), torch.tensor([size]), size, 2, round, seed)[
            0, epoch
        ].tolist()
        == expected
    )


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    batch=st.one_of(st.none(), st.integers(1, 50)),
    epochs=st.integers(1, 3),
    extra=st.integers(0, 9),
    seed=st.integers(0, 5),
)
def test_an_epoch_visits_every_sample_exactly_once(
    sizes: list[int], batch: int | None, epochs: int, extra: int, seed: int
) -> None:
    local = eh.LocalSGD(lr=0.1, epochs=epochs, batch_size=batch)
    width = max(sizes) + extra
    schedule = local.batches(
        torch.arange(len(sizes)), torch.tensor(sizes), width, round=3, seed=seed
    )
    for client, size in enumerate(sizes):
        steps = int(schedule.steps[client])
        rows = [s if schedule.positions.shape[1] > 1 else 0 for s in range(steps)]
        visited = [
            schedule.positions[client, row][schedule.valid[client, row]].tolist() for row in rows
        ]
        assert all(visited)  # no empty step
        assert all(len(step) <= (batch or size) for step in visited)
        per_epoch = steps // epochs
        for epoch in range(epochs):
            samples = [
                sample
                for step in visited[epoch * per_epoch : (epoch + 1) * per_epoch]
                for sample in step
            ]
            assert sorted(samples) == list(range(size))
        assert not schedule.valid[client, steps:].any() or schedule.positions.shape[1] == 1


@given(st.integers(1, 30), st.integers(0, 40))
def test_order_does_not_depend_on_padding_or_company(size: int, extra: int) -> None:
    alone = permutation(torch.tensor([4]), torch.tensor([size]), size, 2, round=1, seed=9)
    together = permutation(
        torch.tensor([0, 4, 7]), torch.tensor([3, size, 50]), 60 + extra, 2, round=1, seed=9
    )
    assert torch.equal(alone[0], together[1, :, :size])


def test_order_changes_with_seed_round_client_and_epoch() -> None:
    def order(client: int = 0, round: int = 0, seed: int = 0, epoch: int = 0) -> list[int]:
        found: list[int] = permutation(
            torch.tensor([client]), torch.tensor([50]), 50, 2, round, seed
        )[0, epoch].tolist()
        return found

    orders = [order(), order(client=1), order(round=1), order(seed=1), order(epoch=1)]
    assert len({tuple(o) for o in orders}) == len(orders)


def test_first_positions_are_uniform() -> None:
    first = permutation(torch.arange(5000), torch.full((5000,), 10), 10, 1, round=0, seed=0)[
        :, 0, 0
    ]
    counts = np.bincount(first.numpy(), minlength=10)
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert chi_square < 27.9  # the 0.999 quantile with 9 degrees of freedom


def test_a_number_of_steps_is_the_same_for_all_and_goes_on_into_further_epochs() -> None:
    schedule = eh.LocalSGD(lr=0.1, steps=7, batch_size=4).batches(
        torch.arange(2), torch.tensor([5, 40]), 40, round=0, seed=0
    )
    assert schedule.steps.tolist() == [7, 7]
    visits = torch.bincount(schedule.positions[0][schedule.valid[0]], minlength=5)
    # three whole epochs of 4 + 1, and a first batch
    assert schedule.valid[0].sum(1).tolist() == [4, 1, 4, 1, 4, 1, 4]
    assert sorted(visits.tolist()) == [3, 4, 4, 4, 4]


def test_own_step_size_and_decay_travel_to_the_variables() -> None:
    local = eh.LocalSGD(lr=0.5, steps=1, weight_decay=0.1)
    variables = {"model": {"w": torch.tensor([[2.0], [2.0]])}, "eta": torch.tensor([1.0, 1.0])}
    gradient = {"model": {"w": torch.tensor([[1.0], [1.0]])}, "eta": torch.tensor([1.0, 1.0])}
    velocity = {"model": {"w": torch.zeros(2, 1)}, "eta": torch.zeros(2)}
    rates = {"model": torch.tensor([0.5, 0.5]), "eta": torch.tensor([0.1, 0.2])}
    local.update(variables, velocity, gradient, rates, active=torch.tensor([True, False]))
    torch.testing.assert_close(
        variables["model"]["w"], torch.tensor([[2 - 0.5 * (1 + 0.1 * 2)], [2.0]])
    )
    # no weight decay on a scalar
    torch.testing.assert_close(variables["eta"], torch.tensor([1 - 0.1, 1.0]))
    assert local.rate(3) == 0.5
    assert eh.LocalSGD(lr=0.5, decay=0.9).rate(2) == 0.5 * 0.9**2
