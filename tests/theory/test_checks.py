"""Checks of fairness claims: by hand, against SciPy, and on models whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.theory.checks import (
    client_fairness_is_group_fairness,
    pareto_residual,
    proportionally_fairer,
)
from tests.support import federations

# ---- client fairness and group fairness


def test_two_groups_by_hand() -> None:
    # clients hold 90 % and 60 % of group 0: reachable are weights .6 to .9 of it
    counts = torch.tensor([[90, 10], [6, 4]])
    inside = client_fairness_is_group_fairness(counts, [0.8, 0.2])
    assert inside.holds
    assert not inside.always
    assert inside.client_weight == pytest.approx((2 / 3, 1 / 3))
    outside = client_fairness_is_group_fairness(counts, [0.5, 0.5])
    assert not outside.holds
    assert outside.distance == pytest.approx(0.1 * math.sqrt(2))
    assert outside.client_weight == pytest.approx((0, 1))
    assert outside.group_weight == pytest.approx((0.6, 0.4))


@pytest.mark.parametrize("inside", [True, False])
def test_nearest_weights_agree_with_scipy(inside: bool) -> None:
    generator = np.random.default_rng(1)
    for n, groups in ((2, 3), (3, 3), (6, 4), (12, 5), (4, 2)):
        counts = generator.integers(0, 30, size=(n, groups)) + np.eye(n, groups, dtype=int)
        share = counts / counts.sum(1, keepdims=True)
        v = (
            generator.dirichlet(np.ones(n)) @ share
            if inside
            else generator.dirichlet(np.full(groups, 0.2))
        )
        found = client_fairness_is_group_fairness(counts, v)

        solved = scipy.optimize.linprog(
            np.zeros(n), A_eq=np.vstack([share.T, np.ones(n)]), b_eq=[*v, 1]
        )
        assert found.holds == (solved.status == 0)
        nearest = scipy.optimize.minimize(
            lambda lam, share=share, v=v: ((lam @ share - v) ** 2).sum(),
            np.full(n, 1 / n),
            bounds=[(0, 1)] * n,
            constraints={"type": "eq", "fun": lambda lam: lam.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        assert found.distance == pytest.approx(math.sqrt(nearest.fun), abs=1e-5)
        assert found.distance <= math.sqrt(nearest.fun) + 1e-8
        lam = np.array(found.client_weight)
        assert lam.min() >= 0
        assert lam.sum() == pytest.approx(1)
        assert found.group_weight == pytest.approx(tuple(lam @ share))
        if inside:
            assert found.distance < 1e-7


def test_a_client_of_each_group_reaches_everything() -> None:
    counts = torch.tensor([[5, 0, 0], [2, 2, 2], [0, 0, 9], [0, 1, 0]])
    for v in ([1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [1 / 3] * 3):
        found = client_fairness_is_group_fairness(counts, v)
        assert found.holds
        assert found.always


def test_one_client_reaches_its_own_mixture_alone() -> None:
    assert client_fairness_is_group_fairness(torch.tensor([[3, 1]]), [0.75, 0.25]).holds
    assert client_fairness_is_group_fairness(
        torch.tensor([[3, 1]]), [0.5, 0.5]
    ).distance == pytest.approx(0.25 * math.sqrt(2))


def test_one_group_is_always_reached() -> None:
    found = client_fairness_is_group_fairness(torch.tensor([[3], [8]]), [1.0])
    assert (found.holds, found.always, found.distance) == (True, True, 0.0)


def test_tolerance_decides_near_misses() -> None:
    counts = torch.tensor([[90, 10], [60, 40]])
    v = [0.6 - 1e-4, 0.4 + 1e-4]
    assert not client_fairness_is_group_fairness(counts, v).holds
    assert client_fairness_is_group_fairness(counts, v, tolerance=2e-4).holds


def test_a_census_counts_the_groups_itself() -> None:
    federation = federations.ragged()
    census = federation.census()
    assert census.group_counts is not None
    v = [0.5, 0.25, 0.25]
    assert client_fairness_is_group_fairness(census, v) == client_fairness_is_group_fairness(
        census.group_counts, v
    )


def test_renumbering_clients_renumbers_their_weights() -> None:
    counts, order = torch.tensor([[9, 1, 3], [2, 8, 1], [1, 1, 1]]), [2, 0, 1]
    one, other = (
        client_fairness_is_group_fairness(c, [0.1, 0.1, 0.8]) for c in (counts, counts[order])
    )
    assert other.client_weight == pytest.approx([one.client_weight[i] for i in order])
    assert other.distance == pytest.approx(one.distance)


@pytest.mark.parametrize(("counts", "holds"), [([[9, 1], [2, 8]], True), ([[9, 1], [7, 3]], False)])
def test_the_models_agree_exactly_where_the_check_says_so(
    counts: list[list[int]], holds: bool
) -> None:
    """Groups with risks (theta - 0)^2 and (theta - 1)^2: the worst-group model is 1/2, its weights
    are (1/2, 1/2)."""
    theta = np.linspace(-1, 2, 30001)
    risks = np.stack([theta**2, (theta - 1) ** 2])
    share = np.array(counts) / np.sum(counts, axis=1, keepdims=True)
    worst_group, worst_client = (
        theta[np.max(losses, axis=0).argmin()] for losses in (risks, share @ risks)
    )
    assert worst_group == pytest.approx(0.5, abs=1e-3)
    assert (abs(worst_client - worst_group) < 1e-3) == holds
    assert client_fairness_is_group_fairness(torch.tensor(counts), [0.5, 0.5]).holds == holds


# ---- Pareto stationarity


def scalar(theta: float) -> nn.Module:
    module = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(module.weight, theta)
    return module


def points(*targets: float, x: float = 1.0) -> eh.Federation:
    """Clients with one sample each: f_i = (theta x - y_i)^2."""
    return eh.Federation.from_arrays([{"x": [[x]], "y": [y]} for y in targets])


def test_between_two_targets_no_step_helps_both() -> None:
    # theta = 1, targets 0 and 4: slopes 2 and -6
    found = pareto_residual(scalar(1.0), points(0.0, 4.0), "mse")
    assert found.residual == pytest.approx(0, abs=1e-12)
    assert found.weights == pytest.approx((0.75, 0.25))
    assert found.losses == pytest.approx((1, 9))


def test_beyond_all_targets_the_nearest_decides() -> None:
    # theta = 5: slopes 2 (5 - 0) and 2 (5 - 4)
    found = pareto_residual(scalar(5.0), points(0.0, 4.0), "mse")
    assert found == (pytest.approx(2), pytest.approx((0, 1)), pytest.approx((25, 1)))


def test_normalised_gradients_ignore_scale() -> None:
    found = pareto_residual(scalar(5.0), points(0.0, 4.0), "mse", normalised=True)
    assert found.residual == pytest.approx(1)
    assert pareto_residual(
        scalar(1.0), points(0.0, 4.0), "mse", normalised=True
    ).weights == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize("normalised", [False, True])
def test_a_client_at_its_optimum_makes_the_model_stationary(normalised: bool) -> None:
    found = pareto_residual(scalar(4.0), points(0.0, 4.0), "mse", normalised=normalised)
    assert (found.residual, found.weights) == (0, pytest.approx((0, 1)))


def test_one_client_has_the_norm_of_its_gradient() -> None:
    found = pareto_residual(scalar(3.0), points(1.0, x=2.0), "mse")
    assert found == (pytest.approx(abs(2 * 2 * (6 - 1))), (1,), pytest.approx((25,)))


def gradients_of(module: nn.Module, parts: list[list[tuple[Tensor, Tensor]]]) -> np.ndarray:
    """Gradient of the mean over the (x, y) in each part of their mean cross-entropies, by plain
    autograd."""
    rows = []
    for part in parts:
        loss = torch.stack([nn.functional.cross_entropy(module(x), y) for x, y in part]).mean()
        rows.append(
            torch.cat(
                [g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]
            ).numpy()
        )
    return np.stack(rows)


def parts_of(federation: eh.Federation, by: str) -> list[list[tuple[Tensor, Tensor]]]:
    train = federation.train
    clients = [train.client(i)[:2] for i in range(federation.clients)]
    if by == "client":
        return [[client] for client in clients]
    if by == "group":
        assert train.group is not None
        return [
            [(train.x[train.group == a], train.y[train.group == a])]
            for a in range(federation.groups)
        ]
    assert federation.teams is not None
    return [
        [clients[i] for i in range(federation.clients) if federation.teams[i] == t]
        for t in range(2)
    ]


@pytest.mark.parametrize("by", ["client", "group", "team"])
@pytest.mark.parametrize("normalised", [False, True])
def test_residual_agrees_with_scipy_and_plain_autograd(by: str, normalised: bool) -> None:
    federation, module = federations.ragged(), federations.network()
    rows = gradients_of(module, parts_of(federation, by))
    if normalised:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found = pareto_residual(module, federation, by=by, normalised=normalised)
    n = len(rows)
    solved = scipy.optimize.minimize(
        lambda lam: ((lam @ rows) ** 2).sum(),
        np.full(n, 1 / n),
        jac=lambda lam: 2 * rows @ (lam @ rows),
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda lam: lam.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert found.residual == pytest.approx(math.sqrt(solved.fun), rel=1e-5)
    shortest = np.array(found.weights) @ rows
    assert np.linalg.norm(shortest) == pytest.approx(found.residual)
    # all losses fall along it, by at least the residual
    assert (rows @ shortest).min() >= found.residual**2 * (1 - 1e-8)


def test_losses_are_those_of_clients_groups_and_teams() -> None:
    federation, module = federations.ragged(), federations.network()
    for by in ("client", "group", "team"):
        means = [
            torch.stack([nn.functional.cross_entropy(module(x), y) for x, y in part]).mean()
            for part in parts_of(federation, by)
        ]
        assert pareto_residual(module, federation, by=by).losses == pytest.approx(
            [float(mean.detach()) for mean in means]
        )


def test_a_weighted_optimum_is_stationary_with_these_weights() -> None:
    generator = np.random.default_rng(0)
    clients = [
        {"x": generator.normal(size=(9, 2)), "y": generator.normal(size=9)} for _ in range(2)
    ]
    weight = np.array([0.3, 0.7])
    A = sum(w * c["x"].T @ c["x"] for w, c in zip(weight, clients, strict=True))
    b = sum(w * c["x"].T @ c["y"] for w, c in zip(weight, clients, strict=True))
    module = nn.Linear(2, 1, bias=False).double()
    optimum = {"weight": torch.tensor(np.linalg.solve(A, b))[None]}
    found = pareto_residual(module, eh.Federation.from_arrays(clients), "mse", params=optimum)
    assert found.residual < 1e-12
    assert found.weights == pytest.approx(weight)


def test_result_params_are_accepted_and_the_module_is_left_alone() -> None:
    federation, module = federations.ragged(), federations.network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    result = eh.fit(module, federation, eh.FedAvg(), rounds=2)
    after = federations.network()
    after.load_state_dict(result.params)
    assert pareto_residual(module, federation, params=result.params) == pareto_residual(
        after, federation
    )
    assert pareto_residual(module, federation, params=result.params) != pareto_residual(
        module, federation
    )
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_pieces_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, module = federations.ragged(), federations.network()
    whole = pareto_residual(module, federation, by="team")
    monkeypatch.setattr("evenhand.theory.gradients.PIECE", 17)
    monkeypatch.setattr("evenhand.theory.gradients.COLUMNS", 10)
    monkeypatch.setattr("evenhand.theory.checks.pareto.COLUMNS", 10)
    pieces = pareto_residual(module, federation, by="team")
    for one, other in zip(whole, pieces, strict=True):
        assert one == pytest.approx(other)


def test_single_precision_gives_nearly_the_same() -> None:
    double = pareto_residual(federations.network(), federations.ragged())
    single = pareto_residual(
        federations.network(torch.float32), federations.ragged(dtype=np.float32)
    )
    assert single.residual == pytest.approx(double.residual, rel=1e-3)


def test_a_group_without_training_samples_has_no_say() -> None:
    train = [{"x": [[1.0]], "y": [0.0], "group": ["a"]}, {"x": [[1.0]], "y": [4.0], "group": ["c"]}]
    federation = eh.Federation.from_arrays(
        train, test=[{"x": [[1.0]], "y": [0.0], "group": ["b"]}, None]
    )
    found = pareto_residual(scalar(1.0), federation, "mse", by="group")
    assert found.weights == pytest.approx((0.75, 0, 0.25))
    assert found.losses == pytest.approx((1, math.nan, 9), nan_ok=True)


# ---- proportional fairness


def test_relative_changes_by_hand() -> None:
    # M = 5, utilities 4, 2, 1 to 3, 3, 1: -1/4, +1/2, 0
    found = proportionally_fairer([2.0, 2.0, 4.0], [1.0, 3.0, 4.0], [0.5, 0.3, 0.2], M=5.0)
    assert found.change == pytest.approx((-0.25, 0.5, 0))
    assert found.total == pytest.approx(-0.125 + 0.15)
    assert found.losers == (0,)
    assert found.log_gain == pytest.approx(0.5 * math.log(0.75) + 0.3 * math.log(1.5))
    assert proportionally_fairer([2.0, 2.0, 4.0], [1.0, 3.0, 4.0], M=5.0).total == pytest.approx(
        0.25 / 3
    )


def test_the_sum_can_be_positive_both_ways_the_log_gain_cannot() -> None:
    there = proportionally_fairer([1.0, 2.0], [2.0, 1.0], M=3.0)
    back = proportionally_fairer([2.0, 1.0], [1.0, 2.0], M=3.0)
    assert there.total == back.total == pytest.approx(0.25)
    assert there.log_gain == pytest.approx(-back.log_gain, abs=1e-12)


def test_the_log_gain_never_exceeds_the_sum() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        new, old = generator.uniform(0, 2.9, 4), generator.uniform(0, 2.9, 4)
        base = generator.dirichlet(np.ones(4))
        found = proportionally_fairer(new, old, base, M=3.0)
        assert found.log_gain <= found.total


def test_nothing_is_proportionally_better_than_the_optimum_of_propfair() -> None:
    """Losses (theta - c_i)^2 are convex, so utilities form a convex set once they may be thrown
    away: its Nash point is fair."""
    targets, base, M = np.array([-1.0, 0.2, 1.3]), np.array([0.2, 0.5, 0.3]), 8.0
    best = scipy.optimize.minimize_scalar(
        lambda t: -(base * np.log(M - (t - targets) ** 2)).sum(),
        bounds=(-1, 1.3),
        method="bounded",
        options={"xatol": 1e-10},
    )
    at_best = (best.x - targets) ** 2
    totals = [
        proportionally_fairer((t - targets) ** 2, at_best, base, M=M).total
        for t in np.linspace(-1, 1.3, 101)
    ]
    assert max(totals) <= 1e-9
    mean = (base @ targets - targets) ** 2  # FedAvg's optimum is not proportionally fair
    assert proportionally_fairer(at_best, mean, base, M=M).total > 1e-5


def test_the_same_model_changes_nothing() -> None:
    assert proportionally_fairer([1.0], [1.0], M=2.0) == (0, (0,), (), 0)


# ---- refusals


def reach(*arguments: Any, **options: Any) -> Callable[[], object]:
    return lambda: client_fairness_is_group_fairness(*arguments, **options)


def residual(**options: Any) -> Callable[[], object]:
    return lambda: pareto_residual(scalar(1.0), points(0.0, 4.0), "mse", **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            reach(torch.ones(3), [1.0]),
            r"group_counts must be a matrix \(clients, groups\), got shape \[3\]",
        ),
        (reach(torch.tensor([[1, 2], [0, 0]]), [0.5, 0.5]), "client 1 has no samples of any group"),
        (
            reach(torch.tensor([[1, -2]]), [0.5, 0.5]),
            "group_counts must be a finite number >= 0, got -2.0",
        ),
        (reach(torch.ones(2, 2), [0.5, 0.3, 0.2]), "group_weight must have 2 entries, got 3"),
        (
            reach(torch.ones(2, 2), [0.5, 0.6]),
            "group_weight must sum to 1, got 1.1; divide it by its sum",
        ),
        (reach(torch.ones(2, 2), [1.2, -0.2]), r"group_weight must be in \[0, 1\], got -0.2"),
        (
            reach(torch.ones(2, 2), [0.5, 0.5], tolerance=-1.0),
            "tolerance must be a finite number >= 0",
        ),
        (
            reach(points(0.0, 1.0).census(), [1.0]),
            'the census counts no groups; give every sample a "group"',
        ),
        (residual(by="city"), 'by must be "client", "group" or "team", got \'city\''),
        (residual(by="group"), 'by="group" needs a group for every sample'),
        (residual(by="team"), 'by="team" needs a team for every client'),
        (residual(params={}), "params lacks 'weight'; pass a state_dict of this module"),
        (
            residual(params={"weight": torch.zeros(2)}),
            r"'weight' in params has shape \[2\], in the module \[1, 1\]",
        ),
        (
            residual(params={"weight": torch.tensor([[math.inf]])}),
            "the gradient of client 0 is not finite; the model has diverged",
        ),
        (
            lambda: proportionally_fairer([1.0, 3.0], [1.0, 1.0], M=3.0),
            "losses_new of client 1 is 3, not below M = 3; use a larger M",
        ),
        (
            lambda: proportionally_fairer([1.0], [1.0, 1.0], M=3.0),
            "losses_new must have 2 entries, got 1",
        ),
        (
            lambda: proportionally_fairer([1.0], [math.nan], M=3.0),
            "losses_old must be a finite number, got nan",
        ),
        (
            lambda: proportionally_fairer([1.0, 1.0], [1.0, 1.0], [0.5, 0.6], M=3.0),
            "base must sum to 1, got 1.1",
        ),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_federation_is_wanted() -> None:
    with pytest.raises(TypeError, match="federation must be a Federation object"):
        pareto_residual(scalar(1.0), [], "mse")  # type: ignore[arg-type]
