"""Thresholds found after training, so that a model decides alike for all groups or clients.

A model gives a score, the probability of the positive label, and decides by comparing it with 0.5.
Here each group gets a threshold of its own, or several between which chance decides. Score
histograms are enough to find them, and these add over clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import RunError, require, require_known
from evenhand.metrics.cuts import Floats
from evenhand.metrics.threshold_effect import SHOWN, Row
from evenhand.metrics.threshold_words import (
    LAWFUL,
    WIDTH,
    Steps,
    arrow,
    cautions,
    change_of,
    points,
    shown,
)

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1


@dataclass(frozen=True)
class Thresholds:
    """A threshold for each group or client, and what they change on test data.

    Attributes:
        notion: what is alike, such as "equalised odds"; "accuracy" for nothing.
        bound: how far rates may be apart on the data that the thresholds were found on.
        by: "group" or "client".
        common: whether all have the same threshold.
        found_on: the data that the thresholds were found on, "validation" or "training".
        judged_on: the data of the effect, "test" or "training".
        positive: the name of the label that a score is the probability of.
        names: names of the groups or clients.
        rules: for each of them (probability, threshold) pairs. A score is accepted from the
            threshold on; 0 accepts everybody, infinity nobody.
        gap: how far rates are apart on the data that the thresholds were found on.
        reached: whether this is within the bound.
        notes: what to know about the search, and about groups and clients with few samples.
    """

    notion: str
    bound: float
    by: str
    common: bool
    found_on: str
    judged_on: str
    positive: str
    names: tuple[str, ...]
    rules: tuple[Steps, ...]
    gap: float
    reached: bool
    notes: tuple[str, ...] = ()
    effect_rows: tuple[Row, ...] = field(default=(), repr=False, hash=False)

    @cached_property
    def effect(self) -> pd.DataFrame:
        """Accuracy, the gap and rates, before (threshold 0.5) and after, with 95 % intervals."""
        import pandas as pd

        return pd.DataFrame(list(self.effect_rows))

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per threshold: name, probability, threshold."""
        import pandas as pd

        rows = [
            {"name": name, "probability": chance, "threshold": threshold}
            for name, steps in zip(self.names, self.rules, strict=True)
            for chance, threshold in steps
        ]
        return pd.DataFrame(rows)

    def probabilities(self, scores: ArrayLike, of: ArrayLike | None = None) -> Floats:
        """(N,) the chance of a positive decision for each sample.

        Args:
            scores: (N,) probabilities of the positive label; NaN is never accepted.
            of: (N,) names or codes of the samples' groups, or of their clients with by="client".
                Not needed with a common threshold.
        """
        given = np.atleast_1d(np.asarray(scores, np.float64))
        require(given.ndim == 1, "scores must be one number per sample, got shape {}", given.shape)
        require(
            not np.any((given < 0) | (given > 1)),
            "scores must be probabilities between 0 and 1; apply a sigmoid to logits first",
        )
        if of is None:
            require(
                self.common,
                "these thresholds differ by {}: give the {} of each sample",
                self.by,
                self.by,
            )
            of = np.zeros(len(given), np.int64)
        codes = codes_of(self.by, of, self.names, len(given))
        found = np.zeros(len(given))
        for code in np.unique(codes).tolist():
            member = codes == code
            for chance, threshold in self.rules[code]:
                found[member] += chance * (given[member] >= threshold)
        return np.minimum(found, 1.0)

    def predict(
        self, scores: ArrayLike, of: ArrayLike | None = None, seed: int | None = None
    ) -> NDArray[np.int64]:
        """(N,) decisions, 0 or 1. Where a rule is randomised, they are drawn anew for each sample.

        See :meth:`probabilities` for the arguments. The same ``seed`` draws the same numbers.
        """
        chance = self.probabilities(scores, of)
        return (np.random.default_rng(seed).random(len(chance)) < chance).astype(np.int64)

    def __str__(self) -> str:
        said = [line for sentence in self.sentences() for line in wrap(sentence, WIDTH)]
        return "\n".join([*said, "", *self._lines()])

    def sentences(self) -> Iterator[str]:
        """What was done, what it changes and costs, and what to beware of."""
        rows = {row["by"]: row for row in self.effect_rows if row["by"] != "unit"}
        what = "One common threshold" if self.common else f"Thresholds by {self.by}"
        goal = f"for {self.notion}"
        goal += f" within {self.bound:g}" if self.bound and "gap" in rows else ""
        yield f"{what} {goal}, found on {self.found_on} data, judged on {self.judged_on} data."
        if "gap" in rows:
            before, after = (points(rows["gap"], when) for when in ("before", "after"))
            other = self.found_on != self.judged_on
            here = f"; on the {self.found_on} data it is {100 * self.gap:.1f}" if other else ""
            yield f"The gap goes from {before} to {after} percentage points{here}."
        all_rows = rows["everyone"]
        yield (
            f"Accuracy over all samples changes by {change_of(all_rows)} percentage points, from"
            f" {100 * all_rows['before']:.1f} % to {100 * all_rows['after']:.1f} %."
        )
        yield from self.cautions()
        if self.found_on == "training":
            yield (
                "A model that overfits has other scores on its training data than on new data; with"
                " validation data (--split val=0.2,test=0.2) thresholds are more reliable."
            )
        if self.by == "group" and not self.common:
            yield LAWFUL

    def cautions(self) -> Iterator[str]:
        """That the decisions are of little use, and notes on groups and clients."""
        gap = next((row for row in self.effect_rows if row["by"] == "gap"), None)
        if gap is not None and gap["after"] > gap["before"]:
            yield (
                f"On {self.judged_on} data the gap is not smaller: the {self.found_on} data are"
                " too few to tell which thresholds help. Keep 0.5."
            )
        yield from cautions(self.effect_rows, self.judged_on)
        yield from self.notes

    def _lines(self) -> Iterator[str]:
        """A row per group or client: its threshold, and each rate before and after."""
        rows = {(r["name"], r["measure"]): r for r in self.effect_rows if r["by"] == "unit"}
        body = [[self.by, "threshold", *SHOWN]]
        for name, steps in zip(self.names, self.rules, strict=True):
            body.append([name, shown(steps), *(arrow(rows[name, rate]) for rate in SHOWN)])
        widths = [max(map(len, column)) for column in zip(*body, strict=True)]
        for row in body:
            cells = zip(row, widths, strict=True)
            yield "  ".join(cell.ljust(width) for cell, width in cells).rstrip()
        yield f"(% at threshold 0.5 → with these thresholds; the positive label is {self.positive})"

    def to_json(self) -> str:
        """The thresholds as JSON text."""
        kept = {name: getattr(self, name) for name in _PLAIN}
        rules = [
            [[chance, None if math.isinf(at) else at] for chance, at in steps]
            for steps in self.rules
        ]
        rows = [
            {key: None if value != value else value for key, value in row.items()}
            for row in self.effect_rows
        ]
        content = {"format": FORMAT, **kept, "rules": rules, "effect": rows}
        return json.dumps(content, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Thresholds:
        """Read what :meth:`to_json` returned."""
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise RunError("these thresholds were written by a later version; update evenhand")
            kept: dict[str, Any] = {
                name: tuple(found[name]) if isinstance(found[name], list) else found[name]
                for name in _PLAIN
            }
            rules = tuple(
                tuple((float(chance), math.inf if at is None else float(at)) for chance, at in one)
                for one in found["rules"]
            )
            rows = tuple(
                {key: math.nan if value is None else value for key, value in row.items()}
                for row in found["effect"]
            )
            return cls(**kept, rules=rules, effect_rows=rows)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"this is not the JSON of thresholds ({error!r})") from error


_PLAIN = (
    *("notion", "bound", "by", "common", "found_on", "judged_on", "positive", "names", "gap"),
    *("reached", "notes"),
)


def codes_of(what: str, given: ArrayLike, names: Sequence[str], length: int) -> NDArray[np.int64]:
    """(N,) the code of each name or code; one is for all samples."""
    values = np.asarray(given)
    values = np.full(length, values) if values.ndim == 0 else values
    require(
        values.shape == (length,),
        "give one {} for each of {} samples, got shape {}",
        what,
        length,
        values.shape,
    )
    if values.dtype.kind in "iu":
        require(
            length == 0 or (values.min() >= 0 and values.max() < len(names)),
            "codes of a {} go from 0 to {}",
            what,
            len(names) - 1,
        )
        return values.astype(np.int64)
    place = {name: code for code, name in enumerate(names)}
    for value in values.tolist():
        require_known(what, str(value), names)
    return np.array([place[str(value)] for value in values.tolist()], np.int64)
