"""The comparisons of an audit: across clients, gaps, pairs, ratios and scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evenhand.metrics.across import accuracy_intervals
from evenhand.metrics.group_rates import PARITIES, RATES, Gap, group_gaps
from evenhand.metrics.local_gaps import LocalGaps, local_gaps
from evenhand.metrics.spread import SPREAD
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.audits import scoring
from evenhand.studies.audits.basis import Basis, Row
from evenhand.studies.audits.shares import (
    COMPARED,
    four_fifths,
    gap_of,
    pairs_of,
    shares_of,
    weighted_gaps,
)

LOCAL = {rate for rates in PARITIES.values() for rate in rates}  # compared within clients


@dataclass(frozen=True, repr=False)
class Numbers(Basis):
    """Metrics of clients and groups, with intervals."""

    def across_clients(self) -> dict[str, Interval]:
        """Mean, worst 10 % and so on of the clients' accuracies; see
        :mod:`evenhand.metrics.across`.

        A value can fall outside its own interval: the worst of many clients with few samples looks
        worse than it is.
        """
        share = self.shares("client")["accuracy"]
        kept = (np.array(self.samples("client")) >= (self.least if self.suppress else 0)) & (
            share.of > 0
        )
        right, size = share.k[kept].round(), np.maximum(1, share.size[kept].round())
        found = accuracy_intervals(
            np.minimum(right, size).astype(np.int64),
            size.astype(np.int64),
            self.over,
            self.draws,
            self.level,
            self.seed,
        )
        if not self.weighted or not kept.any():
            return found
        exact = {name: float(SPREAD[name](share.value[kept])) for name in SPREAD}
        exact["pooled"] = float(share.hits[kept].sum() / share.of[kept].sum())
        return {name: Interval(exact[name], one.low, one.high) for name, one in found.items()}

    @cached_property
    def gaps(self) -> dict[str, Gap]:
        """The largest gap between groups of each kind, with the two groups; {} if fewer than two
        groups have enough samples."""
        if len(self.groups_named) < 2:
            return {}
        if self.weighted:
            found = weighted_gaps(
                self.shares(), self.counts.groups, self.label or "", self.level, self.least
            )
            return {} if np.isnan(found["accuracy parity"].interval.value) else found
        return group_gaps(
            self.counts.by_group,
            self.counts.groups,
            self.counts.labels,
            self.code,
            self.level,
            self.least,
            self.over,
            None if self.over == "samples" else self.counts.table,
        )

    def across_groups(self) -> dict[str, Interval]:
        """Gaps between groups; empty if fewer than two have enough samples."""
        return {kind: gap.interval for kind, gap in self.gaps.items()}

    def gap_rows(self) -> list[Row]:
        """Gaps as rows of a table."""
        return [
            {
                "kind": gap.kind,
                "rate": gap.rate,
                "label": gap.label,
                "lowest": gap.low,
                "highest": gap.high,
                **gap.interval._asdict(),
                "p": gap.p,
                "left_out": "; ".join(gap.left_out),
            }
            for gap in (*self.gaps.values(), *([self.base_rates] if self.base_rates else []))
        ]

    @cached_property
    def local(self) -> dict[str, LocalGaps]:
        """Gaps between groups within clients, by kind, over samples; {} with fewer than two clients
        or groups."""
        hidden = self.suppressed("client")
        kept = [place for place, name in enumerate(self.counts.clients) if name not in hidden]
        sums, squares = (table[kept] for table in self._tables)
        names = ["accuracy"] if self.code is None else [rate for rate in RATES if rate in LOCAL]
        shares = {name: shares_of(sums, squares, self.code or 0, name) for name in names}
        return local_gaps(
            {name: (share.k, share.size) for name, share in shares.items()},
            [self.counts.clients[place] for place in kept],
            self.counts.groups,
            self.level,
            self.least,
        )

    @cached_property
    def base_rates(self) -> Gap | None:
        """The gap between groups in base rates of the positive label."""
        if self.code is None or len(self.groups_named) < 2:
            return None
        share = {"base rate": self.shares()["base rate"]}
        names = (self.counts.groups, self.counts.labels[self.code])
        found = gap_of("base rates", share, *names, self.level, self.least)
        return None if np.isnan(found.interval.value) else found

    @cached_property
    def pairs(self) -> list[Row]:
        """Every two groups, or every group and the reference, compared in each rate."""
        if len(self.groups_named) < 2:
            return []
        reference = self.compared_with
        place = None if reference is None else self.counts.groups.index(reference)
        return [
            row
            for rate, share in self.shares().items()
            if rate in COMPARED
            for row in pairs_of(rate, share, self.counts.groups, self.level, self.least, place)
        ]

    @cached_property
    def ratios(self) -> list[Row]:
        """Selection rates relative to the reference, or to the group with the highest rate, with
        the verdict of the four-fifths rule."""
        pairs = [row for row in self.pairs if row["rate"] == "selection rate"]
        if not pairs:
            return []
        highest = self.compared_with or max(pairs, key=lambda row: row["other"])["against"]
        return four_fifths(pairs, highest)

    # ---- scores ------------------------------------------------------------------------------
    @cached_property
    def scores(self) -> list[Row]:
        """AUC and calibration of everyone, each group and each client; [] without scores."""
        return self._scored(scoring.score_rows, not self.part)

    @cached_property
    def reliability(self) -> list[Row]:
        """Mean score and share of positive samples by bins of the score."""
        return self._scored(scoring.reliability_rows)

    @cached_property
    def sweep(self) -> list[Row]:
        """Rates of everyone and each group by threshold."""
        return self._scored(scoring.threshold_rows, self.thresholds)

    def _scored(self, made: Callable[..., list[Row]], *more: object) -> list[Row]:
        if self.rows is None or self.rows.score is None or self.code is None:
            return []
        found = made(self.rows, self.code, self.level, *more)
        hidden = {(by, name) for by in ("group", "client") for name in self.suppressed(by)}
        return [row for row in found if (row["by"], row["name"]) not in hidden]
