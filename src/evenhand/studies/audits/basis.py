"""The basis of an audit: predictions, options, and the rates of every client and group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require, require_choice, require_known, require_number, require_whole
from evenhand.metrics.counts import Counts
from evenhand.metrics.group_rates import RATES
from evenhand.metrics.uncertainty import OVER
from evenhand.studies.audits.matching import find_label
from evenhand.studies.audits.rows import Rows
from evenhand.studies.audits.shares import (
    Shares,
    shares_of,
)

Floats = NDArray[np.float64]
Row = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Basis:
    """Predictions, options, and rates of clients and groups.

    Args:
        counts: predictions, counted.
        positive: the positive label of rates and parities; None takes the second of two labels,
            and with more labels the one that differs most.
        over: what intervals are over: other "samples" of these clients, other "clients" like these,
            or "both".
        least: rates over fewer samples are marked and excluded from comparisons.
        suppress: show no numbers of small clients and groups, and exclude such clients from metrics
            across clients.
        reference: the group to compare the others with; None compares all pairs, with ratios to
            the group with the highest rate.
        rows: the samples, for weights and scores.
        thresholds: the scores in the table of rates by threshold; None takes 19.
        by: the name of the group column.
        source: where the predictions come from, for provenance.json.
        part: whether it covers one of several group columns, without clients.
    """

    counts: Counts
    positive: str | None = None
    over: str = "samples"
    level: float = 0.95
    draws: int = 1000
    seed: int = 0
    least: int = 10
    suppress: bool = False
    reference: str | Sequence[str] | None = None
    rows: Rows | None = None
    thresholds: Sequence[float] | None = None
    by: str = "group"
    source: Mapping[str, Any] = field(default_factory=dict)
    part: bool = False

    def __post_init__(self) -> None:
        require_number("level", self.level, "(0, 1)")
        require_whole("least", self.least, 0)
        require_choice("over", self.over, OVER)
        require(
            self.over == "samples" or not self.weighted,
            "with weights, intervals are over samples; leave out over={!r}",
            self.over,
        )
        if self.positive is not None:
            known = find_label(self.positive, self.counts.labels)
            object.__setattr__(self, "positive", known)
        for name in self._references:
            if not any(named(name, one.counts.groups) for one in (*self.parts.values(), self)):
                every = (self, *self.parts.values())
                require_known("group", name, [group for one in every for group in one.groups_named])

    # ---- what it is about --------------------------------------------------------------------
    @property
    def code(self) -> int | None:
        """The code of the positive label."""
        if self.positive is not None:
            return self.counts.labels.index(self.positive)
        return 1 if len(self.counts.labels) == 2 else None

    @property
    def label(self) -> str | None:
        """The positive label."""
        return None if self.code is None else self.counts.labels[self.code]

    @property
    def weighted(self) -> bool:
        """Whether samples have weights."""
        return self.rows is not None and self.rows.weight is not None

    @cached_property
    def parts(self) -> dict[str, Self]:
        """With several group columns, an audit by each of them."""
        if self.rows is None:
            return {}
        rows = self.rows
        one_by_one = {column: rows.by(column) for column in rows.columns}
        return {
            column: replace(
                self,
                counts=found.counts(),
                rows=found,
                by=column,
                part=True,
                reference=[name for name in self._references if named(name, found.groups)],
            )
            for column, found in one_by_one.items()
        }

    @property
    def _references(self) -> list[str]:
        if self.reference is None:
            return []
        return [self.reference] if isinstance(self.reference, str) else list(self.reference)

    @property
    def compared_with(self) -> str | None:
        """The reference among these groups."""
        found = (named(name, self.counts.groups) for name in self._references)
        return next((name for name in found if name), None)

    @property
    def groups_named(self) -> tuple[str, ...]:
        """Names of groups; () without groups."""
        return self.counts.groups if len(self.counts.groups) > 1 else ()

    # ---- tables ------------------------------------------------------------------------------
    @cached_property
    def _tables(self) -> tuple[Floats, Floats]:
        """(n, A, C, C + 1) sums of weights, and of their squares."""
        if self.rows is None or self.rows.weight is None:
            table = self.counts.table.astype(np.float64)
            return table, table
        return self.rows.summed(1), self.rows.summed(2)

    def shares(self, by: str = "group") -> dict[str, Shares]:
        """Rates of the positive label by "group", "client" or "everyone"; only accuracy without a
        positive label."""
        axes = {"group": (0,), "client": (1,), "everyone": (0, 1)}[by]
        sums, squares = (table.sum(axes) for table in self._tables)
        if by == "everyone":
            sums, squares = sums[None], squares[None]
        names = ("accuracy",) if self.code is None else RATES
        return {name: shares_of(sums, squares, self.code or 0, name) for name in names}

    def names(self, by: str = "group") -> Sequence[str]:
        """Names of the groups or clients, or "everyone"."""
        kinds = {"group": self.counts.groups, "client": self.counts.clients}
        return kinds.get(by, ("everyone",))

    def samples(self, by: str = "group") -> list[int]:
        """Numbers of samples, without weights."""
        table = self.counts.table
        axes = {"group": (0, 2, 3), "client": (1, 2, 3), "everyone": (0, 1, 2, 3)}[by]
        return [int(count) for count in np.atleast_1d(table.sum(axes))]

    def clients(self) -> list[Row]:
        """A row per client: samples, accuracy with Wilson's interval, whether it has few samples,
        and its rates."""
        return self._wide("client")

    def groups(self) -> list[Row]:
        """A row per group: samples, accuracy with Wilson's interval and the rates of the positive
        label."""
        return self._wide("group")

    def _wide(self, by: str) -> list[Row]:
        shares = self.shares(by)
        ends = shares["accuracy"].intervals(self.level)
        made = []
        for place, (name, samples) in enumerate(zip(self.names(by), self.samples(by), strict=True)):
            row = {
                "samples": samples,
                **dict(zip(("accuracy", "low", "high"), ends[place], strict=True)),
                **{
                    rate: float(share.value[place])
                    for rate, share in shares.items()
                    if rate != "accuracy"
                },
            }
            small = samples < self.least
            shown: Row = dict.fromkeys(row) if small and self.suppress else row
            made.append({"name": name, **shown, "small": small})
        return made

    def rates(self) -> list[Row]:
        """A row per rate of everyone, each group and each client: hits, denominator, interval."""
        made: list[Row] = []
        for by in ("everyone", "group", "client"):
            if (by != "everyone" and len(self.names(by)) < 2) or (by == "client" and self.part):
                continue
            samples = self.samples(by)
            for rate, share in self.shares(by).items():
                for place, found in enumerate(share.intervals(self.level)):
                    few = share.size[place] < self.least
                    if self.suppress and (few or samples[place] < self.least):
                        continue
                    made.append(
                        {
                            "by": by,
                            "name": self.names(by)[place],
                            "rate": rate,
                            "label": "" if rate == "accuracy" else self.label,
                            "hits": _whole(share.hits[place]),
                            "of": _whole(share.of[place]),
                            "effective": _whole(share.size[place]),
                            **found._asdict(),
                            "few": bool(few),
                        }
                    )
        return made

    def suppressed(self, by: str) -> set[str]:
        """Groups or clients whose numbers are not shown."""
        small = zip(self.names(by), self.samples(by), strict=True)
        return {name for name, samples in small if samples < self.least} if self.suppress else set()


def named(name: str, groups: Sequence[str]) -> str | None:
    """The group called ``name``; for a column of numbers also by its value: 1 for sex=1."""
    if name in groups:
        return name
    ends = [group for group in groups if group.endswith(f"={name}")]
    return ends[0] if len(ends) == 1 else None


def _whole(number: float) -> int | float:
    """A count as a whole number, a sum of weights as it is."""
    return int(number) if float(number).is_integer() else float(number)
