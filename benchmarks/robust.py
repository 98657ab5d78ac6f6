"""What robust aggregation costs an honest minority, with and without attackers.

    python -m benchmarks.robust [--only NAME] [--out FILE]
    python -m benchmarks.robust --tables FILE

The first form trains (about ten minutes on one core) and writes a row per federation, method,
centre, attack and seed to FILE; both print the tables of docs/results/robust.md. Digits by writer
are looked for in $EVENHAND_DATA, else in the user's cache directory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import evenhand as eh
from benchmarks.attacks import Attacked
from benchmarks.machine import describe

Row = dict[str, Any]

METHODS: dict[str, eh.Algorithm] = {
    "FedAvg": eh.FedAvg(),
    "AFL": eh.AFL(lr_lambda=0.1),
    "AFL, capped": eh.LossGuard(cap=0.1, inner=eh.AFL(lr_lambda=0.1)),
    "q-FFL": eh.QFFL(q=1.0),
    "FAFL": eh.FAFL(alpha=0.3),
    "Agnostic FedAvg": eh.AgnosticFedAvg(lr_lambda=0.1),
}
CENTRES: dict[str, Callable[[eh.Algorithm], eh.Algorithm]] = {
    "mean": lambda method: method,
    "median": lambda method: eh.CoordinateMedian(inner=method),
    "trimmed 0.2": lambda method: eh.TrimmedMean(trim=0.2, inner=method),
    "geometric": lambda method: eh.GeometricMedian(inner=method),
}
FACTOR = -10.0  # what attackers multiply their update by


# ---- the federations: the minority's clients come last


def digits(seed: int) -> eh.Federation:
    """Twenty clients, five of them with rotated, noisy images."""
    return eh.datasets.digits(clients=20, seed=seed)


def writers(seed: int) -> eh.Federation:
    """Forty writers of MNIST: 32 of the staff and eight students, whose digits are harder to
    read."""
    everyone = eh.datasets.mnist_writers(flat=True, seed=seed)
    assert everyone.teams is not None
    teams = np.array(everyone.team_names)[everyone.teams.numpy()]
    rng = np.random.default_rng(seed)
    chosen = [
        int(client)
        for team, count in (("staff", 32), ("students", 8))
        for client in rng.choice(np.flatnonzero(teams == team), count, replace=False)
    ]

    def arrays(part: eh.Part | None) -> list[Row]:
        assert part is not None
        found = []
        for client in chosen:
            x, y, _ = part.client(client)
            group = np.full(len(y), teams[client])
            found.append({"x": x.numpy(), "y": y.numpy(), "group": group})
        return found

    train = [
        row | {"team": teams[client]}
        for row, client in zip(arrays(everyone.train), chosen, strict=True)
    ]
    return eh.Federation.from_arrays(train, test=arrays(everyone.test))


# name: how it is made, clients of the minority, attackers, rounds, step size, seeds
FEDERATIONS: dict[str, tuple[Callable[[int], eh.Federation], int, int, int, float, int]] = {
    "digits": (digits, 5, 2, 150, 0.2, 3),
    "writers": (writers, 8, 4, 60, 0.1, 2),
}


# ---- training


def runs(name: str, seed: int) -> Iterator[Row]:
    """Train every method with every centre, and yield a row for each."""
    make, minority, attackers, rounds, lr, _ = FEDERATIONS[name]
    fed = make(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = torch.nn.Linear(fed.train.x.shape[1], 10)
    bad = tuple(np.random.default_rng(seed).permutation(fed.clients - minority)[:attackers])
    bad = tuple(int(client) for client in bad)
    for method, algorithm in METHODS.items():
        for centre, wrap in CENTRES.items():
            for attack in (False, True):
                begin = time.process_time()
                robust = wrap(algorithm)
                result = eh.fit(
                    module,
                    fed,
                    Attacked(bad, FACTOR, robust) if attack else robust,
                    rounds=rounds,
                    local=eh.LocalSGD(lr=lr, epochs=1, batch_size=16),
                    seed=seed,
                    eval_every=rounds,
                )
                found = scores(result, minority, bad)
                seconds = time.process_time() - begin
                fixed = {"federation": name, "method": method, "centre": centre}
                yield {**fixed, "attack": attack, "seed": seed, **found, "seconds": seconds}


def scores(result: eh.Result, minority: int, bad: Sequence[int]) -> Row:
    """Accuracies in percent over clients that never attack, so that both cases compare."""
    columns = result.score_columns
    own = np.array(columns["by"]) == "client"
    accuracy = 100 * np.asarray(columns["accuracy"], float)[own]
    honest = np.delete(accuracy, bad)
    worst = np.sort(honest)[: max(1, round(len(honest) / 10))]
    return {
        "mean": honest.mean(),
        "worst10": worst.mean(),
        "minority": accuracy[-minority:].mean(),
        "majority": honest[:-minority].mean(),
    }


# ---- tables


def result_tables(rows: pd.DataFrame) -> Iterator[str]:
    """A table for each federation: means over seeds ± their standard deviation."""
    for name, of_federation in rows.groupby("federation", sort=False):
        measures = ["mean", "worst10", "minority"]
        heads = [f"{what} {case}".strip() for case in ("", "attacked") for what in measures]
        lines = [f"### {name}", "", "| method | centre | " + " | ".join(heads) + " |"]
        lines.append("|---|---|" + "---|" * len(heads))
        for (method, centre), found in of_federation.groupby(["method", "centre"], sort=False):
            cells = []
            for attack in (False, True):
                part = found[found.attack == attack]
                cells += [f"{part[what].mean():.1f} ± {part[what].std():.1f}" for what in measures]
            lines.append(f"| {method} | {centre} | " + " | ".join(cells) + " |")
        yield "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=FEDERATIONS)
    parser.add_argument("--out", type=Path, default=Path("robust.csv"))
    parser.add_argument("--tables", type=Path)
    given = parser.parse_args()
    if given.tables is None:
        begin = time.process_time()
        rows = []
        for name in [given.only] if given.only else FEDERATIONS:
            for seed in range(FEDERATIONS[name][-1]):
                rows += list(runs(name, seed))
                print(f"{name}, seed {seed}: {time.process_time() - begin:.0f} s", flush=True)
                pd.DataFrame(rows).to_csv(given.out, index=False, float_format="%.4f")
        print(describe())
    for table in result_tables(pd.read_csv(given.tables or given.out)):
        print("\n" + table)


if __name__ == "__main__":
    main()
