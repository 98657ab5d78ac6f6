"""Scores by client and group: AUC, calibration, and rates by threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics import ranking
from evenhand.metrics.pairwise import kish
from evenhand.metrics.uncertainty import Interval, wilson
from evenhand.studies.audits.rows import Rows

Floats = NDArray[np.float64]
Row = dict[str, Any]
Chosen = NDArray[np.bool_]

STEPS = tuple(place / 20 for place in range(1, 20))  # thresholds of probabilities


def is_probability(score: Floats) -> bool:
    """Whether scores can be probabilities, so that calibration is defined."""
    there = score[~np.isnan(score)]
    return bool(len(there)) and bool(there.min() >= 0) and bool(there.max() <= 1)


def score_rows(rows: Rows, code: int, level: float, clients: bool = True) -> list[Row]:
    """A row for everyone, each group and each client: AUC and, for probabilities, calibration."""
    assert rows.score is not None
    calibrated = is_probability(rows.score)
    found = []
    for by, name, chosen in _parts(rows, clients):
        score, positive, weight = _of(rows, code, chosen)
        there = ~np.isnan(score)
        ups, downs = (_size(weight, there & kind, len(score)) for kind in (positive, ~positive))
        value = ranking.auc_interval(ranking.auc(score, positive, weight), ups, downs, level)
        row: Row = {
            "by": by,
            "name": name,
            "positives": int((positive & there).sum()),
            "negatives": int((~positive & there).sum()),
            "auc": value.value,
            "auc_low": value.low,
            "auc_high": value.high,
        }
        if calibrated:
            apart = ranking.bias(score, positive, weight, level)
            row |= {
                "bias": apart.value,
                "bias_low": apart.low,
                "bias_high": apart.high,
                "calibration_error": ranking.calibration_error(score, positive, weight),
            }
        found.append(row)
    return found


def reliability_rows(rows: Rows, code: int, level: float) -> list[Row]:
    """Mean score and share of positive samples in up to ten bins, for everyone and each group."""
    assert rows.score is not None
    if not is_probability(rows.score):
        return []
    return [
        {
            "by": by,
            "name": name,
            "samples": one.samples,
            "score": one.score,
            "share": one.share.value,
            "low": one.share.low,
            "high": one.share.high,
        }
        for by, name, chosen in _parts(rows, clients=False)
        for one in ranking.reliability(*_of(rows, code, chosen), level)
    ]


def threshold_rows(
    rows: Rows, code: int, level: float, thresholds: Sequence[float] | None = None
) -> list[Row]:
    """Rates at each threshold, for everyone and each group, with hits, denominator and interval.

    The default thresholds are 0.05, 0.10, ..., 0.95, or the same quantiles of scores that are not
    probabilities.
    """
    assert rows.score is not None
    steps = thresholds if thresholds is not None else usual(rows.score)
    made = []
    for cut in sorted({float(step) for step in steps}):
        selected = rows.score >= cut  # a sample without a score is not selected
        for by, name, chosen in _parts(rows, clients=False):
            picked = selected[chosen]
            score, positive, weight = _of(rows, code, chosen)
            weights = np.ones(len(score)) if weight is None else weight
            right = np.where(np.isnan(score), False, picked == positive)
            for rate, hit, inside in (
                ("selection rate", picked, np.ones(len(score), bool)),
                ("true-positive rate", picked, positive),
                ("false-positive rate", picked, ~positive),
                ("precision", positive, picked),
                ("accuracy", right, np.ones(len(score), bool)),
            ):
                made.append(
                    {"threshold": cut, "by": by, "name": name, "rate": rate}
                    | _share(hit & inside, inside, weights, level)
                )
    return made


def usual(score: Floats) -> tuple[float, ...]:
    """The default thresholds."""
    if is_probability(score):
        return STEPS
    there = score[~np.isnan(score)]
    return (
        tuple(np.unique(np.quantile(there, STEPS, method="higher")).tolist()) if len(there) else ()
    )


def _share(hit: Chosen, inside: Chosen, weights: Floats, level: float) -> Row:
    of, hits = float(weights[inside].sum()), float(weights[hit].sum())
    size = float(kish(of, (weights[inside] ** 2).sum()))
    value = hits / of if of > 0 else np.nan
    low, high = wilson(0.0 if np.isnan(value) else value * size, size, level)
    ends = Interval(value, float(low), float(high))
    return {"hits": hits, "of": of, "value": ends.value, "low": ends.low, "high": ends.high}


def _parts(rows: Rows, clients: bool = True) -> list[tuple[str, str, Chosen]]:
    parts = [("everyone", "everyone", np.ones(len(rows.label), bool))]
    if len(rows.groups) > 1:
        parts += [("group", name, rows.group == i) for i, name in enumerate(rows.groups)]
    if clients and len(rows.clients) > 1:
        parts += [("client", name, rows.client == i) for i, name in enumerate(rows.clients)]
    return parts


def _of(rows: Rows, code: int, chosen: Chosen) -> tuple[Floats, Chosen, Floats | None]:
    assert rows.score is not None
    weight = None if rows.weight is None else rows.weight[chosen]
    return rows.score[chosen], rows.label[chosen] == code, weight


def _size(weight: Floats | None, chosen: Chosen, samples: int) -> float:
    """Effective samples."""
    weights = np.ones(samples) if weight is None else weight
    return float(kish(weights[chosen].sum(), (weights[chosen] ** 2).sum()))
