"""Which engine is faster for which model: milliseconds for one local step of all clients of a cohort.

    python -m benchmarks.engines [--device cuda]

Ten clients with 32 samples each, one step on all of them (batch 32) by everyone, FedAvg. Rounds of the engines alternate, so
that a busy machine slows all of them alike; the median round is shown. "auto" names the engine that engine="auto" takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

import evenhand as eh
from benchmarks.machine import describe
from evenhand.engines import choose
from evenhand.engines.work import Train
from evenhand.models import CNN, MLP, CharLSTM, Linear
from evenhand.run import with_round

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
    "logistic 784-10": Case(lambda: Linear(784, 10), (784,), 10),
    "MLP 784-200-10": Case(lambda: MLP(784, 10, (200,)), (784,), 10),
    "small CNN, 25 k parameters": Case(lambda: CNN(channels=(4, 8), hidden=()), (1, 28, 28), 62),
    "FEMNIST CNN, 460 k parameters": Case(CNN, (1, 28, 28), 62),
    "LSTM 64, 20 characters": Case(lambda: CharLSTM(units=64, layers=1), (20,), 80, tokens=80),
    "LSTM 2 x 256, 80 characters": Case(CharLSTM, (80,), 80, tokens=80),
}


def measure(case: Case, device: torch.device) -> tuple[dict[str, float], str]:
    """Median milliseconds a round on each engine, and the engine that "auto" takes."""
    torch.manual_seed(0)
    count = CLIENTS * case.batch
    x = torch.randn(count, *case.shape) if case.tokens is None else torch.randint(0, case.tokens, (count, *case.shape))
    fed = eh.Federation(eh.Part(x, torch.randint(0, case.classes, (count,)), torch.arange(CLIENTS + 1) * case.batch))
    model = eh.Model(case.build()).to(device)
    model.check(fed)
    census, algorithm, local = fed.census(), eh.FedAvg(), eh.LocalSGD(lr=0.01, steps=1, batch_size=case.batch)
    draw = eh.Full().draw(census, 0, 0)
    state = algorithm.init({key: value.cpu() for key, value in model.init().items()}, census)
    task, work = with_round(algorithm.task(state, draw.ids), draw, 0.01), Train(algorithm, local)
    attached = {"loop": eh.Loop().attach(model, fed, 0), "vmap": eh.Vmap().attach(model, fed, 0)}

    def seconds(key: str, round: int) -> float:
        begin = time.perf_counter()
        attached[key].exchange(work, task, draw.ids, round)  # replies come back to the CPU: nothing is left running on a GPU
        return time.perf_counter() - begin

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    print(describe(), "" if device.type == "cpu" else torch.cuda.get_device_name(device))
    print("| model | loop, ms | vmap, ms | loop / vmap | auto |\n|---|---|---|---|---|")
    for name, case in CASES.items():
        medians, auto = measure(case, device)
        print(f"| {name} | {medians['loop']:.1f} | {medians['vmap']:.1f} | {medians['loop'] / medians['vmap']:.2f} | {auto} |", flush=True)


if __name__ == "__main__":
    main()
