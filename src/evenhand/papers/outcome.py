"""What came out of a part of an experiment."""

from __future__ import annotations

from dataclasses import dataclass

from evenhand.papers.experiment import Experiment, Part
from evenhand.papers.published import published
from evenhand.papers.results import Result
from evenhand.papers.verdicts import Line, compare


@dataclass(frozen=True)
class Outcome:
    """A part of an experiment, and what our runs of it gave."""

    experiment: Experiment
    part: Part  # as it was run, or would be
    result: Result | None = None  # None where it was not run
    missing: str = ""  # why

    @property
    def lines(self) -> list[Line]:
        """Every published number beside ours."""
        if self.result is None:
            return []
        return compare(published(self.part), self.result.values, self.part.judged)
