"""AAggFF: numbers by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

import evenhand as eh
from tests.support.by_hand import (
    P_A,
    THREE,
    F,
    G,
    P,
    at,
    dot,
    f_a,
    f_b,
    federation,
    g_a,
    g_b,
    local_model,
    near,
    run,
    share,
    value,
)


def normal_cdf(x: float) -> float:
    """Of mean and standard deviation 1."""
    return (1 + math.erf((x - 1) / math.sqrt(2))) / 2


def responses(losses: Sequence[float]) -> list[float]:
    mean = sum(losses) / len(losses)
    return [normal_cdf(loss / mean) for loss in losses]


def test_aaggff_newton_steps_have_a_closed_form_for_two_clients(engine: str) -> None:
    # p = (x, 1 - x), D_s = g_s1 - g_s2 of g = -r / (1 + <lam, r>), r = cdf / 2:
    # sum_s D_s x + 2 (x^2 + (1 - x)^2) + (2/8) sum_s D_s^2 (x - lam_s1)^2 is least where
    # sum D_s + 4 (2x - 1) + 1/2 sum D_s^2 (x - lam_s1) = 0;  the new weights weigh the same round
    w, lam, slopes, lr = 1.0, P_A, [], 0.05
    for round in range(3):
        r = [response / 2 for response in responses([f_a(w), f_b(w)])]
        inside = 1 + lam * r[0] + (1 - lam) * r[1]
        slopes.append(((r[1] - r[0]) / inside, lam))
        up = 4 - sum(D for D, _ in slopes) + sum(D**2 * past for D, past in slopes) / 2
        lam = up / (8 + sum(D**2 for D, _ in slopes) / 2)
        assert 0 < lam < 0.5
        w = lam * local_model(g_a, w, lr, 2) + (1 - lam) * local_model(g_b, w, lr, 2)
        found = run(eh.AAggFF(), engine, lr=lr, steps=2, rounds=round + 1)
        assert found.state["lam"].tolist() == pytest.approx([lam, 1 - lam], rel=1e-9)
        assert value(found.params) == pytest.approx(w, rel=1e-9)


def test_aaggff_ftrl_with_everyone(engine: str) -> None:
    # C = 1: lam ~ w exp(sum_s r_s / (1 + mean r_s) sqrt(log 3) / (3 sqrt(t + 1))), t = 1 in the
    # first round; what is common cancels
    w, total, lr = 1.0, [0.0, 0.0, 0.0], 0.05
    for round in range(3):
        r = responses(at(F, w))
        total = [sum_ + x / (1 + sum(r) / 3) for sum_, x in zip(total, r, strict=True)]
        lam = share(
            [
                p * math.exp(x * math.sqrt(math.log(3)) / (3 * math.sqrt(round + 2)))
                for p, x in zip(P, total, strict=True)
            ]
        )
        w = dot(lam, [local_model(g, w, lr, 2) for g in G])
    found = run(eh.AAggFF(solver="ftrl"), engine, *THREE, lr=lr, steps=2, rounds=3)
    assert found.state["lam"].tolist() == near(lam)
    assert value(found.params) == near(w)


def test_aaggff_ftrl_counts_those_not_asked_with_the_mean_response(engine: str) -> None:
    # C = 2/3: heard r = C cdf; asked: mean + (r - mean) / C, others: mean;  lam normalised over the
    # two who train
    cohort, census = eh.Uniform(2), federation(*THREE).census()
    w, total, lr, C = 1.0, [0.0, 0.0, 0.0], 0.03, 2 / 3
    for round in range(4):
        ids = cohort.draw(census, 1, round).ids.tolist()
        heard = [C * r for r in responses([F[i](w) for i in ids])]
        mean = sum(heard) / 2
        response = [mean + (heard[ids.index(i)] - mean) / C if i in ids else mean for i in range(3)]
        total = [sum_ + x / (1 + mean) for sum_, x in zip(total, response, strict=True)]
        lam = share(
            [
                p * math.exp(x * math.sqrt(math.log(3)) / ((2 + C) * math.sqrt(round + 2)))
                for p, x in zip(P, total, strict=True)
            ]
        )
        w -= lr * dot(share([lam[i] for i in ids]), [G[i](w) for i in ids])
    found = run(eh.AAggFF(solver="ftrl"), engine, *THREE, lr=lr, rounds=4, cohort=cohort, seed=1)
    assert found.state["lam"].tolist() == near(lam)
    assert value(found.params) == near(w)
