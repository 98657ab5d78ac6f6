"""Processor time of a local step of a small or a larger CNN, 10 clients x 32, beside a plain loop
on one thread, in turns: for a machine that others use, where seconds say little.

    python -m benchmarks.speed.processor larger [--engine vmap] [--rounds 6]

One model in a process, since what freed memory costs depends on what the process did before. New
pages: how many of 4 kB the system clears for a step, when memory that was freed is taken anew.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from typing import Any

import torch

import evenhand as eh
from benchmarks.machine import describe
from benchmarks.speed import peers
from benchmarks.speed.ours import federation_of, images
from evenhand.models import CNN

STEPS, CLIENTS, BATCH, WARM_UP, LR = 5, 10, 32, 4, 0.01
MODELS = {"small": ((8, 16), (64,)), "larger": ((32, 64), (128,))}  # channels, hidden


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.processor")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--engine", default="vmap")
    parser.add_argument("--rounds", type=int, default=6)
    asked = parser.parse_args()
    device = torch.device("cpu")
    print(f"{describe(device)}\n\n| model | plain loop, ms | evenhand, ms | ratio | new pages |")
    print("|---|---|---|---|---|", flush=True)
    channels, hidden = MODELS[asked.model]
    torch.manual_seed(0)
    module = CNN(channels=channels, hidden=hidden)
    theirs, ours, pages = measured(module, asked.engine, asked.rounds)
    print(f"| {asked.model} | {theirs:.1f} | {ours:.1f} | {theirs / ours:.2f}x | {pages:.0f} |")


def measured(module: CNN, engine: str, rounds: int) -> tuple[float, float, float]:
    """Medians for a step: milliseconds of the plain loop and of evenhand, and new pages."""
    federation = federation_of(*images(CLIENTS * BATCH * STEPS, (1, 28, 28), 62), CLIENTS)
    plain = peers.PlainLoop(module, LR, torch.device("cpu"))
    batches = [
        list(zip(*(values.split(BATCH) for values in federation.train.client(i)[:2]), strict=True))
        for i in range(CLIENTS)
    ]
    ours: list[tuple[float, int]] = []
    theirs: list[float] = []
    before = _used()

    def after_round(done: int, row: dict[str, Any]) -> None:
        nonlocal before
        now = _used()
        if WARM_UP < done <= WARM_UP + rounds:
            ours.append((now[0] - before[0], now[1] - before[1]))
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            plain.round(batches)
            torch.set_num_threads(threads)
            theirs.append(_used()[0] - now[0])
        before = _used()

    eh.fit(
        module,
        federation,
        eh.FedAvg(),
        rounds=WARM_UP + rounds + 1,
        eval_every=WARM_UP + rounds + 1,
        progress=after_round,
        local=eh.LocalSGD(lr=LR, steps=STEPS, batch_size=BATCH),
        engine=engine,
    )
    seconds, pages = (statistics.median(values) / STEPS for values in zip(*ours, strict=True))
    return 1e3 * statistics.median(theirs) / STEPS, 1e3 * seconds, pages


def _used() -> tuple[float, int]:
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    main()
