"""TERM and TERM-Group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from evenhand.algorithm import Certificate, State
from evenhand.algorithms.tilts import ClientTilt, ExactTilt, TeamTilt, Tilt
from evenhand.algorithms.wrapper import Forwarding
from evenhand.data.population import Census
from evenhand.errors import require, require_choice, require_number
from evenhand.theory.aggregates import TiltedMean

LARGE = 20  # a difference of 4 between losses then takes e^(t loss) out of float32's range


@dataclass(frozen=True)
class TERM(Forwarding):
    """Tilt the mean towards high losses: of clients, of teams of clients, or of samples.

        minimise  (1/t) log sum_i w_i e^(t f_i(theta))    (Li et al., ICLR 2021)

    Participants have weights a_i e^(t F_i), normalised, where F_i is the loss of the received model
    on all local data; t = 0 is FedAvg. At the level of teams, a client has weight a_i e^(t R),
    where R is its team's mean loss; this needs a question before training (TERM-Group). A tilt over
    samples replaces f_i by (1/s) log mean e^(s loss); with s = t the tilt is over all samples
    alike. The server only needs sums, unless ``exact``. ``evenhand.algorithms.tilts`` has the
    details.

    Clients whose t (F_i - c) is out of range (80 in float32, 640 in float64; c is the last round's
    objective) would tie, and a warning says so. The published federated code divides by the number
    of clients twice and mixes rounds in its normaliser; this implementation follows the formula.

    Args:
        t: tilt; large values approach the worst client, negative ones favour the best.
        level: "client", "team" (needs teams), or "sample": all samples alike, the same as sample_t
            = t.
        sample_t: tilt over the samples of a client; 0 is their mean.
        exact: ask for losses before training. This is right for any t, but needs one more exchange
            and each client's loss. None does so for tilts beyond 20, where differences between
            losses soon leave the range of e^(t loss).
    """

    t: float = 1.0
    level: str = "client"
    sample_t: float = 0.0
    exact: bool | None = None

    _asks: ClassVar[bool]  # whether the cohort is asked for its losses
    _tilts: ClassVar[bool]
    _tilts_samples: ClassVar[bool]

    def __post_init__(self) -> None:
        require_number("t", self.t, "(-inf, inf)", "0 gives FedAvg")
        require_choice("level", self.level, ("client", "team", "sample"))
        require_number("sample_t", self.sample_t, "(-inf, inf)", "0 is the mean over samples")
        same = self.level != "sample" or self.sample_t in (0, self.t)
        require(
            self.exact is None or isinstance(self.exact, bool),
            "exact must be true or false, got {!r}",
            self.exact,
        )
        require(same, 'level="sample" tilts samples by t; remove sample_t, got {!r}', self.sample_t)
        asks = self.level != "team" and (abs(self.t) > LARGE if self.exact is None else self.exact)
        tilt = self.t if self.level == "sample" else self.sample_t
        # fixed here, because t may be a tensor later: see Algorithm
        for name, value in (
            ("_asks", asks),
            ("_tilts", self.t != 0),
            ("_tilts_samples", tilt != 0),
        ):
            object.__setattr__(self, name, value)

    @property
    def _method(self) -> Tilt:
        kind = TeamTilt if self.level == "team" else ExactTilt if self._asks else ClientTilt
        sample_t = self.t if self.level == "sample" else self.sample_t
        return kind(self.t, sample_t if self._tilts_samples else None, self._tilts)

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss",) if self._asks else ()

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        if self.level != "client" or self.sample_t:
            return None  # the weights are those of teams or samples
        return Certificate.of(TiltedMean(self.t), losses, census.weight)
