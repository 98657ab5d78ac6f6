"""How often intervals hold the truth: simulated test sets of clients whose true accuracies are
known.

    python -m benchmarks.coverage [--trials N] [--part NAME ...] [--cells]
    python -m benchmarks.coverage --trials 300 --part groups calibration ceiling near_identical

Every trial draws clients of some situation and a test set of each, makes intervals of 95 % from it,
and looks whether they hold the truth. A table has the mean over numbers of clients and samples and,
in brackets, the smallest and the largest share among them; --cells prints them one by one. Cells
where fewer than a third of trials give an interval, for want of samples, are left out. With 100
trials a share of 95 % has a standard error of 2.2 points, so the smallest of twenty is about 91 %
even where all are 95 %. From 300 trials on, every cell outside of 92 to 99 % is printed with the
reason.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # there is a process for each core

import numpy as np

from benchmarks import coverage_groups
from benchmarks.machine import describe
from evenhand.metrics.across import OF_SHARES, accuracy_intervals, merit_intervals
from evenhand.metrics.group_rates import group_gaps
from evenhand.metrics.ledger import Gains
from evenhand.metrics.spread import SPREAD
from evenhand.metrics.trials import trials as on_same_samples
from evenhand.metrics.uncertainty import wilson

DRAWS = 400
TOGETHER = 0.7  # the share of samples on which two models are lucky or unlucky together
Ends = dict[str, tuple[float, float, float]]  # low, truth, high of each number

SIZES: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "10": lambda n, rng: np.full(n, 10),
    "20": lambda n, rng: np.full(n, 20),
    "25": lambda n, rng: np.full(n, 25),
    "50": lambda n, rng: np.full(n, 50),
    "100": lambda n, rng: np.full(n, 100),
    "200": lambda n, rng: np.full(n, 200),
    "500": lambda n, rng: np.full(n, 500),
    "mixed": lambda n, rng: np.exp(rng.uniform(np.log(5), np.log(1000), n)).astype(int),
}
SITUATIONS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "equal": lambda n, rng: np.full(n, 0.8),
    "similar": lambda n, rng: rng.beta(48, 12, n),  # 80 %, standard deviation 5 points
    "spread": lambda n, rng: rng.uniform(0.6, 0.95, n),
    "near 100 %": lambda n, rng: rng.beta(29, 1, n),  # 97 %, standard deviation 3 points
    "two kinds": lambda n, rng: np.where(rng.random(n) < 0.1, 0.5, 0.9),
    "one bad": lambda n, rng: np.concatenate([[0.4], rng.beta(85, 15, n - 1)]),
}


# these had no part in choosing the model's constants
UNSEEN: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "wide": lambda n, rng: rng.beta(2, 1, n),  # 67 %, standard deviation 24 points
    "three levels": lambda n, rng: rng.choice([0.55, 0.7, 0.88], n, p=[0.2, 0.5, 0.3]),
    "a long tail": lambda n, rng: (
        1 - np.clip(0.05 * np.exp(0.8 * rng.standard_normal(n)), 0, 0.9)
    ),  # 5 % wrong in the median, up to ten times that
}


CEILING: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "95 to 100 %": lambda n, rng: rng.uniform(0.95, 1, n),
    "some perfect": lambda n, rng: np.minimum(rng.uniform(0.95, 1.03, n), 1),
    "half perfect": lambda n, rng: rng.choice([0.95, 1.0], n),
}


class Cell(NamedTuple):
    """What is simulated together; of groups, ``clients`` is their number."""

    part: str
    situation: str
    clients: int
    size: str


def held(found: dict[str, tuple[float, float, float]], truth: dict[str, float]) -> Ends:
    return {
        name: (interval[1], truth[name], interval[2])
        for name, interval in found.items()
        if name in truth
    }


def accuracies(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """Numbers across the clients at hand."""
    return of_these(
        (SITUATIONS | UNSEEN | CEILING)[cell.situation](cell.clients, rng),
        SIZES[cell.size](cell.clients, rng),
        rng,
        seed,
    )


def by_size(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """The same, where accuracy rises from 65 to 90 % with the logarithm of a client's samples, give
    or take 3 points."""
    samples = SIZES["mixed"](cell.clients, rng)
    accuracy = (
        0.65 + 0.25 * np.log(samples / 5) / np.log(200) + 0.03 * rng.standard_normal(cell.clients)
    )
    return of_these(np.clip(accuracy, 0, 1), samples, rng, seed)


def of_these(
    accuracy: np.ndarray, samples: np.ndarray, rng: np.random.Generator, seed: int
) -> Ends:
    truth = {name: float(function(accuracy)) for name, function in SPREAD.items()} | {
        "pooled": float(accuracy @ samples / samples.sum())
    }
    return held(
        accuracy_intervals(rng.binomial(samples, accuracy), samples, "samples", DRAWS, 0.95, seed),
        truth,
    )


def populations(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """Numbers across endlessly many clients like these."""
    accuracy = SITUATIONS[cell.situation](cell.clients, rng)
    samples = SIZES[cell.size](cell.clients, rng)
    everyone = SITUATIONS[cell.situation](200_000, np.random.default_rng(0))
    truth = {
        name: float(function(everyone))
        for name, function in SPREAD.items()
        if name not in ("min", "max")
    }
    truth |= {
        "pooled": truth["mean"],
        "entropy": 1
        - (1 - truth["entropy"]) * np.log(len(everyone)) / np.log(max(2, cell.clients)),
    }
    return held(
        accuracy_intervals(rng.binomial(samples, accuracy), samples, "both", DRAWS, 0.95, seed),
        truth,
    )


def errors(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """Numbers across clients' root mean squared errors, of normal errors."""
    root = 1.2 - SITUATIONS[cell.situation](cell.clients, rng)
    samples = SIZES[cell.size](cell.clients, rng)
    client = np.repeat(np.arange(cell.clients), samples)
    truth = {
        name: float(function(root if name in OF_SHARES else -root))
        for name, function in SPREAD.items()
    }
    truth["pooled"] = -float(np.sqrt(root**2 @ samples / samples.sum()))
    square = (rng.standard_normal(len(client)) * root[client]) ** 2
    return held(
        merit_intervals(square, client, cell.clients, True, "samples", DRAWS, 0.95, seed), truth
    )


