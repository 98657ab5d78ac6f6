"""Constants of the bounds, measured: against closed forms, brute force and the full Hessian."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.theory import estimate
from tests.support import federations

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "bounds.md").read_text(
    encoding="utf-8"
)
SIZES = (7, 5, 9)
THETA = np.array([0.5, -1.0, 2.0])


def logistic(output: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.softplus(-target * output.squeeze(-1))


def linear(theta: np.ndarray = THETA) -> nn.Module:
    module = nn.Linear(len(theta), 1, bias=False).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor(theta[None]))
    return module


def clients(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    return [
        {"x": generator.normal(size=(m, 3)) + 0.3 * k, "y": generator.normal(size=m)}
        for k, m in enumerate(sizes)
    ]


def largest(matrix: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvalsh(matrix)).max())


def test_least_squares_has_the_eigenvalues_of_its_hessians() -> None:
    data = clients()
    found = estimate(linear(), eh.Federation.from_arrays(data), "mse", iterations=1000)
    hessians = [2 * c["x"].T @ c["x"] / len(c["x"]) for c in data]
    exact = [largest(hessian) for hessian in hessians]
    assert found.client_smoothness == pytest.approx(exact, rel=1e-4)
    assert found.smoothness == max(found.client_smoothness)
    assert all(
        one <= other * (1 + 1e-12)
        for one, other in zip(found.client_smoothness, exact, strict=True)
    )
    mean = sum(m / sum(SIZES) * hessian for m, hessian in zip(SIZES, hessians, strict=True))
    assert found.mean_smoothness == pytest.approx(largest(mean), rel=1e-4)
    assert found.mean_smoothness <= found.smoothness


def test_least_squares_has_the_spreads_of_its_gradients_and_losses() -> None:
    data = clients()
    found = estimate(linear(), eh.Federation.from_arrays(data), "mse")
    errors = [c["x"] @ THETA - c["y"] for c in data]
    losses = [float((error**2).mean()) for error in errors]
    slopes = [2 * c["x"].T @ e / len(e) for c, e in zip(data, errors, strict=True)]
    pairs = list(itertools.combinations(range(3), 2))
    assert found.gradient_spread == pytest.approx(
        max(np.linalg.norm(slopes[i] - slopes[j]) for i, j in pairs)
    )
    assert found.loss_spread == pytest.approx(max(losses) - min(losses))
    assert found.lipschitz == pytest.approx(max(np.linalg.norm(slope) for slope in slopes))
    assert found.largest_loss == pytest.approx(max(float((e**2).max()) for e in errors))
    base = np.array(SIZES) / sum(SIZES)
    assert found.base == pytest.approx(base)
    assert found.objective == pytest.approx((base @ losses,))
    assert found.sqgradient == pytest.approx((((base @ np.array(slopes)) ** 2).sum(),))
    assert set(found.gradient_noise + found.loss_noise) == {0.0}  # all data in every step
    plain = estimate(linear(), eh.Federation.from_arrays(data), "mse", weights="uniform")
    assert plain.objective == pytest.approx((np.mean(losses),))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8])
def test_noise_is_that_of_all_batches(batch_size: int) -> None:
    """The smallest batch of an epoch, over all its choices."""
    data = clients()
    found = estimate(linear(), eh.Federation.from_arrays(data), "mse", batch_size=batch_size)
    for k, c in enumerate(data):
        m, error = len(c["y"]), c["x"] @ THETA - c["y"]
        batch = min(batch_size, m) if m <= batch_size else m % batch_size or batch_size
        slopes, losses = 2 * c["x"] * error[:, None], error**2
        batches = [list(chosen) for chosen in itertools.combinations(range(m), batch)]
        sqslope = np.mean([((slopes[b].mean(0) - slopes.mean(0)) ** 2).sum() for b in batches])
        sqloss = np.mean([(losses[b].mean() - losses.mean()) ** 2 for b in batches])
        assert found.gradient_noise[k] == pytest.approx(math.sqrt(sqslope), abs=1e-12)
        assert found.loss_noise[k] == pytest.approx(math.sqrt(sqloss), abs=1e-12)


def test_logistic_regression_has_the_eigenvalues_of_its_analytic_hessian() -> None:
    """20,000 samples of 30 clients, so in pieces."""
    generator = np.random.default_rng(1)
    theta, data, exact = generator.normal(size=12), [], []
    for k in range(30):
        x = generator.normal(size=(667, 12)) * (1 + 3 * (np.arange(12) == k % 12))
        data.append({"x": x, "y": np.where(generator.random(667) < 0.3, -1.0, 1.0)})
        chance = 1 / (1 + np.exp(-x @ theta))
        exact.append(largest((x * (chance * (1 - chance))[:, None]).T @ x / 667))
    found = estimate(linear(theta), eh.Federation.from_arrays(data), logistic, batch_size=32)
    assert found.client_smoothness == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("kind", ["softmax", "cnn", "tanh"])
def test_curvature_is_that_of_the_full_hessian(kind: str) -> None:
    torch.manual_seed(0)
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(9, 1, 6, 6)), generator.integers(0, 3, size=9)
    module = {
        "softmax": nn.Sequential(nn.Flatten(), nn.Linear(36, 3)),
        "cnn": nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)),
        "tanh": nn.Sequential(nn.Flatten(), nn.Linear(36, 2), nn.Tanh(), nn.Linear(2, 3)),
    }[kind].double()  # fmt: skip
    found = estimate(module, eh.Federation.from_arrays([{"x": x, "y": y}]), iterations=2000)
    names = [name for name, _ in module.named_parameters()]
    sizes = [parameter.numel() for parameter in module.parameters()]

    def loss(flat: Tensor) -> Tensor:
        parts = zip(names, torch.split(flat, sizes), module.parameters(), strict=True)
        params = {name: part.view_as(like) for name, part, like in parts}
        output = torch.func.functional_call(module, params, (torch.tensor(x),))
        return nn.functional.cross_entropy(output, torch.tensor(y))

    flat = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    hessian = torch.autograd.functional.hessian(loss, flat)
    assert found.smoothness == pytest.approx(largest(hessian.numpy()), rel=1e-3)


def test_concave_losses_count_by_the_size_of_their_curvature() -> None:
    data = clients((6,))
    federation = eh.Federation.from_arrays(data)
    found = estimate(linear(), federation, lambda output, target: -(output.squeeze(-1) ** 2))
    x = data[0]["x"]
    assert found.smoothness == pytest.approx(largest(2 * x.T @ x / 6), rel=1e-4)


def test_more_iterations_never_lower_the_smoothness() -> None:
    federation = eh.Federation.from_arrays(clients())
    values = [
        estimate(linear(), federation, "mse", iterations=i).client_smoothness for i in (1, 2, 5, 50)
    ]
    for fewer, more in itertools.pairwise(values):
        assert all(a <= b * (1 + 1e-12) for a, b in zip(fewer, more, strict=True))


def test_a_list_of_models_gives_the_largest_of_each() -> None:
    federation, module = federations.ragged(), federations.network()
    others = [
        {name: factor * value for name, value in module.state_dict().items()}
        for factor in (1.0, 0.1, 2.0)
    ]
    alone = [estimate(module, federation, params=one, batch_size=2) for one in others]
    found = estimate(module, federation, params=others, batch_size=2)
    for name in ("smoothness", "lipschitz", "gradient_spread", "loss_spread", "largest_loss"):
        assert getattr(found, name) == max(getattr(one, name) for one in alone)
    for name in ("gradient_noise", "client_smoothness"):
        expected = np.max([getattr(one, name) for one in alone], axis=0)
        assert getattr(found, name) == tuple(expected)
    assert found.sqgradient == tuple(one.sqgradient[0] for one in alone)
    assert alone[0] == estimate(module, federation, batch_size=2)


def test_pieces_do_not_change_the_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, module = federations.ragged(), federations.network()
    whole = estimate(module, federation, batch_size=2, iterations=3)
    for name, value in {"PIECE": 4, "CURVED": 3, "COLUMNS": 5, "ENTRIES": 100}.items():
        monkeypatch.setattr(f"evenhand.theory.gradients.{name}", value)
    pieces = estimate(module, federation, batch_size=2, iterations=3)
    for name, value in vars(whole).items():
        assert getattr(pieces, name) == pytest.approx(value, rel=1e-6), name


def test_equal_clients_have_no_spread() -> None:
    data = clients((6,)) * 3
    found = estimate(linear(), eh.Federation.from_arrays(data), "mse")
    assert found.gradient_spread == pytest.approx(0, abs=1e-7)
    assert found.loss_spread == 0


def test_constants_go_into_the_bounds() -> None:
    """Least squares with equal Hessians: what is measured anywhere holds everywhere."""
    generator = np.random.default_rng(4)
    x = generator.normal(size=(12, 3))
    federation = eh.Federation.from_arrays([{"x": x, "y": generator.normal(size=12)} for _ in "ab"])
    found = estimate(linear(), federation, "mse", iterations=1000)
    smoothness = found.smoothness * 1.001  # from below
    step = eh.theory.fedavg_step_size(smoothness, found.base, 3)
    result = eh.fit(
        linear(),
        federation,
        eh.FedAvg(),
        loss="mse",
        rounds=50,
        local=eh.LocalSGD(step.value, steps=3),
    )
    later = estimate(linear(), federation, "mse", params=result.params)
    assert later.gradient_spread == pytest.approx(found.gradient_spread)
    bound = eh.theory.fedavg_bound(
        step.value, 50, 3, smoothness, found.base, found.objective[0], found.gradient_spread
    )
    assert later.sqgradient[0] < bound.total


def test_the_page_goes_from_a_federation_to_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """And its numbers are those of the page."""
    section = PAGE.split("## From a federation to a bound")[1].split("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    assert "FedAvgBound(total=" in capsys.readouterr().out
    seen, bound = names["seen"], names["bound"]
    assert names["step"].value == pytest.approx(0.041, rel=0.02)
    assert [seen.sqgradient[0], seen.sqgradient[-1]] == pytest.approx([0.228, 0.101], rel=0.02)
    assert seen.smoothness == pytest.approx(2.02, rel=0.02)
    assert seen.gradient_spread**2 == pytest.approx(7.5, rel=0.02)
    assert tuple(bound) == pytest.approx((64.4, 3.4, 61.0, 0), rel=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: estimate(linear(), None, "mse"), "federation must be a Federation"),  # type: ignore[arg-type]
        (
            lambda: estimate(linear(), eh.Federation.from_arrays(clients()), "mse", params=[]),
            "params is an empty list; give at least one model",
        ),
        (
            lambda: estimate(linear(), eh.Federation.from_arrays(clients()), "mse", params={}),
            "params lacks 'weight'",
        ),
        (
            lambda: estimate(linear(), eh.Federation.from_arrays(clients()), "mse", batch_size=0),
            "batch_size must be a whole number >= 1",
        ),
        (
            lambda: estimate(linear(), eh.Federation.from_arrays(clients()), "hinge_sum"),
            "a client's loss is a sum over samples with loss='hinge_sum'",
        ),
        (
            lambda: estimate(
                linear(),
                eh.Federation.from_arrays(clients()),
                "mse",
                params={"weight": torch.full((1, 3), math.inf)},
            ),
            "the gradient of client 0 is not finite; the model has diverged",
        ),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
