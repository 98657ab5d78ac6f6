"""Small federations and the list of methods that many tests share."""

from __future__ import annotations

import numpy as np
import torch

import evenhand as eh

# Every method, in the forms that differ in their messages or memories. A new method adds a line.
METHODS: dict[str, eh.Algorithm] = {
    "fedavg": eh.FedAvg(),
    "propfair": eh.PropFair(M=3.0),
    "qffl": eh.QFFL(q=1.5),
    "afl": eh.AFL(lr_lambda=0.1),
    "afl_average": eh.AFL(lr_lambda=0.1, output="average"),
    "fafl": eh.FAFL(alpha=0.5, mu=0.1, lr_eta=0.05),
    "fedminmax": eh.FedMinMax(lr_mu=0.1, floor=0.05),
    "gifair": eh.GIFAIR(strength=0.8),
    "gifair_per": eh.GIFAIR(strength=0.8, personal=True),
    "ditto": eh.Ditto(lam=0.5),
}

SIZES = (1, 300, 7, 40, 33, 2, 120, 64, 15, 90)  # unequal on purpose: from one sample to three hundred


def ragged(sizes: tuple[int, ...] = SIZES, teams: bool = True, dtype: type = np.float64, seed: int = 0) -> eh.Federation:
    """Clients of very different sizes, each with its own shift, in two teams and three groups; a little test data."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, 5))

    def client(index: int, size: int) -> dict[str, object]:
        y = rng.integers(0, 3, size)
        x = centres[y] + rng.normal(size=(size, 5)) + 0.3 * index
        entry: dict[str, object] = {"x": x.astype(dtype), "y": y, "group": rng.choice(["a", "b", "c"], size)}
        return entry | ({"team": "even" if index % 2 == 0 else "odd"} if teams else {})

    train = [client(index, size) for index, size in enumerate(sizes)]
    test = [{key: value for key, value in client(index, 9).items() if key != "team"} for index in range(len(sizes))]
    return eh.Federation.from_arrays(train, test=test)


def network(dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.nn.Module:
    """A small network with two layers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(dtype)
