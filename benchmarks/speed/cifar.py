"""pfl's CIFAR-10 benchmark, end to end.

1500 rounds, 50 of 1000 clients with 50 images each, batches of 10, one epoch, evaluated on 10,000
images every 10 rounds. Images are made up: the work is the same. The clock starts after the rounds
in which functions are traced, compiled and captured, and stops when the result is there. pfl runs
ten rounds after each of our runs, and its mean round is extrapolated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import evenhand as eh
from benchmarks.machine import peak_memory, synchronise
from benchmarks.speed import floors, peers
from benchmarks.speed.figures import Figure, Options
from benchmarks.speed.ours import engine, federation_of, images
from evenhand.models import CNN
from evenhand.models.cnn import VARIANTS

CLIENTS, SAMPLES, COHORT, BATCH, LR, EVERY, ROUNDS = 1000, 50, 50, 10, 0.1, 10, 1500
TESTED = 10_000
WARM_UP = 60  # rounds; the sixth evaluation finds everything compiled
SHAPE = "pfl CIFAR-10, 1500 rounds"


def cifar(options: Options) -> Iterator[Figure]:
    """Seconds end to end in every precision, and pfl's, from so many rounds as are between them."""
    rounds, clients = (
        (ROUNDS, CLIENTS) if not options.quick else (100, CLIENTS) if options.cuda else (10, COHORT)
    )
    warm_up = WARM_UP if options.cuda else 1
    fed, module = problem(clients)
    peer = None
    if options.peers and peers.have("pfl"):
        peer = peers.Pfl(
            module,
            fed,
            cohort=COHORT,
            lr=LR,
            batch=BATCH,
            device=options.device,
            evaluate_every=EVERY,
        )
    turns: list[float] = []
    found: dict[str, dict[str, Any]] = {}
    for precision in options.precisions:
        settings = run_settings(options, precision)
        if options.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 1e9 if options.cuda else 0.0
        stamps = [time.perf_counter()]

        def warmed_up(done: int, _: object, stamps: list[float] = stamps) -> None:
            if done == warm_up:
                synchronise(options.device)
                stamps.append(time.perf_counter())

        history = eh.fit(
            module, fed, eh.FedAvg(), rounds=warm_up + rounds, progress=warmed_up, **settings
        ).history_rows
        synchronise(options.device)
        warm, own = stamps[1] - stamps[0], time.perf_counter() - stamps[1]
        accuracy, answered = history[-1]["mean"], sum(int(row["answered"]) for row in history)
        note = f"accuracy {accuracy:.3f}" + (
            "" if answered == COHORT * (warm_up + rounds) else f", only {answered} replies"
        )
        found[precision] = {
            "ours": own * ROUNDS / rounds,
            "warm_up": warm,
            "memory": peak_memory(options.device) - before,
            "note": note,
        }
        if peer is not None:
            turns.append(statistics.mean(peer.rounds(EVERY)))
    theirs = statistics.median(turns) * ROUNDS if turns else None
    for precision, values in found.items():
        floor = ROUNDS * floors.of_round(
            module, fed.train.x[:BATCH], COHORT, SAMPLES // BATCH, options.device, precision
        )
        bars: dict[str, Any] = (
            {"least": 80, "limit": 9 if precision == "bf16" else 14}
            if options.cuda and precision != "fp32"
            else {}
        )
        yield Figure(
            f"{SHAPE}, {precision}",
            "s",
            peer="pfl, extrapolated",
            theirs=theirs,
            floor=floor,
            **bars,
            **values,
        )


def problem(clients: int = CLIENTS) -> tuple[eh.Federation, nn.Module]:
    """Made-up images of CIFAR-10's shape, and the benchmark's network."""
    tested = clients * TESTED // CLIENTS
    fed = federation_of(
        *images(clients * SAMPLES, (3, 32, 32), 10),
        clients,
        test=images(tested, (3, 32, 32), 10, seed=2),
    )
    torch.manual_seed(0)
    return fed, CNN((3, 32, 32), 10, **VARIANTS["pfl"])


def run_settings(options: Options, precision: str) -> dict[str, Any]:
    return {
        "local": eh.LocalSGD(lr=LR, epochs=1, batch_size=BATCH),
        "cohort": eh.Uniform(COHORT),
        "engine": engine(options),
        "device": options.device,
        "eval_every": EVERY,
        "precision": precision,
    }
