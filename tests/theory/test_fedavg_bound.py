"""FedAvg's theorem: by hand, at its limits, and never violated where all constants are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import nn

import evenhand as eh
from evenhand.theory import bounds

E2 = math.e - 2


def test_step_size_by_hand() -> None:
    # w = (.4, .6), K = (1, 3): sum w^2 = .52, sum K^4 = 82
    found = bounds.fedavg_step_size(2.0, [0.4, 0.6], [1, 3])
    assert found.value == pytest.approx(1 / (2 * math.sqrt(24 * E2 * 0.52 * 82)))
    assert found[1:] == ("lr <= 1 / (L sqrt(24 (e - 2) sum w_i^2 sum K_i^4))", 2.0)
    one = bounds.fedavg_step_size(2.0, [0.5, 0.5], 1)  # sqrt(24 (e - 2)) = 4.15 < 6
    assert one == (pytest.approx(1 / 12), "lr <= 1 / (6 L max K_i)", 2.0)


def test_bound_by_hand() -> None:
    # L = 4, w = (.5, .5), K = (1, 2), k = 1.5; noise .3 and .1, spread .4
    lr = 0.01
    bracket = 1 * (0.09 + 2 * 0.16) + 4 * (0.01 + 2 * 0.16)
    bracket += 2 * E2 * lr**2 * 16 * (1 * (0.09 + 6 * 0.16) + 8 * (0.01 + 12 * 0.16))
    total = 12 / (7.5 * lr) * (0.6 / 30 + lr / 2 * 0.5 * bracket)
    found = bounds.fedavg_bound(lr, 30, [1, 2], 4.0, [0.5, 0.5], 0.6, 0.4, [0.3, 0.1])
    assert found.total == pytest.approx(total)
    assert sum(found[1:]) == pytest.approx(total)
    assert found.optimisation == pytest.approx(12 / (7.5 * lr) * 0.02)


def test_one_step_of_equal_clients_is_gradient_descent() -> None:
    """6 gap / (lr T), three times the textbook's 2 gap / (lr T)."""
    found = bounds.fedavg_bound(0.1, 50, 1, 1.0, [0.3, 0.7], 2.0, 0.0)
    assert found == (pytest.approx(6 * 2.0 / (0.1 * 50)), found.total, 0, 0)


def test_the_bound_never_falls_below_the_squared_spread() -> None:
    """Tiny steps and endless rounds leave 12 K^2 / (11 K - 9) g^2 for equal clients."""
    for K in (1, 3, 10):
        found = bounds.fedavg_bound(1e-9, 10**18, K, 1.0, [0.25] * 4, 1.0, 0.5)
        assert found.total == pytest.approx(12 * K**2 / (11 * K - 9) * 0.25, rel=1e-6)
        assert found.total > 0.25


def test_propfair_is_fedavg_on_its_own_constants() -> None:
    """M = 2, L = L0 = 1: smoothness 4, g = 2 (1.5 * .4 + .5 * .5), s^2 = 18 * .09 + 2 * .04."""
    lr, base, steps = 0.003, [0.2, 0.3, 0.5], [1, 2, 3]
    noise = math.sqrt(18 * 0.09 + 2 * 0.04)
    for cohort in (None, 2):
        expected = bounds.fedavg_bound(lr, 9, steps, 4.0, base, 0.6, 1.7, noise, cohort)
        found = bounds.propfair_bound(
            lr, 9, steps, 1.0, 1.0, 2.0, base, 0.6, 0.4, 0.5, 0.3, 0.2, cohort
        )
        assert found == pytest.approx(expected)


def larger(**changes: Any) -> tuple[float, float]:
    """The bound of a small problem, and with these changes."""
    problem: dict[str, Any] = {
        "step_size": 0.01,
        "rounds": 40,
        "local_steps": 3,
        "smoothness": 1.0,
        "base": [0.2, 0.3, 0.5],
        "gap": 1.0,
        "gradient_spread": 0.3,
        "gradient_noise": 0.2,
    }
    return tuple(bounds.fedavg_bound(**p).total for p in (problem, problem | changes))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 20},
        {"smoothness": 2.0},
        {"gap": 2.0},
        {"gradient_spread": 0.4},
        {"gradient_noise": 0.3},
        {"gradient_noise": [0.2, 0.2, 0.3]},
        {"base": [0.1, 0.3, 0.6]},  # more concentrated
    ],
    ids=str,
)
def test_harder_problems_have_larger_bounds(changes: dict[str, Any]) -> None:
    before, after = larger(**changes)
    assert after > before


