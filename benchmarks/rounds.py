"""Time per round: evenhand's stacking engine against a plain PyTorch loop, alternating in one process.

    python -m benchmarks.rounds            # prints a table
    python -m benchmarks.rounds --check    # fails where a ratio is below its bar

Shape: logistic regression 784 -> 10, 1000 clients of 50 samples, batch 10, one epoch, 10 or 100 clients a round. The peer is
what a careful user writes first: for every client a deep copy of the model, a DataLoader, an optimiser, then a weighted mean.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import evenhand as eh
from benchmarks.machine import describe

CLIENTS, SAMPLES, FEATURES, CLASSES, BATCH, LR = 1000, 50, 784, 10, 10, 0.1
BARS = {10: 3.0, 100: 7.0}
WARM_UP, MEASURED = 140, 60  # rounds; the engine traces an operation when it has come up 120 times


def federation() -> eh.Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * SAMPLES, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (CLIENTS * SAMPLES,), generator=generator)
    return eh.Federation(train=eh.Part(x=x, y=y, offsets=torch.arange(CLIENTS + 1) * SAMPLES))


def plain_round(module: torch.nn.Module, datasets: list[TensorDataset], chosen: np.ndarray) -> None:
    """One round of federated averaging, client by client."""
    total = {key: torch.zeros_like(value) for key, value in module.state_dict().items()}
    for client in chosen:
        local = copy.deepcopy(module)
        optimiser = torch.optim.SGD(local.parameters(), lr=LR)
        for x, y in DataLoader(datasets[client], batch_size=BATCH, shuffle=True):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(local(x), y).backward()
            optimiser.step()
        for key, value in local.state_dict().items():
            total[key] += value / len(chosen)
    module.load_state_dict(total)


def measure(cohort: int) -> tuple[float, float]:
    """Median seconds a round: evenhand, plain loop."""
    fed = federation()
    datasets = [TensorDataset(*fed.train.client(i)[:2]) for i in range(CLIENTS)]
    module = torch.nn.Linear(FEATURES, CLASSES)
    peer = copy.deepcopy(module)
    rng = np.random.default_rng(0)
    ours: list[float] = []
    plain: list[float] = []
    clock = [time.perf_counter()]

    def after_round(done: int, row: dict[str, object]) -> None:
        now = time.perf_counter()
        if done > WARM_UP:
            ours.append(now - clock[0])
            chosen = rng.choice(CLIENTS, cohort, replace=False)
            begin = time.perf_counter()
            plain_round(peer, datasets, chosen)
            plain.append(time.perf_counter() - begin)
        clock[0] = time.perf_counter()

    rounds = WARM_UP + MEASURED + 1
    local = eh.LocalSGD(lr=LR, epochs=1, batch_size=BATCH)
    settings = {"rounds": rounds, "local": local, "cohort": eh.Uniform(cohort), "eval_every": rounds}
    eh.fit(module, fed, eh.FedAvg(), engine="vmap", progress=after_round, **settings)
    return statistics.median(ours[:-1]), statistics.median(plain[:-1])  # the last round also evaluates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where a ratio is below its bar")
    arguments = parser.parse_args()
    print(describe())
    print("| clients a round | plain loop, ms | evenhand vmap, ms | times faster | bar |\n|---|---|---|---|---|")
    failed = False
    for cohort, bar in BARS.items():
        ours, plain = measure(cohort)
        print(f"| {cohort} | {plain * 1e3:.1f} | {ours * 1e3:.2f} | {plain / ours:.1f} | {bar:g} |", flush=True)
        failed |= plain / ours < bar
    sys.exit("a ratio is below its bar" if arguments.check and failed else 0)


if __name__ == "__main__":
    main()
