"""One weight, few clients, one or two steps: a problem whose numbers can be worked out in plain
arithmetic.

Every sample is (x, y) with prediction w x and loss (w x - y)^2.

    client A: three samples, x = 1, y = 1, 2, 3    f_a'(w) = 2 (w - 2)
    client B: one sample,    x = 2, y = 6          f_b'(w) = 4 (2w - 6)
    client C: two samples,   x = 1, y = -1, -3     f_c'(w) = 2 (w + 2)

At w = 1: f_a = 5/3, f_a' = -2, f_b = 16, f_b' = -16, f_c = 10, f_c' = 6. A and B alone have
p = (3/4, 1/4), all three p = (3, 1, 2)/6. Where directions matter the model has several weights and
each client one sample, repeated, chosen so that from w = 0 with lr 1/2 its update received - local
is a given vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.local import permutation

A = {"x": [[1.0], [1.0], [1.0]], "y": [1.0, 2.0, 3.0]}
B = {"x": [[2.0]], "y": [6.0]}
P_A, P_B = 3 / 4, 1 / 4


def f_a(w: float) -> float:
    return ((w - 1) ** 2 + (w - 2) ** 2 + (w - 3) ** 2) / 3


def g_a(w: float) -> float:
    return 2 * (w - 2)


def f_b(w: float) -> float:
    return (2 * w - 6) ** 2


def g_b(w: float) -> float:
    return 4 * (2 * w - 6)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def project_two(v_1: float, v_2: float, floor: float = 0.0) -> tuple[float, float]:
    """The nearest point of the segment x_1 + x_2 = 1, both >= floor: remove the excess in equal
    parts, then cut at the ends."""
    first = min(max((1 + v_1 - v_2) / 2, floor), 1 - floor)
    return first, 1 - first


def weight(value: float) -> nn.Linear:
    module = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        module.weight.fill_(value)
    return module


def arrays(client: dict[str, Any]) -> dict[str, Any]:
    return {**client, "x": np.array(client["x"]), "y": np.array(client["y"])}


def federation(*clients: dict[str, Any]) -> eh.Federation:
    return eh.Federation.from_arrays([arrays(client) for client in clients or (A, B)])


def run(
    algorithm: eh.Algorithm,
    engine: str,
    *clients: dict[str, Any],
    w: float = 1.0,
    rounds: int = 1,
    **settings: Any,
) -> eh.Result:
    local = settings.pop("local", None) or eh.LocalSGD(
        lr=settings.pop("lr"), steps=settings.pop("steps", 1)
    )
    return eh.fit(
        weight(w),
        federation(*clients),
        algorithm,
        loss="mse",
        rounds=rounds,
        local=local,
        engine=engine,
        **settings,
    )


def value(params: dict[str, Tensor]) -> float:
    return params["weight"].item()


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-12, abs=1e-13)


# groups over clients: u = {A's y = 3}, v = {A's y = 1, 2, and B's}: shares 1/4 and 3/4
GROUPED = ({**A, "group": ["v", "v", "u"]}, {**B, "group": ["v"]})
C = {"x": [[1.0], [1.0]], "y": [-1.0, -3.0]}  # f_c = ((w+1)^2 + (w+3)^2)/2, f_c' = 2 (w + 2)


def f_c(w: float) -> float:
    return ((w + 1) ** 2 + (w + 3) ** 2) / 2


def g_c(w: float) -> float:
    return 2 * (w + 2)


def assert_frequency(hits: int, trials: int, probability: float) -> None:
    """Within five standard deviations of a binomial count; seeds are fixed, so this cannot
    flicker."""
    spread = math.sqrt(trials * probability * (1 - probability))
    assert abs(hits - trials * probability) <= 5 * spread, (hits / trials, probability)


def numbers(
    sizes: Sequence[int], features: int = 3, classes: int = 3, seed: int = 0
) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [
        {"x": generator.normal(size=(size, features)), "y": generator.integers(classes, size=size)}
        for size in sizes
    ]


def network(features: int = 3, classes: int = 3) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    module = nn.Sequential(nn.Linear(features, 4), nn.Tanh(), nn.Linear(4, classes)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
            )
    return module


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-12)


def batches(client: int, size: int, local: eh.LocalSGD, round: int, seed: int) -> list[Tensor]:
    """The client's mini-batches of a round: epoch after epoch, each in its own order, the last
    batch as small as it must be."""
    if local.batch_size is None:
        return [torch.arange(size)] * (local.steps or local.epochs or 1)
    per_epoch = math.ceil(size / local.batch_size)
    epochs = math.ceil(local.steps / per_epoch) if local.steps else local.epochs or 1
    order = permutation(torch.tensor([client]), torch.tensor([size]), size, epochs, round, seed)[0]
    found = [batch for epoch in order for batch in epoch.split(local.batch_size)]
    return found[: local.steps] if local.steps else found


THREE = (A, B, C)
P = (3 / 6, 1 / 6, 2 / 6)
F = (f_a, f_b, f_c)
G = (g_a, g_b, g_c)
LEFT, RIGHT = {**A, "team": "s"}, {**B, "team": "t"}
TEAMS = (LEFT, RIGHT, {**C, "team": "s"})


def at(functions: Sequence[Callable[[float], float]], w: float) -> list[float]:
    return [function(w) for function in functions]


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(one, other, strict=True))


def share(values: Sequence[float]) -> list[float]:
    return [value / sum(values) for value in values]


def local_model(g: Callable[[float], float], w: float, lr: float, steps: int) -> float:
    for _ in range(steps):
        w -= lr * g(w)
    return w


def clients_of(
    *updates: Sequence[float],
    counts: Sequence[int] | None = None,
    losses: Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """Clients whose update from w = 0 with lr 1/2 is the given vector u, and whose loss there is 1
    or the given one.

    With root^2 the loss and x = u / root, (w x + root)^2 has the slope 2 u at w = 0.
    """
    clients = []
    for u, count, loss in zip(
        updates, counts or [1] * len(updates), losses or [1.0] * len(updates), strict=True
    ):
        root = math.sqrt(loss)
        clients.append({"x": [[entry / root for entry in u]] * count, "y": [-root] * count})
    return clients


def move(
    algorithm: eh.Algorithm, engine: str, clients: list[dict[str, Any]], **settings: Any
) -> list[float]:
    """Where the model goes from 0 with lr 1/2."""
    arrays = [
        {**client, "x": np.array(client["x"]), "y": np.array(client["y"])} for client in clients
    ]
    module = nn.Linear(len(clients[0]["x"][0]), 1, bias=False).double()
    with torch.no_grad():
        module.weight.zero_()
    settings = {"rounds": 1, "local": eh.LocalSGD(lr=0.5, steps=1), **settings}
    found = eh.fit(
        module, eh.Federation.from_arrays(arrays), algorithm, loss="mse", engine=engine, **settings
    )
    return found.params["weight"][0].tolist()


def rfedfair_step(
    theta: float,
    eta: float,
    loss: float,
    slope: float,
    alpha: float,
    mu: float,
    lr: float,
    lr_eta: float,
    floor: float = 0.0,
) -> tuple[float, float]:
    """One simultaneous step on floor (f - eta) + (1/alpha - floor) phi_mu(f - eta) + eta."""
    s = floor + (1 / alpha - floor) * sigmoid((loss - eta) / mu)
    return theta - lr * s * slope, eta - lr_eta * (1 - s)
