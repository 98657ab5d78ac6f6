"""Intervals of metrics across clients (mean, worst 10 %, spread) from each client's test set.

With over="samples" an interval is about these clients: the metric if every client had unlimited
test samples. With "clients" or "both" it is about clients like these: the metric for very many of
them, each with unlimited samples. Small test sets make clients look more different than they are,
so an observed value can fall outside its own interval: the worst of a hundred clients with ten
samples each is mostly unlucky.

    mean, pooled  Wilson's score interval with as many samples as would give the mean its variance
                  (of clients like these: its width from Student's)
    min, max      bounds for single clients: the worst client is not below the lowest lower bound,
                  nor above the lowest upper bound when all upper bounds hold at once
    all others    quantiles of the posterior distribution (:mod:`evenhand.metrics.posterior`)

If all clients may be equal (a test of equality does not reject at half of 1 - level), intervals
include that case: a standard deviation of 0, a worst 10 % equal to the mean. Such intervals cover
the truth somewhat more often than their level.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from evenhand.errors import require, require_choice, require_number, require_whole
from evenhand.metrics.client_values import (
    LEANING,
    Accuracies,
    Clients,
    Ends,
    Errors,
    Floats,
    Ints,
    Means,
)
from evenhand.metrics.posterior import posterior
from evenhand.metrics.spread import SPREAD, best, tenth, together_and_sizes, worst
from evenhand.metrics.student import quantile
from evenhand.metrics.uncertainty import OVER, Interval

# for non-negative values: errors, not merits
OF_SHARES = ("variation", "jain", "gini", "entropy", "cosine")
WHERE_EQUAL = {
    "variance": 0.0,
    "std": 0.0,
    "variation": 0.0,
    "gini": 0.0,
    "jain": 1.0,
    "entropy": 1.0,
    "cosine": 1.0,
}
POPULATION = 1000  # clients that represent very many


def accuracy_intervals(
    right: Ints,
    samples: Ints,
    over: str = "samples",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Metrics across clients of accuracies, from (n,) correct predictions and (n,) samples.

    >>> found = accuracy_intervals(np.array([45, 40, 30]), np.array([50, 50, 50]))
    >>> value, low, high = found["min"]
    >>> print(f"{value:.2f} {low:.2f} {high:.2f}")
    0.60 0.46 0.75
    """
    require(
        right.shape == samples.shape and right.ndim == 1,
        "right and samples must be (n,), got {} and {}",
        right.shape,
        samples.shape,
    )
    kept = samples > 0
    return _intervals(
        Accuracies(right[kept].astype(np.int64), samples[kept].astype(np.int64)),
        over,
        draws,
        level,
        seed,
    )


def merit_intervals(
    values: Floats,
    client: Ints,
    clients: int,
    squared: bool = False,
    over: str = "samples",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    spread_of_shares: float | None = None,
) -> dict[str, Interval]:
    """Metrics across clients from the value (N,) and the client (N,) of each sample.

    Args:
        squared: False: values are 1 or 0 for correct or wrong, and a client's merit is its
            accuracy. True: they are squared errors, and its merit is minus the root of their mean.
            Their relative variance is estimated over all clients, with few samples shrunk towards
            that of normal errors.
        spread_of_shares: for values that are shares, such as of a sample's pixels, their
            :func:`evenhand.metrics.influence.relative_spread` d. A client's mean is then as
            uncertain as the accuracy of 1/d times as many samples.
    """
    require(
        values.shape == client.shape and values.ndim == 1,
        "values and client must be (N,), got {} and {}",
        values.shape,
        client.shape,
    )
    samples = np.bincount(client, minlength=clients)
    total = np.bincount(client, weights=values, minlength=clients)
    if spread_of_shares is not None:
        require(bool(((values >= 0) & (values <= 1)).all()), "shares must be between 0 and 1")
        kept, d = samples > 0, spread_of_shares
        return _intervals(Accuracies(total[kept] / d, samples[kept] / d), over, draws, level, seed)
    if not squared:
        require(
            bool(np.isin(values, (0, 1)).all()),
            "values must be 0 or 1 for wrong and right; of squared errors say squared=True",
        )
        return accuracy_intervals(total.round().astype(np.int64), samples, over, draws, level, seed)
    require(bool((values >= 0).all()), "squared errors must not be negative")
    kept = samples > 0
    m = samples[kept].astype(np.int64)
    square = np.maximum(total[kept] / m, 1e-30)  # a model without errors has a logarithm, too
    spread = np.bincount(
        client, weights=(values - (total / np.maximum(samples, 1))[client]) ** 2, minlength=clients
    )[kept]
    of_mean = spread / np.maximum(m - 1, 1) / m  # by which the squares of means are too large
    below = float((m - 1) @ np.maximum(square**2 - of_mean, 0.0))
    lean = LEANING * float(square @ square) / max(1, len(m))
    relative = (float(spread.sum()) + 2 * lean) / (below + lean) if len(m) else math.nan
    return _intervals(Errors(square, m, relative), over, draws, level, seed)


