"""How a run ends: after its last round or earlier, with its last model or an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from evenhand.algorithm import State
from evenhand.tree import Tree


@dataclass(frozen=True)
class Stopped:
    """Why a run ended before its last round.

    Args:
        round: the number of rounds done.
        rounds: the number of rounds asked for.
        reason: what asked to stop, in words.
    """

    round: int
    rounds: int
    reason: str

    def __str__(self) -> str:
        return f"stopped after {self.round} of {self.rounds} rounds: {self.reason}"


class Kept(NamedTuple):
    """Server state and clients' memories after a round, whose model the run is to return."""

    round: int
    state: State
    memories: dict[int, Tree]  # by client


class Ending(NamedTuple):
    """What callbacks have asked for so far."""

    stopped: Stopped | None = None
    kept: Kept | None = None

    def about(self) -> dict[str, Any]:
        """Return what JSON can hold of it."""
        return about_ending(self.stopped, None if self.kept is None else self.kept.round)


def about_ending(stopped: Stopped | None, restored: int | None) -> dict[str, Any]:
    """Return how a run ended as a table; {} if it did all rounds and returns its last model."""
    found: dict[str, Any] = {} if stopped is None else {"stopped": vars(stopped)}
    return found if restored is None else {**found, "restored": restored}


def read_ending(about: Mapping[str, Any]) -> tuple[Stopped | None, int | None]:
    """Return the arguments of ``about_ending`` from what it has returned."""
    stopped = Stopped(**about["stopped"]) if "stopped" in about else None
    return stopped, about.get("restored")
