"""Scikit-learn's handwritten digits, made into an unfair federation; no download needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.data.federation import Federation
from evenhand.errors import require, require_number, require_whole


def digits(
    clients: int = 20,
    seed: int = 0,
    minority: float = 0.25,
    skew: float = 1.0,
    noise: float = 0.15,
    test_share: float = 0.4,
    flat: bool = True,
) -> Federation:
    """Load 1,797 images of 8 x 8 pixels, distributed unfairly over clients on purpose.

    Client sizes are log-normal, labels are skewed (each client's mix of digits is a Dirichlet
    draw), and a minority of clients, which are also smaller, has images that are rotated by 90
    degrees and noisy. The minority's team is "rotated", the others' is "upright"; every sample has
    the same word as its group.

    Args:
        clients: 2 to 60.
        seed: of the distribution and the noise.
        minority: share of clients that are rotated; at least one is.
        skew: concentration of the label mix; with small values clients have few different digits,
            with large values all.
        noise: standard deviation of the noise on minority images; pixels are in [0, 1].
        test_share: share of each client's samples that is held out for testing.
        flat: return images as vectors of 64 numbers instead of (1, 8, 8).

    >>> digits(clients=6)
    <Federation: 6 clients, 1079 training samples, 2 groups, 2 teams>
    """
    from sklearn.datasets import load_digits

    require_whole("clients", clients, 2)
    require_whole("seed", seed, 0)
    require(clients <= 60, "clients must be 2 to 60 for digits, got {}", clients)
    require_number("minority", minority, "(0, 1)")
    require_number("test_share", test_share, "(0, 1)")
    require_number("skew", skew, "(0, inf)")
    require_number("noise", noise, "[0, inf)")

    rng = np.random.default_rng([seed, 8])
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8).astype(np.float32)
    rotated = max(1, round(minority * clients))
    sizes = np.exp(rng.normal(0, 0.5, clients))
    sizes[-rotated:] *= 0.6  # the minority also has less data
    owners = _assign(labels, sizes / sizes.sum(), rng.dirichlet(np.full(10, skew), clients), rng)

    train: list[dict[str, Any]] = []
    test: list[dict[str, Any]] = []
    for client in range(clients):
        mine = rng.permutation(np.flatnonzero(owners == client))
        x, team = images[mine], "upright"
        if client >= clients - rotated:
            x = np.rot90(x, axes=(1, 2)) + rng.normal(0, noise, x.shape).astype(np.float32)
            team = "rotated"
        x = np.ascontiguousarray(x.reshape(len(mine), 64) if flat else x[:, None])
        cut = max(1, round(test_share * len(mine)))
        for part, rows in ((test, slice(None, cut)), (train, slice(cut, None))):
            part.append(
                {
                    "x": x[rows],
                    "y": labels[mine[rows]],
                    "group": [team] * len(x[rows]),
                    "team": team,
                }
            )
    return Federation.from_arrays(train, test=test)


def _assign(labels: Any, share: Any, mix: Any, rng: np.random.Generator) -> Any:
    """Return (N,) the client of each sample: label by label, in proportion to share x mix, at least
    12 per client."""
    owners = np.empty(len(labels), dtype=np.int64)
    for label in range(10):
        samples = rng.permutation(np.flatnonzero(labels == label))
        wish = share * mix[:, label]
        owners[samples] = np.searchsorted(
            np.cumsum(wish / wish.sum()), (np.arange(len(samples)) + 0.5) / len(samples)
        )
    least = 12
    for client in np.flatnonzero(np.bincount(owners, minlength=len(share)) < least):
        while (missing := least - int((owners == client).sum())) > 0:
            richest = int(np.bincount(owners, minlength=len(share)).argmax())
            owners[rng.choice(np.flatnonzero(owners == richest), missing, replace=False)] = client
    return owners
