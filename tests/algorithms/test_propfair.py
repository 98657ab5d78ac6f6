"""PropFair: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import f_a, f_b, federation, g_a, g_b, near, run, value

# ---- by hand


def test_propfair_divides_each_gradient_by_the_utility_left(engine: str) -> None:
    # M = 20: slope of -log(M - f) is f' / (M - f):  A: -2 / (20 - 5/3),  B: -16 / (20 - 16)
    expected = 1 + 0.1 * (0.75 * 2 / (20 - 5 / 3) + 0.25 * 16 / 4)
    assert value(run(eh.PropFair(M=20.0), engine, lr=0.1).params) == near(expected)


def test_propfair_recomputes_the_utility_at_every_local_step(engine: str) -> None:
    a = b = 1.0
    for _ in range(2):
        a, b = a - 0.1 * g_a(a) / (20 - f_a(a)), b - 0.1 * g_b(b) / (20 - f_b(b))
    assert value(run(eh.PropFair(M=20.0), engine, lr=0.1, steps=2).params) == near(
        0.75 * a + 0.25 * b
    )


@pytest.mark.parametrize("M", [16.125, 10.0], ids=["close to M", "above M"])
def test_propfair_takes_the_linear_branch_where_little_utility_is_left(
    engine: str, M: float
) -> None:
    # epsilon = 0.2 > M - f_b: B descends f / M; A stays on the logarithm
    expected = 1 + 0.1 * (0.75 * 2 / (M - 5 / 3) + 0.25 * 16 / M)
    assert value(run(eh.PropFair(M=M, epsilon=0.2), engine, lr=0.1).params) == near(expected)


def test_propfair_keeps_the_logarithm_when_exactly_epsilon_is_left(engine: str) -> None:
    # M - f_b = 16.25 - 16 = epsilon: slope 1 / epsilon = 4, not 1 / M
    expected = 1 + 0.01 * (0.75 * 2 / (16.25 - 5 / 3) + 0.25 * 16 * 4)
    assert value(run(eh.PropFair(M=16.25, epsilon=0.25), engine, lr=0.01).params) == near(expected)


@pytest.mark.parametrize("M", [16.125, 10.0], ids=["close to M", "above M"])
@pytest.mark.parametrize(
    ("continuation", "slope"), [("paper", "1/M"), ("linear", "1/M"), ("huber", "1/epsilon")]
)
def test_propfair_slope_past_the_threshold(
    engine: str, M: float, continuation: str, slope: str
) -> None:
    # epsilon = .2 > M - f_b: B's slope is 16 times 1/M = .062 or .1, or 1/epsilon = 5; A stays on
    # the logarithm
    factor = 1 / M if slope == "1/M" else 5
    expected = 1 + 0.01 * (0.75 * 2 / (M - 5 / 3) + 0.25 * 16 * factor)
    assert value(
        run(eh.PropFair(M=M, epsilon=0.2, continuation=continuation), engine, lr=0.01).params
    ) == near(expected)


@pytest.mark.parametrize("continuation", ["paper", "linear", "huber"])
def test_propfair_before_the_threshold_is_the_logarithm(engine: str, continuation: str) -> None:
    expected = 1 + 0.1 * (0.75 * 2 / (20 - 5 / 3) + 0.25 * 16 / 4)
    assert value(
        run(eh.PropFair(M=20.0, continuation=continuation), engine, lr=0.1).params
    ) == near(expected)


@pytest.mark.parametrize(
    ("continuation", "expected"),
    [
        ("paper", lambda loss: loss / 5),
        # meets the logarithm at M - epsilon, slope 1/M
        ("linear", lambda loss: -math.log(0.5) + (loss - 4.5) / 5),
        # its tangent there, slope 1/epsilon
        ("huber", lambda loss: -math.log(0.5) + (loss - 4.5) / 0.5),
    ],
)
def test_propfair_value_past_the_threshold(
    continuation: str, expected: Callable[[float], float]
) -> None:
    # one sample, x = 1, y = 0, so the loss is w^2; M = 5, epsilon = .5: the threshold is a loss of
    # 4.5. Up to a constant.
    method = eh.PropFair(M=5.0, epsilon=0.5, continuation=continuation)
    model = eh.Model(nn.Linear(1, 1, bias=False).double(), "mse")
    fed = federation({"x": [[1.0]], "y": [0.0]})
    one = torch.ones(1, dtype=torch.float64)
    batch = eh.Batch(
        fed.train.samples(torch.float64, torch.device("cpu")),
        torch.zeros(1, dtype=torch.int64),
        one,
    )

    def objective(loss: float) -> tuple[float, float]:
        w = torch.tensor([[math.sqrt(loss)]], dtype=torch.float64, requires_grad=True)
        value = method.objective(model, {"model": {"weight": w}}, batch, eh.Task({}))
        (slope,) = torch.autograd.grad(value, w)
        return value.item(), slope.item() / (2 * math.sqrt(loss))  # by the loss

    for loss in (0.5, 2.0, 4.4):
        assert objective(loss) == near((-math.log(5 - loss), 1 / (5 - loss)))
    for loss in (4.6, 5.0, 9.0):
        slope = 1 / 0.5 if continuation == "huber" else 1 / 5
        assert objective(loss) == near((expected(loss), slope))
    jump = objective(4.5 + 1e-9)[0] - objective(4.5 - 1e-9)[0]
    assert abs(jump) < 1e-7 or continuation == "paper"
    turn = objective(4.5 + 1e-9)[1] - objective(4.5 - 1e-9)[1]
    assert abs(turn) < 1e-7 or continuation != "huber"


# ---- where it is another method


@limits.every_scheme
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_propfair_with_epsilon_above_M_is_fedavg_with_step_over_M(
    cohort: eh.Cohort, momentum: float
) -> None:
    """Special case 11: M - loss < epsilon for every loss >= 0, so every batch descends loss / M."""
    M, lr = 4.0, 0.8
    scaled, plain = (
        eh.LocalSGD(lr=rate, epochs=2, batch_size=4, momentum=momentum, decay=0.9)
        for rate in (lr, lr / M)
    )
    found = limits.train(eh.PropFair(M=M, epsilon=4.1), local=scaled, cohort=cohort).params
    limits.assert_same(found, limits.train(eh.FedAvg(), local=plain, cohort=cohort).params)


def test_propfair_with_large_M_and_step_times_M_tends_to_fedavg(engine: str) -> None:
    """Special case 11: slope M f' / (M - f) = f' (1 + f / M + ...): the relative error of a step is
    about f / M."""
    plain, start = (
        limits.train(eh.FedAvg(), engine, rounds=1).params,
        dict(limits.module().state_dict()),
    )
    losses = [loss.item() for loss in limits.client_losses(limits.module())]
    moved = limits.distance(plain, start)
    errors = []
    for M in (1e3, 1e4, 1e5):
        found = limits.train(
            eh.PropFair(M=M),
            engine,
            rounds=1,
            local=eh.LocalSGD(lr=limits.FULL_STEP.lr * M, steps=1),
        ).params
        errors.append(limits.distance(found, plain))
        # the error is lr |sum p_i f_i / (M - f_i) f_i'|; with client gradients of either sign it is
        # bounded by the largest factor
        bound = max(losses) / (M - max(losses)) * limits.FULL_STEP.lr * max_gradient()
        assert 0 < errors[-1] <= bound
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.02)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.02)
    assert errors[-1] < 1e-3 * moved


def max_gradient() -> float:
    """The norm of the largest client gradient at the start."""
    linear = limits.module()
    norms = []
    for loss in limits.client_losses(linear):
        slopes = torch.autograd.grad(loss, list(linear.parameters()))
        norms.append(sum((slope**2).sum().item() for slope in slopes) ** 0.5)
    return max(norms)


# ---- the optimum


def test_propfair_reaches_the_largest_product_of_utilities() -> None:
    M = 8.0

    # M - prod (M - f_i)^p_i: the same minimiser as -sum p_i log(M - f_i), on the losses' scale
    def mean(theta: convex.Vector) -> float:
        return M - float(np.prod((M - convex.losses(theta)) ** convex.P))

    def objective(theta: convex.Vector) -> float:
        return -float(convex.P @ np.log(M - convex.losses(theta)))

    theta = convex.parameters(convex.train(eh.PropFair(M=M), lr=1.0, rounds=80))
    optimum = convex.minimise(objective)
    assert objective(theta) - optimum <= 0.01 * abs(optimum)
    convex.assert_reaches(mean, convex.minimise(mean), theta)


def test_propfair_along_the_tangent_reaches_the_optimum_beyond_its_threshold() -> None:
    M, epsilon = 3.0, 0.5

    def objective(theta: convex.Vector) -> float:
        f = convex.losses(theta)
        inside = -np.log(np.maximum(M - f, epsilon))
        return float(convex.P @ (inside + np.maximum(f - (M - epsilon), 0) / epsilon))

    theta = convex.parameters(
        convex.train(eh.PropFair(M=M, epsilon=epsilon, continuation="huber"), lr=0.2, rounds=100)
    )
    # someone lies on the tangent, where the paper's rule would count them least
    assert convex.losses(theta).max() > M - epsilon
    convex.assert_reaches(objective, convex.minimise(objective), theta)
