"""FedMDFG: numbers by hand, special cases and an independent solver."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.algorithms.fedmdfg import LineSearch
from tests.algorithms.test_fedlf import shortest, step
from tests.support import limits
from tests.support.by_hand import clients_of, move, near


def test_equal_losses_give_the_common_direction_at_the_length_of_the_mean_row(engine: str) -> None:
    # (3, 0) and (0, 4) at their mean length 3.5: the shortest point is their mean
    found = move(eh.FedMDFG(s=0), engine, clients_of((3, 0), (0, 4), counts=(3, 1)))
    assert found == near([-1.75, -1.75])


def test_losses_further_than_theta_from_equal_add_the_fairness_row(engine: str) -> None:
    # losses (1, 3) are 26.6 degrees from equal: h = (-3, 1)/sqrt(10) gives the row 3.5 h, and the
    # shortest point lies between it and (3.5, 0), along (1, 3 + sqrt(10))
    clients = clients_of((3, 0), (0, 4), losses=(1, 3))
    direction = np.array([1, 3 + math.sqrt(10)])
    expected = -1.75 * math.sqrt(2) * direction / np.linalg.norm(direction)
    assert move(eh.FedMDFG(s=0), engine, clients) == near(expected.tolist())
    assert move(eh.FedMDFG(s=0, theta=26.5), engine, clients) == near(expected.tolist())
    assert move(eh.FedMDFG(s=0, theta=26.6), engine, clients) == near([-1.75, -1.75])


@pytest.mark.parametrize("seed", range(4))
def test_scipy_finds_the_same_direction_and_it_lowers_every_loss(seed: int) -> None:
    generator = np.random.default_rng(seed)
    updates = generator.normal(size=(3, 8)) + 0.4
    losses = np.array([0.4, 2.0, 3.0])
    h = losses.mean() * losses / (losses**2).mean() - 1  # along <1, f> f / |f|^2 - 1
    lengths = np.linalg.norm(updates, axis=1)
    own = updates / lengths[:, None] * lengths.mean()
    expected = shortest(np.vstack([own, h / np.linalg.norm(h) @ own]))
    expected *= np.linalg.norm(own.mean(0)) / np.linalg.norm(expected)
    method: Any = eh.FedMDFG(s=0)
    (found,) = step(method, {"a": updates.tolist()}, losses.tolist(), [[0, 1, 2]])
    assert found == pytest.approx(expected.tolist(), abs=1e-5)
    assert (updates @ found > 0).all()


def test_clients_of_the_last_round_only_count_if_they_are_absent() -> None:
    updates: dict[str, Any] = {"a": [[1, 0], [0, 2]]}
    rounds = [[0], [1], [1]]
    # (0, 2), and (1, 0) of the absent client at length 2: the middle, at length 2
    told, alone = [math.sqrt(2)] * 2, [0.0, 2.0]
    method: Any = eh.FedMDFG(s=0)
    assert step(method, updates, [1, 1], rounds)[1:] == [near(told), near(alone)]
    method = eh.FedMDFG(s=0, history=False)
    assert step(method, updates, [1, 1], rounds)[1:] == [near(alone)] * 2


@pytest.mark.parametrize(
    ("update", "s", "expected"),
    [
        # f(w) = (1 + u w)^2 and d = u, so f(-t u) = (1 - t u^2)^2
        (0.25, 5, -4.0),  # 0 at t = 16; t = 32 gives 1, which is not lower
        (0.25, 2, -1.0),  # t = 4 is the longest
        (1.0, 5, -1.0),
        (4.0, 5, -0.25),  # 0 at t = 1/16; longer steps do not lower the loss
        (4.0, 2, -1.0),  # none does; t = 1/4 raises it least
    ],
)
def test_the_longest_step_that_lowers_the_loss_is_taken(
    engine: str, update: float, s: int, expected: float
) -> None:
    assert move(eh.FedMDFG(s=s), engine, clients_of((update,))) == near([expected])


def chosen(rows: list[list[float]], ids: tuple[int, ...] = (1, 4), **changes: float) -> float:
    """The step size chosen among 2, 1, 1/2 and 1/8, with losses (1, 3) before."""
    one = torch.ones(1, dtype=torch.float64)
    numbers = {"guided": 0.0, "longest": 2.0, "shortest": 0.125, **changes}
    state = {
        "model": {"a": -one},  # from 0 with t = 1
        "direction": {"a": one},
        "trained": torch.tensor([1, 4]),
        "loss": torch.tensor([1.0, 3.0], dtype=torch.float64),
        "slope": torch.tensor([2.0, 2.0], dtype=torch.float64),
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()},
    }
    losses = torch.tensor(rows, dtype=torch.float64).T
    replies = eh.Replies(torch.tensor(ids), {}, {"loss": losses})
    after = LineSearch(1).learn(state, replies)
    assert not after["direction"]["a"].any()
    return -float(after["model"]["a"])


def test_the_step_size_is_chosen_in_three_stages() -> None:
    # client 0 loses at t = 2; at t = 1 both gain and the angle grows; at t = 1/2 it shrinks
    rows = [[1.2, 2.0], [0.5, 2.9], [0.9, 2.0], [0.99, 2.9]]
    assert chosen(rows) == 1
    assert chosen(rows, guided=1.0) == 0.5
    # nobody may lose, so the longest step with a lower sum
    rows = [[1.2, 2.0], [1.1, 2.0], [1.1, 2.8], [1.01, 2.9]]
    assert chosen(rows) == 2
    assert chosen(rows, longest=1.0) == 1
    # no lower sum: the lowest
    rows = [[1.2, 3.0], [1.1, 3.1], [1.1, 3.0], [1.1, 3.0]]
    assert chosen(rows) == 0.5
    rows[0] = [1.0, 3.05]
    assert chosen(rows) == 2
    assert chosen(rows, longest=1.0) == 0.5


def test_a_loss_must_fall_by_a_share_of_its_slope() -> None:
    # t = 1 must lower both losses by 1e-4 * 2; a sum that is not lower does not help out
    enough, short = [1 - 2.1e-4, 3 - 2.1e-4], [1 - 1.9e-4, 3 - 2.1e-4]
    high = [5.0, 5.0]
    low = [0.9, 2.9]
    assert chosen([high, enough, low, low]) == 1
    # first stage: t = 1/2, although the sum is lower at t = 1 too
    assert chosen([high, short, low, low]) == 0.5


def test_clients_that_do_not_answer_do_not_count() -> None:
    assert chosen([[0.5], [0.9], [0.9], [0.9]], ids=(1,)) == 2  # client 1 had 1
    assert chosen([[3.5], [2.0], [2.9], [2.9]], ids=(4,)) == 1  # client 4 had 3
    assert chosen([[], [], [], []], ids=()) == 1


def test_the_search_starts_at_one_if_a_client_of_the_last_round_is_absent() -> None:
    method, one = eh.FedMDFG(s=3), torch.ones(2, 1, dtype=torch.float64)
    state = method.init({"a": one[0]}, limits.federation().census())
    found = []
    for cohort in ([0], [0, 1], [0, 1], [1], [1]):
        ids = torch.tensor(cohort)
        each = {"delta": {"a": one[ids]}, "loss_at_start": one[ids, 0]}
        total = {"lr": 0.5 * len(ids) * one[0, 0]}
        state, _ = method.server(state, eh.Replies(ids, total, each))
        # the update 1 is 0.5 times the gradient, and d = 1
        assert state["slope"].tolist() == [2.0] * len(ids)
        found.append(state["longest"].item())
    assert found == [8, 8, 8, 1, 8]


def test_without_fairness_past_and_search_it_is_fedmgda_at_another_length(engine: str) -> None:
    updates = np.random.default_rng(1).normal(size=(4, 6))
    clients = clients_of(*updates.tolist(), losses=(1, 2, 3, 4), counts=(1, 3, 2, 1))
    found = np.array(move(eh.FedMDFG(theta=90.0, s=0, history=False), engine, clients))
    common = np.array(move(eh.FedMGDA(epsilon=1.0), engine, clients))
    lengths = np.linalg.norm(updates, axis=1)
    rows = updates / lengths[:, None] * lengths.mean()
    length = np.linalg.norm(rows.mean(0))
    assert found == pytest.approx(common / np.linalg.norm(common) * length, rel=1e-9)


def test_without_search_one_client_and_copies_of_one_are_fedavg(engine: str) -> None:
    alone = eh.Federation.from_arrays([limits.samples()[2]])
    for fed in (alone, limits.copies()):
        found = limits.train(eh.FedMDFG(s=0), engine, fed).params
        limits.assert_same(found, limits.train(eh.FedAvg(), engine, fed).params)


def test_equal_losses_never_add_the_fairness_row(engine: str) -> None:
    clients = clients_of((3, 1), (1, 4), losses=(2, 2))
    found = [move(eh.FedMDFG(theta=theta, s=0), engine, clients) for theta in (0.0, 90.0)]
    assert found[0] == near(found[1])


def test_fedmdfg_its_search_and_its_fairness_row_make_a_difference() -> None:
    methods = [eh.FedAvg(), eh.FedMDFG(), eh.FedMDFG(s=0, theta=0.0), eh.FedMDFG(s=0, theta=90.0)]
    found = [limits.train(method).params for method in methods]
    for i, one in enumerate(found):
        assert all(limits.distance(one, other) > 1e-3 for other in found[:i])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"theta": -1.0}, "theta"),
        ({"theta": 91.0}, "theta"),
        ({"s": -1}, "s must"),
        ({"s": 1.5}, "s must"),
        ({"s": 31}, "s must be at most 30, got 31"),
        ({"history": 1}, "history must be true or false, got 1"),
    ],
)
def test_bad_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        eh.FedMDFG(**setting)
