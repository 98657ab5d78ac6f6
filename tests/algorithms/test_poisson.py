"""Poisson cohorts: their law, and sums divided by the expected number of clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.studies.specs.building import build_cohort
from tests.support.by_hand import clients_of, move, near
from tests.support.federations import network, ragged

ROUNDS = 4000


def taken(rate: float, seed: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    """(ROUNDS, n) whether each client takes part."""
    census, cohort = ragged().census("uniform"), eh.Poisson(rate)
    found = np.zeros((ROUNDS, census.clients), dtype=bool)
    for round in range(ROUNDS):
        found[round, cohort.draw(census, seed, round).ids] = True
    return found


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_each_client_takes_part_with_the_rate_and_by_itself(rate: float) -> None:
    found = taken(rate).astype(float)
    error = 4 * (rate * (1 - rate) / ROUNDS) ** 0.5
    assert np.abs(found.mean(0) - rate).max() < error
    # the size of a cohort is binomial
    sizes = found.sum(1)
    assert sizes.var() == pytest.approx(10 * rate * (1 - rate), rel=0.1)
    correlation = np.corrcoef(found.T) - np.eye(10)
    assert np.abs(correlation).max() < 5 / ROUNDS**0.5
    # and rounds are independent of each other
    assert abs(np.corrcoef(found[1:].ravel(), found[:-1].ravel())[0, 1]) < 0.02


def test_coefficients_do_not_depend_on_who_else_takes_part() -> None:
    census = ragged().census("uniform")
    draws = [eh.Poisson(0.3).draw(census, 7, round) for round in range(50)]
    assert len({len(draw.ids) for draw in draws}) > 3
    for draw in draws:
        assert draw.weight.tolist() == near([1 / 3] * len(draw.ids))
        assert draw.share.sum() == pytest.approx(1 if len(draw.ids) else 0)
    by_size = ragged().census("data")
    draw = eh.Poisson(0.3).draw(by_size, 7, 0)
    assert draw.weight.tolist() == near((by_size.weight[draw.ids] / 0.3).tolist())


def test_the_sum_is_divided_by_the_expected_number(engine: str) -> None:
    clients = clients_of((1, 0), (0, 2), (4, 4), (8, -1))
    updates = np.array([(1, 0), (0, 2), (4, 4), (8, -1)])
    census = eh.Federation.from_arrays([{"x": np.zeros((1, 1)), "y": np.zeros(1)}] * 4).census(
        "uniform"
    )
    for seed in range(6):
        ids = eh.Poisson(0.5).draw(census, seed, 0).ids.numpy()
        found = move(
            eh.FedAvg(), engine, clients, cohort=eh.Poisson(0.5), weights="uniform", seed=seed
        )
        assert found == near((-updates[ids].sum(0) / 2).tolist() if len(ids) else [0.0, 0.0])


def test_a_rate_of_one_is_everyone(engine: str) -> None:
    clients = clients_of((1, 0), (0, 2), (4, 4))
    for weights in ("data", "uniform"):
        every, all_of_them = (
            move(eh.FedAvg(), engine, clients, cohort=cohort, weights=weights)
            for cohort in (eh.Poisson(1.0), eh.Full())
        )
        assert every == near(all_of_them)


def test_a_round_without_anyone_is_void() -> None:
    found = eh.fit(
        network(), ragged(), eh.FedAvg(), rounds=3, cohort=eh.Poisson(1e-9), weights="uniform"
    )
    assert found.history["void"].tolist() == [True] * 3
    before = network().state_dict()
    assert all(torch.equal(found.params[name], leaf) for name, leaf in before.items())


def test_the_seed_repeats_cohorts() -> None:
    assert (taken(0.5, 3)[:20] == taken(0.5, 3)[:20]).all()
    assert (taken(0.5, 3)[:20] != taken(0.5, 4)[:20]).any()


def test_a_spec_can_name_it() -> None:
    assert build_cohort({"name": "poisson", "rate": 0.2}) == eh.Poisson(0.2)
    with pytest.raises(ValueError, match="cohort needs rate"):
        build_cohort({"name": "poisson"})


@pytest.mark.parametrize("rate", [0.0, 1.5, -1, "half", True])
def test_the_rate_is_checked(rate: object) -> None:
    with pytest.raises(ValueError, match=r"rate must be in \(0, 1\]"):
        eh.Poisson(rate)  # type: ignore[arg-type]


def test_expected_numbers() -> None:
    assert eh.Poisson(0.25).expected(10) == 2.5
    assert eh.Full().expected(10) == 10
    assert eh.Uniform(3).expected(10) == 3
    assert eh.Proportional(3).expected(10) is None
