"""A synthetic federation of very many clients with few samples each, to test scaling."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.data.samples import Part
from evenhand.errors import require_memory, require_whole


def population(
    clients: int = 1_000_000,
    samples: int | tuple[int, int] = 3,
    features: int = 20,
    classes: int = 2,
    test: int = 0,
    seed: int = 0,
) -> Federation:
    """Generate very many clients that share a linear rule, each with its own leaning to some
    classes.

    x ~ N(0, I),  y = argmax_c (w_c x + lean_kc),  w_c ~ N(0, I / features) for all clients,
    lean_k ~ N(0, I) for client k

    Args:
        clients: number of clients.
        samples: training samples per client; or the smallest and the largest number, between which
            each client draws its own.
        features: features per sample.
        classes: number of classes.
        test: test samples per client.
        seed: of all draws.

    >>> population(clients=4, samples=(1, 3), features=2)
    <Federation: 4 clients, 7 training samples>
    """
    low, high = samples if isinstance(samples, tuple | list) else (samples, samples)
    require_whole("clients", clients, 1)
    require_whole("least samples", low, 1)
    require_whole("most samples", high, low)
    require_whole("features", features, 1)
    require_whole("classes", classes, 2)
    require_whole("test", test, 0)
    require_whole("seed", seed, 0)
    size = clients * ((high + test) * (4 * features + 16) + 4 * classes + 16)
    require_memory(f"{clients} clients with up to {high} samples of {features} features", size)
    rng = np.random.default_rng([seed, 1_000_000])
    weight = torch.from_numpy(rng.standard_normal((features, classes), np.float32)) / features**0.5
    lean = torch.from_numpy(rng.standard_normal((clients, classes), np.float32))

    def part(sizes: Tensor) -> Part:
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        x = torch.from_numpy(rng.standard_normal((int(offsets[-1]), features), np.float32))
        scores = (x @ weight).add_(lean.repeat_interleave(sizes, 0))
        return Part(x, scores.argmax(1), offsets)

    train = part(torch.from_numpy(rng.integers(low, high + 1, clients)))
    names = tuple(map(str, range(classes)))
    return Federation(
        train=train, test=part(torch.full((clients,), test)) if test else None, label_names=names
    )
