"""Levels of clients from a number, a list or a table: by hand, drawn, and wherever a method goes."""

from __future__ import annotations

import pickle
import tomllib
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import evenhand as eh
from evenhand.algorithms import random_levels
from evenhand.algorithms.levels import by_client
from evenhand.engines.work import Train
from evenhand.flower.wire import describe_work, read_work
from evenhand.studies.specs.spec import Spec
from tests.support.federations import network, ragged

RANDOM: dict[str, float] = {"random": 123, "low": 0.2, "high": 0.9, "some": 4, "5": 0.01}


def levels(alpha: Any, clients: int = 8) -> list[float]:
    method = eh.FAFL(alpha=alpha)
    return by_client("alpha", method.alpha, clients).tolist()  # type: ignore[arg-type]


def test_by_hand() -> None:
    assert levels({"others": 0.5, "5": 0.01}, 7) == [0.5] * 5 + [0.01, 0.5]
    assert levels({"5": 0.01}, 7) == [1.0] * 5 + [0.01, 1.0]  # others count as they do
    assert levels({5: 0.01, 0: 1}, 7) == levels({"0": 1.0, "5": 0.01}, 7)
    assert by_client("floor", eh.FAFL(floor={"1": 0.4}).floor, 3, others=0.0).tolist() == [  # type: ignore[arg-type]
        0.0,
        0.4,
        0.0,
    ]


def test_random_levels_are_uniform_and_repeatable() -> None:
    drawn = random_levels(4000, seed=1, low=0.2, high=0.9)
    assert stats.kstest(drawn, stats.uniform(0.2, 0.7).cdf).pvalue > 0.01
    assert drawn == random_levels(4000, seed=1, low=0.2, high=0.9)
    assert drawn != random_levels(4000, seed=2, low=0.2, high=0.9)
    assert drawn[:10] == random_levels(10, seed=1, low=0.2, high=0.9)  # clients may join
    assert levels({"random": 1, "low": 0.2, "high": 0.9}) == list(drawn[:8])


def test_some_clients_are_drawn_and_fixed_ones_are_not() -> None:
    every = random_levels(8, 123, 0.2, 0.9)
    for seed in range(30):
        found = random_levels(8, seed, 0.2, 0.9, fixed={5: 0.01}, some=4, others=1.0)
        assert found[5] == 0.01
        assert sum(level == 1.0 for level in found) == 3
    found = random_levels(8, 123, 0.2, 0.9, fixed={5: 0.01}, some=4)
    assert all(level in (1.0, 0.01, mine) for level, mine in zip(found, every, strict=True))
    assert levels(RANDOM) == list(found)
    assert levels({**RANDOM, "others": 0.7})[:5].count(0.7) == found[:5].count(1.0)
    times = np.mean([np.array(random_levels(5, seed, some=2)) < 1 for seed in range(2000)], 0)
    assert times == pytest.approx(np.full(5, 0.4), abs=0.05)  # everybody equally often


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        ({}, "alpha must be a table with a level, got {}"),
        ({"5": 0.0}, r"alpha of client 5 must be in \(0, 1\], got 0.0"),
        ({"others": 2}, r"others of alpha must be in \(0, 1\], got 2"),
        ({"other": 1.0}, "unknown key of alpha: 'other'; did you mean 'others'"),
        ({"-1": 0.5}, "clients are numbers from 0"),
        ({"05": 0.5}, "clients are numbers from 0"),
        ({"5": 0.1, 5: 0.2}, "alpha must be a table"),
        ({"random": 1.5}, "random of alpha must be a whole number >= 0, got 1.5"),
        ({"random": 1, "some": 0}, "some of alpha must be a whole number >= 1, got 0"),
        ({"low": 0.1, "5": 0.1}, "low of alpha needs random, the seed of the draw"),
        ({"random": 1, "low": 0.9, "high": 0.2}, "low of alpha must be at most high"),
        ({"random": 1, "low": 0.0}, r"low of alpha must be in \(0, 1\]"),
        ({"random": 1, "others": 1.0}, "others of alpha is for clients without a random level"),
    ],
)
def test_tables_that_make_no_sense_are_refused(alpha: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        eh.FAFL(alpha=alpha)
    assert "\n" not in str(caught.value)


def test_tables_that_do_not_fit_the_clients_are_refused() -> None:
    fed = ragged(teams=False)
    for alpha, message in (
        ({"10": 0.5}, "alpha names client 10, but clients are numbered 0 to 9"),
        ({"random": 1, "some": 10, "3": 0.5}, "some is 10, but only 9 clients have no level"),
    ):
        with pytest.raises(ValueError, match=message):
            eh.fit(network(), fed, eh.FAFL(alpha=alpha), rounds=1)


def test_a_table_is_a_value() -> None:
    method = eh.FAFL(alpha=RANDOM)
    turned = eh.FAFL(alpha=dict(reversed(RANDOM.items())))
    assert method == turned
    assert hash(method) == hash(turned)
    assert repr(method) == repr(turned)
    assert "alpha={'random': 123, 'low': 0.2, 'high': 0.9, 'some': 4, '5': 0.01}" in repr(method)
    assert pickle.loads(pickle.dumps(method)) == method
    assert method != eh.FAFL(alpha={**RANDOM, "random": 234})


def test_one_line_of_a_spec_says_it() -> None:
    text = """
    rounds = 2
    [[methods]]
    name = "fafl"
    alpha = { random = 123, low = 0.2, high = 0.9, some = 4, "5" = 0.01 }
    """
    spec = Spec.from_toml(text, "here")
    (method,) = (entry.algorithm() for entry in spec.methods)
    assert method == eh.FAFL(alpha=RANDOM)
    again = Spec.from_toml(spec.to_toml(), "there")
    assert again.methods[0].algorithm() == method
    assert tomllib.loads(spec.to_toml())["methods"][0]["alpha"] == RANDOM


def test_nodes_of_a_federation_get_the_same_method() -> None:
    method = eh.FAFL(alpha=RANDOM)
    work = read_work(describe_work(Train(method, eh.LocalSGD(lr=0.1)), method))
    assert work.algorithm == method


@pytest.mark.filterwarnings("ignore:alpha of client")
def test_a_table_trains_as_the_list_does_alone_and_stacked() -> None:
    fed = ragged(teams=False)
    drawn = random_levels(10, 123, 0.2, 0.9, {5: 0.01}, 4)
    table, listed = eh.FAFL(alpha=RANDOM), eh.FAFL(alpha=drawn)
    one, other = (eh.fit(network(), fed, method, rounds=2) for method in (table, listed))
    assert all(torch.equal(value, other.params[key]) for key, value in one.params.items())
    runs = [
        eh.Run(table),
        eh.Run(eh.FAFL(alpha=RANDOM, mu=0.2)),
        eh.Run(eh.FAFL(alpha={"random": 234, "low": 0.2})),
    ]
    first, wide, drawn_anew = eh.fit_many(network(), fed, runs, rounds=2)
    alone = eh.fit(network(), fed, runs[1].algorithm, rounds=2)
    for found, expected in ((first, one), (wide, alone)):
        assert torch.equal(found.state["alpha"], torch.tensor(drawn, dtype=torch.float64))
        for key, value in expected.params.items():
            torch.testing.assert_close(found.params[key], value)
    assert not torch.equal(drawn_anew.state["alpha"], first.state["alpha"])
