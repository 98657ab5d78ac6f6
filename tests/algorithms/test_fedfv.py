"""FedFV: numbers by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.algorithms.fedfv import mean_without_conflicts, without_conflict
from tests.support.by_hand import clients_of, move, near


def rescaled(vector: Sequence[float], length: float) -> list[float]:
    return [entry * length / math.hypot(*vector) for entry in vector]


def test_fedfv_two_conflicting_updates_in_numbers(engine: str) -> None:
    # (2, 0) of loss 1 and (-1, 1) of loss 4 conflict: product -2. The worst keeps its own (alpha =
    # .1: one of two). (2, 0) - (-2)/2 (-1, 1) = (1, 1); mean ((1, 1) + (-1, 1))/2 = (0, 1), at the
    # length of the plain mean (1/2, 1/2)
    clients = clients_of((2, 0), (-1, 1), losses=(1, 4))
    assert move(eh.FedFV(alpha=0.1), engine, clients) == near([0, -math.sqrt(0.5)])
    # the other way round (-1, 1) is cleared of (2, 0): (0, 1); mean (1, 1/2), the same length
    clients = clients_of((2, 0), (-1, 1), losses=(4, 1))
    assert move(eh.FedFV(alpha=0.1), engine, clients) == near(
        [-x for x in rescaled((1, 0.5), math.sqrt(0.5))]
    )


def test_fedfv_with_nobody_kept_clears_every_update_of_the_others_as_received(engine: str) -> None:
    # alpha = 0: (2, 0) -> (1, 1) and (-1, 1) -> (0, 1), each against the other's received update;
    # mean (1/2, 1)
    for losses in ((1, 4), (4, 1)):
        found = move(eh.FedFV(alpha=0.0), engine, clients_of((2, 0), (-1, 1), losses=losses))
        assert found == near([-x for x in rescaled((0.5, 1), math.sqrt(0.5))])


def test_fedfv_keeping_all_is_the_plain_mean_and_so_is_the_absence_of_conflict(engine: str) -> None:
    assert move(
        eh.FedFV(alpha=1.0), engine, clients_of((2, 0), (-1, 1), losses=(1, 4), counts=(3, 1))
    ) == near([-0.5, -0.5])
    assert move(
        eh.FedFV(alpha=0.1), engine, clients_of((2, 0), (1, 1), losses=(1, 4), counts=(3, 1))
    ) == near([-1.5, -0.5])


def test_fedfv_clears_in_the_order_of_losses(engine: str) -> None:
    # u = (1, 0), v = (-1, 2), k = (-2, -1); losses 3, 1, 2, so the order is v, k, u; alpha = .1
    # keeps u, the worst (ceil .3 = 1). v: against k: 2 - 2 = 0, no conflict; against u: -1 -> (0,
    # 2) k: against v: 2 - 2 = 0, none; against u: -2 -> (0, -1) sum (1, 1); plain sum (-2, 1)
    found = move(
        eh.FedFV(alpha=0.1), engine, clients_of((1, 0), (-1, 2), (-2, -1), losses=(3, 1, 2))
    )
    assert found == near([-x for x in rescaled((1, 1), math.sqrt(5) / 3)])
    # three in the plane that all conflict: a = (1, 0), b = (-1, 1), c = (-1, -2); losses 1, 2, 3
    # keep c. a: against b: -1 -> (1, 0) + (-1, 1)/2 = (.5, .5); against c: -1.5 -> (.5, .5) + .3
    # (-1, -2) = (.2, -.1) b: against a: -1 -> (0, 1); against c: -2 -> (0, 1) + .4 (-1, -2) = (-.4,
    # .2) sum (.2 - .4 - 1, -.1 + .2 - 2) = (-1.2, -1.9); plain sum (-1, -1)
    found = move(
        eh.FedFV(alpha=0.1), engine, clients_of((1, 0), (-1, 1), (-1, -2), losses=(1, 2, 3))
    )
    assert found == near([-x for x in rescaled((-1.2, -1.9), math.sqrt(2) / 3)])
    # losses 2, 1, 3: a meets b first as before, but b is first in order: the same clearing of each,
    # as others are as received
    found = move(
        eh.FedFV(alpha=0.1), engine, clients_of((1, 0), (-1, 1), (-1, -2), losses=(2, 1, 3))
    )
    assert found == near([-x for x in rescaled((-1.2, -1.9), math.sqrt(2) / 3)])
    # losses 3, 1, 2 keep a; b against c first: -1 -> (-1, 1) + .2 (-1, -2) = (-1.2, .6), then a:
    # (0, .6) c against b: -1 -> (-1, -2) + .5 (-1, 1) = (-1.5, -1.5), then a: (0, -1.5); sum (1,
    # -.9)
    found = move(
        eh.FedFV(alpha=0.1), engine, clients_of((1, 0), (-1, 1), (-1, -2), losses=(3, 1, 2))
    )
    assert found == near([-x for x in rescaled((1, -0.9), math.sqrt(2) / 3)])


def test_fedfv_keeps_the_ceil_share_of_the_largest_losses(engine: str) -> None:
    # alpha = .5 of three keeps two, b and c of losses 2 and 3: a is cleared to (.2, -.1); sum (.2 -
    # 2, -.1 - 1)
    found = move(
        eh.FedFV(alpha=0.5), engine, clients_of((1, 0), (-1, 1), (-1, -2), losses=(1, 2, 3))
    )
    assert found == near([-x for x in rescaled((-1.8, -1.1), math.sqrt(2) / 3)])


@pytest.mark.parametrize("tau", [0, 1, 2])
def test_fedfv_remembers_those_absent_for_tau_rounds(engine: str, tau: int) -> None:
    # one of two clients in a round, x_1 = (1, 0) towards -2, x_2 = (-1, 1) towards -1: the slope of
    # (w x + c)^2 is 2 (w x + c) x
    xs, cs = np.array([(1.0, 0.0), (-1.0, 1.0)]), np.array([2.0, 1.0])
    clients = [{"x": [x.tolist()], "y": [-c]} for x, c in zip(xs, cs, strict=True)]
    cohort, census = eh.Uniform(1), eh.Federation.from_arrays(clients).census()
    w, last, cleared = np.zeros(2), {}, 0
    for round in range(6):
        i = int(cohort.draw(census, 5, round).ids)
        update = 0.1 * 2 * (w @ xs[i] + cs[i]) * xs[i]
        step, length = update, np.linalg.norm(update)
        for j, (when, old) in last.items():
            # the paper begins in round tau
            if j != i and tau <= round <= when + tau and step @ old < 0:
                step = step - (step @ old) / (old @ old) * old
                step, cleared = step * length / np.linalg.norm(step), cleared + 1
        last[i] = (round, update)
        w = w - step
    assert bool(cleared) == (tau > 0)
    found = move(
        eh.FedFV(alpha=0.1, tau=tau),
        engine,
        clients,
        rounds=6,
        cohort=cohort,
        seed=5,
        local=eh.LocalSGD(lr=0.1, steps=1),
    )
    assert found == near(w.tolist())


def test_fedfv_through_products_is_the_plain_form_written_out() -> None:
    for clients, size, kept_ones in (
        (2, 5, 0),
        (7, 3, 2),
        (40, 12, 4),
        (130, 20, 13),
        (150, 400, 1),
    ):
        rng = torch.Generator().manual_seed(clients)
        updates = torch.randn(clients, size, generator=rng, dtype=torch.float64)
        updates[clients // 2] = 0.0  # a client at its optimum
        order = torch.randperm(clients, generator=rng).tolist()
        kept = torch.zeros(clients, dtype=torch.bool)
        kept[order[clients - kept_ones :]] = True
        cleared = updates.clone()
        for i in range(clients):
            for j in order:
                if i != j and not kept[i]:
                    cleared[i] = without_conflict(cleared[i], updates[j])
        found = mean_without_conflicts(updates @ updates.T, order, kept) @ updates
        assert torch.allclose(found, cleared.mean(0), rtol=1e-10, atol=1e-12)
