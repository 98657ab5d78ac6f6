"""LocalOnly: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import numpy as np
import pytest

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import G, federation, near, run, value

# ---- by hand


def test_localonly_in_numbers(engine: str) -> None:
    # A: 1 -> 1.2 -> 1.36;  B: 1 -> 2.6 -> 2.92; the server model stays
    found = run(eh.LocalOnly(), engine, lr=0.1, rounds=2)
    assert [value(params) for params in found.personal or []] == near([1.36, 2.92])
    assert value(found.params) == 1.0


def test_localonly_absent_clients_stay_where_they_are(engine: str) -> None:
    cohort, census = eh.Uniform(1), federation().census()
    models = [1.0, 1.0]
    present = [int(cohort.draw(census, 0, round).ids) for round in range(5)]
    for i in present:
        models[i] -= 0.05 * G[i](models[i])
    assert set(present) == {0, 1}
    found = run(eh.LocalOnly(), engine, lr=0.05, rounds=5, cohort=cohort)
    assert [value(params) for params in found.personal or []] == near(models)


# ---- where it is another method


def test_localonly_is_every_clients_fit_alone(engine: str) -> None:
    local = eh.LocalSGD(lr=0.3, steps=2, momentum=0.5, decay=0.9)
    result = limits.train(eh.LocalOnly(), engine, local=local)
    for own, client in zip(result.personal or [], limits.samples(), strict=True):
        alone = limits.train(eh.FedAvg(), engine, eh.Federation.from_arrays([client]), local=local)
        limits.assert_same(own, alone.params)
    limits.assert_identical(result.params, dict(limits.module().state_dict()))


@limits.every_scheme
def test_localonly_is_ditto_without_pull(cohort: eh.Cohort) -> None:
    one, other = (
        limits.train(method, local=limits.MINI_BATCHES, cohort=cohort)
        for method in (eh.LocalOnly(), eh.Ditto(lam=0.0))
    )
    for own, without in zip(one.personal or [], other.personal or [], strict=True):
        limits.assert_same(own, without)


# ---- the optimum


def test_clients_alone_reach_their_own_optima() -> None:
    result = convex.train(eh.LocalOnly(), lr=0.3, rounds=80)
    # nobody trained the server's model
    assert convex.parameters(result) == pytest.approx(np.zeros(convex.FEATURES))
    for i, own in enumerate(result.personal or []):
        convex.assert_reaches(
            lambda theta, i=i: convex.losses(theta)[i],
            convex.losses(convex.own_minimiser(i))[i],
            own["weight"].numpy()[0],
        )
