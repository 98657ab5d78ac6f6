"""A federation on which a method with a special setting must be another method: the same iterates,
from the same seeds and batches.

Numbers in docstrings of tests are those of our list of special cases. "Bit for bit" is asked where
the extra arithmetic is exact (a product with 1, a sum with 0), agreement to rounding elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import evenhand as eh

SIZES = (9, 4, 14, 6)
ROUNDS = 4
SEED = 5
FULL_STEP = eh.LocalSGD(lr=0.3, steps=1)
MINI_BATCHES = eh.LocalSGD(
    lr=0.2, epochs=2, batch_size=4, momentum=0.5, weight_decay=0.01, decay=0.9
)
LOCAL = {"one full step": FULL_STEP, "mini-batches": MINI_BATCHES}
SCHEMES = {
    "A full": eh.Full(),
    "B proportional": eh.Proportional(3),
    "C without replacement": eh.Proportional(2, replacement=False),
    "D uniform unbiased": eh.Uniform(2, unbiased=True),
    "E uniform": eh.Uniform(2),
}
every_scheme = pytest.mark.parametrize("cohort", SCHEMES.values(), ids=SCHEMES.keys())
every_local = pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL.keys())


def samples(
    sizes: Sequence[int] = SIZES, features: int = 3, classes: int = 3
) -> list[dict[str, np.ndarray]]:
    """Clients that disagree: each has its own centre and its own preference for a class."""
    generator = np.random.default_rng(2)
    clients = []
    for i, size in enumerate(sizes):
        x = generator.normal(size=(size, features)) + 0.5 * generator.normal(size=features)
        y = np.where(
            generator.random(size) < 0.5, i % classes, generator.integers(classes, size=size)
        )
        clients.append({"x": x, "y": y})
    return clients


def federation(**extra: Sequence[Any]) -> eh.Federation:
    """The clients above; each keyword gives a further entry for every client."""
    return eh.Federation.from_arrays(
        [{**client, **{key: extra[key][i] for key in extra}} for i, client in enumerate(samples())]
    )


def module(dtype: torch.dtype = torch.float64) -> nn.Linear:
    generator = torch.Generator().manual_seed(3)
    linear = nn.Linear(3, 3).to(dtype)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return linear


def train(
    algorithm: eh.Algorithm, engine: str = "loop", fed: eh.Federation | None = None, **settings: Any
) -> eh.Result:
    # evaluate once, at the end
    settings = {"rounds": ROUNDS, "local": FULL_STEP, "seed": SEED, "eval_every": 100, **settings}
    start = settings.pop("module", None) or module()
    return eh.fit(start, fed or federation(), algorithm, engine=engine, **settings)


def assert_identical(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), (name, (found[name] - tensor).abs().max())


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-11, atol=1e-12)


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return sum(((one[name] - other[name]) ** 2).sum().item() for name in one) ** 0.5


def pooled() -> tuple[Tensor, Tensor]:
    clients = samples()
    return torch.from_numpy(np.concatenate([c["x"] for c in clients])), torch.from_numpy(
        np.concatenate([c["y"] for c in clients])
    )


def descend(objective: Any, lr: float, rounds: int = ROUNDS) -> dict[str, Tensor]:
    """Plain gradient descent on a function of the module."""
    linear = module()
    for _ in range(rounds):
        slopes = torch.autograd.grad(objective(linear), list(linear.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(linear.parameters(), slopes, strict=True):
                parameter -= lr * slope
    return {name: tensor.detach() for name, tensor in linear.state_dict().items()}


def client_losses(linear: nn.Module) -> list[Tensor]:
    return [
        cross_entropy(linear(torch.from_numpy(c["x"])), torch.from_numpy(c["y"])) for c in samples()
    ]


SHARES = [size / sum(SIZES) for size in SIZES]
UNBIASED, NORMALISED = SCHEMES["D uniform unbiased"], SCHEMES["E uniform"]  # the same draws
TEAMS = "abba"


@cache
def fedavg(engine: str, cohort: eh.Cohort, local: eh.LocalSGD) -> dict[str, Tensor]:
    """FedAvg's model, with coefficients that sum to one where the cohort's do not."""
    return train(
        eh.FedAvg(), engine, local=local, cohort=NORMALISED if cohort == UNBIASED else cohort
    ).params


def losses_of(params: dict[str, Tensor]) -> list[float]:
    linear = module()
    linear.load_state_dict(params)
    return [loss.item() for loss in client_losses(linear)]


def worst_mixture(losses: Sequence[float], caps: Sequence[float]) -> float:
    """The largest lam . f over the simplex with lam_i <= cap_i, by filling the caps from the
    highest loss down."""
    left, total = 1.0, 0.0
    for loss, cap in sorted(zip(losses, caps, strict=True), reverse=True):
        lam = min(cap, left)
        left, total = left - lam, total + lam * loss
    return total


def random_losses(seed: int, n: int = 7) -> tuple[list[float], list[float]]:
    generator = np.random.default_rng(seed)
    weights = generator.uniform(0.2, 1, n)
    return generator.exponential(size=n).tolist(), (weights / weights.sum()).tolist()


def share_weighted(values: Sequence[Tensor]) -> Tensor:
    return sum(p * value for p, value in zip(SHARES, values, strict=True))  # type: ignore[return-value]


def gifair(linear: nn.Module, strength: float, teams: str) -> Tensor:
    losses = client_losses(linear)
    names = sorted(set(teams))
    c = (
        strength
        * min(SHARES[i] * teams.count(teams[i]) for i in range(len(SIZES)))
        / (len(names) - 1)
    )
    means = [
        torch.stack([losses[i] for i in range(len(SIZES)) if teams[i] == name]).mean()
        for name in names
    ]
    spread = sum((means[a] - means[b]).abs() for a in range(len(names)) for b in range(a))
    return share_weighted(losses) + c * spread


def copies(
    group: Sequence[Any] | None = None, counts: Sequence[int] = (1, 2, 1, 3)
) -> eh.Federation:
    """Four clients with the same samples, one, two, one and three times over: losses equal up to
    rounding, unequal weights."""
    one = samples()[2]
    clients = []
    for count in counts:
        client = {key: np.concatenate([values] * count) for key, values in one.items()}
        clients.append(
            client
            if group is None
            else {**client, "group": np.concatenate([np.asarray(group)] * count)}
        )
    return eh.Federation.from_arrays(clients)


def gradient(linear: nn.Module) -> tuple[float, list[Tensor]]:
    x, y = (torch.from_numpy(samples()[2][key]) for key in ("x", "y"))
    loss = cross_entropy(linear(x), y)
    return loss.item(), list(torch.autograd.grad(loss, list(linear.parameters())))


def scaled_descent(
    step_of: Callable[[float, float], float], rounds: int = ROUNDS
) -> dict[str, Tensor]:
    """Descent on the one loss, the step size a function of the loss and of the gradient's norm."""
    linear = module()
    for _ in range(rounds):
        loss, slopes = gradient(linear)
        size = step_of(loss, math.sqrt(sum(float((slope**2).sum()) for slope in slopes)))
        with torch.no_grad():
            for parameter, slope in zip(linear.parameters(), slopes, strict=True):
                parameter -= size * slope
    return {name: tensor.detach() for name, tensor in linear.state_dict().items()}


