"""EAGLE: numbers by hand, special cases, and the minimum of its objective."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import nn

import evenhand as eh
from evenhand.data.samples import Batch, Samples
from evenhand.model import Model
from tests.support import convex, limits
from tests.support.by_hand import P_A, P_B, A, B, f_a, f_b, g_a, g_b, near, run, value


def two_rounds(lam: float, lr: float, uniform: bool = False) -> tuple[float, float, float]:
    """The model after two rounds from 1, and mean and variance of r in the second."""
    w = 1 - lr * (P_A * g_a(1) + P_B * g_b(1))  # nobody has trained: r = 0, FedAvg's step
    alone = 1 - lr * g_a(1), 1 - lr * g_b(1)
    r = f_a(w) - min(f_a(1), f_a(alone[0])), f_b(w) - min(f_b(1), f_b(alone[1]))
    u = (0.5, 0.5) if uniform else (P_A, P_B)
    mean = u[0] * r[0] + u[1] * r[1]
    k = [p + 2 * lam * v * (x - mean) for p, v, x in zip((P_A, P_B), u, r, strict=True)]
    variance = sum(v * (x - mean) ** 2 for v, x in zip(u, r, strict=True))
    k = [max(x, 0) / sum(max(x, 0) for x in k) for x in k]
    return w - lr * (k[0] * g_a(w) + k[1] * g_b(w)), mean, variance


# at lr .3 client B overshoots alone, so that its first loss stays its lowest; lam = 5 cuts a weight
@pytest.mark.parametrize(("lam", "lr"), [(0.02, 0.05), (0.02, 0.3), (5.0, 0.05)])
@pytest.mark.parametrize("variance", ["weighted", "uniform"])
def test_two_rounds_by_hand(engine: str, lam: float, lr: float, variance: str) -> None:
    w, mean, square = two_rounds(lam, lr, variance == "uniform")
    found = run(eh.EAGLE(lam, variance), engine, lr=lr, rounds=2)
    assert value(found.params) == near(w)
    first, second = found.history_rows
    assert (first["mean_gap"], first["gap_std"], first["clients_cut"]) == (0, 0, 0)
    assert second["mean_gap"] == near(mean)
    assert second["gap_std"] == near(square**0.5)
    assert second["clients_cut"] == (lam == 5.0)


def test_the_lowest_loss_alone_is_remembered_when_a_step_overshoots(engine: str) -> None:
    # B alone: w - 3 is multiplied by 1 - 8 lr = -1.4, so f_b grows from 16, its lowest value
    lr = 0.3
    w = 1 - lr * (P_A * g_a(1) + P_B * g_b(1))
    found = run(eh.EAGLE(0.0), engine, lr=lr, rounds=2)
    assert f_b(1 - lr * g_b(1)) > f_b(1)
    r_a, r_b = f_a(w) - f_a(1 - lr * g_a(1)), f_b(w) - f_b(1)
    assert found.history_rows[1]["mean_gap"] == near(P_A * r_a + P_B * r_b)


def test_seen_losses_lower_the_reference(engine: str) -> None:
    # with lr .05 one step of the federation is better for A than one step alone
    lr = 0.05
    w = 1 - lr * (P_A * g_a(1) + P_B * g_b(1))
    r_a, r_b = f_a(w) - f_a(1 - lr * g_a(1)), f_b(w) - f_b(1 - lr * g_b(1))
    assert r_a < 0 < r_b
    for reference, expected in (("alone", r_a), ("seen", 0.0)):
        found = run(eh.EAGLE(0.0, reference=reference), engine, lr=lr, rounds=2)
        assert found.history_rows[1]["mean_gap"] == near(P_A * expected + P_B * r_b)


# ---- one round with given L_i


def batch(client: dict[str, Any]) -> Batch:
    x, y = torch.tensor(client["x"]).double(), torch.tensor(client["y"]).double()
    samples = Samples(x, y, torch.zeros(len(y), dtype=torch.int64))
    return Batch(samples, torch.arange(len(y)), torch.ones(len(y), dtype=torch.float64))


def weights(lam: float, lowest: tuple[float, float], **settings: Any) -> list[float]:
    """The clients' weights at w = 1 if A and B have reached the losses ``lowest`` alone."""
    method, module = eh.EAGLE(lam, **settings), nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(module.weight)
    model = Model(module, "mse")
    params = model.init()
    state = method.init(params, limits.federation().census())
    clients = [(A, P_A, lowest[0]), (B, P_B, lowest[1])]
    own = [{"weight": torch.tensor(p).double(), "share": torch.tensor(p)} for _, p, _ in clients]
    one = torch.ones((), dtype=torch.float64)
    memories = [{"alone": params, "best": best * one, "trained": one} for _, _, best in clients]

    def summed(replies: list[eh.Reply]) -> eh.Replies:
        total = {
            key: sum(reply.total[key] for reply in replies)
            for key in replies[0].total
            if key != "delta"
        }
        return eh.Replies(torch.arange(2), total, {})

    survey = method.ask(state)
    assert survey is not None
    answers = [
        method.answer(model, batch(client), eh.Task(survey.shared, mine), memory)
        for (client, _, _), mine, memory in zip(clients, own, memories, strict=True)
    ]
    state = method.learn(state, summed(answers))
    sent = method.task(state, torch.arange(2)).shared
    ends = {"model": params, "alone": params}
    return [
        method.reply(model, ends, ends, batch(client), eh.Task(sent, mine), memory)[0]
        .total["weight"]
        .item()
        for (client, _, _), mine, memory in zip(clients, own, memories, strict=True)
    ]