def test_more_local_steps_and_curvature_need_smaller_steps() -> None:
    values = [bounds.fedavg_step_size(1.0, [0.5, 0.5], K).value for K in range(1, 12)]
    assert values == sorted(values, reverse=True)
    doubled = bounds.fedavg_step_size(2.0, [0.5, 0.5], 3).value
    assert doubled == pytest.approx(bounds.fedavg_step_size(1.0, [0.5, 0.5], 3).value / 2)


# ---- a federation whose constants are known: same features, other targets


def recorded(module: nn.Module, federation: eh.Federation, **kwargs: Any) -> list[np.ndarray]:
    """The server's models before each round."""
    seen: list[np.ndarray] = []

    class Recorded(eh.FedAvg):
        def task(self, state: Any, ids: Any) -> Any:
            seen.append(state["model"]["weight"].numpy().copy())
            return super().task(state, ids)

    eh.fit(module, federation, Recorded(), loss="mse", engine="loop", eval_every=10**6, **kwargs)
    return seen


@pytest.mark.parametrize(
    ("local_steps", "cohort", "shift"),
    [(1, None, 1.0), (4, None, 0.1), (4, None, 0.0), (3, 2, 1.0)],
)
def test_the_bound_holds_for_least_squares(
    local_steps: int, cohort: int | None, shift: float
) -> None:
    """Equal Hessians make the spread of gradients the same everywhere."""
    generator = np.random.default_rng(5)
    x, rounds = generator.normal(size=(15, 3)), 40
    truth = generator.normal(size=3)
    targets = [x @ truth + shift * generator.normal(size=15) for _ in range(3)]
    base = np.full(3, 1 / 3)
    smoothness = float(np.linalg.eigvalsh(2 * x.T @ x / 15).max())
    slopes = [2 * x.T @ y / 15 for y in targets]
    spread = max(float(np.linalg.norm(a - b)) for a in slopes for b in slopes)
    mean = np.mean(targets, axis=0)

    def objective(theta: np.ndarray) -> float:
        return float(np.mean([((x @ theta - y) ** 2).mean() for y in targets]))

    best = np.linalg.lstsq(x, mean, rcond=None)[0]
    module = nn.Linear(3, 1, bias=False).double()
    start = module.weight.detach().numpy().copy().ravel()
    step = bounds.fedavg_step_size(smoothness, base, local_steps, cohort)
    models = recorded(
        module,
        eh.Federation.from_arrays([{"x": x, "y": y} for y in targets]),
        rounds=rounds,
        local=eh.LocalSGD(lr=step.value, steps=local_steps),
        cohort=None if cohort is None else eh.Uniform(cohort),
    )
    assert len(models) == rounds
    sqgradients = [
        float(((2 * x.T @ (x @ theta.ravel() - mean) / 15) ** 2).sum()) for theta in models
    ]
    gap = objective(start) - objective(best)
    bound = bounds.fedavg_bound(
        step.value, rounds, local_steps, smoothness, base, gap, spread, cohort=cohort
    )
    assert 0 < np.mean(sqgradients) <= bound.total
    if not shift:  # the bound is not vacuous: it promises progress from the first model
        assert bound.total < sqgradients[0]


