"""The settings of masked sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenhand.errors import require_choice, require_number, require_whole

MODES = ("recover", "strict")
COUNTS = ("masked", "visible")


@dataclass(frozen=True)
class SecureSums:
    """Masked sums: the server learns the sum of the clients' totals, and no single client's.

    Args:
        threshold: how many clients must answer, and how many of them can open a sum: a share of the
            cohort above 1/2, or a whole number. The default, 2/3, means more than two thirds.
        least: the smallest cohort, also in effect: coefficients a_i count as (sum a)^2 / sum a^2
            clients.
        colluding: how many clients may tell the server everything they know. The threshold must
            still hold against them, and noise that clients add in shares does not count theirs.
        mode: "recover" sums over the clients that answer, with a second short message in which they
            open the others' masks; "strict" needs one message and everybody's answer.
        counts: "masked": nodes tell how many samples they have only as a masked sum, so the server
            of a real federation knows totals. "visible": each node tells its own at the start; then
            nodes can also judge coefficients that follow from sizes. Simulations ignore it.
    """

    threshold: float | int = 2 / 3
    least: int = 3
    mode: str = "recover"
    colluding: int = 0
    counts: str = "masked"

    def __post_init__(self) -> None:
        if isinstance(self.threshold, int):
            require_whole("threshold", self.threshold, 2)
        else:
            require_number("threshold", self.threshold, "(0.5, 1]", "or a whole number of clients")
        require_whole("least", self.least, 3)
        require_choice("mode", self.mode, MODES)
        require_whole("colluding", self.colluding, 0)
        require_choice("counts", self.counts, COUNTS)

    def required(self, clients: int) -> int:
        """How many of a cohort's clients must answer, and how many holders open a sum.

        Any two such sets of holders share one that answers only once, so a share gives more than
        it says: floor(share * clients) + 1.

        >>> [SecureSums().required(n) for n in (3, 4, 5, 16)]
        [3, 3, 4, 11]
        """
        if self.mode == "strict":
            return clients
        if isinstance(self.threshold, int):
            return self.threshold
        # the small number undoes the rounding of 2/3 * n
        return min(clients, math.floor(self.threshold * clients + 1e-9) + 1)

    def check(self, clients: int) -> None:
        """Raise a ValueError if this number of clients cannot be summed safely."""
        if clients < self.least:
            raise ValueError(
                f"masked sums need at least {self.least} clients in a cohort, got {clients}; ask"
                " more clients"
            )
        required = self.required(clients)
        if required > clients:
            raise ValueError(
                f"threshold must be at most the cohort's {clients} clients, got {required}"
            )
        if 2 * required <= clients + self.colluding:
            also = f" and {self.colluding} that collude" if self.colluding else ""
            raise ValueError(
                f"threshold must be more than half of the cohort's {clients} clients{also}, got"
                f" {required}; two halves could open two sums of the same model"
            )
        if self.least - self.colluding < 2:
            raise ValueError(
                f"least must be at least {self.colluding + 2} with {self.colluding} clients that"
                f" collude, got {self.least}"
            )

    def described(self) -> str:
        """The settings as text, part of the context of every mask."""
        return f"{self.mode},{self.threshold!r},{self.least},{self.colluding}"
