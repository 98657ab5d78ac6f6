"""Which clients take part in a round, and with which coefficients.

| scheme                                | draw                               | coefficient a_i     |
|---------------------------------------|------------------------------------|---------------------|
| A  Full()                             | everyone                           | w_i                 |
| B  Proportional(k)                    | k independent draws, prob. w_i     | 1/k each time drawn |
| C  Proportional(k, replacement=False) | k distinct, one by one, prob. ~w_i | 1/k                 |
| D  Uniform(k, unbiased=True)          | k distinct, equally likely         | (n/k) w_i           |
| E  Uniform(k)                         | k distinct, equally likely         | w_i / cohort's sum  |
| F  Poisson(rate)                      | each by itself, with prob. rate    | w_i / rate          |

w_i are the base weights of the census: the share of the data, or 1/n. Draws depend only on
(seed, round).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenhand.data.population import Census
from evenhand.errors import require, require_number, require_whole


class Draw(NamedTuple):
    """A cohort: each client once, in any order."""

    ids: Tensor  # (K,) int64
    weight: Tensor  # (K,) float64, the coefficient a_i
    # (K,) float64, sums to 1: the client's part of the normaliser, to correct for missing replies
    share: Tensor

    def ascending(self) -> Draw:
        """Sort the cohort by client number, the order in which sums are taken."""
        ids = self.ids.numpy()
        if bool((ids[1:] > ids[:-1]).all()):
            return self
        order = self.ids.argsort()
        return Draw(*(values[order] for values in self))


class Cohort(ABC):
    """Base class of the ways to choose the clients of a round."""

    @abstractmethod
    def draw(self, census: Census, seed: int, round: int) -> Draw:
        """Draw the cohort of one round."""

    def check(self, census: Census) -> None:  # noqa: B027 (most cohorts can always be drawn)
        """Raise a ValueError if this cohort cannot be drawn from these clients."""

    def expected(self, clients: int) -> float | None:
        """Return how many of ``clients`` take part on average; None if that is not the same for
        every client."""
        return None


@dataclass(frozen=True)
class Full(Cohort):
    """Every client, every round (scheme A)."""

    def draw(self, census: Census, seed: int, round: int) -> Draw:
        """Return all clients, weighted by their base weights."""
        return Draw(torch.arange(census.clients), census.weight, census.weight)

    def expected(self, clients: int) -> float:
        """Return ``clients``."""
        return float(clients)


@dataclass(frozen=True)
class Uniform(Cohort):
    """Draw ``k`` distinct clients, all equally likely.

    Args:
        k: clients per round.
        unbiased: by default, the clients' weights are normalised over the cohort (scheme E). With
            True they are (n/k) w_i (scheme D): the expected step is the full one, but single steps
            vary in length.
    """

    k: int
    unbiased: bool = False

    def __post_init__(self) -> None:
        require_whole("the number of clients per round", self.k, 1)

    def check(self, census: Census) -> None:
        """Raise a ValueError if there are fewer than ``k`` clients."""
        _check_enough(self.k, census)

    def expected(self, clients: int) -> float:
        """Return ``k``."""
        return float(self.k)

    def draw(self, census: Census, seed: int, round: int) -> Draw:
        """Draw the cohort of one round."""
        chosen = _generator(seed, round).choice(census.clients, self.k, replace=False)
        ids = torch.from_numpy(np.sort(chosen))
        weight = census.weight[ids]
        if self.unbiased:
            return Draw(
                ids, weight * (census.clients / self.k), torch.full_like(weight, 1 / self.k)
            )
        # a method's own weights may all be zero
        total = weight.sum()
        share = weight / total if total > 0 else weight
        return Draw(ids, share, share)


@dataclass(frozen=True)
class Proportional(Cohort):
    """Draw ``k`` clients with probabilities equal to their weights; each draw counts 1/k.

    Args:
        k: draws per round.
        replacement: with True (scheme B), a client drawn twice trains once and counts twice. With
            False (scheme C), clients are drawn one by one from those not yet drawn.
    """

    k: int
    replacement: bool = True

    def __post_init__(self) -> None:
        require_whole("the number of clients per round", self.k, 1)

    def check(self, census: Census) -> None:
        """Raise a ValueError if ``k`` distinct clients cannot be drawn."""
        if not self.replacement:
            _check_enough(self.k, census)

    def draw(self, census: Census, seed: int, round: int) -> Draw:
        """Draw the cohort of one round."""
        generator, probability = _generator(seed, round), census.weight.numpy()
        if self.replacement:
            edges = np.cumsum(probability)
            drawn = np.searchsorted(edges, generator.random(self.k) * edges[-1], side="right")
            chosen, times = np.unique(np.minimum(drawn, census.clients - 1), return_counts=True)
        else:
            # the k earliest of exponential clocks with rates w_i: the same law as drawing clients
            # one by one without replacement
            clocks = np.full(census.clients, np.inf)
            np.divide(
                generator.exponential(size=census.clients),
                probability,
                out=clocks,
                where=probability > 0,
            )
            chosen = np.sort(np.argpartition(clocks, self.k - 1)[: self.k])
            chosen = chosen[probability[chosen] > 0]
            times = np.ones(len(chosen), dtype=np.int64)
        weight = torch.from_numpy(times / times.sum())
        return Draw(torch.from_numpy(chosen), weight, weight)


@dataclass(frozen=True)
class Poisson(Cohort):
    """Let every client take part with probability ``rate``, independently of the others.

    A sum over the cohort is divided by the expected number of clients, not by the actual one, so
    that each client counts the same whoever else takes part: this is what the accounting of
    differential privacy needs. Single steps vary in length. A round in which nobody takes part is
    void (``Private`` then releases noise).

    Args:
        rate: the probability that a client takes part in a round, in (0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        require_number("rate", self.rate, "(0, 1]", "1 asks every client")

    def expected(self, clients: int) -> float:
        """Return ``rate * clients``."""
        return self.rate * clients

    def draw(self, census: Census, seed: int, round: int) -> Draw:
        """Draw the cohort of one round."""
        drawn = _generator(seed, round).random(census.clients) < self.rate
        ids = torch.from_numpy(np.flatnonzero(drawn))
        weight = census.weight[ids] / self.rate
        return Draw(ids, weight, torch.full_like(weight, 1 / max(1, len(ids))))


def _generator(seed: int, round: int) -> np.random.Generator:
    return np.random.default_rng([seed, round])


def _check_enough(k: int, census: Census) -> None:
    require(
        k <= census.clients,
        "{} clients per round, but the federation has {}; lower the number, or use Full()",
        k,
        census.clients,
    )
