"""What training asks of a method that makes a run differentially private."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch

from evenhand.cohort import Cohort, Draw, Full, Poisson, Uniform
from evenhand.privacy.accounting import EVERYONE, POISSON, WITHOUT_REPLACEMENT, Scheme
from evenhand.privacy.record import Privacy
from evenhand.privacy.secret import Secret
from evenhand.tree import Tree


class Facts(NamedTuple):
    """What accounting must know about a run before it starts."""

    scheme: Scheme
    rounds: int
    weights: str  # the base weights of clients
    local_steps: float | None  # if they are the same for all clients


class Protection(ABC):
    """A method that makes a run differentially private, as training sees it."""

    @property
    @abstractmethod
    def source(self) -> Secret:
        """What noise and cohorts are drawn from."""

    @abstractmethod
    def for_run(self, facts: Facts) -> Any:
        """Return the method for one run, with a secret of its own; raise if it cannot be
        private."""

    @abstractmethod
    def check_resumed(self, state: Tree) -> None:
        """Raise unless the rounds before the checkpoint had the noise that this run has."""

    @abstractmethod
    def record(self, releases: int, size: int, looked: tuple[str, ...]) -> Privacy:
        """Return what the run may claim.

        Args:
            releases: the number of rounds done.
            size: the number of values in a noisy sum.
            looked: what else depended on the clients' data and changed the model.
        """

    @property
    @abstractmethod
    def needs_secret_cohorts(self) -> bool:
        """Whether what the run may claim depends on nobody knowing who takes part."""

    @property
    @abstractmethod
    def expected(self) -> float:
        """How many clients take part on average: what the history shows in place of the actual
        number, which depends on who was drawn."""


def scheme_of(cohort: Cohort, clients: int) -> Scheme:
    """Return a cohort as accounting knows it; raise if there is no theorem about it."""
    kinds = {Full: EVERYONE, Poisson: POISSON, Uniform: WITHOUT_REPLACEMENT}
    kind, expected = kinds.get(type(cohort)), cohort.expected(clients)
    if kind is None or expected is None:
        raise ValueError(
            f"no theorem says how private {type(cohort).__name__} cohorts are; use Poisson(rate),"
            " Full() or Uniform(k)"
        )
    return Scheme(kind, clients, expected)


def never_empty(draw: Draw) -> Draw:
    """Return the cohort, or a stand-in with coefficient 0 for an empty one.

    The server releases noise in every round. A round without a release would tell that nobody was
    drawn, and no accounting covers that. The stand-in sends zeros.
    """
    if len(draw.ids):
        return draw
    nothing = torch.zeros(1, dtype=torch.float64)
    return Draw(torch.zeros(1, dtype=torch.int64), nothing, nothing)
