"""What a page says about one part of an experiment: what was run how, and what came out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evenhand.papers.availability import MISSING, data_for
from evenhand.papers.experiment import Experiment, Paper, Part
from evenhand.papers.published import published
from evenhand.papers.results import QUICK, Result
from evenhand.papers.verdicts import VERDICTS, Line, compare, counted

# as the papers call themselves; others by the name that experiments have
DIVERGED = "diverged"
RUN = "run"


@dataclass(frozen=True)
class Entry:
    """A part with its result, or without one where it was not run."""

    experiment: Experiment
    part: Part  # as it was run
    result: Result | None
    key: str  # of its elements on the page

    @cached_property
    def lines(self) -> list[Line]:
        """Every published number beside ours."""
        return compare(
            published(self.part), self.result.values if self.result else {}, self.part.judged
        )

    @property
    def heading(self) -> str:
        """``PropFair Table 6: cifar10``."""
        return heading(self.experiment) + (f": {self.part.name}" if self.part.name else "")

    @property
    def note(self) -> str:
        """How the runs differ from the paper's."""
        return (self.result.note if self.result else "") or self.part.note

    @property
    def original(self) -> Part:
        """The part as the paper has it."""
        same = (one for one in self.experiment.parts if one.name == self.part.name)
        return next(same, self.part)

    @property
    def smaller(self) -> bool:
        """Whether it was run with a smaller budget than the paper's."""
        budget = self.result.budget if self.result else self.part.budget
        return budget == QUICK and bool(self.original.smaller)

    @property
    def substituted(self) -> bool:
        """Whether other data took the place of the paper's."""
        if not self.original.other:
            return False
        about = self.original.other.get("about", "")
        return about in self.note if about else not self.part.other

    @property
    def how(self) -> str:
        """How it was run, or why it was not."""
        if self.result is None:
            return f"not run: {self.why_not}"
        ways = ["smaller budget"] * self.smaller + ["substitute data"] * self.substituted
        told = " and ".join(ways) or ("differs from the paper" if self.note else "")
        return (
            ": ".join(filter(None, [told, self.note]))
            or "the paper's settings, as far as it states them"
        )

    @property
    def why_not(self) -> str:
        """Why there is no result, and how to get one."""
        data = data_for(self.original)
        if data.kind == MISSING:
            return f"the data are missing, {data.about}"
        return f"there is no result yet, get one with: evenhand reproduce {self.part.title}"

    def counts(self) -> dict[str, int]:
        """Numbers by verdict, and those that were run; what diverged was run without a verdict."""
        diverged = set(self.result.diverged) if self.result else set()
        lost = sum(not line.verdict and line.published.row in diverged for line in self.lines)
        found = counted(self.lines)
        run = sum(found[verdict] for verdict in VERDICTS) + lost
        return {verdict: found[verdict] for verdict in VERDICTS} | {
            DIVERGED: lost,
            RUN: run,
            "published": len(self.lines),
        }


def entries(results: Sequence[tuple[Experiment, Part, Result | None]]) -> list[Entry]:
    """What the page is about; each has a key of its own."""
    found: list[Entry] = []
    keys: set[str] = set()
    for experiment, part, result in results:
        key = base = re.sub(r"\W+", "-", part.title).strip("-") or "part"
        number = 1
        while key in keys:
            number += 1
            key = f"{base}-{number}"
        keys.add(key)
        found.append(Entry(experiment, part, result, key))
    return found


def once(found: Sequence[Entry]) -> list[Entry]:
    """Entries whose numbers count: a figure with the runs of a table has the table's numbers, and
    of a part that is there twice the one with most of its numbers counts."""
    best: dict[str, Entry] = {}
    for entry in found:
        known = best.get(entry.part.home)
        if known is None or _rank(entry) > _rank(known):
            best[entry.part.home] = entry
    return list(best.values())


def _rank(entry: Entry) -> tuple[int, bool]:
    return entry.counts()[RUN], not entry.smaller


def total(found: Sequence[Entry]) -> Mapping[str, int]:
    """Counts of several entries together."""
    sums = dict.fromkeys((*VERDICTS, DIVERGED, RUN, "published"), 0)
    for entry in found:
        for name, count in entry.counts().items():
            sums[name] += count
    return sums


def heading(experiment: Experiment) -> str:
    """``PropFair Table 6``."""
    return f"{experiment.paper.short} {experiment.number}"


def cited(paper: Paper) -> str:
    """Title, authors and venue."""
    return ". ".join(
        filter(None, [paper.title, ", ".join(filter(None, [paper.authors, paper.venue]))])
    )
