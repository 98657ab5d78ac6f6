"""FedLF: numbers by hand, special cases and an independent solver."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.algorithms.directions import angle, away_from_unequal
from tests.support import limits
from tests.support.by_hand import clients_of, move, near


def step(
    method: eh.FedLF, updates: dict[str, Any], losses: list[float], rounds: list[list[int]]
) -> list[list[float]]:
    """The server's steps from zero in rounds with these participants, one update per client."""
    every = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in updates.items()}
    model = {name: torch.zeros_like(rows[0]) for name, rows in every.items()}
    state = method.init(model, limits.federation().census())
    steps = []
    for cohort in rounds:
        ids = torch.tensor(cohort)
        each = {
            "delta": {name: rows[ids] for name, rows in every.items()},
            "loss_at_start": torch.tensor(losses, dtype=torch.float64)[ids],
        }
        after, _ = method.server(state, eh.Replies(ids, {}, each))
        moved = [(state["model"][name] - after["model"][name]).flatten() for name in every]
        steps.append(torch.cat(moved).tolist())
        state = after
    return steps


def test_equal_losses_give_the_common_direction_at_the_length_of_the_mean(engine: str) -> None:
    # (3, 0) and (0, 4) at their mean length 3.5: the shortest point is (1.75, 1.75); the mean
    # update (1.5, 2) has length 2.5
    found = move(eh.FedLF(), engine, clients_of((3, 0), (0, 4), counts=(3, 1)))
    assert found == near([-2.5 / math.sqrt(2)] * 2)


def test_unequal_losses_add_the_fairness_row(engine: str) -> None:
    # losses (1, 3): h is along (-3, 1), so the rows are (1, 0), (0, 1) and (-3, 1)/sqrt(10), times
    # 3.5. The shortest point lies between the first and the last, along (1, 3 + sqrt(10))
    clients = clients_of((3, 0), (0, 4), losses=(1, 3))
    direction = np.array([1, 3 + math.sqrt(10)])
    expected = -2.5 * direction / np.linalg.norm(direction)
    assert move(eh.FedLF(), engine, clients) == near(expected.tolist())
    plain = move(eh.FedLF(fairness=False), engine, clients)
    assert plain == near([-2.5 / math.sqrt(2)] * 2)


def test_every_layer_has_its_own_direction() -> None:
    # layer a: (1.75, 1.75); layer b: 1 and 2 at their mean length 1.5. The mean update (1.5, 2,
    # 1.5) has the square 8.5
    updates = {"a": [[3, 0], [0, 4]], "b": [[1], [2]]}
    direction = np.array([1.75, 1.75, 1.5])
    expected = direction * math.sqrt(8.5) / np.linalg.norm(direction)
    assert step(eh.FedLF(), updates, [1, 1], [[0, 1]])[0] == near(expected.tolist())
    # one layer: both rows get the mean length, and the shortest point is in their middle
    one, two = np.array([3, 0, 1.0]), np.array([0, 4, 2.0])
    middle = one / np.linalg.norm(one) + two / np.linalg.norm(two)
    expected = middle * math.sqrt(8.5) / np.linalg.norm(middle)
    whole = step(eh.FedLF(layers=False), updates, [1, 1], [[0, 1]])[0]
    assert whole == near(expected.tolist())


def test_a_client_without_a_gradient_in_a_layer_does_not_stop_it() -> None:
    # layer b: only client 0 moves it, by 1; a layer that nobody moves stays
    updates = {"a": [[3, 0], [0, 4]], "b": [[1], [0]], "c": [[0], [0]]}
    direction = np.array([1.75, 1.75, 1, 0])
    expected = direction * math.sqrt(1.5**2 + 2**2 + 0.5**2) / np.linalg.norm(direction)
    assert step(eh.FedLF(), updates, [1, 1], [[0, 1]])[0] == near(expected.tolist())
    assert step(eh.FedLF(), {"a": [[0, 0], [0, 0]]}, [1, 2], [[0, 1]])[0] == [0, 0]


def test_updates_of_absent_clients_count_for_tau_rounds() -> None:
    updates, half = {"a": [[1, 0], [0, 2]]}, [math.sqrt(2)] * 2
    rounds = [[0], [1], [1], [1]]
    # (0, 2), and (1, 0) of the absent client at length 2: the middle, at length 2
    alone = [0.0, 2.0]
    assert step(eh.FedLF(tau=0), updates, [1, 1], rounds)[1:] == [near(alone)] * 3
    found = step(eh.FedLF(tau=1), updates, [1, 1], rounds)[1:]
    assert found == [near(half), near(alone), near(alone)]
    # by default two clients seen, one of them now: two rounds
    found = step(eh.FedLF(), updates, [1, 1], rounds)[1:]
    assert found == [near(half), near(half), near(alone)]


