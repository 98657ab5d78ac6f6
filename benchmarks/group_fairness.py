"""Gaps between groups on Adult, COMPAS and ACS Income, by sex and by race, with methods that train
for small gaps and with thresholds after training.

    python -m benchmarks.group_fairness [--only NAME] [--seeds N] [--rounds N] [--out FILE]
    python -m benchmarks.group_fairness --tables FILE

The first form trains (about 20 minutes on one core) and writes a row per federation, method and
seed to FILE; both print the tables of docs/results/group-fairness.md. The data are looked for in
$EVENHAND_DATA, else in the user's cache directory.
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
from numpy.typing import NDArray
from scipy import stats

import evenhand as eh
from benchmarks.machine import describe
from evenhand.datasets.loaders.adult import read as read_adult
from evenhand.datasets.loaders.compas import FEATURES, LABEL, propublica
from evenhand.datasets.loaders.compas import read as read_compas

Floats = NDArray[np.float64]
Row = dict[str, Any]

RATES = (0.1, 0.3, 1.0)  # step sizes of FedAvg, of which validation data choose one
ROUNDS, SEEDS, BATCH, BOUND = 60, 5, 256, 0.05
NOTIONS = {  # of the constraint: of the thresholds, and the gap that both bound
    "demographic_parity": ("demographic parity", "dp"),
    "equal_opportunity": ("equal opportunity", "eo"),
    "equalised_odds": ("equalised odds", "eodds"),
}
METHODS: dict[str, eh.Algorithm] = {
    "FedMinMax": eh.FedMinMax(),
    "FairFed DP": eh.FairFed(notion="demographic_parity"),
    "FairFed EO": eh.FairFed(notion="equal_opportunity"),
    "FedFB DP": eh.FedFB(notion="demographic_parity"),
    "FedFB EO": eh.FedFB(notion="equal_opportunity"),
    "FedFB EOdds": eh.FedFB(notion="equalised_odds"),
    "Reweighed, global": eh.Reweighed(scope="global"),
    "Reweighed, local": eh.Reweighed(scope="local"),
    "FCFL, local DP": eh.FCFL("demographic_parity", bound=BOUND, minimax_rounds=40),
    "GroupConstraint local DP": eh.GroupConstraint(
        "demographic_parity", bound=BOUND, scope="local"
    ),
}
SHORT = {"dp": "DP", "eo": "EO", "eodds": "EOdds"}
MEASURES = ("accuracy", "worst", "dp", "eo", "eodds", "local_dp")
LEAST = 30  # samples of a group, for the gap within a client


# ---- the federations


def adult(group: str, seed: int) -> eh.Federation:
    """Adult over 5 clients by a Dirichlet draw over the groups; tested on the official file."""
    rows = read_adult()
    rows["race"] = rows["race"].where(rows["race"] == "White", "other")
    partition = {"name": "dirichlet_groups", "clients": 5, "alpha": 0.5, "least": 500}
    return eh.Federation.from_frame(
        rows,
        client=None,
        label="income",
        group=group,
        drop=["fnlwgt"],
        held_out="held_out",
        partition={**partition, "redraws": 1000},
        split={"official": True, "val": 0.2},
        seed=seed,
    )


def compas(group: str, seed: int) -> eh.Federation:
    """COMPAS over 10 clients by a Dirichlet draw; the favourable label is no new charge."""
    rows = propublica(read_compas())[[*FEATURES, LABEL]].copy()
    large = rows["race"].isin(["African-American", "Caucasian"])
    rows["race"] = rows["race"].where(large, "other")
    names = pd.Index(["new charge", "no new charge"])
    rows[LABEL] = pd.Categorical.from_codes(1 - rows[LABEL], names)
    partition = {"name": "dirichlet_groups", "clients": 10, "alpha": 0.5, "least": 100}
    return eh.Federation.from_frame(
        rows,
        client=None,
        label=LABEL,
        group=group,
        partition={**partition, "redraws": 1000},
        split={"val": 0.2, "test": 0.2},
        seed=seed,
    )


def acs(group: str, seed: int) -> eh.Federation:
    """ACS Income, a client per state."""
    return eh.datasets.acs_income(group=group, split={"val": 0.2, "test": 0.2}, seed=seed)


FEDERATIONS: dict[str, tuple[Callable[[str, int], eh.Federation], str]] = {
    "Adult by sex": (adult, "sex"),
    "Adult by race": (adult, "race"),
    "COMPAS by sex": (compas, "sex"),
    "COMPAS by race": (compas, "race"),
    "ACS by sex": (acs, "SEX"),
    "ACS by race": (acs, "RAC1P"),
}


# ---- what a decision does to groups and clients


def widest(rate: Floats, count: Floats) -> tuple[float, float]:
    """The largest difference of two groups' rates, and its standard error if samples are drawn
    anew; groups without samples do not count."""
    there = count > 0
    rate, count = rate[there], count[there]
    low, high = int(rate.argmin()), int(rate.argmax())
    variance = rate * (1 - rate) / count
    error = 0.0 if low == high else float(np.sqrt(variance[low] + variance[high]))
    return float(rate[high] - rate[low]), error


def measure(chance: Floats, label: Floats, group: Floats, client: Floats) -> Row:
    """Accuracy and gaps of decisions that say yes with the given chance, with standard errors.

    Args:
        chance: (N,) of a yes: 0 or 1, or between for randomised thresholds.
        label, group, client: (N,) codes.
    """

    def mean_by(code: Floats, values: Floats) -> tuple[Floats, Floats]:
        count = np.bincount(code)
        return np.bincount(code, values) / np.maximum(count, 1), count

    right = np.where(label == 1, chance, 1 - chance)
    by_client, clients = mean_by(client, right)
    worst = int(np.where(clients > 0, by_client, np.inf).argmin())
    yes, no = label == 1, label == 0
    found = {
        "accuracy": (right.mean(), np.sqrt(right.mean() * (1 - right.mean()) / len(right))),
        "worst": (
            by_client[worst],
            np.sqrt(by_client[worst] * (1 - by_client[worst]) / clients[worst]),
        ),
        "dp": widest(*mean_by(group, chance)),
        "eo": widest(*mean_by(group[yes], chance[yes])),
        "fpr": widest(*mean_by(group[no], chance[no])),
    }
    found["eodds"] = max(found["eo"], found["fpr"])
    found["local_dp"] = within_clients(chance, group, client)
    row: Row = {}
    for name, (value, error) in found.items():
        row |= {name: float(value), f"{name}_error": float(error)}
    return row


def within_clients(chance: Floats, group: Floats, client: Floats) -> tuple[float, float]:
    """The mean over clients of their own gap in shares of yes, among groups with enough samples;
    NaN if no client has two of them."""
    gaps, variance = [], 0.0
    for one in np.unique(client):
        own = client == one
        count = np.bincount(group[own])
        rate = np.bincount(group[own], chance[own]) / np.maximum(count, 1)
        if (count >= LEAST).sum() > 1:
            gap, error = widest(rate[count >= LEAST], count[count >= LEAST])
            gaps.append(gap)
            variance += error**2
    return (float(np.mean(gaps)), variance**0.5 / len(gaps)) if gaps else (np.nan, np.nan)


def of_part(chance: Floats, part: eh.Part) -> Row:
    """The same for the samples of all clients."""
    assert part.group is not None
    client = np.repeat(np.arange(len(part.sizes)), part.sizes.numpy())
    return measure(np.asarray(chance, float), part.y.numpy(), part.group.numpy(), client)


# ---- training


def network(fed: eh.Federation, seed: int) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Linear(fed.train.x.shape[1], 2)


def validated(result: eh.Result) -> float:
    """Accuracy over all validation samples."""
    columns = result.validation
    assert columns is not None
    own = np.array(columns["by"]) == "client"
    return float(np.average(columns["accuracy"][own], weights=columns["count"][own]))


def runs(name: str, seed: int, rounds: int = ROUNDS) -> Iterator[Row]:
    """Train every method on one federation, and yield a row for each."""
    make, column = FEDERATIONS[name]
    fed = make(column, seed)
    module, test = network(fed, seed), fed.test
    assert test is not None

    def row(method: str, chance: Floats, lr: float, begin: float, **more: Any) -> Row:
        fixed = {"federation": name, "method": method, "seed": seed, "lr": lr}
        return {**fixed, **of_part(chance, test), "seconds": time.perf_counter() - begin, **more}

    def train(algorithm: eh.Algorithm, lr: float) -> eh.Result:
        local = eh.LocalSGD(lr=lr, epochs=1, batch_size=BATCH)
        return eh.fit(
            module, fed, algorithm, rounds=rounds, local=local, seed=seed, eval_every=rounds
        )

    begin = time.perf_counter()
    lr, plain = max(
        ((lr, train(eh.FedAvg(), lr)) for lr in RATES), key=lambda one: validated(one[1])
    )
    yield row("FedAvg", plain.outcomes["prediction"] == 1, lr, begin)
    for method, algorithm in METHODS.items():
        begin = time.perf_counter()
        yield row(method, train(algorithm, lr).outcomes["prediction"] == 1, lr, begin)
    for notion, (_, bounded) in NOTIONS.items():
        begin = time.perf_counter()
        result = train(eh.GroupConstraint(notion=notion, bound=BOUND), lr)
        fitted = of_part(result.predict(fed.train.x), fed.train)[bounded]
        method = f"GroupConstraint {SHORT[bounded]}"
        chance = result.outcomes["prediction"] == 1
        yield row(method, chance, lr, begin, bounded=bounded, fitted=fitted)
    for notion, bounded in NOTIONS.values():
        begin = time.perf_counter()
        rules = plain.thresholds(notion, bound=BOUND)
        chance = rules.probabilities(plain.outcomes["score"], test.group)
        method = f"FedAvg, thresholds {SHORT[bounded]}"
        yield row(method, chance, lr, begin, bounded=bounded, fitted=rules.gap)


# ---- tables


def over_seeds(values: Floats, errors: Floats) -> tuple[float, float]:
    """The mean over seeds and the half width of its 95 % interval, which allows for other seeds
    and other test samples."""
    spread = 0.0
    if len(values) > 1:
        spread = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    # seeds share test samples, so that their errors do not average out
    return float(values.mean()), float(np.hypot(spread, 1.96 * np.sqrt((errors**2).mean())))


def result_tables(rows: pd.DataFrame) -> Iterator[str]:
    """A table for each federation: means over seeds with intervals, in percent and points."""
    columns = (
        "method",
        "accuracy",
        "worst client",
        "DP gap",
        "EO gap",
        "EOdds gap",
        "local DP gap",
    )
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    for name, some in rows.groupby("federation", sort=False):
        yield f"\n### {name}\n\n{head}"
        for method, own in some.groupby("method", sort=False):
            cells = []
            for what in MEASURES:
                mean, half = over_seeds(own[what].to_numpy(), own[f"{what}_error"].to_numpy())
                text = "—" if np.isnan(mean) else f"{100 * mean:.1f} ± {100 * half:.1f}"
                aimed = what in own["bounded"].tolist()
                cells.append(f"**{text}**" if aimed else text)
            yield f"| {method} | {' | '.join(cells)} |"


def within(rows: pd.DataFrame) -> pd.Series[Any]:
    """(N,) whether a run's gap on test data is at most the bound and 1.96 standard errors."""
    gap = [row[row["bounded"]] for _, row in rows.iterrows()]
    error = [row[f"{row['bounded']}_error"] for _, row in rows.iterrows()]
    return pd.Series(np.array(gap) <= BOUND + 1.96 * np.array(error), index=rows.index)


