"""How often intervals hold the truth: simulated test sets of clients whose accuracies are known.

    python -m benchmarks.coverage [--trials N]

Twenty clients, two groups with a true gap; every trial draws a test set, and intervals that should hold the truth in 95 % of the trials are
made from its counts by resampling samples. With 1000 trials a share of 95 % has a standard error of 0.7 points.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.machine import describe
from evenhand.audit import Audit
from evenhand.metrics import rates
from evenhand.metrics.counts import Counts
from evenhand.metrics.spread import SPREAD
from evenhand.metrics.uncertainty import wilson

CLIENTS, DRAWS = 20, 400
SHOWN = ("mean", "pooled", "worst10", "best10", "min", "std", "jain", "gini", "accuracy parity", "demographic parity", "equal opportunity")


def chances(rng: np.random.Generator, gap: float) -> np.ndarray:
    """(n, 2, 2, 3) the chance of each group, label and prediction on each client."""
    accuracy = rng.uniform(0.65, 0.9, CLIENTS)[:, None] + np.array([-gap / 2, gap / 2])  # (n, A)
    table = np.zeros((CLIENTS, 2, 2, 3))
    for label in (0, 1):
        table[:, :, label, label] = accuracy / 4
        table[:, :, label, 1 - label] = (1 - accuracy) / 4
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    print(f"{describe()}; {trials} trials\n\n| statistic | {' | '.join(f'{size} samples a client' for size in (50, 500))} |\n|---|---|---|")
    found: dict[str, list[float]] = {name: [] for name in (*SHOWN, "Wilson, one client")}
    for size in (50, 500):
        rng = np.random.default_rng(size)
        chance = chances(rng, gap=0.1)
        by_client = rates.accuracy(chance.sum(1))
        truth = {name: float(function(by_client)) for name, function in SPREAD.items()} | {"pooled": float(by_client.mean())}
        truth |= {"accuracy parity": 0.1, "demographic parity": 0.0, "equal opportunity": 0.1}
        hits = dict.fromkeys(found, 0.0)
        for trial in range(trials):
            table = rng.multinomial(size, chance.reshape(CLIENTS, -1)).reshape(chance.shape)
            counts = Counts(table, tuple(map(str, range(CLIENTS))), ("f", "m"), ("no", "yes"))
            judged = Audit(counts, draws=DRAWS, seed=trial)
            intervals = judged.across_clients() | judged.across_groups()
            for name in SHOWN:
                hits[name] += intervals[name].low <= truth[name] <= intervals[name].high
            low, high = wilson(np.einsum("nayy->n", table[..., :-1]), table.sum((1, 2, 3)))
            hits["Wilson, one client"] += float(((low <= by_client) & (by_client <= high)).mean())
        for name in found:
            found[name].append(100 * hits[name] / trials)
    for name, shares in found.items():
        print(f"| {name} | {' | '.join(f'{share:.1f} %' for share in shares)} |")


if __name__ == "__main__":
    main()