def test_h_is_the_gradient_of_minus_the_cosine_at_length_one() -> None:
    losses = torch.tensor([0.3, 2.0, 1.1], dtype=torch.float64, requires_grad=True)
    (-losses.sum() / math.sqrt(3) / losses.norm()).backward()
    assert losses.grad is not None
    expected = losses.grad / losses.grad.norm()
    torch.testing.assert_close(away_from_unequal(losses.detach()), expected)
    for equal in ([0.1, 0.1, 0.1], [0.0, 0.0, 0.0]):
        values = torch.tensor(equal, dtype=torch.float64)
        assert away_from_unequal(values).tolist() == [0, 0, 0]
    # (1, 3) and (1, 1): cosine 4 / sqrt(20)
    found = angle(torch.tensor([1.0, 3.0], dtype=torch.float64)).item()
    assert found == near(math.degrees(math.acos(4 / math.sqrt(20))))


def shortest(rows: np.ndarray) -> np.ndarray:
    """The shortest point of the hull, by SciPy."""
    count = len(rows)
    program = scipy.optimize.minimize(
        lambda lam: ((lam @ rows) ** 2).sum(),
        np.full(count, 1 / count),
        jac=lambda lam: 2 * rows @ (lam @ rows),
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda lam: lam.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert program.success
    point: np.ndarray = program.x @ rows
    return point


@pytest.mark.parametrize("seed", range(4))
def test_scipy_finds_the_same_direction_and_it_lowers_every_loss(seed: int) -> None:
    generator = np.random.default_rng(seed)
    updates = {name: generator.normal(size=(3, size)) + 0.4 for name, size in (("a", 6), ("b", 4))}
    losses = generator.uniform(0.5, 3, size=3)
    h = losses.mean() * losses / (losses**2).mean() - 1  # along <1, f> f / |f|^2 - 1
    pieces = []
    for rows in updates.values():
        lengths = np.linalg.norm(rows, axis=1)
        own = rows / lengths[:, None] * lengths.mean()
        fair = h @ own
        pieces.append(shortest(np.vstack([own, fair / np.linalg.norm(fair) * lengths.mean()])))
    both = np.hstack(list(updates.values()))
    expected = np.concatenate(pieces)
    expected *= np.linalg.norm(both.mean(0)) / np.linalg.norm(expected)
    (found,) = step(
        eh.FedLF(),
        {name: rows.tolist() for name, rows in updates.items()},
        losses.tolist(),
        [[0, 1, 2]],
    )
    assert found == pytest.approx(expected.tolist(), abs=1e-5)
    assert (both @ found > 0).all()


def test_without_layers_fairness_and_past_it_is_fedmgda_at_another_length(engine: str) -> None:
    updates = np.random.default_rng(1).normal(size=(4, 6))
    clients = clients_of(*updates.tolist(), losses=(1, 2, 3, 4), counts=(1, 3, 2, 1))
    found = np.array(move(eh.FedLF(layers=False, fairness=False, tau=0), engine, clients))
    common = np.array(move(eh.FedMGDA(epsilon=1.0), engine, clients))
    length = np.linalg.norm(updates.mean(0))
    assert found == pytest.approx(common / np.linalg.norm(common) * length, rel=1e-9)


def test_one_client_and_copies_of_one_are_fedavg(engine: str) -> None:
    alone = eh.Federation.from_arrays([limits.samples()[2]])
    for fed in (alone, limits.copies()):
        found = limits.train(eh.FedLF(), engine, fed).params
        limits.assert_same(found, limits.train(eh.FedAvg(), engine, fed).params)


def test_a_model_of_one_tensor_has_one_layer(engine: str) -> None:
    def one_tensor() -> nn.Module:
        module = nn.Linear(3, 3, bias=False).double()
        nn.init.constant_(module.weight, 0.1)
        return module

    def trained(method: eh.Algorithm) -> dict[str, Tensor]:
        return limits.train(method, engine, module=one_tensor()).params

    limits.assert_identical(trained(eh.FedLF()), trained(eh.FedLF(layers=False)))


def test_fedlf_its_layers_and_its_fairness_row_make_a_difference() -> None:
    methods = [eh.FedAvg(), eh.FedLF(), eh.FedLF(layers=False), eh.FedLF(fairness=False)]
    found = [limits.train(method).params for method in methods]
    for i, one in enumerate(found):
        assert all(limits.distance(one, other) > 1e-3 for other in found[:i])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"layers": 1}, "layers must be true or false, got 1"),
        ({"fairness": "no"}, "fairness must be true or false, got 'no'"),
        ({"tau": -1}, "tau"),
        ({"tau": 1.5}, "tau"),
    ],
)
def test_bad_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        eh.FedLF(**setting)
