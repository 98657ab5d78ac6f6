"""Wrappers at their neutral setting, and wrappers of wrappers."""

from __future__ import annotations

import numpy as np
import pytest

import evenhand as eh
from tests.support import limits
from tests.support.by_hand import P_A, P_B, dot, f_a, f_b, g_a, g_b, near, project_two, run, value

# ---- by hand


def test_server_momentum_of_clipped_updates(engine: str) -> None:
    # clipped at 1 the round moves by .4; half of that. Next Delta: A .1 * 2 (1.2 - 2) = -.16, B .4
    # (2.4 - 6) = -1.44 -> -1 v = .5 (-.4) + .75 (-.16) + .25 (-1) = -.57
    method = eh.FedAvgM(lr=0.5, momentum=0.5, inner=eh.Clipped(norm=1.0))
    assert value(run(method, engine, lr=0.1).params) == near(1.2)
    assert value(run(method, engine, lr=0.1, rounds=2).params) == near(1.2 + 0.5 * 0.57)


def test_clipping_acts_on_the_end_of_proximal_work_in_either_order(engine: str) -> None:
    # FedProx(mu=2): A ends at 1.32, B at 2.6 (see above); clipped at .3: 1.3 and 1.3;  TERM leaves
    # weights of sum one
    for method in (
        eh.Clipped(0.3, eh.FedProx(2.0)),
        eh.FedProx(2.0, eh.Clipped(0.3)),
        eh.FedProx(2.0, eh.Clipped(0.3, eh.TERM(t=0.3))),
    ):
        assert value(run(method, engine, lr=0.1, steps=2).params) == near(1.3)


def test_server_step_of_afl_with_proximal_work(engine: str) -> None:
    # lam rises as AFL's, local work is FedProx's, the server takes half a step
    w, lam = 1.0, (P_A, P_B)
    for _ in range(3):
        ends = []
        for g in (g_a, g_b):
            theta = w
            for _ in range(2):
                theta -= 0.05 * (g(theta) + 3 * (theta - w))
            ends.append(theta)
        delta = dot(lam, [w - end for end in ends])
        lam = project_two(lam[0] + 0.01 * f_a(w), lam[1] + 0.01 * f_b(w))
        w -= 0.5 * delta
    method = eh.FedAvgM(
        lr=0.5, momentum=0.0, inner=eh.FedProx(mu=3.0, inner=eh.AFL(lr_lambda=0.01))
    )
    assert value(run(method, engine, lr=0.05, steps=2, rounds=3).params) == near(w)


# ---- where it is another method

every_inner = pytest.mark.parametrize("inner", limits.INNER.values(), ids=limits.INNER.keys())
WORK = eh.LocalSGD(lr=0.2, epochs=1, batch_size=5)


def rich() -> eh.Federation:
    return limits.federation(
        team=list(limits.TEAMS), group=[np.arange(size) % 2 for size in limits.SIZES]
    )


@every_inner
def test_fedprox_without_pull_is_the_inner_method(inner: eh.Algorithm) -> None:
    limits.assert_all_identical(
        limits.train(eh.FedProx(mu=0.0, inner=inner), fed=rich(), local=WORK),
        limits.train(inner, fed=rich(), local=WORK),
    )


@every_inner
def test_clipping_at_a_huge_length_is_the_inner_method(inner: eh.Algorithm) -> None:
    limits.assert_all_identical(
        limits.train(eh.Clipped(norm=1e30, inner=inner), fed=rich(), local=WORK),
        limits.train(inner, fed=rich(), local=WORK),
    )


@every_inner
def test_a_server_step_of_one_without_momentum_is_the_inner_method(inner: eh.Algorithm) -> None:
    found = limits.train(eh.FedAvgM(lr=1.0, momentum=0.0, inner=inner), fed=rich(), local=WORK)
    expected = limits.train(inner, fed=rich(), local=WORK)
    limits.assert_same(found.params, expected.params)
    for one, other in zip(found.personal or [], expected.personal or [], strict=True):
        limits.assert_same(one, other)


def test_wrappers_of_clients_and_of_the_server_commute(engine: str) -> None:
    one = eh.FedAvgM(0.5, 0.5, eh.FedProx(0.7, eh.Clipped(0.3, eh.TERM(t=1.0))))
    other = eh.Clipped(0.3, eh.FedProx(0.7, eh.FedAvgM(0.5, 0.5, eh.TERM(t=1.0))))
    limits.assert_same(
        limits.train(one, engine, local=limits.MINI_BATCHES).params,
        limits.train(other, engine, local=limits.MINI_BATCHES).params,
    )