def two_models(cell: Cell, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two models' accuracies (n, 2), the second nearer to the mean and a point below; right or
    wrong (N, 2), and clients (N,)."""
    first = SITUATIONS[cell.situation](cell.clients, rng)
    accuracy = np.stack([first, first.mean() - 0.01 + 0.6 * (first - first.mean())], 1)
    client = np.repeat(np.arange(cell.clients), SIZES[cell.size](cell.clients, rng))
    luck = rng.random((len(client), 2))
    luck[:, 1] = np.where(rng.random(len(client)) < TOGETHER, luck[:, 0], luck[:, 1])
    return accuracy, (luck < accuracy[client]).astype(np.float64), client


def differences(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """Differences of two models on the same samples, in numbers across clients."""
    accuracy, right, client = two_models(cell, rng)
    both = on_same_samples(right, client, cell.clients, False, "samples", DRAWS, 0.95, seed)
    return held(
        {name: both.combined(name, (1, -1))[0] for name in SPREAD},
        {name: float(f(accuracy[:, 0]) - f(accuracy[:, 1])) for name, f in SPREAD.items()},
    )


def near_identical(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """Differences of two models that are right or wrong together on 19 of 20 samples, near the
    ceiling; clients' accuracies differ by half a point."""
    first = CEILING[cell.situation](cell.clients, rng)
    accuracy = np.stack([first, np.clip(first + rng.normal(0, 0.005, cell.clients), 0, 1)], 1)
    client = np.repeat(np.arange(cell.clients), SIZES[cell.size](cell.clients, rng))
    luck = rng.random((len(client), 2))
    luck[:, 1] = np.where(rng.random(len(client)) < 0.95, luck[:, 0], luck[:, 1])
    right = (luck < accuracy[client]).astype(np.float64)
    both = on_same_samples(right, client, cell.clients, False, "samples", DRAWS, 0.95, seed)
    return held(
        {name: both.combined(name, (1, -1))[0] for name in SPREAD},
        {name: float(f(accuracy[:, 0]) - f(accuracy[:, 1])) for name, f in SPREAD.items()},
    )


def groups(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """Gaps between groups of 40 and 145 samples, or of 600, 200, 40 and 15."""
    return held(*coverage_groups.rate_gaps(cell.situation, cell.clients, cell.size, rng))


def calibration(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """The gap between the same groups in calibration errors."""
    return held(*coverage_groups.calibration(cell.situation, cell.clients, cell.size, rng, seed))


def one_client(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """The accuracy of one client, and what it gains with one model in place of another."""
    accuracy, right, client = two_models(cell, rng)
    samples = np.bincount(client)
    low, high = wilson(np.bincount(client, right[:, 0]), samples)
    gains = Gains.of(right[:, :1] - right[:, 1:], client, cell.clients).judged()
    return {
        "accuracy of a client": (float(low[0]), float(accuracy[0, 0]), float(high[0])),
        "gain of a client": (
            float(gains.low[0]),
            float(accuracy[0, 0] - accuracy[0, 1]),
            float(gains.high[0]),
        ),
    }


def gaps(cell: Cell, rng: np.random.Generator, seed: int) -> Ends:
    """Gaps between two groups: 10 points of accuracy and of true-positive rates, 0 of selection
    rates."""
    n = cell.clients
    # (n, A)
    accuracy = (SITUATIONS[cell.situation](n, rng) - 0.06)[:, None] + np.array([-0.05, 0.05])
    table = np.zeros((n, 2, 2, 3))
    for label in (0, 1):
        table[:, :, label, label], table[:, :, label, 1 - label] = accuracy / 4, (1 - accuracy) / 4
    seen = rng.multinomial(SIZES[cell.size](n, rng), table.reshape(n, -1)).reshape(table.shape)
    found = group_gaps(seen.sum(0), ("f", "m"), ("no", "yes"), 1)
    return held(
        {kind: gap.interval for kind, gap in found.items()},
        {"accuracy parity": 0.1, "demographic parity": 0.0, "equal opportunity": 0.1},
    )


class Part(NamedTuple):
    trial: Callable[[Cell, np.random.Generator, int], Ends]
    situations: Sequence[str]
    clients: Sequence[int]
    sizes: Sequence[str]


PARTS = {
    "accuracies": Part(
        accuracies, tuple(SITUATIONS), (1, 2, 9, 20, 100, 1000), ("10", "50", "500", "mixed")
    ),
    "unseen": Part(accuracies, tuple(UNSEEN), (12, 40, 300), ("20", "200")),
    "by_size": Part(by_size, ("small are worse",), (20, 100), ("mixed",)),
    "populations": Part(populations, tuple(SITUATIONS)[:-1], (9, 20, 100), ("10", "50", "mixed")),
    "errors": Part(errors, tuple(SITUATIONS), (2, 20, 100), ("10", "50", "mixed")),
    "differences": Part(differences, tuple(SITUATIONS)[:4], (9, 20, 100), ("10", "50")),
    "one_client": Part(one_client, tuple(SITUATIONS), (2,), ("10", "50", "500")),
    "gaps": Part(gaps, ("equal", "similar", "spread"), (20,), ("10", "50", "500")),
    "groups": Part(groups, tuple(coverage_groups.RATES), (2, 4), tuple(coverage_groups.BASE)),
    "calibration": Part(
        calibration,
        tuple(coverage_groups.MISCALIBRATION),
        (2, 4),
        tuple(coverage_groups.BASE),
    ),
    "ceiling": Part(accuracies, tuple(CEILING), (25,), ("25", "100")),
    "near_identical": Part(near_identical, tuple(CEILING)[:2], (9, 25), ("25",)),
}
BAR, ENOUGH = (92, 99), 300  # %, from this many trials on
TOO_OFTEN = {
    "groups": "bands for all pairs at once, the upper end that of the widest pair",
    "calibration": "the lower end takes for chance all that can be, the upper end nothing",
    "ceiling": "bounds for single clients, or a truth at the end of what is possible",
    "near_identical": "models that differ by less than such samples can show",
    "differences": "half-widths of single clients' bounds are put together",
}
NOT_OFTEN = {
    "two kinds": "few samples cannot tell equal clients from somewhat different ones",
    "half perfect": "the unluckiest of equal clients are taken to be somewhat worse",
    "one bad": "the bad client may be a small one",
    "small are worse": "the model takes size to say nothing about accuracy",
}


def outside(cell: Cell, number: str, share: float, trials: int) -> str | None:
    """Why a cell is outside of the bar; None if it is not, or has too few trials."""
    if trials < ENOUGH or BAR[0] <= share <= BAR[1]:
        return None
    if share > BAR[1]:
        why = TOO_OFTEN.get(cell.part, "bounds that reach what cannot be ruled out, as equality")
    else:
        why = NOT_OFTEN.get(cell.situation, "not known: to be mended")
    where = f"{cell.part}, {cell.situation}, {cell.clients}, {cell.size}"
    return f"{share:5.1f} % of {trials}: {number} ({where}): {why}"


class Share(NamedTuple):
    """Of how many trials that gave an interval how many % held the truth."""

    percent: float
    trials: int


def covered(cell: Cell, trials: int) -> dict[str, Share]:
    """The share of each number."""
    part, hits, seen = PARTS[cell.part], dict[str, int](), dict[str, int]()
    rng = np.random.default_rng(
        [part.situations.index(cell.situation), cell.clients, part.sizes.index(cell.size)]
    )
    for trial in range(trials):
        for name, (low, truth, high) in part.trial(cell, rng, trial).items():
            if not np.isnan(low):
                seen[name] = seen.get(name, 0) + 1
                hits[name] = hits.get(name, 0) + (low - 1e-9 <= truth <= high + 1e-9)
    return {name: Share(100 * hits[name] / count, count) for name, count in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=40, help="for 1000 clients, a quarter of them"
    )
    parser.add_argument("--part", choices=PARTS, nargs="*", default=list(PARTS))
    parser.add_argument("--cells", action="store_true")
    arguments = parser.parse_args()
    print(f"{describe()}; {arguments.trials} trials")
    for name in arguments.part:
        report(name, arguments.trials, arguments.cells)


def report(name: str, most: int, one_by_one: bool) -> None:
    part, found = PARTS[name], dict[Cell, dict[str, Share]]()
    cells = [
        Cell(name, situation, n, size)
        for n in sorted(part.clients)[::-1]
        for size in (part.sizes if n < 1000 else ("10", "mixed"))
        for situation in part.situations
    ]
    asked = {cell: -(-most // (4 if cell.clients == 1000 else 1)) for cell in cells}
    with ProcessPoolExecutor() as pool:
        for cell, shares in zip(cells, pool.map(covered, cells, asked.values()), strict=True):
            found[cell] = shares
            if one_by_one:
                shown = "  ".join(f"{number} {one.percent:.0f}" for number, one in shares.items())
                print(
                    f"{name} {cell.situation:12s}{cell.clients:5d}{cell.size:>6s}  {shown}",
                    flush=True,
                )
    print(f"\n| {name} | {' | '.join(part.situations)} |\n|---|{'---|' * len(part.situations)}")
    for number in dict.fromkeys(number for shares in found.values() for number in shares):
        row = []
        for situation in part.situations:
            there = [
                shares[number].percent
                for cell, shares in found.items()
                if cell.situation == situation
                and number in shares
                and 3 * shares[number].trials >= asked[cell]
            ]
            row.append(
                f"{np.mean(there):.0f} ({min(there):.0f}-{max(there):.0f})" if there else "-"
            )
        print(f"| {number} | {' | '.join(row)} |", flush=True)
    for cell, shares in found.items():
        for number, one in shares.items():
            if why := outside(cell, number, *one):
                print(why, flush=True)


if __name__ == "__main__":
    main()
