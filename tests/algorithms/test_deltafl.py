"""Delta-FL: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import numpy as np
import pytest

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import THREE, F, G, P, federation, local_model, near, run, value

# ---- by hand


@pytest.mark.parametrize(
    ("tail", "training"),
    [
        # losses 5/3 (weight 1/2), 10 (1/3), 16 (1/6): the worst has more than a tenth of the weight
        (0.1, (1,)),
        (0.4, (1, 2)),  # 1/6 < .4 < 1/6 + 1/3
        (0.6, (0, 1, 2)),  # 1/2 < .6
        (1.0, (0, 1, 2)),
    ],
)
def test_deltafl_trains_the_tail_weighted_by_data(
    engine: str, tail: float, training: tuple[int, ...]
) -> None:
    counts = (3, 1, 2)
    mass = sum(counts[i] for i in training)
    expected = sum(counts[i] / mass * local_model(G[i], 1.0, 0.02, 2) for i in training)
    assert value(run(eh.DeltaFL(tail=tail), engine, *THREE, lr=0.02, steps=2).params) == near(
        expected
    )


def test_deltafl_in_numbers(engine: str) -> None:
    # B and C train: 1 - .1 (1 (-16) + 2 (6)) / 3
    assert value(run(eh.DeltaFL(tail=0.4), engine, *THREE, lr=0.1).params) == near(1 + 0.4 / 3)
    # uniform weights, thirds: the worst two of three are the tail of .4, with equal weight: 1 - .1
    # (-16 + 6) / 2
    assert value(
        run(eh.DeltaFL(tail=0.4), engine, *THREE, lr=0.1, weights="uniform").params
    ) == near(1.5)


def test_deltafl_filters_anew_every_round(engine: str) -> None:
    w, lr, seen = 1.0, 0.1, set()
    for _ in range(6):
        order = sorted(range(3), key=lambda i, w=w: -F[i](w))
        training, mass = [], 0.0
        for i in order:
            training.append(i)
            mass += P[i]
            if mass >= 0.3:
                break
        seen.add(tuple(training))
        w -= lr * sum(P[i] / mass * G[i](w) for i in training)
    assert len(seen) > 1
    assert value(run(eh.DeltaFL(tail=0.3), engine, *THREE, lr=lr, rounds=6).params) == near(w)


def test_deltafl_takes_the_tail_of_the_cohort(engine: str) -> None:
    # two of three are asked; the higher loss of the two trains alone if its share reaches the tail
    cohort, census = eh.Uniform(2), federation(*THREE).census()
    for seed in range(4):
        ids = cohort.draw(census, seed, 0).ids.tolist()
        worst = max(ids, key=lambda i: F[i](1.0))
        alone = P[worst] / sum(P[i] for i in ids) > 0.3
        training = [worst] if alone else ids
        expected = 1 - 0.1 * sum(P[i] / sum(P[j] for j in training) * G[i](1.0) for i in training)
        assert value(
            run(eh.DeltaFL(tail=0.3), engine, *THREE, lr=0.1, cohort=cohort, seed=seed).params
        ) == near(expected)


# ---- where it is another method


def test_deltafl_and_fafl_certify_the_same_objective() -> None:
    """Special case 3, by what runs report of the model that they hand out."""
    for method in (eh.DeltaFL(tail=0.6), eh.FAFL(alpha=0.6, mu=0.0, eta0="mean")):
        result = limits.train(method)
        assert result.certificate is not None
        expected = limits.worst_mixture(
            limits.losses_of(result.params), [share / 0.6 for share in limits.SHARES]
        )
        assert float(result.certificate.value) == pytest.approx(expected, rel=1e-9)


@limits.every_scheme
@limits.every_local
def test_deltafl_with_the_whole_tail_is_fedavg(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    """tail = 1: everyone at or above the 0-quantile trains; coefficients are normalised."""
    found = limits.train(eh.DeltaFL(tail=1.0), engine, local=local, cohort=cohort).params
    limits.assert_same(found, limits.fedavg(engine, cohort, local))


# ---- the optimum


def superquantile(theta: convex.Vector, tail: float) -> float:
    """Mean loss in the upper tail of the clients, the one at its edge counting in part."""
    return convex.worst_mixture(convex.losses(theta), convex.P / tail)


def least_superquantile(tail: float) -> float:
    def slack(z: convex.Vector) -> convex.Vector:  # z = (theta, eta, s): s_i >= f_i - eta, s_i >= 0
        s = z[convex.FEATURES + 1 :]
        return np.concatenate([s - (convex.losses(z[: convex.FEATURES]) - z[convex.FEATURES]), s])

    start = np.concatenate(
        [convex.fedavg_minimiser(), [0.0], convex.losses(convex.fedavg_minimiser())]
    )
    return convex.minimise_epigraph(
        lambda z: z[convex.FEATURES] + convex.P @ z[convex.FEATURES + 1 :] / tail,
        slack,
        start,
        ftol=1e-8,
    )


@pytest.mark.parametrize("tail", [0.1, 0.25, 0.4])
def test_delta_fl_reaches_the_least_superquantile_where_the_tail_nearly_holds_whole_clients(
    tail: float,
) -> None:
    theta = convex.parameters(convex.train(eh.DeltaFL(tail=tail), lr=0.1, rounds=100, decay=0.95))
    convex.assert_reaches(
        lambda theta: superquantile(theta, tail), least_superquantile(tail), theta
    )


def test_delta_fl_stays_above_the_least_superquantile_where_the_tail_cuts_a_client() -> None:
    """It counts the client at the edge whole, by intention; FAFL with the same level counts the
    part."""
    tail = 0.35
    optimum = least_superquantile(tail)
    whole = convex.parameters(convex.train(eh.DeltaFL(tail=tail), lr=0.1, rounds=100, decay=0.95))
    part = convex.parameters(
        convex.train(eh.FAFL(alpha=tail, mu=0.05, lr_eta=0.3), lr=0.1, rounds=150, decay=0.97)
    )
    assert 1.02 * optimum < superquantile(whole, tail) < 1.1 * optimum
    convex.assert_reaches(lambda theta: superquantile(theta, tail), optimum, part)
