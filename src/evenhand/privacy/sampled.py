"""What local steps on Poisson batches tell about a single sample: epsilon of each client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from evenhand.errors import RunError

MISSING = (
    "epsilon needs dp-accounting, which is not installed: pip install dp-accounting (extra:"
    " evenhand[privacy])"
)
CLASSES = 12  # pairs of rate and steps to account for exactly; with more, similar ones are merged
MANY = 2000  # steps beyond which losses are accounted for on a coarser grid, which is faster
# what no epsilon of samples covers, in words
NOT_COVERED = (
    "that a client takes part, and how many samples it has",
    "what many of its samples have in common",
    "scores on test and validation samples",
    "settings chosen by comparing runs on the same samples: each run is a release of its own",
)


@cache
def sampled_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """Return epsilon of ``steps`` sums over Poisson batches, for adding or removing one sample.

    dp-accounting's privacy loss distributions compose them.

    Args:
        rate: the probability of a sample to be in a batch.
        noise: standard deviation of the noise, as a multiple of the bound on a sample.
        steps: the number of sums released.
        delta: the probability that epsilon may be exceeded with.
    """
    if not steps:
        return 0.0
    if not noise:
        return math.inf
    try:
        import dp_accounting as dpa
        from dp_accounting import pld
    except ImportError as error:
        raise RunError(MISSING) from error
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4 if steps <= MANY else 1e-3)
    one = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    accountant.compose(dpa.SelfComposedDpEvent(one, steps))
    return float(accountant.get_epsilon(delta))


@dataclass(frozen=True)
class SamplePrivacy:
    """What a run with ``SampleDP`` tells about single samples of its clients.

    Attributes:
        clip, noise, delta: those of ``SampleDP``.
        clients: the clients' names.
        rates: each client's probability of a sample to be in a batch.
        steps: the local steps of each client, over all rounds in which it was drawn.
        seeded: whether noise and batches follow from a seed, which must then stay secret.
    """

    clip: float
    noise: float
    delta: float
    clients: tuple[str, ...]
    rates: tuple[float, ...]
    steps: tuple[int, ...]
    seeded: bool = False

    @cached_property
    def epsilon(self) -> tuple[float, ...]:
        """Each client's epsilon; with many kinds of clients an upper bound of it."""
        pairs = list(zip(self.rates, self.steps, strict=True))
        known = {
            pair: sampled_epsilon(most[0], self.noise, most[1], self.delta)
            for pair, most in merged(pairs).items()
        }
        return tuple(known[pair] for pair in pairs)

    @property
    def worst(self) -> float:
        """The largest epsilon of a client."""
        return max(self.epsilon)

    @property
    def lines(self) -> tuple[str, ...]:
        """What the run promises and what it does not, a sentence each."""
        if not self.noise:
            return ("Samples are not hidden: noise is 0, so no epsilon holds.",)
        try:
            low, high = min(self.epsilon), self.worst
        except RunError as error:
            return (f"Samples have noise {self.noise:g}, but {error}.",)
        who = self.clients[self.epsilon.index(high)]
        span = f"{high:.3g}" if high == low else f"{low:.3g} to {high:.3g}"
        first = (
            f"Each sample is hidden from everyone, including the server, with epsilon {span} at"
            f" delta {self.delta:g} (noise {self.noise:g}, clip {self.clip:g}; largest for client"
            f" {who}, in {self.steps[self.clients.index(who)]} local steps)."
        )
        notes = [f"Not hidden: {'; '.join(NOT_COVERED)}."]
        if self.seeded:
            notes.append(
                "Noise and batches follow from a seed: epsilon holds only while nobody knows it."
            )
        return (first, *notes)

    def __str__(self) -> str:
        return " ".join(self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return it as a table that JSON can hold, with epsilon where it can be computed."""
        table: dict[str, Any] = {**vars(self)}
        table.pop("epsilon", None)
        try:
            finite = bool(self.noise)
            found = {"epsilon": self.epsilon} if finite else {}
        except RunError:
            found = {}
        clip = self.clip if math.isfinite(self.clip) else None
        return {**table, "clip": clip, **found, "words": self.lines}

    @classmethod
    def from_json(cls, table: Mapping[str, Any] | None) -> SamplePrivacy | None:
        """Return what ``to_json`` has described, if anything; epsilon is not computed again."""
        if table is None:
            return None
        clip = math.inf if table["clip"] is None else table["clip"]
        rest = {key: tuple(table[key]) for key in ("clients", "rates", "steps")}
        found = cls(clip, table["noise"], table["delta"], **rest, seeded=table["seeded"])
        if "epsilon" in table:
            found.__dict__["epsilon"] = tuple(table["epsilon"])
        return found


def merged(pairs: Sequence[tuple[float, int]]) -> dict[tuple[float, int], tuple[float, int]]:
    """Return for each pair of rate and steps one that is at least as large in both.

    There are at most ``CLASSES`` of these, and the pair of the highest rate is kept as it is.

    >>> merged([(0.5, 10), (0.1, 20)])
    {(0.1, 20): (0.1, 20), (0.5, 10): (0.5, 10)}
    """
    distinct = sorted(set(pairs))
    if len(distinct) <= CLASSES:
        return {pair: pair for pair in distinct}
    found = {distinct[-1]: distinct[-1]}
    rest = distinct[:-1]
    size = -(-len(rest) // (CLASSES - 1))
    for first in range(0, len(rest), size):
        some = rest[first : first + size]
        most = max(rate for rate, _ in some), max(steps for _, steps in some)
        found |= dict.fromkeys(some, most)
    return found