@pytest.mark.parametrize("variance", ["weighted", "uniform"])
def test_equal_references_cancel(variance: str) -> None:
    """The penalty is then the variance of the losses, whatever the common value."""
    u = np.array((P_A, P_B) if variance == "weighted" else (0.5, 0.5))
    f = np.array([f_a(1), f_b(1)])
    expected = np.array([P_A, P_B]) + 2 * 0.03 * u * (f - u @ f)
    assert (expected > 0).all()
    for common in (0.0, 1.0, -7.0):
        assert weights(0.03, (common, common), variance=variance) == near(expected.tolist())


@pytest.mark.parametrize("lowest", [(0.5, 3.0), (1.0, 15.9)])
def test_two_clients_have_gifairs_weights_with_a_c_that_grows_with_the_gap(
    lowest: tuple[float, float],
) -> None:
    r = f_a(1) - lowest[0], f_b(1) - lowest[1]
    c = 2 * 0.01 * P_A * P_B * abs(r[0] - r[1])
    sign = 1 if r[0] > r[1] else -1
    assert weights(0.01, lowest) == near([P_A + sign * c, P_B - sign * c])


def test_weights_are_the_gradient_of_the_objective_and_sum_to_one() -> None:
    for variance, u in (("weighted", (P_A, P_B)), ("uniform", (0.5, 0.5))):
        f = torch.tensor([f_a(1), f_b(1)], dtype=torch.float64, requires_grad=True)
        p, share = torch.tensor([P_A, P_B]).double(), torch.tensor(u).double()
        r = f - torch.tensor([0.5, 3.0])
        (p @ f + 0.02 * (share @ (r - share @ r) ** 2)).backward()
        assert f.grad is not None
        found = weights(0.02, (0.5, 3.0), variance=variance)
        assert found == near(f.grad.tolist())
        assert sum(found) == near(1)


# ---- where it is another method


@limits.every_scheme
@limits.every_local
def test_without_lam_it_is_fedavg(engine: str, cohort: eh.Cohort, local: eh.LocalSGD) -> None:
    found = limits.train(eh.EAGLE(lam=0.0), engine, cohort=cohort, local=local).params
    limits.assert_same(found, limits.fedavg(engine, cohort, local))


@pytest.mark.parametrize("variance", ["weighted", "uniform"])
def test_one_client_and_copies_of_one_are_fedavg(engine: str, variance: str) -> None:
    alone = eh.Federation.from_arrays([limits.samples()[2]])
    for fed in (alone, limits.copies()):
        found = limits.train(eh.EAGLE(3.0, variance), engine, fed).params
        limits.assert_same(found, limits.train(eh.FedAvg(), engine, fed).params)


def test_every_setting_makes_a_difference(engine: str) -> None:
    methods = [eh.FedAvg(), eh.EAGLE(2.0), eh.EAGLE(2.0, "uniform")]
    found = [limits.train(method, engine).params for method in methods]
    for i, one in enumerate(found):
        assert all(limits.distance(one, other) > 1e-3 for other in found[:i])
    # client A gains from the federation, see above
    alone, seen = (
        value(run(eh.EAGLE(0.02, reference=name), engine, lr=0.05, rounds=2).params)
        for name in ("alone", "seen")
    )
    assert abs(alone - seen) > 1e-4


# ---- the minimum of its objective


@pytest.mark.parametrize("variance", ["weighted", "uniform"])
def test_it_finds_the_minimum_that_scipy_finds(variance: str) -> None:
    lam, clients = 0.03, convex.clients()
    best = np.array(
        [np.linalg.lstsq(c["x"], c["y"], rcond=None)[1][0] / len(c["y"]) for c in clients]
    )
    u = convex.P if variance == "weighted" else np.full(len(clients), 1 / len(clients))

    def objective(theta: np.ndarray) -> float:
        losses = convex.losses(theta)
        r = losses - best
        return float(convex.P @ losses + lam * u @ (r - u @ r) ** 2)

    least = scipy.optimize.minimize(objective, convex.fedavg_minimiser(), tol=1e-10)
    module = nn.Linear(convex.FEATURES, 1, bias=False).double()
    nn.init.zeros_(module.weight)
    fed = eh.Federation.from_arrays([{key: c[key] for key in ("x", "y")} for c in clients])
    local = eh.LocalSGD(lr=0.05, steps=1)
    found = eh.fit(
        module, fed, eh.EAGLE(lam, variance), loss="mse", rounds=600, local=local, eval_every=1000
    )
    assert found.params["weight"][0].numpy() == pytest.approx(least.x, abs=1e-4)
    r = convex.losses(least.x) - best
    last = found.history_rows[-1]
    assert last["mean_gap"] == pytest.approx(u @ r, rel=1e-4)
    assert last["gap_std"] == pytest.approx((u @ (r - u @ r) ** 2) ** 0.5, rel=1e-4)
    assert last["clients_cut"] == 0
    assert np.linalg.norm(least.x - convex.fedavg_minimiser()) > 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": -1.0}, "lam must be a finite number >= 0, got -1.0; 0 gives FedAvg"),
        ({"variance": "plain"}, 'variance must be "weighted" or "uniform"'),
        ({"reference": "best"}, 'reference must be "alone" or "seen"'),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eh.EAGLE(**settings)
