"""Epsilon of a run, computed by dp-accounting for the scheme that was used.

| who takes part                 | accountant, neighbouring federations                            |
|--------------------------------|-----------------------------------------------------------------|
| everyone                       | PLD; one client more or less                                    |
| each with probability ``rate`` | PLD, amplified by a secret cohort; one client more or less      |
| ``k`` distinct clients         | RDP, amplified by a secret cohort; one client replaced: a sum   |
|                                | changes by twice its bound, so the multiplier is half the noise |
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from evenhand.errors import require, require_number, require_whole
from evenhand.privacy.needed import import_needed

EVERYONE, POISSON, WITHOUT_REPLACEMENT = "everyone", "poisson", "without replacement"
# of this size an epsilon promises nothing, and PLD takes minutes; RDP's bound is then enough
HUGE = 100.0
FINEST = 1e-4  # of the multiplier that belongs to an epsilon


@dataclass(frozen=True)
class Scheme:
    """Who takes part in a round, as accounting knows it.

    Args:
        kind: "everyone", "poisson" or "without replacement".
        clients: the number of clients.
        per_round: how many of them take part, on average.
        secret: whether nobody learns who does, from whom epsilon is to protect; else every client
            is accounted for as if it took part in all rounds.
    """

    kind: str
    clients: int
    per_round: float
    secret: bool = True

    def __post_init__(self) -> None:
        require(
            self.kind in (EVERYONE, POISSON, WITHOUT_REPLACEMENT), "unknown scheme {!r}", self.kind
        )
        require_whole("clients", self.clients, 1)
        require_number("per_round", self.per_round, f"(0, {self.clients}]")

    @property
    def rate(self) -> float:
        """The probability that a client takes part in a round."""
        return self.per_round / self.clients

    @property
    def in_words(self) -> str:
        """Who takes part, in words."""
        if self.kind == EVERYONE:
            return f"all {self.clients:,} clients take part in every round"
        how = (
            "drawn in secret"
            if self.secret
            else "which the server knows, so epsilon is that of taking part in every round"
        )
        if self.kind == POISSON:
            return (
                f"each of {self.clients:,} clients takes part in a round with probability"
                f" {self.rate:g}, {how}"
            )
        return f"{self.per_round:g} of {self.clients:,} clients take part in a round, {how}"

    @property
    def neighbours(self) -> str:
        """What epsilon compares, in words."""
        if self.kind == WITHOUT_REPLACEMENT:
            return "one client's data are replaced by any other data"
        return "one client is added or removed"


@lru_cache(maxsize=256)
def epsilon_of(scheme: Scheme, noise: float, rounds: int, delta: float) -> float:
    """Return epsilon of so many noisy sums; infinity without noise.

    Args:
        noise: the multiplier z: the noise's standard deviation over the bound of one client.
    """
    _check(rounds, delta)
    require_number("noise", noise, "[0, inf)", "0 adds none")
    if rounds == 0:
        return 0.0
    if noise == 0:
        return math.inf
    with _quietly():
        bound = _composed(scheme, noise, rounds, delta, rdp=True)
        if scheme.kind == WITHOUT_REPLACEMENT or bound > HUGE:
            return bound
        return _composed(scheme, noise, rounds, delta, rdp=False)


def _composed(scheme: Scheme, noise: float, rounds: int, delta: float, rdp: bool) -> float:
    accountant = _accountant(scheme, rdp)
    accountant.compose(_event(scheme, noise, rounds))
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=256)
def noise_for(scheme: Scheme, epsilon: float, rounds: int, delta: float) -> float:
    """Return the smallest multiplier whose epsilon is not above ``epsilon``, to 1e-4."""
    _check(rounds, delta)
    require_number("epsilon", epsilon, "(0, inf)", "3 is usual, smaller is more private")
    require_whole("rounds", rounds, 1)
    # RDP's answer is fast and never too small; that of PLD is a little below it
    guess = _calibrated(scheme, epsilon, rounds, delta, True, 0.1, 1.0)
    # RDP's bound of this noise would otherwise be above HUGE, and be what epsilon_of returns
    if scheme.kind == WITHOUT_REPLACEMENT or epsilon > HUGE / 2:
        return guess
    low = 0.9 * guess
    with _quietly():
        while _composed(scheme, low, rounds, delta, rdp=False) <= epsilon:
            low *= 0.9
    return _calibrated(scheme, epsilon, rounds, delta, False, low, guess)


def _calibrated(
    scheme: Scheme, epsilon: float, rounds: int, delta: float, rdp: bool, low: float, guess: float
) -> float:
    accounting = import_needed("dp_accounting")
    with _quietly():
        found = accounting.calibrate_dp_mechanism(
            lambda: _accountant(scheme, rdp),
            lambda noise: _event(scheme, noise, rounds),
            epsilon,
            delta,
            accounting.LowerEndpointAndGuess(low, guess),
            tol=FINEST,
        )
    return float(found)


def _check(rounds: int, delta: float) -> None:
    require_whole("rounds", rounds, 0)
    require_number("delta", delta, "(0, 1)", "choose it well below one over the number of clients")


def _accountant(scheme: Scheme, rdp: bool = False) -> Any:
    accounting = import_needed("dp_accounting")
    if scheme.kind == WITHOUT_REPLACEMENT:
        relation = accounting.NeighboringRelation.REPLACE_ONE
        return accounting.rdp.RdpAccountant(neighboring_relation=relation)
    return accounting.rdp.RdpAccountant() if rdp else accounting.pld.PLDAccountant()


def _event(scheme: Scheme, noise: float, rounds: int) -> Any:
    accounting = import_needed("dp_accounting")
    if scheme.kind == EVERYONE or scheme.rate == 1 or not scheme.secret:
        # so many Gaussian releases are one with less noise, exactly; it is much faster to account.
        # Under replacement, without sampling, the change is twice the bound as well.
        half = 2 if scheme.kind == WITHOUT_REPLACEMENT else 1
        return accounting.GaussianDpEvent(noise / half / math.sqrt(rounds))
    if scheme.kind == POISSON:
        one = accounting.PoissonSampledDpEvent(scheme.rate, accounting.GaussianDpEvent(noise))
    else:
        half_noise = accounting.GaussianDpEvent(noise / 2)
        one = accounting.SampledWithoutReplacementDpEvent(
            scheme.clients, round(scheme.per_round), half_noise
        )
    return accounting.SelfComposedDpEvent(one, rounds)


class _quietly:
    """Without the log's lines about orders that RDP leaves out: the bound holds without them."""

    def __enter__(self) -> None:
        self._log = logging.getLogger("absl")
        self._level = self._log.level
        self._log.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        self._log.setLevel(self._level)