def test_the_bound_holds_with_mini_batches() -> None:
    """Targets alone (x = 1): every sample has the same Hessian, so the noise is known, too."""
    generator = np.random.default_rng(6)
    sizes, dim, batch, rounds = (10, 20, 30), 2, 5, 30
    targets = [generator.normal(size=(m, dim)) + 0.2 * k for k, m in enumerate(sizes)]
    means = np.array([y.mean(0) for y in targets])
    base = np.array(sizes) / sum(sizes)
    # f_i = |theta - y|^2 / dim: Hessian 2 / dim, sample gradient 2 (theta - y) / dim
    noise = [
        2 / dim * math.sqrt(y.var(0).sum() / batch * (len(y) - batch) / (len(y) - 1))
        for y in targets
    ]
    spread = 2 / dim * max(float(np.linalg.norm(a - b)) for a in means for b in means)
    step = bounds.fedavg_step_size(2 / dim, base, 1)
    module = nn.Linear(1, dim, bias=False).double()
    nn.init.constant_(module.weight, 2.0)
    federation = eh.Federation.from_arrays([{"x": np.ones((len(y), 1)), "y": y} for y in targets])
    centre = base @ means
    sqgradients = [
        [
            float(((2 / dim * (theta.ravel() - centre)) ** 2).sum())
            for theta in recorded(
                module,
                federation,
                rounds=rounds,
                local=eh.LocalSGD(lr=step.value, steps=1, batch_size=batch),
                seed=seed,
            )
        ]
        for seed in range(5)
    ]
    gap = float(((2.0 - centre) ** 2).sum()) / dim
    bound = bounds.fedavg_bound(step.value, rounds, 1, 2 / dim, base, gap, spread, noise)
    assert bound.noise > 0
    assert 0 < np.mean(sqgradients) <= bound.total


# ---- what the proof leaves out


@pytest.mark.parametrize("local_steps", [1, 2, 5, 20])
@pytest.mark.parametrize("bend", [1.0, 0.3, 0.0, -0.3, -1.0])
@pytest.mark.parametrize("theta", [0.0, 0.1, 3.0])
def test_one_round_descends_as_the_proof_says_with_noise(
    local_steps: int, bend: float, theta: float
) -> None:
    """(A.40) in closed form: one client, f = bend / 2 theta^2 (concave ones too), noise 1."""
    lr = bounds.fedavg_step_size(1.0, [1.0], local_steps).value
    factor = 1 - lr * bend
    spread = sum(factor ** (2 * j) for j in range(local_steps))
    after = bend / 2 * (factor ** (2 * local_steps) * theta**2 + lr**2 * spread)
    psi = lr / 2 * (local_steps**2 + 2 * E2 * lr**2 * local_steps**3)
    descent = lr * (11 * local_steps - 9) / 12 * (bend * theta) ** 2
    assert after <= bend / 2 * theta**2 - descent + psi + 1e-15


def test_the_products_that_the_proof_drops_are_there_and_below_what_it_overpays() -> None:
    """(A.18) takes E|noise + drift|^2 for E|noise|^2 + E|drift|^2; for f = -theta^2 / 2 from 0 it is
    more, by less than 2 e^(1/6) / 6 of (A.19)'s K^2."""
    K = 5
    lr = bounds.fedavg_step_size(1.0, [1.0], K).value
    reach = np.zeros((K, K))  # drift at step j is -theta_{j-1} = lr sum_m (1 + lr)^(j-1-m) noise_m
    for j in range(K):
        for m in range(j):
            reach[j, m] = lr * (1 + lr) ** (j - 1 - m)
    noise, drift = np.ones(K), reach.sum(0)  # coefficients of noise_1 .. noise_K
    together = float(((noise + drift) ** 2).sum())
    apart = float((noise**2).sum() + (drift**2).sum())
    assert apart < together <= apart + 2 * math.exp(1 / 6) / 6 * K**2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bounds.fedavg_step_size(0.0, [1.0], 1),
            "smoothness must be a finite number > 0, got 0.0",
        ),
        (
            lambda: bounds.fedavg_bound(1.0, 1, 1, 1.0, [1.0], 0.5, 0.0),
            r"step_size 1 violates lr <= 1 / \(6 L max K_i\); the bound holds up to 0.166667",
        ),
        (
            lambda: bounds.fedavg_bound(0.01, 1, 1, 1.0, [0.5, 0.5], 0.5, 0.0, [1.0, 2.0, 3.0]),
            "gradient_noise must have 2 entries, got 3",
        ),
        (
            lambda: bounds.fedavg_bound(0.01, 1, 1.5, 1.0, [1.0], 0.5, 0.0),  # type: ignore[arg-type]
            "local_steps must be whole numbers, got 1.5",
        ),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
