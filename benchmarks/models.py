"""Every model on either engine: its trained parameters, and milliseconds for one local step of ten
clients.

    python -m benchmarks.models [--device cuda]

Ten clients, one step on a batch of 32 (text: 10) by everyone, FedAvg, and folding their updates.
Rounds of the engines alternate, so that a busy machine slows both alike; the median round is shown.
"auto" names the engine that engine="auto" takes.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

import evenhand as eh
from benchmarks import machine
from evenhand.engines import choose
from evenhand.engines.work import Train
from evenhand.models import CNN, MLP, CharLSTM, Linear, ResNet18, TextLSTM
from evenhand.models.cnn import VARIANTS
from evenhand.training.server import with_round

CLIENTS, WARM_UP, MEASURED = 10, 125, 25
LONG = 0.1  # seconds of a step beyond which nothing is gained by tracing on a CPU
ENOUGH = 60  # seconds to measure a model for, if that gives three rounds


class Case(NamedTuple):
    """A model, and data that fit it."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    tokens: int | None = None  # numbers of words or characters; None for features
    batch: int = 32


CASES = {
    "`Linear`, 784 to 10": Case(lambda: Linear(784, 10), (784,), 10),
    "`MLP`, 784 - 200 - 10": Case(lambda: MLP(784, 10, (200,)), (784,), 10),
    '`CNN` "ditto", 28 x 28, 62 classes': Case(lambda: CNN(**VARIANTS["ditto"]), (1, 28, 28), 62),
    '`CNN` "femnist", 28 x 28, 62 classes': Case(CNN, (1, 28, 28), 62),
    '`CNN` "leaf", 28 x 28, 62 classes': Case(lambda: CNN(**VARIANTS["leaf"]), (1, 28, 28), 62),
    '`CNN` "pfl", 3 x 32 x 32, 10 classes': Case(
        lambda: CNN((3, 32, 32), 10, **VARIANTS["pfl"]), (3, 32, 32), 10
    ),
    "`CharLSTM`, 80 characters": Case(CharLSTM, (80,), 80, tokens=80, batch=10),
    "`TextLSTM`, 25 words of 100": Case(
        lambda: TextLSTM(torch.randn(1000, 100)), (25,), 2, tokens=1000, batch=10
    ),
    '`ResNet18` "cifar", 3 x 32 x 32': Case(ResNet18, (3, 32, 32), 10),
    '`ResNet18` "imagenet", 3 x 32 x 32': Case(lambda: ResNet18(stem="imagenet"), (3, 32, 32), 10),
}


def measure(case: Case, device: torch.device) -> tuple[dict[str, float], str]:
    """Median milliseconds a round on each engine, and the engine that "auto" takes."""
    torch.manual_seed(0)
    count = CLIENTS * case.batch
    x = (
        torch.randn(count, *case.shape)
        if case.tokens is None
        else torch.randint(0, case.tokens, (count, *case.shape))
    )
    fed = eh.Federation(
        eh.Part(x, torch.randint(0, case.classes, (count,)), torch.arange(CLIENTS + 1) * case.batch)
    )
    model = eh.Model(case.build()).to(device)
    model.check(fed)
    census, algorithm = fed.census(), eh.FedAvg()
    local = eh.LocalSGD(lr=0.01, steps=1, batch_size=case.batch)
    draw = eh.Full().draw(census, 0, 0)
    state = algorithm.init({key: value.cpu() for key, value in model.init().items()}, census)
    task, work = with_round(algorithm.task(state, draw.ids), draw, 0.01), Train(algorithm, local)
    attached = {"loop": eh.Loop().attach(model, fed, 0), "vmap": eh.Vmap().attach(model, fed, 0)}

    def seconds(key: str, round: int) -> float:
        return machine.seconds(lambda: attached[key].exchange(work, task, draw.ids, round), device)

    both = [sum(seconds(key, 0) for key in attached) for _ in range(2)][-1]
    for round in range(0 if device.type == "cpu" and both > LONG else WARM_UP):
        seconds("vmap", round)  # until it is traced
    rounds = max(3, min(MEASURED, int(ENOUGH / both)))
    times = [{key: seconds(key, round) for key in attached} for round in range(rounds)]
    medians = {key: 1e3 * statistics.median(row[key] for row in times) for key in attached}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that auto falls back is what the table shows
        return medians, type(choose("auto", model, fed)).__name__.lower()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    print(machine.describe(device))
    print("| model | parameters | loop, ms | vmap, ms | auto |\n|---|---|---|---|---|")
    for name, case in CASES.items():
        medians, auto = measure(case, device)
        size = f"{eh.Model(case.build()).size:,}".replace(",", " ")
        print(
            f"| {name} | {size} | {medians['loop']:.1f} | {medians['vmap']:.1f} | {auto} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
