"""FedMinMax: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import GROUPED, g_a, g_b, near, project_two, run, value
from tests.support.federations import with_output

# ---- by hand


def risks(w: float) -> tuple[float, float]:
    return (w - 3) ** 2, ((w - 1) ** 2 + (w - 2) ** 2 + (2 * w - 6) ** 2) / 3


def risk_slopes(w: float) -> tuple[float, float]:
    return 2 * (w - 3), (2 * (w - 1) + 2 * (w - 2) + 4 * (2 * w - 6)) / 3


@pytest.mark.parametrize(
    ("ascent", "floor"),
    [(0.05, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (0.05, 0.24), (0.05, 0.5)],
)
def test_fedminmax_descends_the_risks_by_mu_and_raises_mu_by_the_risks(
    engine: str, ascent: float, floor: float
) -> None:
    w, mu, total = 1.0, (0.25, 0.75), 0.0
    for _ in range(3):
        slope = mu[0] * risk_slopes(w)[0] + mu[1] * risk_slopes(w)[1]
        mu = project_two(mu[0] + ascent * risks(w)[0], mu[1] + ascent * risks(w)[1], floor)
        w -= 0.1 * slope
        total += w
    for output, expected in (("last", w), ("average", total / 3)):
        result = run(
            with_output(eh.FedMinMax(lr_mu=ascent, floor=floor), output),
            engine,
            *GROUPED,
            lr=0.1,
            rounds=3,
        )
        assert value(result.params) == near(expected)
        assert result.state["mu"].tolist() == near(list(mu))


def test_fedminmax_one_round_in_numbers(engine: str) -> None:
    # mu = shares, so round 1 is FedAvg's 1.55; risks at w = 1: u 4, v (0 + 1 + 16)/3 = 17/3 mu + 1
    # * risk = (4.25, 6.4166..): more than 1 apart: v takes all that the floor 0.1 of u leaves
    result = run(eh.FedMinMax(lr_mu=1.0, floor=0.1), engine, *GROUPED, lr=0.1)
    assert value(result.params) == near(1.55)
    assert result.state["mu"].tolist() == near([0.1, 0.9])


def test_fedminmax_divides_by_the_samples_of_the_client_not_by_their_weights(engine: str) -> None:
    # two local steps; round 1 is FedAvg's, and the risks 4 and 17/3 at w = 1 put all weight on v
    a = b = 1.0
    for _ in range(2):
        a, b = a - 0.05 * g_a(a), b - 0.05 * g_b(b)
    assert run(eh.FedMinMax(lr_mu=1.0), engine, *GROUPED, lr=0.05, steps=2).state[
        "mu"
    ].tolist() == [0, 1]
    # round 2: samples of u weigh 0, of v 1 / (3/4) = 4/3: A descends (4/3) ((w-1)^2 + (w-2)^2) / 3,
    # B (4/3) (2w-6)^2
    a = b = 0.75 * a + 0.25 * b
    for _ in range(2):
        a -= 0.05 * 4 / 3 * (2 * (a - 1) + 2 * (a - 2)) / 3
        b -= 0.05 * 4 / 3 * 4 * (2 * b - 6)
    result = run(eh.FedMinMax(lr_mu=1.0), engine, *GROUPED, lr=0.05, steps=2, rounds=2)
    assert value(result.params) == near(0.75 * a + 0.25 * b)


def test_shares_of_groups_count_clients_by_their_weights(engine: str) -> None:
    # u is a third of A's samples, and A half of the clients
    for method, name in (
        (eh.FedMinMax(lr_mu=0.0), "mu"),
        (eh.AgnosticFedAvg(lr_lambda=0.0), "lam"),
    ):
        result = run(method, engine, *GROUPED, lr=0.05, weights="uniform")
        assert result.state[name].tolist() == near([1 / 6, 5 / 6])


def test_fedminmax_counts_an_absent_group_with_its_last_known_risk() -> None:
    """Three exchanges with the server alone: mu <- projection(mu + lr_mu * risk), risks of absent
    groups as last seen."""
    census = eh.Census(
        torch.tensor([2, 2]),
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        torch.tensor([[2, 0], [0, 2]]),
        None,
    )
    method = eh.FedMinMax(lr_mu=0.1)
    state = method.init({"w": torch.zeros(1)}, census)

    def round_with(loss: list[float], share: list[float]) -> list[float]:
        nonlocal state
        total = {
            "delta": {"w": torch.zeros(1, dtype=torch.float64)},
            "weight": torch.tensor(1.0, dtype=torch.float64),
        }
        sums = {
            "group_loss": torch.tensor(loss, dtype=torch.float64),
            "group_share": torch.tensor(share, dtype=torch.float64),
        }
        state, _ = method.server(state, eh.Replies(torch.tensor([0]), {**total, **sums}, {}))
        return [round(value, 12) for value in state["mu"].tolist()]

    # group 1 never seen: the mean of the others' risks, 1, no change
    assert round_with([0.5, 0.0], [0.5, 0.0]) == [0.5, 0.5]
    # risks 1 (last known) and 3: difference 2, half of 0.1 * 2 each way
    assert round_with([0.0, 1.5], [0.0, 0.5]) == [0.4, 0.6]
    assert round_with([0.5, 0.0], [0.5, 0.0]) == [0.3, 0.7]  # risks 1 and 3 (last known)


# ---- where it is another method


@pytest.mark.parametrize("output", ["last", "average"])
@pytest.mark.parametrize("ascent", [0.05, 0.4, 3.0])
def test_fedminmax_with_one_group_on_each_client_is_afl(
    engine: str, output: str, ascent: float
) -> None:
    """Special case 13: each client holds one group, each group lives on one client, one full-batch
    step, everyone."""
    fed = limits.federation(
        group=[[name] * size for name, size in zip("abcd", limits.SIZES, strict=True)]
    )
    groups = limits.train(with_output(eh.FedMinMax(lr_mu=ascent), output), engine, fed, rounds=8)
    clients = limits.train(with_output(eh.AFL(lr_lambda=ascent), output), engine, fed, rounds=8)
    limits.assert_same(groups.params, clients.params)
    assert groups.state["mu"].tolist() == pytest.approx(clients.state["lam"].tolist(), abs=1e-12)
    assert groups.state["mu"].tolist() != pytest.approx(limits.SHARES, abs=1e-2)


def project_by_bisection(v: np.ndarray, floor: float) -> np.ndarray:
    """max(v - t, floor) with the t that makes the sum 1."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, floor).sum() > 1 else (low, middle)
    return np.maximum(v - low, floor)


