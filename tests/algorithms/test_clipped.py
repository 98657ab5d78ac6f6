"""Clipped: numbers by hand, where it is another method."""

from __future__ import annotations

import pytest

import evenhand as eh
from tests.support import limits
from tests.support.by_hand import (
    P_A,
    P_B,
    clients_of,
    dot,
    f_a,
    f_b,
    g_a,
    g_b,
    move,
    near,
    project_two,
    run,
    value,
)

# ---- by hand


def test_clipped_in_numbers(engine: str) -> None:
    # updates -.2 and -1.6: the second becomes -1
    assert value(run(eh.Clipped(norm=1.0), engine, lr=0.1).params) == near(
        1 + 0.75 * 0.2 + 0.25 * 1
    )
    assert value(run(eh.Clipped(norm=0.1), engine, lr=0.1).params) == near(1.1)


def test_clipped_takes_the_length_over_all_weights(engine: str) -> None:
    # (3, 4) has length 5: a fifth of it; (0, -.5) stays
    found = move(eh.Clipped(norm=1.0), engine, clients_of((3, 4), (0, -0.5)))
    assert found == near([-(0.6 + 0) / 2, -(0.8 - 0.5) / 2])


def test_clipped_drfa_takes_its_snapshot_of_clipped_models(engine: str) -> None:
    # one local step: the snapshot is the new model, 1.4 (see above), not the unclipped 1.55
    lam = project_two(P_A + 0.02 * f_a(1.4), P_B + 0.02 * f_b(1.4))
    updates = [0.1 * g_a(1.4), max(0.1 * g_b(1.4), -1.0)]
    found = run(eh.Clipped(norm=1.0, inner=eh.DRFA(lr_lambda=0.02)), engine, lr=0.1, rounds=2)
    assert value(found.params) == near(1.4 - dot(lam, updates))


def test_clipped_qffl_computes_g_and_h_of_the_clipped_update(engine: str) -> None:
    # q = 1, L = 10: B's update -1.6 becomes -1, g = -10, h = 100 + 10 * 16; A's g = -2, h = 4 + 10
    # * 5/3
    expected = 1 + (0.75 * 5 / 3 * 2 + 0.25 * 16 * 10) / (0.75 * (4 + 50 / 3) + 0.25 * 260)
    assert value(
        run(eh.Clipped(norm=1.0, inner=eh.QFFL(q=1)), engine, lr=0.1).params
    ) == pytest.approx(expected, rel=1e-9)


# ---- where it is another method


def test_clipped_ditto_shares_what_clipped_fedavg_shares(engine: str) -> None:
    found = limits.train(
        eh.Clipped(norm=0.2, inner=eh.Ditto(lam=0.5)), engine, local=limits.MINI_BATCHES
    )
    limits.assert_same(
        found.params, limits.train(eh.Clipped(norm=0.2), engine, local=limits.MINI_BATCHES).params
    )
    assert found.personal is not None


def test_clipped_qffl_at_zero_is_clipped_fedavg(engine: str) -> None:
    found = limits.train(
        eh.Clipped(norm=0.2, inner=eh.QFFL(q=0.0)), engine, local=limits.MINI_BATCHES
    ).params
    limits.assert_same(
        found, limits.train(eh.Clipped(norm=0.2), engine, local=limits.MINI_BATCHES).params
    )
