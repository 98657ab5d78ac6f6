"""A million clients: time to load, memory, and what a round of 1000 clients costs as the population grows.

    python -m benchmarks.population [--check]

Logistic regression on 20 features, one to five samples a client, batches of two, FedAvg. Each population runs in a process of its
own, for its peak memory; the processes take turns, and the median round of all turns is shown. --check fails where a million
clients take more than 10 s or 4 GB to load, or their rounds more than 1.25 times those of the smallest population.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

from benchmarks.machine import describe

POPULATIONS = (10_000, 100_000, 1_000_000)
ROUNDS, TURNS = 60, 3


def measure(clients: int) -> dict[str, float]:
    """Seconds to load, milliseconds of each round after the first few, peak memory in GB."""
    import evenhand as eh

    begin = time.perf_counter()
    federation = eh.datasets.population(clients=clients, samples=(1, 5))
    loaded = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    stamps: list[float] = []
    torch.manual_seed(0)
    eh.fit(
        nn.Linear(20, 2),
        federation,
        eh.FedAvg(),
        rounds=ROUNDS,
        local=eh.LocalSGD(lr=0.1, batch_size=2),
        cohort=eh.Uniform(1000),
        eval_every=ROUNDS,
        progress=lambda *_: stamps.append(time.perf_counter()),
    )
    rounds = [1e3 * (b - a) for a, b in itertools.pairwise(stamps)][5:-1]  # the last one evaluates everyone
    judged = stamps[-1] - stamps[-2]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"load": loaded, "memory": memory, "round": statistics.median(rounds), "evaluation": judged, "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # a single population, for the processes below
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    turns: dict[int, list[dict[str, float]]] = {clients: [] for clients in POPULATIONS}
    for _ in range(TURNS):
        for clients, found in turns.items():
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.population", "--one", str(clients)], capture_output=True, text=True, check=True
            )
            found.append(json.loads(done.stdout))
    print(f"{describe()}\n")
    print("| clients | load, s | memory then, GB | round of 1000, ms | evaluating everyone, s | peak memory, GB |")
    print("|---|---|---|---|---|---|")
    rows = {clients: {key: statistics.median(turn[key] for turn in found) for key in found[0]} for clients, found in turns.items()}
    for clients, row in rows.items():
        cells = f"{row['load']:.2f} | {row['memory']:.2f} | {row['round']:.1f} | {row['evaluation']:.2f} | {row['peak']:.2f}"
        print(f"| {clients:,} | {cells} |")
    largest, smallest = rows[POPULATIONS[-1]], rows[POPULATIONS[0]]
    ratio = largest["round"] / smallest["round"]
    print(f"\nA round among {POPULATIONS[-1]:,} clients takes {ratio:.2f} times one among {POPULATIONS[0]:,}.")
    if arguments.check and (largest["load"] > 10 or largest["peak"] > 4 or ratio > 1.25):
        sys.exit("not reached: 10 s and 4 GB for a million clients, 1.25 times the round of the smallest population")


if __name__ == "__main__":
    main()
