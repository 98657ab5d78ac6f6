"""What a private run may claim: epsilon, what it covers, and what must hold for it to be true."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evenhand.privacy.accounting import WITHOUT_REPLACEMENT, Scheme

COVERED = "the trained model, and all that the server computes from the noisy sums"
EXACT = (
    "the evaluation: the history's scores, and every table and file with results of clients or"
    " groups, are exact"
)
OWN = "the clients' own models and memories, which they must not send"
SIMULATION = "simulation: the noise can be recomputed"


@dataclass(frozen=True)
class Privacy:
    """The differential privacy of a run.

    Attributes:
        epsilon: of everything ``covered``, for one client with all its data, over all rounds; None
            if it would be false, for the reasons in ``why_not``.
        delta: the probability with which epsilon may fail.
        noise: the multiplier: the noise's standard deviation over the bound of one client.
        clip: the length of a client's step that counted in full, at the start.
        releases: how many noisy sums the server has released.
        scheme: who took part.
        ratio: the length of the noise on a round's mean step, over ``clip``.
        noise_by: who added the noise: "server" or "clients".
        simulated: whether the noise can be recomputed from a number in the settings.
        why_not: why there is no epsilon.
        uncovered: what the run released besides, or may have.
        assumptions: what must hold.
    """

    epsilon: float | None
    delta: float
    noise: float
    clip: float
    releases: int
    scheme: Scheme
    ratio: float
    noise_by: str = "server"
    simulated: bool = False
    why_not: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def covered(self) -> tuple[str, ...]:
        """What epsilon is about."""
        return (COVERED,) if self.epsilon is not None else ()

    @property
    def sentence(self) -> str:
        """Epsilon, or why there is none, in one sentence."""
        if self.epsilon is None:
            return f"No epsilon: {'; '.join(self.why_not)}."
        how = " (RDP)" if self.scheme.kind == WITHOUT_REPLACEMENT else ""
        note = f" ({SIMULATION})" if self.simulated else ""
        return (
            f"epsilon = {shown(self.epsilon)} at delta = {self.delta:g}{how}, when"
            f" {self.scheme.neighbours}{note}."
        )

    @property
    def lines(self) -> list[str]:
        """All of it, a line each."""
        count = f"{self.releases:,} noisy sum" + ("" if self.releases == 1 else "s")
        return [
            self.sentence,
            f"Released: {count}, with noise {self.noise:g} times the bound of one client. On a"
            f" round's mean step the noise is {self.ratio:.2g} times as long as the clipping length"
            f" {self.clip:g}.",
            *(f"Covered: {what}." for what in self.covered),
            *(f"Not covered: {what}." for what in self.uncovered),
            *(f"Assumed: {what}." for what in self.assumptions),
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Privacy:
        """Return what ``to_json`` was called on."""
        lists = {name: tuple(table[name]) for name in ("why_not", "uncovered", "assumptions")}
        return cls(**{**table, **lists, "scheme": Scheme(**table["scheme"])})


def shown(epsilon: float) -> str:
    """Round an epsilon up to three digits, because a smaller one would claim too much.

    >>> shown(7.0466), shown(0.12341), shown(91.8)
    ('7.05', '0.124', '91.8')
    """
    if epsilon <= 0 or not math.isfinite(epsilon):
        return f"{epsilon:g}"
    digits = max(0, 2 - math.floor(math.log10(epsilon)))
    return f"{math.ceil(round(epsilon * 10**digits, 6)) / 10**digits:.{digits}f}"
