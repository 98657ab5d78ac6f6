"""Who takes part, and with which coefficient: by hand, and by counting draws."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import evenhand as eh
from evenhand.data.population import Census
from tests.support import limits
from tests.support.by_hand import A, B, C, assert_frequency, federation, g_c, near, run, value

# ---- by hand

SIZES = (1, 2, 3, 4)
SHARES = (0.1, 0.2, 0.3, 0.4)


def census_of(sizes: Sequence[int], weights: str = "data") -> Census:
    return federation(*({"x": [[1.0]] * size, "y": [0.0] * size} for size in sizes)).census(weights)


def draws(
    cohort: eh.Cohort, rounds: int, weights: str = "data", seed: int = 11
) -> list[dict[int, float]]:
    """For every round, the coefficient of each client that takes part."""
    census = census_of(SIZES, weights)
    found = (cohort.draw(census, seed, round) for round in range(rounds))
    return [dict(zip(draw.ids.tolist(), draw.weight.tolist(), strict=True)) for draw in found]


def test_full_takes_everyone_with_its_share_of_the_data() -> None:
    for draw in draws(eh.Full(), 3):
        assert draw == near(dict(enumerate(SHARES)))
    assert draws(eh.Full(), 1, "uniform")[0] == near(dict.fromkeys(range(4), 0.25))


def test_uniform_normalises_the_weights_over_the_cohort() -> None:
    for draw in draws(eh.Uniform(2), 20):
        assert len(draw) == 2
        mass = sum(SIZES[i] for i in draw)
        assert draw == near({i: SIZES[i] / mass for i in draw})


def test_uniform_unbiased_multiplies_the_weights_by_n_over_k() -> None:
    for draw in draws(eh.Uniform(3, unbiased=True), 20):
        assert len(draw) == 3
        assert draw == near({i: 4 / 3 * SHARES[i] for i in draw})


def test_proportional_without_replacement_gives_each_of_k_distinct_clients_one_over_k() -> None:
    for draw in draws(eh.Proportional(3, replacement=False), 20):
        assert list(draw.values()) == near([1 / 3] * 3)


def test_proportional_with_replacement_counts_a_client_once_for_each_time_drawn() -> None:
    found = draws(eh.Proportional(5), 50)
    for draw in found:
        assert list(draw) == sorted(draw)
        times = [coefficient * 5 for coefficient in draw.values()]
        assert times == near([round(time) for time in times])
        assert sum(times) == near(5)
    assert any(coefficient > 0.3 for draw in found for coefficient in draw.values())


def test_draws_depend_on_seed_and_round_alone() -> None:
    for cohort in (
        eh.Uniform(2),
        eh.Uniform(2, unbiased=True),
        eh.Proportional(2),
        eh.Proportional(2, replacement=False),
    ):
        assert draws(cohort, 30) == draws(cohort, 30)
        assert draws(cohort, 30) != draws(cohort, 30, seed=12)
        assert draws(cohort, 30)[1:] != draws(cohort, 29, seed=12)
        assert len({tuple(draw) for draw in draws(cohort, 30)}) > 1


@pytest.mark.parametrize("unbiased", [False, True])
def test_uniform_takes_every_pair_equally_often(unbiased: bool) -> None:
    trials = 3000
    seen = Counter(tuple(draw) for draw in draws(eh.Uniform(2, unbiased), trials))
    for pair in itertools.combinations(range(4), 2):
        assert_frequency(seen[pair], trials, 1 / 6)


def test_proportional_with_replacement_draws_each_multiset_with_its_multinomial_probability() -> (
    None
):
    trials = 3000
    seen = Counter(
        tuple((i, round(3 * a)) for i, a in draw.items())
        for draw in draws(eh.Proportional(3), trials)
    )
    for multiset in itertools.combinations_with_replacement(range(4), 3):
        times = Counter(multiset)
        orders = math.factorial(3) / math.prod(math.factorial(count) for count in times.values())
        assert_frequency(
            seen[tuple(times.items())], trials, orders * math.prod(SHARES[i] for i in multiset)
        )


def test_proportional_without_replacement_draws_one_by_one_among_those_left() -> None:
    trials, k = 3000, 2
    probability: Counter[tuple[int, ...]] = Counter()
    # first i with p_i, then j with p_j / (1 - p_i)
    for order in itertools.permutations(range(4), k):
        chance, left = 1.0, 1.0
        for i in order:
            chance, left = chance * SHARES[i] / left, left - SHARES[i]
        probability[tuple(sorted(order))] += chance  # type: ignore[assignment]
    assert sum(probability.values()) == near(1.0)
    seen = Counter(tuple(draw) for draw in draws(eh.Proportional(k, replacement=False), trials))
    for pair, chance in probability.items():
        assert_frequency(seen[pair], trials, chance)
    inclusion = [sum(chance for pair, chance in probability.items() if i in pair) for i in range(4)]
    for i in range(4):
        assert_frequency(
            sum(count for pair, count in seen.items() if i in pair), trials, inclusion[i]
        )


@pytest.mark.parametrize(
    "cohort", [eh.Full(), eh.Uniform(2, unbiased=True), eh.Proportional(2)], ids=["A", "D", "B"]
)
def test_coefficients_of_the_unbiased_schemes_average_to_the_weights(cohort: eh.Cohort) -> None:
    trials = 3000
    found = draws(cohort, trials)
    for i in range(4):
        values = np.array([draw.get(i, 0.0) for draw in found])
        assert abs(values.mean() - SHARES[i]) <= 5 * values.std() / math.sqrt(trials) + 1e-12


def test_uniform_weights_make_proportional_draws_uniform() -> None:
    trials = 3000
    seen = Counter(i for draw in draws(eh.Proportional(1), trials, "uniform") for i in draw)
    for i in range(4):
        assert_frequency(seen[i], trials, 1 / 4)


def test_a_client_drawn_twice_trains_once_and_counts_twice(engine: str) -> None:
    census, cohort = federation().census(), eh.Proportional(3)
    seed = next(
        s
        for s in range(100)
        if cohort.draw(census, s, 0).weight.tolist() == pytest.approx([2 / 3, 1 / 3])
    )
    result = run(eh.Ditto(lam=1.0), engine, lr=0.1, cohort=cohort, seed=seed)
    assert value(result.params) == near(2 / 3 * 1.2 + 1 / 3 * 2.6)
    # one step, not two
    assert [value(params) for params in result.personal or []] == near([1.2, 2.6])
    assert result.history_rows[0]["asked"] == 2


def test_unbiased_steps_are_not_normalised(engine: str) -> None:
    # one client of two: its coefficient is 2 p_i, so A moves the model by 1.5 of its step and B by
    # 0.5
    census, cohort = federation().census(), eh.Uniform(1, unbiased=True)
    for wanted, factor, end in ((0, 1.5, 1.2), (1, 0.5, 2.6)):
        seed = next(s for s in range(100) if cohort.draw(census, s, 0).ids.tolist() == [wanted])
        assert value(run(eh.FedAvg(), engine, lr=0.1, cohort=cohort, seed=seed).params) == near(
            1 + factor * (end - 1)
        )


def test_partial_cohorts_average_by_their_coefficients(engine: str) -> None:
    clients = (A, B, C)
    ends = (1.2, 2.6, 1 - 0.1 * g_c(1))
    census = federation(*clients).census()
    for cohort in (eh.Uniform(2), eh.Proportional(2), eh.Proportional(2, replacement=False)):
        for seed in range(4):
            ids, coefficients, _ = cohort.draw(census, seed, 0)
            expected = sum(
                a * ends[i] for i, a in zip(ids.tolist(), coefficients.tolist(), strict=True)
            )
            assert value(
                run(eh.FedAvg(), engine, *clients, lr=0.1, cohort=cohort, seed=seed).params
            ) == near(expected)


# ---- where it is another method


@pytest.mark.parametrize(
    "algorithm", [eh.QFFL(q=2.0), eh.AFL(lr_lambda=0.1), eh.FAFL(alpha=0.5, mu=0.1)], ids=repr
)
def test_drawing_everyone_without_bias_is_full_participation(
    engine: str, algorithm: eh.Algorithm
) -> None:
    everyone = len(limits.client_losses(limits.module()))
    found = limits.train(algorithm, engine, cohort=eh.Uniform(everyone, unbiased=True)).params
    limits.assert_same(found, limits.train(algorithm, engine, cohort=eh.Full()).params)
