"""Twenty values of q x five seeds of QFFL trained together, beside one run.

100 clients of 50 samples, ten a round, batches of 10, one epoch, 100 rounds, evaluated ten times on
ten test samples a client. Whole calls are timed, evaluation and results included; the first call of
each kind is warm-up, then one run and the hundred together take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import evenhand as eh
from benchmarks.machine import peak_memory, seconds
from benchmarks.speed.figures import Figure, Options
from benchmarks.speed.ours import federation_of, images
from evenhand.models import CNN

VALUES, SEEDS = 20, 5
CLIENTS, SAMPLES, TESTED, ROUNDS, TURNS = 100, 50, 10, 100, 3


def sweep(options: Options) -> Iterator[Figure]:
    """Logistic regression, and a small CNN."""
    torch.manual_seed(0)
    for precision in options.precisions:
        yield measure(
            "logistic 784 -> 10",
            nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
            10,
            5.0,
            options,
            precision,
        )
        yield measure(
            "CNN 8/16, dense 64", CNN(channels=(8, 16), hidden=(64,)), 62, 8.0, options, precision
        )


def measure(
    name: str, module: nn.Module, classes: int, most: float, options: Options, precision: str
) -> Figure:
    """Seconds of a call for all runs, and of one for a single run."""
    shape, rounds = (1, 28, 28), 10 if options.quick else ROUNDS
    fed = federation_of(
        *images(CLIENTS * SAMPLES, shape, classes),
        CLIENTS,
        test=images(CLIENTS * TESTED, shape, classes, seed=2),
    )
    local = eh.LocalSGD(lr=0.05, epochs=1, batch_size=10)
    settings: dict[str, Any] = {
        "rounds": rounds,
        "cohort": eh.Uniform(10),
        "eval_every": rounds // 10,
        "device": options.device,
    }
    settings |= {"engine": eh.Vmap() if options.cuda else options.engine, "precision": precision}
    values = [0.1 * (i + 1) for i in range(VALUES)]
    runs = [eh.Run(eh.QFFL(q=q), seed=seed, local=local) for q in values for seed in range(SEEDS)]

    def together() -> None:
        eh.fit_many(module, fed, runs, **settings)

    def one() -> None:
        eh.fit(module, fed, eh.QFFL(q=1.0), local=local, **settings)

    first = seconds(together, options.device) + seconds(one, options.device)
    if options.cuda:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() / 1e9 if options.cuda else 0.0
    times = [
        (seconds(together, options.device), seconds(one, options.device))
        for _ in range(1 if options.quick else TURNS)
    ]
    many, single = (statistics.median(column) for column in zip(*times, strict=True))
    return Figure(
        f"sweep of {VALUES} values x {SEEDS} seeds, {name}, {rounds} rounds, {precision}",
        "s",
        many,
        peer="one run",
        theirs=single,
        most=most if options.cuda else float("inf"),
        memory=peak_memory(options.device) - before,
        warm_up=max(0.0, first - many - single),
        note=f"one by one {100 * single:.1f} s, {100 * single / many:.1f} times as much",
    )