def mean_intervals(
    values: Floats,
    client: Ints,
    clients: int,
    over: str = "samples",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Metrics across clients of the means of real numbers, from the value (N,) and the client (N,)
    of each sample; larger is better."""
    samples = np.bincount(client, minlength=clients)
    total, square = (
        np.bincount(client, weights=weights, minlength=clients).astype(np.float64)
        for weights in (values, values**2)
    )
    kept = samples > 0
    found = Means.of(samples[kept].astype(np.int64), total[kept], square[kept])
    return _intervals(found, over, draws, level, seed)


def _intervals(
    clients: Clients, over: str, draws: int, level: float, seed: int
) -> dict[str, Interval]:
    require_choice("over", over, OVER)
    require_number("level", level, "(0, 1)")
    require_whole("draws", draws, 1)
    merit = clients.merit
    values = {name: float(number) for name, number in _numbers(merit, len(merit)).items()} | {
        "pooled": math.nan
    }
    if not len(merit):
        return {name: Interval(math.nan, math.nan, math.nan) for name in values}
    values["pooled"] = clients.total
    ends = (_of_these if over == "samples" else _of_such)(
        clients, draws, level, np.random.default_rng([seed, 13])
    )
    return {
        name: Interval(value, *ends.get(name, (math.nan, math.nan)))
        for name, value in values.items()
    }


def _numbers(merit: Floats, clients: int) -> dict[str, Floats]:
    """Metrics across clients of merits (..., n).

    The entropy of more or fewer than ``clients`` is scaled to what ``clients`` would have.
    """
    given, sizes = together_and_sizes(merit)
    found = {name: number(sizes if name in OF_SHARES else given) for name, number in SPREAD.items()}
    mine, theirs = (math.log(max(2, n)) for n in (merit.shape[-1], clients))
    return found | {"entropy": 1 - (1 - found["entropy"]) * mine / theirs}


def _of_these(
    clients: Clients, draws: int, level: float, rng: np.random.Generator
) -> dict[str, Ends]:
    """Intervals for these clients."""
    n, mean = len(clients.samples), clients.mean(level)
    direct = {"mean": mean, "pooled": clients.together(level)}
    if n == 1:
        return (
            direct
            | dict.fromkeys(("worst10", "best10", "min", "max"), mean)
            | {name: (end, end) for name, end in WHERE_EQUAL.items()}
        )
    direct["min"], direct["max"] = _extremes(clients, level)
    if tenth(n) == 1:
        direct["worst10"], direct["best10"] = direct["min"], direct["max"]
    return (
        _plausible_ends(
            clients,
            clients.of_truth(posterior(clients.observed, draws, rng).clients),
            mean,
            level,
            rng,
        )
        | direct
    )


def _of_such(
    clients: Clients, draws: int, level: float, rng: np.random.Generator
) -> dict[str, Ends]:
    """Intervals for clients like these; NaN for the smallest and largest, and with one client."""
    n = len(clients.samples)
    if n < 2:
        return {}
    direct = {}
    for name, weight, value in (
        ("mean", np.full(n, 1 / n), clients.merit.mean()),
        ("pooled", clients.samples / clients.samples.sum(), clients.total),
    ):
        # a client with a large weight dominates the mean, and few others are left to show how
        # clients differ
        error = math.sqrt(float((weight**2 / (1 - weight) * (clients.merit - value) ** 2).sum()))
        t = float(quantile((1 + level) / 2, max(1.0, 1 / float(weight @ weight) - 1)))
        z = NormalDist().inv_cdf((1 + level) / 2)
        direct[name] = clients.around(float(value), weight, t * error, z)
    drawn = clients.of_truth(posterior(clients.observed, draws, rng, POPULATION).population)
    found = _plausible_ends(clients, drawn, direct["mean"], level, rng) | direct
    return {name: ends for name, ends in found.items() if name not in ("min", "max")}


def _plausible_ends(
    clients: Clients, drawn: Floats, mean: Ends, level: float, rng: np.random.Generator
) -> dict[str, Ends]:
    """Quantiles of metrics across drawn merits (draws, n).

    They include equality if it may hold, and the end of the possible range if nothing else was
    observed.
    """
    found = {}
    for name, number in _numbers(drawn, len(clients.samples)).items():
        low, high = np.quantile(number, [(1 - level) / 2, (1 + level) / 2]).tolist()
        found[name] = (low, high)
    least, most = clients.possible
    if worst(clients.merit) == least:
        found["worst10"] = (least, found["worst10"][1])
    if best(clients.merit) == most:
        found["best10"] = (found["best10"][0], most)
    if clients.maybe_equal((1 - level) / 2, rng):
        reach = (
            dict.fromkeys(("worst10", "min"), mean[1])
            | dict.fromkeys(("best10", "max"), mean[0])
            | WHERE_EQUAL
        )
        found |= {
            name: (min(found[name][0], end), max(found[name][1], end))
            for name, end in reach.items()
        }
    return found


def _extremes(clients: Clients, level: float) -> tuple[Ends, Ends]:
    """The smallest and the largest merit, each with a chance of at most 1 - level to be outside.

    If the smallest is one client's, far below the others, it is below that client's lower bound, or
    above its upper one, with the chances that these have. If many are smallest, it is above the
    lowest upper bound unless all of their bounds hold, and below the lowest lower bound hardly
    ever. The two chances are such that both cases come to 1 - level.
    """
    n, miss = len(clients.samples), 1 - level
    far = min(miss / 2, 1 - level ** (1 / n))
    low, high = clients.bounds(miss - far), clients.bounds(far)
    return (float(low[0].min()), float(high[1].min())), (float(high[0].max()), float(low[1].max()))
