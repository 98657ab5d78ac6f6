"""Numbers that a client is told alone and that scale what it adds: methods declare them, engines
judge the rest as factor and as divisor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import evenhand as eh
from evenhand import tree
from evenhand.engines import Loop, Masked
from evenhand.engines.totals import coefficients
from evenhand.engines.work import Ask, Train
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.secure import Refused
from evenhand.tree import Tree
from tests.support.federations import network, ragged

ONE_STEP = eh.LocalSGD(lr=0.1, steps=1, batch_size=100)
ALIKE = ragged((20, 20, 20, 20))


def numbers(**own: Any) -> Tree:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in own.items()}


@dataclass(frozen=True)
class Declaring(eh.Algorithm):
    """Declares what one of its own numbers does."""

    def scales(self, own: Tree) -> dict[str, Tensor]:
        return {"known": own["known"] ** 2}


def test_an_undeclared_number_may_be_a_factor_or_a_divisor() -> None:
    own = numbers(weight=[0.3, 0.2], share=[0.5, 0.5], some=[4.0, 0.0], table=[[1.0, 2.0]] * 2)
    own["index"] = torch.tensor([3, 4])
    work = Train(eh.FedAvg(), ONE_STEP)
    assert coefficients(work, own, 0) == (0.3, (4.0, 0.25))
    assert coefficients(work, own, 1) == (0.2, (0.0, 0.0))


def test_a_declared_number_counts_as_the_method_says() -> None:
    own = numbers(weight=[0.3, 0.2], known=[-3.0, 2.0], other=[8.0, 8.0])
    for method in (Declaring(), eh.FedProx(inner=Declaring())):
        assert coefficients(Train(method, ONE_STEP), own, 0) == (0.3, (9.0, 8.0, 0.125))
    # what a method declares is about training; a question's numbers are judged both ways
    assert coefficients(Ask(Declaring()), own, 1) == (0.2, (2.0, 0.5, 8.0, 0.125))


def replies(method: eh.Algorithm, own: Tree, **shared: float) -> list[Tree]:
    """What clients with the same data add in one local step, each told its own numbers."""
    model = Model(network(torch.float64), "cross_entropy")
    exchange = Loop().attach(model, ALIKE, 3)
    ids = torch.arange(len(own["weight"]))
    state = method.init(model.init(), ALIKE.census("uniform"))
    sent = {**method.task(state, ids).shared, **numbers(lr=0.1, **shared)}
    found: list[Tree] = []
    for place in ids.tolist():
        mine = tree.map(lambda leaf, place=place: leaf[place : place + 1], own)
        # always client 0, so that the data are the same
        told = exchange.exchange(Train(method, ONE_STEP), Task(sent, mine), ids[:1], 0)
        assert isinstance(told, Replies)
        found.append(told.total)
    return found


@pytest.mark.parametrize(
    ("method", "own", "shared", "name"),
    [
        (eh.GIFAIR(), {"scale": [0.5, 1.5], "team": [0, 1]}, {}, "scale"),
        # eta above every loss, and below
        (eh.FAFL(mu=0.0), {"alpha": [0.2, 0.8], "floor": [0.3, 0.6]}, {"eta": 1e6}, "floor"),
        (eh.FAFL(mu=0.0), {"alpha": [0.2, 0.8], "floor": [0.3, 0.6]}, {"eta": -1e6}, "alpha"),
    ],
    ids=["gifair", "fafl above", "fafl below"],
)
def test_steps_are_in_proportion_to_the_declared_scale(
    method: eh.Algorithm, own: dict[str, list[float]], shared: dict[str, float], name: str
) -> None:
    told = numbers(weight=[0.5, 0.5], share=[0.5, 0.5], **own)
    first, second = (tree.leaves(total["delta"]) for total in replies(method, told, **shared))
    declared = method.scales(told)[name]
    for mine, other in zip(first, second, strict=True):
        assert mine.abs().sum() > 0
        torch.testing.assert_close(mine / declared[0], other / declared[1])


def test_a_weight_in_fairfed_grows_with_the_inverse_of_the_base() -> None:
    # beta of the excess, at most 1, is added to the base weight before the division by it
    method, own = eh.FairFed(sums_only=True), numbers(base=[0.25, 1e-6])
    assert method.scales(own)["base"].tolist() == [4.0, 1e6]
    assert eh.FairFed().scales(own) == {}


def test_a_first_mean_of_zero_in_fedheal_is_no_divisor() -> None:
    assert eh.FedHEAL().scales(numbers(mean_distance=[0.0, 4.0]))["mean_distance"].tolist() == [
        0.0,
        0.25,
    ]


METHODS: dict[str, tuple[Callable[[], eh.Algorithm], bool]] = {
    "one floor": (lambda: eh.FAFL(floor={"others": 0.0, "1": 0.9}), False),
    "floors of three": (lambda: eh.FAFL(floor=(0.5, 0.5, 0.5, 0.0)), True),
    "one small alpha": (lambda: eh.FAFL(alpha={"others": 1.0, "1": 0.3}), False),
    "the same for all": (lambda: eh.FAFL(alpha=0.3, floor=0.9), True),
}


@pytest.mark.parametrize("case", METHODS)
def test_masked_sums_refuse_numbers_that_single_a_client_out(case: str) -> None:
    method, fine = METHODS[case]

    def run() -> None:
        eh.fit(
            network(torch.float32),
            ALIKE,
            method(),
            rounds=1,
            local=ONE_STEP,
            weights="uniform",
            engine=Masked(eh.SecureSums(), engine="loop"),
        )

    if fine:
        return run()
    with pytest.raises(Refused, match=r"the sum that of [12]\b.*enough others"):
        run()