LR = FULL_STEP.lr
INNER: dict[str, eh.Algorithm] = {
    "FedAvg": eh.FedAvg(),
    "AFL average": eh.Averaged(eh.AFL(lr_lambda=0.3)),
    "AFL before": eh.AFL(lr_lambda=0.3, order="before"),
    "QFFL": eh.QFFL(q=1.0),
    "TERM": eh.TERM(t=1.0),
    "TERM team": eh.TERM(t=1.0, level="team"),
    "TERM sample": eh.TERM(t=1.0, level="sample"),
    "FAFL": eh.Averaged(
        eh.FAFL(
            alpha=0.5,
            mu=0.1,
            eta0="quantile",
            floor=0.2,
            sigma="local",
            short_first_round=True,
        )
    ),
    "GIFAIR": eh.GIFAIR(strength=0.8),
    "GIFAIR per": eh.GIFAIR(strength=0.8, personal=True),
    "GIFAIR exact": eh.GIFAIR(strength=0.8, exact_losses=True),
    "FedMinMax": eh.Averaged(eh.FedMinMax(lr_mu=0.2)),
    "PropFair": eh.PropFair(M=4.0),
    "FedMGDA": eh.FedMGDA(),
    "Ditto": eh.Ditto(lam=0.5),
    "DeltaFL": eh.DeltaFL(tail=0.6),
    "DRFA": eh.DRFA(lr_lambda=0.3, sample=2),
    "AgnosticFedAvg": eh.AgnosticFedAvg(lr_lambda=0.3),
    "FedFV": eh.FedFV(alpha=0.3, tau=1),
    "AAggFF": eh.AAggFF(),
    "AdaFed": eh.AdaFed(),
    "LocalOnly": eh.LocalOnly(),
    "FineTuned": eh.FineTuned(),
}


def assert_all_identical(found: eh.Result, expected: eh.Result) -> None:
    assert_identical(found.params, expected.params)
    assert (found.personal is None) == (expected.personal is None)
    for one, other in zip(found.personal or [], expected.personal or [], strict=True):
        assert_identical(one, other)
