"""DRFA: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import (
    P_A,
    P_B,
    F,
    G,
    f_a,
    f_b,
    federation,
    g_a,
    g_b,
    local_model,
    near,
    project_two,
    run,
    value,
)

# ---- by hand


def test_drfa_two_rounds_in_numbers(engine: str) -> None:
    # round 1 by lam = p: 1.55, which is the snapshot too; f_a = .869166.., f_b = 8.41
    # lam_a = (1 + (.75 + .02 * .869166..) - (.25 + .02 * 8.41)) / 2 = .67459166..
    first = run(eh.DRFA(lr_lambda=0.02), engine, lr=0.1)
    assert value(first.params) == near(1.55)
    lam_a = (1.5 + 0.02 * (0.3025 + 0.2025 + 2.1025) / 3 - 0.02 * 8.41) / 2
    expected = 1.55 - 0.1 * (lam_a * 2 * (1.55 - 2) + (1 - lam_a) * 4 * (3.1 - 6))
    second = run(eh.DRFA(lr_lambda=0.02), engine, lr=0.1, rounds=2)
    assert value(second.params) == near(expected)


def test_drfa_keeps_raising_lambda(engine: str) -> None:
    w, lam = 1.0, project_two(P_A, P_B, 0.3)  # nobody ever has less than the floor
    for _ in range(4):
        w -= 0.05 * (lam[0] * g_a(w) + lam[1] * g_b(w))
        lam = project_two(lam[0] + 0.01 * f_a(w), lam[1] + 0.01 * f_b(w), 0.3)
    assert value(run(eh.DRFA(lr_lambda=0.01, floor=0.3), engine, lr=0.05, rounds=4).params) == near(
        w
    )


def test_drfa_snapshot_is_one_moment_of_the_round_for_everyone(engine: str) -> None:
    # three local steps: the snapshot is the mean of the local models after 1, 2 or 3 of them
    def second_round(moment: int) -> float:
        taken = P_A * local_model(g_a, 1.0, 0.02, moment) + P_B * local_model(
            g_b, 1.0, 0.02, moment
        )
        lam = project_two(P_A + 0.02 * f_a(taken), P_B + 0.02 * f_b(taken))
        w = P_A * local_model(g_a, 1.0, 0.02, 3) + P_B * local_model(g_b, 1.0, 0.02, 3)
        return lam[0] * local_model(g_a, w, 0.02, 3) + lam[1] * local_model(g_b, w, 0.02, 3)

    candidates = [second_round(moment) for moment in (1, 2, 3)]
    seen = set()
    for seed in range(12):
        found = value(
            run(eh.DRFA(lr_lambda=0.02), engine, lr=0.02, steps=3, rounds=2, seed=seed).params
        )
        hits = [
            moment for moment, candidate in enumerate(candidates, 1) if found == near(candidate)
        ]
        assert len(hits) == 1
        seen.update(hits)
    assert seen == {1, 2, 3}


def test_drfa_raises_lambda_of_those_asked_by_n_over_their_number(engine: str) -> None:
    # one of two is asked: lam + .02 * 2 f there, 0 elsewhere
    candidates = {}
    for asked in (0, 1):
        raised = [P_A, P_B]
        raised[asked] += 0.02 * 2 * F[asked](1.55)
        lam = project_two(*raised)
        candidates[asked] = 1.55 - 0.1 * (lam[0] * g_a(1.55) + lam[1] * g_b(1.55))
    seen = set()
    for seed in range(8):
        found = value(
            run(eh.DRFA(lr_lambda=0.02, sample=1), engine, lr=0.1, rounds=2, seed=seed).params
        )
        hits = [asked for asked, candidate in candidates.items() if found == near(candidate)]
        assert len(hits) == 1
        seen.update(hits)
    assert seen == {0, 1}


def test_drfa_draws_in_proportion_to_lambda(engine: str) -> None:
    # a huge ascent puts all of lam on the client that is worse at 1.., B: from round 2 on only B is
    # drawn
    cohort = eh.Proportional(2)
    first = cohort.draw(federation().census(), 3, 0)
    coefficient = dict(zip(first.ids.tolist(), first.weight.tolist(), strict=True))
    w = 1 - 0.01 * sum(a * G[i](1.0) for i, a in coefficient.items())
    for _ in range(3):
        assert f_b(w) - f_a(w) > 0.1
        w -= 0.01 * g_b(w)
    assert value(
        run(eh.DRFA(lr_lambda=100.0), engine, lr=0.01, rounds=4, cohort=cohort, seed=3).params
    ) == near(w)


# ---- where it is another method


@limits.every_scheme
@limits.every_local
def test_drfa_without_ascent_is_fedavg(engine: str, cohort: eh.Cohort, local: eh.LocalSGD) -> None:
    """lr_lambda = 0 keeps lam = w, so the draws are those of the clients' weights."""
    expected = (
        limits.train(eh.FedAvg(), engine, local=local, cohort=cohort).params
        if cohort == limits.UNBIASED
        else limits.fedavg(engine, cohort, local)
    )
    limits.assert_same(
        limits.train(eh.DRFA(lr_lambda=0.0), engine, local=local, cohort=cohort).params, expected
    )


def test_drfa_with_one_step_and_everyone_raises_lambda_as_afl_does_but_one_round_later(
    engine: str,
) -> None:
    """One step, everyone asked: lam^{r+1} = proj(lam^r + lr_lambda f(theta^{r+1})), which is AFL's
    "before" from theta^1 on."""
    drfa = limits.train(eh.DRFA(lr_lambda=0.4), engine, rounds=5).params
    first = limits.module()
    first.load_state_dict(limits.train(eh.FedAvg(), engine, rounds=1).params)
    limits.assert_same(
        drfa,
        limits.train(eh.AFL(lr_lambda=0.4, order="before"), engine, rounds=4, module=first).params,
    )


# ---- the optimum


def test_drfa_reaches_the_least_worst_client_loss() -> None:
    theta = convex.parameters(convex.train(eh.DRFA(lr_lambda=0.03), lr=0.2, rounds=110))
    convex.assert_reaches(
        lambda theta: convex.losses(theta).max(), convex.minimax(convex.losses), theta
    )
