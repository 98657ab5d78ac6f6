"""A million clients: time to load, memory, and what a round of 1000 clients costs as the population
grows.

    python -m benchmarks.population [--device cuda] [--check] [--quick] [--json FILE]

Logistic regression on 20 features, one to five samples a client, batches of two, FedAvg. Each
population runs in a process of its own, for its peak memory; the processes take turns, and the
median of all turns is shown, each the typical round of its process. --check fails where a million
clients take more than 10 s to load, their rounds more than 1.10 times those of the smallest
population, or a population more than 1 GB (on a CPU) until the end, with the result.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.machine import describe, peak_memory, synchronise, typical

POPULATIONS = (10_000, 100_000, 1_000_000)
ROUNDS, SKIPPED, TURNS = 85, 20, 3
MOST_SECONDS, MOST_MEMORY, MOST_RATIO = 10.0, 1.0, 1.10


def measure(clients: int, device: torch.device) -> dict[str, float]:
    """Seconds to load, milliseconds of a round after the first few, peak memory in GB of the
    process and on a graphics processor."""
    import evenhand as eh

    begin = time.perf_counter()
    federation = eh.datasets.population(clients=clients, samples=(1, 5))
    loaded = time.perf_counter() - begin
    memory = peak_memory("cpu")
    stamps: list[float] = []

    def after_round(done: int, row: dict[str, object]) -> None:
        synchronise(device)
        stamps.append(time.perf_counter())

    torch.manual_seed(0)
    eh.fit(
        nn.Linear(20, 2),
        federation,
        eh.FedAvg(),
        rounds=ROUNDS,
        local=eh.LocalSGD(lr=0.1, batch_size=2),
        cohort=eh.Uniform(1000),
        eval_every=ROUNDS,
        device=device,
        progress=after_round,
    )
    # the last one evaluates everyone
    rounds = [1e3 * (b - a) for a, b in itertools.pairwise(stamps)][SKIPPED:-1]
    found = {
        "load": loaded,
        "memory": memory,
        "round": typical(rounds, device),
        "evaluation": stamps[-1] - stamps[-2],
    }
    return found | {
        "peak": peak_memory("cpu"),
        "device": peak_memory(device) if device.type == "cuda" else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--check", action="store_true")
    parser.add_argument(
        "--quick", action="store_true", help="one turn, without the population in the middle"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    # a single population, for the processes below
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if arguments.one:
        print(json.dumps(measure(arguments.one, device)))
        return
    turns: dict[int, list[dict[str, float]]] = {
        clients: [] for clients in POPULATIONS[:: 2 if arguments.quick else 1]
    }
    for _ in range(1 if arguments.quick else TURNS):
        for clients, found in turns.items():
            command = [
                sys.executable,
                "-m",
                "benchmarks.population",
                "--one",
                str(clients),
                "--device",
                arguments.device,
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    print(f"{describe(device)}\n")
    print(
        "| clients | load, s | memory then, GB | round of 1000, ms | evaluating everyone, s | peak"
        " memory, GB | on the device, GB |"
    )
    print("|---|---|---|---|---|---|---|")
    rows = {
        clients: {key: statistics.median(turn[key] for turn in found) for key in found[0]}
        for clients, found in turns.items()
    }
    for clients, row in rows.items():
        cells = " | ".join(
            f"{row[key]:.2f}" for key in ("load", "memory", "round", "evaluation", "peak", "device")
        )
        print(f"| {clients:,} | {cells} |")
    largest, smallest = rows[POPULATIONS[-1]], rows[POPULATIONS[0]]
    ratio = largest["round"] / smallest["round"]
    print(
        f"\nA round among {POPULATIONS[-1]:,} clients takes {ratio:.2f} times one among"
        f" {POPULATIONS[0]:,}."
    )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": describe(device), "rows": rows, "ratio": ratio}, indent=1)
        )
    # CUDA's libraries alone take gigabytes
    heavy = device.type == "cpu" and max(row["peak"] for row in rows.values()) > MOST_MEMORY
    if arguments.check and (largest["load"] > MOST_SECONDS or heavy or ratio > MOST_RATIO):
        limits = (
            f"{MOST_SECONDS:g} s to load, {MOST_MEMORY:g} GB with the result, and {MOST_RATIO:.2f}"
            " times the round of the smallest population"
        )
        sys.exit(f"not reached: {limits}")


if __name__ == "__main__":
    main()
