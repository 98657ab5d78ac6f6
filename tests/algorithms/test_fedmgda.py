"""FedMGDA+: numbers by hand, where it is another method."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import evenhand as eh
from tests.support import limits
from tests.support.by_hand import clients_of, move, near, share

# ---- by hand


@pytest.mark.parametrize(
    ("epsilon", "prior", "lam"),
    [
        (1.0, "weights", 1 / 2),  # two unit vectors are balanced by halves
        (0.1, "weights", 3 / 4 - 0.1),  # which lies outside the box around 3/4
        (0.2, "weights", 3 / 4 - 0.2),
        (0.25, "weights", 1 / 2),
        (0.0, "weights", 3 / 4),
        (0.0, "uniform", 1 / 2),
        (0.1, "uniform", 1 / 2),
    ],
)
def test_fedmgda_two_unit_vectors(engine: str, epsilon: float, prior: str, lam: float) -> None:
    # updates (3, 4) and (0, -2) become u = (.6, .8) and (0, -1)
    clients = clients_of((3, 4), (0, -2), counts=(3, 1))
    found = move(eh.FedMGDA(epsilon=epsilon, prior=prior), engine, clients)
    assert found == near([-lam * 0.6, -(lam * 0.8 - (1 - lam))])
    found = move(eh.FedMGDA(epsilon=epsilon, prior=prior, server_lr=0.3), engine, clients)
    assert found == near([-0.3 * lam * 0.6, -0.3 * (lam * 0.8 - (1 - lam))])


@pytest.mark.parametrize(
    ("updates", "lam"),
    [
        # the closed form: lam_1 = <u_2 - u_1, u_2> / |u_1 - u_2|^2, cut to [0, 1]
        (((3, 0), (0, 1)), 1 / 10),
        (((1, 0), (2, 1)), 1.0),  # (1, 1) . (2, 1) / 2 = 1.5: the first alone is the shortest
        (((2, 0), (-1, 0)), 1 / 3),  # (-3) (-1) / 9: the hull holds the origin
        (((1, 2), (1, -1)), 1 / 3),  # (0, -3) . (1, -1) / 9
    ],
)
def test_fedmgda_two_updates_as_they_are(
    engine: str, updates: tuple[tuple[int, int], ...], lam: float
) -> None:
    expected = [-(lam * x + (1 - lam) * y) for x, y in zip(*updates, strict=True)]
    for counts in ((1, 1), (5, 2)):  # the prior does not matter where the box is wide
        found = move(
            eh.FedMGDA(epsilon=1.0, normalise=False), engine, clients_of(*updates, counts=counts)
        )
        assert found == pytest.approx(expected, abs=1e-9)
    # with the prior 5/7 the box [5/7 - .1, 5/7 + .1] is active unless lam lies in it
    boxed = min(max(lam, 5 / 7 - 0.1), 5 / 7 + 0.1)
    found = move(
        eh.FedMGDA(epsilon=0.1, normalise=False), engine, clients_of(*updates, counts=(5, 2))
    )
    assert found == pytest.approx(
        [-(boxed * x + (1 - boxed) * y) for x, y in zip(*updates, strict=True)], abs=1e-9
    )


@pytest.mark.parametrize(
    ("epsilon", "normalise", "updates", "lam"),
    [
        # orthogonal: lam ~ 1 / |u|^2
        (1.0, False, ((1, 0, 0), (0, 2, 0), (0, 0, 2)), (2 / 3, 1 / 6, 1 / 6)),
        # the first stops at its box
        (0.1, False, ((1, 0, 0), (0, 2, 0), (0, 0, 2)), (1 / 3 + 0.1, 1 / 3 - 0.05, 1 / 3 - 0.05)),
        (1.0, True, ((1, 0, 0), (0, 2, 0), (0, 0, 2)), (1 / 3, 1 / 3, 1 / 3)),
        # u_3 lies between the others: the shortest point is the middle of the segment between u_1
        # and u_2
        (1.0, True, ((5, 0, 0), (0, 1, 0), (2, 2, 0)), (1 / 2, 1 / 2, 0)),
        # of |lam_1 + lam_3 r, lam_2 + lam_3 r|, r = 1/sqrt 2 > 1/2, lam_3 as small as its box
        # allows
        (0.1, True, ((5, 0, 0), (0, 1, 0), (2, 2, 0)), (1 / 3 + 0.05, 1 / 3 + 0.05, 1 / 3 - 0.1)),
    ],
)
def test_fedmgda_three_clients(
    engine: str,
    epsilon: float,
    normalise: bool,
    updates: tuple[tuple[int, ...], ...],
    lam: tuple[float, ...],
) -> None:
    u = np.array(updates, dtype=float)
    if normalise:
        u /= np.linalg.norm(u, axis=1, keepdims=True)
    found = move(eh.FedMGDA(epsilon=epsilon, normalise=normalise), engine, clients_of(*updates))
    assert found == pytest.approx((-np.array(lam) @ u).tolist(), abs=1e-9)


def test_fedmgda_takes_its_prior_from_the_cohort(engine: str) -> None:
    # two of three train, with a = p normalised over them; epsilon = 0 keeps it
    updates, counts, cohort = ((3.0, 4.0), (0.0, -2.0), (1.0, 0.0)), (3, 1, 2), eh.Uniform(2)
    clients = clients_of(*updates, counts=counts)
    units = np.array([(0.6, 0.8), (0, -1), (1, 0)])
    census = eh.Federation.from_arrays(clients).census()
    for seed in range(3):
        ids = cohort.draw(census, seed, 0).ids.tolist()
        expected = -np.array(share([counts[i] for i in ids])) @ units[ids]
        assert move(eh.FedMGDA(epsilon=0.0), engine, clients, cohort=cohort, seed=seed) == near(
            expected.tolist()
        )


# ---- where it is another method


@limits.every_scheme
@limits.every_local
def test_fedmgda_at_its_prior_without_normalisation_is_fedavg(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    """Special case 17: epsilon = 0 keeps lam0, the cohort's coefficients (normalised where they do
    not sum to one)."""
    found = limits.train(
        eh.FedMGDA(epsilon=0.0, normalise=False), engine, local=local, cohort=cohort
    ).params
    limits.assert_same(found, limits.fedavg(engine, cohort, local))


def test_fedmgda_at_the_uniform_prior_without_normalisation_is_fedavg_with_uniform_weights(
    engine: str,
) -> None:
    """Special case 17."""
    found = limits.train(
        eh.FedMGDA(epsilon=0.0, normalise=False, prior="uniform"), engine, local=limits.MINI_BATCHES
    ).params
    limits.assert_same(
        found,
        limits.train(eh.FedAvg(), engine, local=limits.MINI_BATCHES, weights="uniform").params,
    )


def client_steps(local: eh.LocalSGD) -> np.ndarray:
    """(4, P) received - local model of every client after the first round, from what LocalOnly
    leaves with it."""
    start = dict(limits.module().state_dict())
    result = limits.train(eh.LocalOnly(), rounds=1, local=local)
    return np.stack(
        [
            np.concatenate([(start[name] - own[name]).numpy().ravel() for name in start])
            for own in result.personal or []
        ]
    )


@pytest.mark.parametrize("normalise", [True, False])
@limits.every_local
def test_fedmgda_with_a_wide_box_takes_the_least_norm_point_of_the_hull(
    engine: str, local: eh.LocalSGD, normalise: bool
) -> None:
    """Special case 17: d is in the hull of the (normalised) updates, and <u_i, d> >= |d|^2 for all
    of them."""
    start = dict(limits.module().state_dict())
    updates = client_steps(local)
    if normalise:
        updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    for prior in ("weights", "uniform"):
        params = limits.train(
            eh.FedMGDA(epsilon=1.0, server_lr=0.5, normalise=normalise, prior=prior),
            engine,
            rounds=1,
            local=local,
        ).params
        d = np.concatenate([(start[name] - params[name]).numpy().ravel() for name in start]) / 0.5
        _, residual = scipy.optimize.nnls(
            np.vstack([updates.T, np.ones(len(updates))]), np.append(d, 1)
        )
        assert residual < 1e-9
        assert (updates @ d >= d @ d * (1 - 1e-8)).all()
        # and is not the prior's
        assert np.linalg.norm(d) < np.linalg.norm(np.array(limits.SHARES) @ updates)