def bound_table(rows: pd.DataFrame) -> Iterator[str]:
    """Whether bounded gaps keep their bound on test data."""
    bounded = rows[rows["bounded"].notna()]
    yield (
        "\n| federation | method | gap where it was bounded | gap on test data | bound + 1.96 SE |"
        " mean within | seeds within |\n|---|---|---|---|---|---|---|"
    )
    for (name, method), own in bounded.groupby(["federation", "method"], sort=False):
        what = own["bounded"].iloc[0]
        limit = BOUND + 1.96 * np.sqrt((own[f"{what}_error"] ** 2).mean())
        cells = (
            f"{100 * own['fitted'].mean():.1f} | {100 * own[what].mean():.1f} | {100 * limit:.1f}"
        )
        answer = "yes" if own[what].mean() <= limit else "**no**"
        yield f"| {name} | {method} | {cells} | {answer} | {within(own).sum()} of {len(own)} |"


def tables(rows: pd.DataFrame) -> list[str]:
    return [*result_tables(rows), *bound_table(rows)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=FEDERATIONS, action="append", help="repeat for several")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=Path("group-fairness.csv"))
    parser.add_argument("--tables", type=Path, help="print the tables of this file; train nothing")
    given = parser.parse_args(arguments)
    if given.tables is not None:
        print("\n".join(tables(pd.read_csv(given.tables))))
        return
    torch.set_num_threads(1)
    begin, found = time.perf_counter(), []
    for name in given.only or FEDERATIONS:
        for seed in range(given.seeds):
            found += runs(name, seed, given.rounds)
            pd.DataFrame(found).round(6).to_csv(given.out, index=False)
            print(f"{name}, seed {seed}: {time.perf_counter() - begin:.0f} s", flush=True)
    print("\n".join(tables(pd.read_csv(given.out))))
    print(f"\n{describe()}, {given.rounds} rounds, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
