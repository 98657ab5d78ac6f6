"""What it costs to hide single samples: the time of a round with and without ``SampleDP``.

``python -m benchmarks.hidden_steps [--rounds 10]`` trains a dense network and a small convolutional
one on digits, on both engines, with one thread.
"""

from __future__ import annotations

import time

import click
import torch
from torch import nn

import evenhand as eh
from benchmarks.machine import describe

PLAIN = eh.LocalSGD(lr=0.1, batch_size=32)
HIDDEN = eh.LocalSGD(lr=0.1, batch_size=32, dp=eh.SampleDP(clip=1.0, noise=1.0))


def networks() -> dict[str, nn.Module]:
    """A dense network with 4,810 parameters, and a convolutional one with 9,930."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    convolutional = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    return {"dense": dense, "convolutional": convolutional}


def seconds(net: nn.Module, fed: eh.Federation, local: eh.LocalSGD, engine: str, n: int) -> float:
    """CPU time of a round, which other processes do not change, without what a run does once."""

    def run(rounds: int) -> float:
        start = time.process_time()
        eh.fit(net, fed, eh.FedAvg(), rounds=rounds, local=local, engine=engine, eval_every=1000)
        return time.process_time() - start

    run(1)
    return min(run(n + 1) - run(1) for _ in range(3)) / n


@click.command()
@click.option("--rounds", default=10, show_default=True)
def main(rounds: int) -> None:
    """Time rounds of ten clients."""
    click.echo(describe())
    torch.set_num_threads(1)
    fed = eh.datasets.digits(clients=10)
    click.echo("network, engine, plain round, hidden round, ratio")
    for name, net in networks().items():
        for engine in ("loop", "vmap"):
            plain, hidden = (seconds(net, fed, it, engine, rounds) for it in (PLAIN, HIDDEN))
            row = (name, engine, f"{plain * 1e3:.0f} ms", f"{hidden * 1e3:.0f} ms")
            click.echo(", ".join((*row, f"{hidden / plain:.1f}")))


if __name__ == "__main__":
    main()
