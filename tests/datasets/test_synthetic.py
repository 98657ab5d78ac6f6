"""Generated data sets: their distributions against what their formulas say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.data.pool import Pool
from evenhand.datasets.loaders.population import population
from evenhand.datasets.loaders.synthetic import read, rules, synthetic
from evenhand.datasets.loaders.synthetic_minimax import chance, drawn, expected, synthetic_minimax


def client_rows(pool: Pool, client: int) -> tuple[np.ndarray, np.ndarray]:
    assert pool.client is not None
    mine = pool.client == client
    return pool.x[mine].numpy(), pool.y[mine].numpy()


# ---- synthetic(a, b)


def test_sizes_are_fifty_and_a_log_normal_number() -> None:
    """A fifth of 400 clients or so gets e^4 e^(2 z) for z beyond one standard deviation."""
    sizes = np.bincount(read(clients=400).client)
    logs = np.log(sizes - 50 + 0.5)  # the draws were rounded down
    assert sizes.min() >= 50
    # three standard errors of a median of 400
    assert np.median(logs) == pytest.approx(4, abs=3 * 2 * 1.2533 / 20)
    quarters = np.quantile(logs, [0.25, 0.75])
    assert (quarters[1] - quarters[0]) / 1.349 == pytest.approx(2, rel=0.2)


def test_features_of_a_client_have_variances_j_to_the_minus_1_2() -> None:
    pool = read(clients=200, seed=1)
    big = [client for client, size in enumerate(np.bincount(pool.client)) if size > 2000]
    assert len(big) >= 3
    for client in big[:3]:
        x, _ = client_rows(pool, client)
        wanted = np.arange(1, 61) ** -1.2
        assert x.var(0) / wanted == pytest.approx(np.ones(60), abs=5 * math.sqrt(2 / len(x)))
        correlation = np.corrcoef(x.T)[np.triu_indices(60, 1)]
        assert np.abs(correlation).max() < 5 / math.sqrt(len(x))


@pytest.mark.parametrize(("a", "b"), [(0, 2), (0.5, 0.5), (2, 0)])
def test_a_and_b_are_standard_deviations(a: float, b: float) -> None:
    """A mean over entries N(u, 1), u ~ N(0, a²), has variance a² + 1/entries; around it, entries
    have variance 1."""
    count = 1000
    for values, knob in zip(
        rules(a, b, count, False, np.random.default_rng(0)), (a, b), strict=True
    ):
        entries = values.reshape(count, -1)
        assert entries.mean(1).var() == pytest.approx(knob**2 + 1 / entries.shape[1], rel=0.2)
        assert entries.var(1, ddof=1).mean() == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("iid", [False, True])
def test_samples_follow_what_their_client_drew(iid: bool) -> None:
    pool = read(0.5, 2, clients=20, iid=iid, seed=3)
    weight, mean = rules(0.5, 2, 20, iid, np.random.default_rng([3, 60]))
    for client in range(20):
        x, y = client_rows(pool, client)
        scores = np.array(
            [
                [
                    sum(w * f for w, f in zip(weight[client, :60, c], row, strict=True))
                    + weight[client, 60, c]
                    for c in range(10)
                ]
                for row in x[:20]
            ]
        )
        assert np.array_equal(scores.argmax(1), y[:20])
        assert np.abs((x.mean(0) - mean[client]) * np.arange(1, 61) ** 0.6).max() < 5 / math.sqrt(
            len(x)
        )


def test_iid_clients_share_rule_and_features() -> None:
    weight, mean = rules(3, 3, 5, True, np.random.default_rng(0))
    assert (weight == weight[0]).all()
    assert weight[0].var() == pytest.approx(1, rel=0.2)
    assert not mean.any()


def test_synthetic_keeps_a_tenth_of_each_client_for_testing() -> None:
    fed = synthetic(0.5, 0.5, seed=4)
    assert fed.clients == 30
    assert fed.test is not None
    assert fed.train.x.shape[1] == 60
    sizes = fed.train.sizes + fed.test.sizes
    assert (sizes >= 50).all()
    assert (fed.test.sizes - sizes / 10).abs().max() <= 1
    again = synthetic(0.5, 0.5, seed=4)
    assert torch.equal(fed.train.x, again.train.x)
    assert not torch.equal(fed.train.sizes, synthetic(0.5, 0.5, seed=5).train.sizes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"a": -1}, "a must be"),
        ({"b": float("nan")}, "b must be"),
        ({"clients": 0}, "clients must be"),
    ],
)
def test_synthetic_refuses_wrong_settings(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        synthetic(**settings)


# ---- synthetic_minimax; what methods reach on it is in test_minimax_data.py


def test_exact_samples_come_as_often_as_expected() -> None:
    sample = expected(80, seed=0)
    table = {
        (a, above): sample.y[(sample.a == a) & ((sample.x > 0) == above)]
        for a in (0, 1)
        for above in (True, False)
    }
    assert {cell: (len(labels), labels.sum()) for cell, labels in table.items()} == {
        (0, True): (20, 12),
        (0, False): (20, 6),
        (1, True): (20, 18),
        (1, False): (20, 2),
    }


def test_drawn_samples_have_the_chances_of_the_paper() -> None:
    sample = drawn(40_000, seed=0)
    assert sample.a.mean() == pytest.approx(0.5, abs=0.01)
    assert (sample.x.mean(), sample.x.std()) == pytest.approx((0, 1), abs=0.02)
    for a, above, u in ((0, True, 0.6), (0, False, 0.3), (1, True, 0.9), (1, False, 0.1)):
        cell = (sample.a == a) & ((sample.x > 0) == above)
        assert set(chance(sample.a[cell], sample.x[cell])) == {u}
        assert sample.y[cell].mean() == pytest.approx(u, abs=0.02)


def test_every_esg_client_is_the_population_in_small() -> None:
    fed = synthetic_minimax("esg", clients=5)
    assert fed.train.sizes.tolist() == [40] * 5
    for client in range(5):
        x, y, group = fed.train.client(client)
        assert group is not None
        cells = (4 * group + 2 * (x[:, 0] > 0) + y).bincount(minlength=8)
        assert cells.tolist() == [7, 3, 4, 6, 9, 1, 1, 9]


def test_every_ssg_client_holds_one_group() -> None:
    counted = synthetic_minimax("ssg", clients=6, exact=False, samples=301).census().group_counts
    assert counted is not None
    assert (counted[:3, 1] == 0).all()
    assert (counted[3:, 0] == 0).all()
    assert counted.sum() == 301


def test_test_samples_are_others_dealt_alike() -> None:
    fed = synthetic_minimax("ssg", clients=4, samples=400, exact=False, test=200)
    assert fed.test is not None
    assert len(fed.test.x) == 200
    assert not np.isin(fed.test.x.numpy(), fed.train.x.numpy()).any()
    for client in range(4):
        group = fed.test.client(client)[2]
        assert group is not None
        assert set(group.tolist()) == {client // 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scenario": "psg"}, 'scenario must be "esg" or "ssg"'),
        (
            {"scenario": "ssg", "clients": 3},
            'clients must be even, half for each group, got 3; or use scenario="esg"',
        ),
        (
            {"samples": 100},
            "samples must be a multiple of 40 for exact counts, got 100; or use exact=False",
        ),
        ({"clients": 0}, "clients must be a whole number >= 1"),
    ],
)
def test_synthetic_minimax_refuses_wrong_settings(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        synthetic_minimax(**settings)


# ---- population


def test_a_population_has_the_sizes_asked_for() -> None:
    assert population(1000, samples=2, features=3).train.sizes.unique().tolist() == [2]
    fed = population(3000, samples=(1, 4), features=3, test=2)
    assert torch.bincount(fed.train.sizes).tolist()[1:] == pytest.approx(
        [750] * 4, abs=5 * math.sqrt(3000 * 0.25 * 0.75)
    )
    assert fed.test is not None
    assert fed.test.sizes.unique().tolist() == [2]
    assert fed.train.x.dtype == torch.float32
    assert torch.equal(population(5, features=3).train.x, population(5, features=3).train.x)
    with pytest.raises(ValueError, match="most samples must be a whole number >= 3, got 2"):
        population(5, samples=(3, 2))
    with pytest.raises(ValueError, match="classes must be a whole number >= 2"):
        population(5, classes=1)


def test_clients_of_a_population_share_a_rule_and_lean() -> None:
    """With 200 samples each, every client's own share of class 1 is Φ(lean / ‖w‖) of the common
    rule, and spreads widely."""
    fed = population(300, samples=200, features=4)
    share = torch.stack([fed.train.client(client)[1].double().mean() for client in range(300)])
    assert share.mean().item() == pytest.approx(0.5, abs=0.1)
    assert share.std().item() > 0.2  # by chance alone it would be .035
    ones = torch.cat([fed.train.x, torch.ones(len(fed.train.x), 1)], 1)
    guess = ones @ torch.linalg.lstsq(ones, 2.0 * fed.train.y[:, None] - 1).solution > 0
    # one rule for all, though it knows nobody's lean
    assert (guess[:, 0] == fed.train.y).double().mean().item() > 0.6


def test_a_million_clients_are_a_few_arrays_and_a_cohort_of_them_trains() -> None:
    fed = population()
    assert (fed.clients, len(fed.train.x)) == (1_000_000, 3_000_000)
    assert fed.train.sizes.unique().tolist() == [3]
    cohort, local = eh.Uniform(1000), eh.LocalSGD(lr=0.1, batch_size=2)
    result = eh.fit(
        torch.nn.Linear(20, 2), fed, eh.FedAvg(), rounds=2, cohort=cohort, local=local, eval_every=2
    )
    assert [row["answered"] for row in result.history_rows] == [1000, 1000]
    assert len(result.scores) == 1_000_000
