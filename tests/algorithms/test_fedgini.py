"""FedGini: numbers by hand, the objective behind the ranks, where it is FedAvg."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.algorithms.fedgini import rank_weights
from tests.support import convex, limits
from tests.support.by_hand import THREE, F, G, at, dot, local_model, near, run, share, value


def weights(losses: Any, epsilon: float = 0.0) -> list[float]:
    found: list[float] = rank_weights(torch.tensor(losses, dtype=torch.float64), epsilon).tolist()
    return found


def by_sorting(losses: Any, epsilon: float) -> np.ndarray:
    """The weights of distinct losses: one client after the other, from the smallest loss up."""
    count = len(losses)
    found = np.empty(count)
    total = sum(i * (i + 1) for i in range(count))
    for rank, client in enumerate(sorted(range(count), key=lambda i: losses[i])):
        found[client] = 1 + (1 - epsilon) * rank * (rank + 1) / total
    return found / found.sum()


# ---- by hand


@pytest.mark.parametrize("losses", [(0.2, 0.5, 0.9), (0.5, 0.9, 0.2), (0.9, 0.2, 0.5)])
def test_the_largest_weight_goes_to_the_largest_loss(losses: tuple[float, ...]) -> None:
    # ranks 0, 1, 2: 1 + (0, 2, 6) / 8, that is 4 : 5 : 7. The second and third order are not their
    # own inverse: positions of the sorted clients in place of their ranks would give other weights
    by_loss = {0.2: 4 / 16, 0.5: 5 / 16, 0.9: 7 / 16}
    assert weights(losses) == near([by_loss[loss] for loss in losses])


def test_half_way_to_equal_weights() -> None:
    # epsilon = 1/2: 1 + (0, 1, 3) / 8
    assert weights((0.5, 0.9, 0.2), 0.5) == near([9 / 28, 11 / 28, 8 / 28])


def test_a_round_in_numbers(engine: str) -> None:
    # losses at 1: A 5/3, B 16, C 10; weights 4 : 7 : 5; 1 - .1 (4 (-2) + 7 (-16) + 5 (6)) / 16
    found = run(eh.FedGini(epsilon=0.0), engine, *THREE, lr=0.1)
    assert value(found.params) == near(1 + 0.1 * 90 / 16)


def test_ranks_are_those_of_the_received_model_in_every_round(engine: str) -> None:
    w, lr, orders = 1.0, 0.05, set()
    for _ in range(5):
        losses = at(F, w)
        orders.add(tuple(np.argsort(losses)))
        lam = by_sorting(losses, 0.3)
        w = dot(lam.tolist(), [local_model(g, w, lr, 2) for g in G])
    assert len(orders) > 1
    found = run(eh.FedGini(epsilon=0.3), engine, *THREE, lr=lr, steps=2, rounds=5)
    assert value(found.params) == near(w)


def test_the_data_a_client_has_do_not_count(engine: str) -> None:
    sized, uniform = (
        run(eh.FedGini(0.0), engine, *THREE, lr=0.05, rounds=3, weights=weights)
        for weights in ("data", "uniform")
    )
    assert value(sized.params) == near(value(uniform.params))


def test_only_the_cohort_is_ranked(engine: str) -> None:
    method, losses = eh.FedGini(0.0), torch.tensor([3.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    state = {"loss": losses, "known": torch.tensor([1.0, 1.0, 1.0, 0.0])}
    half = torch.full((3,), 1 / 3, dtype=torch.float64)
    drawn = method.reweigh(state, eh.cohort.Draw(torch.tensor([0, 2, 3]), half, half))
    assert drawn.ids.tolist() == [0, 2]  # client 3 gave no answer
    assert drawn.weight.tolist() == near([2 / 3, 1 / 3])
    assert drawn.share.tolist() == drawn.weight.tolist()


# ---- properties of the weights


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 257])
def test_weights_are_those_of_sorting_and_sum_to_one(count: int, epsilon: float) -> None:
    losses = np.random.default_rng(count).exponential(size=count)
    found = weights(losses, epsilon)
    assert sum(found) == near(1)
    expected = by_sorting(losses, epsilon) if count > 1 else np.ones(1)
    assert found == near(expected.tolist())


def test_ties_share_the_mean_weight() -> None:
    # ranks 0 and (1, 2, 3) and 4: r (r + 1) is 0, (2 + 6 + 12) / 3 and 20, of 40
    assert weights((0.7, 0.9, 0.7, 0.1, 0.7)) == near(share([7 / 6, 3 / 2, 7 / 6, 1, 7 / 6]))
    assert weights((0.7,) * 6) == near([1 / 6] * 6)


def test_a_client_never_gets_much_more_than_an_equal_share() -> None:
    for count in (2, 5, 20, 100):
        largest = max(weights(np.arange(count)))
        assert largest == near((1 + 3 / (count + 1)) / (count + 1))


# ---- the objective


def objective(losses: np.ndarray, epsilon: float) -> float:
    """The mean and the expected maximum of three tickets, by drawing them all."""
    tickets = [*losses, 0.0]
    most = np.mean([max(draw) for draw in itertools.combinations(tickets, 3)])
    count = len(losses)
    return float((losses.sum() + (1 - epsilon) * most) / (count + 1 - epsilon))


@pytest.mark.parametrize("epsilon", [0.0, 0.6])
def test_weights_are_the_gradient_of_the_mean_and_the_largest_of_three(epsilon: float) -> None:
    losses = np.random.default_rng(3).exponential(size=7)
    assert np.dot(weights(losses, epsilon), losses) == near(objective(losses, epsilon))
    step = 1e-6
    slopes = [
        (objective(losses + step * one, epsilon) - objective(losses - step * one, epsilon))
        / (2 * step)
        for one in np.eye(7)
    ]
    assert weights(losses, epsilon) == pytest.approx(slopes, abs=1e-8)


def test_no_other_order_of_the_weights_gives_a_larger_value() -> None:
    losses = np.random.default_rng(4).exponential(size=5)
    given = np.array(weights(losses))
    best = max(np.dot(order, losses) for order in itertools.permutations(given))
    assert np.dot(given, losses) == near(best)


def test_it_reaches_the_least_objective() -> None:
    def value_at(theta: convex.Vector) -> float:
        return objective(convex.losses(theta), 0.0)

    theta = convex.parameters(convex.train(eh.FedGini(0.0), lr=0.05, rounds=400))
    convex.assert_reaches(value_at, convex.minimise(value_at), theta)


def test_the_certificate_has_no_gap() -> None:
    census = limits.federation().census()
    losses = torch.tensor([0.4, 0.1, 0.9, 0.4], dtype=torch.float64)
    found = eh.FedGini(0.0).certificate({}, losses, census)
    assert found is not None
    assert float(found.value) == near(objective(losses.numpy(), 0.0))
    assert found.weights.tolist() == near(weights(losses.tolist()))
    assert float(found.gap) == 0


# ---- where it is FedAvg, and where it is not


@limits.every_local
def test_with_epsilon_one_it_is_fedavg_with_equal_weights(engine: str, local: eh.LocalSGD) -> None:
    settings: dict[str, Any] = {"local": local, "weights": "uniform"}
    expected = limits.train(eh.FedAvg(), engine, **settings).params
    for given in ("uniform", "data"):
        found = limits.train(eh.FedGini(1.0), engine, local=local, weights=given).params
        limits.assert_same(found, expected)
    fair = limits.train(eh.FedGini(0.0), engine, local=local).params
    assert limits.distance(fair, expected) > 1e-3


def test_copies_of_a_client_and_one_client_are_fedavg(engine: str) -> None:
    fed = limits.copies()
    expected = limits.train(eh.FedAvg(), engine, fed).params
    limits.assert_same(limits.train(eh.FedGini(0.0), engine, fed).params, expected)
    alone = eh.Federation.from_arrays(limits.samples()[:1])
    limits.assert_same(
        limits.train(eh.FedGini(0.0), engine, alone).params,
        limits.train(eh.FedAvg(), engine, alone).params,
    )


def test_two_clients_count_one_and_two(engine: str) -> None:
    # A 5/3 and B 16: 1 : 2; 1 - .1 (-2 - 2 * 16) / 3
    assert value(run(eh.FedGini(0.0), engine, lr=0.1).params) == near(1 + 3.4 / 3)


def test_a_guard_can_limit_its_weights(engine: str) -> None:
    found = run(eh.LossGuard(mads=1e9, cap=0.4, inner=eh.FedGini(0.0)), engine, *THREE, lr=0.1)
    # 4 : 7 : 5 of 16, B cut to .4 and its .0375 shared by the others
    lam = (0.25 + 0.01875, 0.4, 0.3125 + 0.01875)
    assert value(found.params) == near(1 - 0.1 * dot(lam, (-2, -16, 6)))


# ---- bad input


@pytest.mark.parametrize("epsilon", [-0.1, 1.5, float("nan"), "half"])
def test_epsilon_outside_its_range_is_refused(epsilon: Any) -> None:
    with pytest.raises(ValueError, match=r"epsilon must be .*; 1 gives FedAvg with equal weights"):
        eh.FedGini(epsilon)
