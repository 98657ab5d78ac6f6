"""Milliseconds a round of logistic regression 784 -> 10: 1000 clients of 50 samples, batches of 10,
one epoch, 2 to 100 clients a round.

The plain loop is what a careful user writes first: for every client a deep copy of the model, a
DataLoader, an optimiser, then a mean. Its rounds, pfl's and evenhand's alternate in one process;
Flower's simulation has its turn afterwards, in a process of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

import evenhand as eh
from benchmarks.speed import floors, peers
from benchmarks.speed.figures import Figure, Options
from benchmarks.speed.ours import federation_of, run_rounds

CLIENTS, SAMPLES, FEATURES, CLASSES, BATCH, LR = 1000, 50, 784, 10, 10, 0.1
WARM_UP, MEASURED = 20, {2: 64, 10: 64, 50: 32, 100: 32}  # rounds
BARS = {
    2: {"pfl": 10.0, "Flower": 100.0},
    10: {"plain loop": 8.0, "pfl": 10.0, "Flower": 100.0},
    50: {"pfl": 10.0, "Flower": 100.0},
    100: {"plain loop": 7.0},
}
LIMITS = {10: 2.0}  # ms a round


def federation() -> eh.Federation:
    """Normal features and random labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * SAMPLES, FEATURES, generator=generator)
    return federation_of(
        x, torch.randint(0, CLASSES, (CLIENTS * SAMPLES,), generator=generator), CLIENTS
    )


def logistic(options: Options) -> Iterator[Figure]:
    """Beside a plain loop, pfl and Flower."""
    fed = federation()
    batches = peers.Loaded(fed, BATCH)
    for cohort, bars in BARS.items():
        torch.manual_seed(0)
        module = torch.nn.Linear(FEATURES, CLASSES)
        loop = peers.PlainLoop(module, LR, options.device)
        pfl = None
        if "pfl" in bars and options.peers and peers.have("pfl"):
            pfl = peers.Pfl(module, fed, cohort=cohort, lr=LR, batch=BATCH, device=options.device)
        rng = np.random.default_rng(0)

        def plain(
            loop: peers.PlainLoop = loop, rng: np.random.Generator = rng, cohort: int = cohort
        ) -> list[float]:
            return [
                loop.round(
                    [batches(client) for client in rng.choice(CLIENTS, cohort, replace=False)]
                )
            ]

        turns = {"plain loop": peers.Turns(plain, options.device)}
        if pfl is not None:
            turns["pfl"] = peers.Turns(partial(pfl.rounds, 1), options.device)
        ours = run_rounds(
            module,
            fed,
            eh.FedAvg(),
            options,
            warm_up=WARM_UP,
            measured=10 if options.quick else MEASURED[cohort],
            between=[peer.take for peer in turns.values()] if options.peers else (),
            local=eh.LocalSGD(lr=LR, epochs=1, batch_size=BATCH),
            cohort=eh.Uniform(cohort),
        )
        theirs = {peer: turn.median for peer, turn in turns.items()}
        if (
            "Flower" in bars
            and options.peers
            and not options.cuda
            and peers.have("flwr")
            and peers.have("ray")
        ):
            theirs["Flower"] = statistics.median(
                peers.flower_rounds(CLIENTS, cohort, 3 if options.quick else 10)
            )
        floor = 1e3 * floors.of_round(
            module, fed.train.x[:BATCH], cohort, SAMPLES // BATCH, options.device
        )
        shape = f"logistic 784 -> 10, {cohort} of {CLIENTS:,} clients x {BATCH}"
        figure = Figure(
            shape,
            "ms a round",
            1e3 * ours.median,
            floor=floor,
            memory=ours.memory,
            warm_up=ours.warm_up,
        )
        for peer, least in bars.items():
            found = theirs.get(peer)
            yield replace(
                figure,
                peer=peer,
                theirs=None if found is None else 1e3 * found,
                least=None if options.cuda else least,
                limit=None if options.cuda else LIMITS.get(cohort),
            )
