"""LossGuard: numbers by hand, where it is another method."""

from __future__ import annotations

import pytest
import torch

import evenhand as eh
from evenhand.messages import Replies
from tests.support import limits
from tests.support.by_hand import P_A, P_B, THREE, G, P, at, dot, near, project_two, run, value

# ---- by hand


def test_lossguard_cuts_losses_at_the_median_and_some_deviations(engine: str) -> None:
    # losses 5/3, 16, 10: median 10, deviations 25/3, 6, 0 with median 6; at most 10 + .5 * 6 = 13
    # lam = p + .02 (5/3, 13, 10) = (.5333.., .42666.., .5333..), less (.49333..)/3 each
    found = run(
        eh.LossGuard(mads=0.5, cap=1.0, inner=eh.AFL(lr_lambda=0.02)), engine, *THREE, lr=0.1
    )
    raised = [0.5 + 0.02 * 5 / 3, 1 / 6 + 0.02 * 13, 1 / 3 + 0.02 * 10]
    lam = [x - (sum(raised) - 1) / 3 for x in raised]
    assert min(lam) > 0
    assert found.state["lam"].tolist() == near(lam)
    assert value(found.params) == near(1 - 0.1 * dot(P, at(G, 1.0)))
    second = run(
        eh.LossGuard(mads=0.5, cap=1.0, inner=eh.AFL(lr_lambda=0.02)),
        engine,
        *THREE,
        lr=0.1,
        rounds=2,
    )
    w = 1 - 0.1 * dot(P, at(G, 1.0))
    assert value(second.params) == near(w - 0.1 * dot(lam, at(G, w)))


def test_lossguard_weights_are_the_nearest_under_the_cap(engine: str) -> None:
    # p = (1/2, 1/6, 1/3), cap .4: the .1 that A loses goes in equal parts to the others, not in
    # proportion to their weights
    lam = [0.4, 1 / 6 + 0.05, 1 / 3 + 0.05]
    found = run(
        eh.LossGuard(mads=3.0, cap=0.4, inner=eh.AFL(lr_lambda=0.0)), engine, *THREE, lr=0.1
    )
    assert value(found.params) == near(1 - 0.1 * dot(lam, at(G, 1.0)))


def test_lossguard_caps_the_lambda_that_the_inner_method_has_found(engine: str) -> None:
    # mads .5: losses (5/3, 13, 10). p + .1 f = (.666.., 1.4666.., 1.3333..): on the simplex (0,
    # .5666.., .4333..) cap .5: B falls to .5, A and C gain .0333.. each
    lam = [1 / 30, 0.5, 13 / 30 + 1 / 30]
    method = eh.LossGuard(mads=0.5, cap=0.5, inner=eh.AFL(lr_lambda=0.1))
    found = run(method, engine, *THREE, lr=0.1)
    assert found.state["lam"].tolist() == near(lam)
    w = value(found.params)
    assert w == near(1 - 0.1 * dot(P, at(G, 1.0)))
    assert value(run(method, engine, *THREE, lr=0.1, rounds=2).params) == near(
        w - 0.1 * dot(lam, at(G, w))
    )


def test_lossguard_median_of_an_even_number_lies_between_the_middle_two(engine: str) -> None:
    # A and B: losses 5/3 and 16, median 53/6, deviations 43/6 both: with mads 1 the limit is 16
    # itself, with .5 it is 53/6 + 43/12
    limit = 53 / 6 + 43 / 12
    lam = project_two(P_A + 0.02 * 5 / 3, P_B + 0.02 * limit)
    found = run(eh.LossGuard(mads=0.5, cap=1.0, inner=eh.AFL(lr_lambda=0.02)), engine, lr=0.1)
    assert found.state["lam"].tolist() == near(list(lam))
    unguarded = project_two(P_A + 0.02 * 5 / 3, P_B + 0.02 * 16)
    found = run(eh.LossGuard(mads=1.0, cap=1.0, inner=eh.AFL(lr_lambda=0.02)), engine, lr=0.1)
    assert found.state["lam"].tolist() == near(list(unguarded))


# ---- where it is another method

SEES_LOSSES = [
    "AFL average",
    "AFL before",
    "DeltaFL",
    "DRFA",
    "AAggFF",
]


@pytest.mark.parametrize("name", [*SEES_LOSSES, "GIFAIR", "GIFAIR exact"])
def test_a_guard_that_cuts_nothing_is_the_inner_method(name: str) -> None:
    fed = limits.federation()
    limits.assert_all_identical(
        limits.train(eh.LossGuard(mads=1e30, cap=1.0, inner=limits.INNER[name]), fed=fed),
        limits.train(limits.INNER[name], fed=fed),
    )


@pytest.mark.parametrize(
    "cohort", [limits.SCHEMES["B proportional"], limits.SCHEMES["E uniform"]], ids=["B", "E"]
)
@pytest.mark.parametrize("name", SEES_LOSSES)
def test_a_guard_that_cuts_nothing_is_the_inner_method_under_sampling(
    name: str, cohort: eh.Cohort
) -> None:
    guarded = limits.train(
        eh.LossGuard(mads=1e30, cap=1.0, inner=limits.INNER[name]), cohort=cohort
    )
    limits.assert_same(guarded.params, limits.train(limits.INNER[name], cohort=cohort).params)


def test_losses_of_half_precision_are_clipped() -> None:
    guard = eh.LossGuard(mads=1.0)
    losses = torch.tensor([1.0, 2.0, 3.0, 100.0], dtype=torch.float16)
    replies = Replies(torch.arange(4), {}, {"loss": losses})
    # median 2.5, deviations 1.5, 0.5, 0.5, 97.5: their median is 1
    clipped = guard._clipped(replies).each["loss"]
    assert clipped.dtype == torch.float16
    assert clipped.tolist() == [1.0, 2.0, 3.0, 3.5]
