"""FineTuned: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import numpy as np
import pytest

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import g_a, g_b, local_model, near, run, value

# ---- by hand


def test_finetuned_in_numbers(engine: str) -> None:
    # FedAvg to 1.55, then alone: A: 1.55 + .1 * .9 = 1.64, then 1.64 + .1 * .72 = 1.712;  B: 1.55 +
    # .1 * 11.6 = 2.71, then 2.942
    found = run(eh.FineTuned(), engine, lr=0.1)
    assert value(found.params) == near(1.55)
    assert [value(params) for params in found.personal or []] == near([1.64, 2.71])
    found = run(eh.FineTuned(epochs=2), engine, lr=0.1)
    assert value(found.params) == near(1.55)
    assert [value(params) for params in found.personal or []] == near(
        [1.712, 2.71 + 0.1 * 4 * 0.58]
    )


def test_finetuned_tunes_everyone_from_the_model_handed_out(engine: str) -> None:
    # AFL's average of two models, by a cohort of one: those never drawn are tuned too
    cohort = eh.Uniform(1)
    inner = eh.Averaged(eh.AFL(lr_lambda=0.02))
    shared = value(run(inner, engine, lr=0.1, rounds=2, cohort=cohort, seed=1).params)
    found = run(
        eh.FineTuned(epochs=3, inner=inner), engine, lr=0.1, rounds=2, cohort=cohort, seed=1
    )
    assert value(found.params) == near(shared)
    assert [value(params) for params in found.personal or []] == near(
        [local_model(g, shared, 0.1, 3) for g in (g_a, g_b)]
    )


def test_finetuned_of_a_server_optimiser(engine: str) -> None:
    # half a step to 1.275, then alone
    found = run(eh.FineTuned(inner=eh.FedAvgM(lr=0.5, momentum=0.0)), engine, lr=0.1)
    assert value(found.params) == near(1.275)
    assert [value(params) for params in found.personal or []] == near(
        [1.275 - 0.1 * g_a(1.275), 1.275 - 0.1 * g_b(1.275)]
    )


# ---- where it is another method


def test_finetuned_localonly_of_one_round_from_the_shared_model(engine: str) -> None:
    """Fine-tuning for one epoch is one more round of training alone, from the model handed out
    (whole batches)."""
    local = eh.LocalSGD(lr=0.3, epochs=1)
    tuned = limits.train(eh.FineTuned(), engine, local=local)
    shared = limits.module()
    shared.load_state_dict(limits.train(eh.FedAvg(), engine, local=local).params)
    alone = limits.train(eh.LocalOnly(), engine, local=local, rounds=1, module=shared)
    for own, other in zip(tuned.personal or [], alone.personal or [], strict=True):
        limits.assert_same(own, other)


# ---- the optimum


def test_fine_tuning_moves_every_client_towards_its_own_optimum() -> None:
    for epochs in (1, 60):
        result = convex.train(eh.FineTuned(epochs=epochs), lr=0.2, rounds=50)
        assert convex.parameters(result) == pytest.approx(convex.fedavg_minimiser(), abs=1e-4)
        for i, own in enumerate(result.personal or []):
            tuned, best = own["weight"].numpy()[0], convex.own_minimiser(i)
            assert convex.losses(tuned)[i] < convex.losses(convex.fedavg_minimiser())[i]
            assert np.linalg.norm(tuned - best) < np.linalg.norm(convex.fedavg_minimiser() - best)
            if epochs == 60:
                assert tuned == pytest.approx(best, abs=1e-3)
