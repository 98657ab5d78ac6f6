"""Whether a published number was reproduced, by a rule that is stated beforehand.

For each number, the first of these that holds:

same digits      our mean over seeds, rounded as the paper rounds, is the published number
within spreads   the two means differ by no more than the two standard deviations over runs together
same ordering    in the same column, every row that the paper sets apart from this one (by more than
                 the two published standard deviations together) is on the same side of it here,
                 and there is such a row
not reproduced   none of these

The first two also ask that our standard deviation is at most five times theirs, or five units of
the last digit: runs that scatter more say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from evenhand.papers.published import Published

SAME_DIGITS, WITHIN, ORDERING, NOT = (
    "same digits",
    "within spreads",
    "same ordering",
    "not reproduced",
)
VERDICTS = (SAME_DIGITS, WITHIN, ORDERING, NOT)
# row, then metric: one value for each seed
Values = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Line:
    """A published number beside ours."""

    published: Published
    mean: float  # ours, over seeds
    std: float  # over seeds, of the population as in the papers' scripts; NaN for one seed
    low: float  # Student's 95 % interval of the mean over seeds; NaN for one seed
    high: float
    verdict: str  # "" where there is none: not run, diverged, or too small to be judged

    @property
    def difference(self) -> float:
        """Ours minus theirs."""
        return self.mean - self.published.mean


def compare(
    published: Sequence[Published], values: Values, judged: str = "everything"
) -> list[Line]:
    """Every published number beside ours, with its verdict; ``judged``: "ordering" looks at nothing
    else, "nothing" gives no verdict."""
    means = {
        (row, metric): float(np.mean(seeds))
        for row, found in values.items()
        for metric, seeds in found.items()
    }
    lines = []
    for number in published:
        seeds = np.asarray(values.get(number.row, {}).get(number.metric, ()), np.float64)
        if not len(seeds) or not np.isfinite(seeds).all():
            lines.append(Line(number, math.nan, math.nan, math.nan, math.nan, ""))
            continue
        mean, std = float(seeds.mean()), float(seeds.std())
        half = math.nan
        if len(seeds) > 1:
            error = float(seeds.std(ddof=1)) / math.sqrt(len(seeds))
            half = float(stats.t.ppf(0.975, len(seeds) - 1)) * error
        levels = judged == "everything"
        verdict = _verdict(number, mean, std, published, means, levels)
        verdict = "" if judged == "nothing" else verdict
        most = 100.0 if number.unit == "%" else math.inf
        low, high = max(mean - half, 0.0), min(mean + half, most)  # in this order NaN stays NaN
        shown = std if len(seeds) > 1 else math.nan
        lines.append(Line(number, mean, shown, low, high, verdict))
    return lines


def _verdict(
    number: Published,
    mean: float,
    std: float,
    published: Sequence[Published],
    means: Mapping[tuple[str, str], float],
    levels: bool,
) -> str:
    # runs that scatter much more than the paper's can tell nothing, whatever their mean
    sharp = number.std is None or std <= 5 * max(number.std, 10.0**-number.digits)
    sharp = sharp and levels
    if sharp and f"{mean:.{number.digits}f}" == f"{number.mean:.{number.digits}f}":
        return SAME_DIGITS
    if sharp and abs(mean - number.mean) <= std + (number.std or 0.0):
        return WITHIN
    others = [one for one in published if one.metric == number.metric and one.row != number.row]
    apart = [
        one
        for one in others
        if abs(one.mean - number.mean) > (one.std or 0.0) + (number.std or 0.0)
        and math.isfinite(means.get((one.row, one.metric), math.nan))
    ]
    ordered = all(
        (means[one.row, one.metric] - mean) * (one.mean - number.mean) > 0 for one in apart
    )
    return ORDERING if apart and ordered else NOT


def counted(lines: Sequence[Line]) -> dict[str, int]:
    """How many numbers have each verdict; "" counts those without one."""
    return {verdict: sum(line.verdict == verdict for line in lines) for verdict in (*VERDICTS, "")}