@pytest.mark.parametrize("floor", [0.0, 0.15])
@pytest.mark.parametrize(
    "split", [(9, 4, 14, 6), (33,), (1, 31, 1), (11, 11, 11), (2,) * 16 + (1,)], ids=str
)
def test_fedminmax_is_centralised_descent_ascent_whatever_the_split(
    engine: str, split: tuple[int, ...], floor: float
) -> None:
    """Special case 14: the same iterates as minimax descent ascent on the pooled data."""
    x, y = limits.pooled()
    group = np.random.default_rng(4).choice(3, size=len(y), p=[0.6, 0.3, 0.1])
    mu = np.bincount(group) / len(group)
    ascent, linear, total = 0.3, limits.module(), {}
    for _ in range(8):
        losses = cross_entropy(linear(x), y, reduction="none")
        risks = [losses[group == a].mean() for a in range(3)]
        slopes = torch.autograd.grad(
            sum(m * risk for m, risk in zip(mu.tolist(), risks, strict=True)),
            list(linear.parameters()),
        )
        mu = project_by_bisection(mu + ascent * np.array([risk.item() for risk in risks]), floor)
        with torch.no_grad():
            for parameter, slope in zip(linear.parameters(), slopes, strict=True):
                parameter -= limits.FULL_STEP.lr * slope
        total = {
            name: total.get(name, 0) + tensor.clone()
            for name, tensor in linear.state_dict().items()
        }
    edges = np.cumsum((0, *split))
    clients = [
        {"x": x[a:b], "y": y[a:b], "group": group[a:b]} for a, b in itertools.pairwise(edges)
    ]
    fed = eh.Federation.from_arrays(clients)
    result = limits.train(eh.FedMinMax(lr_mu=ascent, floor=floor), engine, fed, rounds=8)
    limits.assert_same(result.params, dict(linear.state_dict()))
    assert result.state["mu"].tolist() == pytest.approx(mu.tolist(), abs=1e-11)
    averaged = limits.train(
        eh.Averaged(eh.FedMinMax(lr_mu=ascent, floor=floor)), engine, fed, rounds=8
    )
    limits.assert_same(averaged.params, {name: tensor / 8 for name, tensor in total.items()})


def test_fedminmax_without_ascent_is_full_batch_gradient_descent(engine: str) -> None:
    """Special case 15: lr_mu = 0 keeps every sample's weight at 1."""
    fed = limits.federation(group=[np.arange(size) % 3 for size in limits.SIZES])
    result = limits.train(eh.FedMinMax(lr_mu=0.0), engine, fed)
    limits.assert_same(
        result.params,
        limits.descend(
            lambda linear: cross_entropy(linear(limits.pooled()[0]), limits.pooled()[1]),
            limits.FULL_STEP.lr,
        ),
    )
    limits.assert_same(result.params, limits.train(eh.FedAvg(), engine, fed).params)


@limits.every_local
def test_fedminmax_with_one_group_is_fedavg(engine: str, local: eh.LocalSGD) -> None:
    """Special case 15: one group has weight 1 whatever the ascent."""
    fed = limits.federation(group=[["all"] * size for size in limits.SIZES])
    limits.assert_same(
        limits.train(eh.FedMinMax(lr_mu=0.7), engine, fed, local=local).params,
        limits.train(eh.FedAvg(), engine, fed, local=local).params,
    )


# ---- the optimum


@pytest.mark.parametrize(("output", "rounds"), [("last", 110), ("average", 300)])
def test_fedminmax_reaches_the_least_worst_group_risk(output: str, rounds: int) -> None:
    theta = convex.parameters(
        convex.train(with_output(eh.FedMinMax(lr_mu=0.15), output), lr=0.2, rounds=rounds)
    )
    convex.assert_reaches(
        lambda theta: convex.group_risks(theta).max(), convex.minimax(convex.group_risks), theta
    )
