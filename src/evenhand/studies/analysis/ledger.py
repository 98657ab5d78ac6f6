"""The harm ledger: what every client, group and team gains or loses with each method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics.ledger import Gains, reach_of
from evenhand.metrics.together import gains_over_splits
from evenhand.metrics.uncertainty import Interval, holm
from evenhand.studies.analysis.uncertain import split_ratio
from evenhand.studies.runs.study import Study

Floats = NDArray[np.float64]


KINDS = ("client", "group", "team")


class Entry(NamedTuple):
    """A line of the harm ledger: what a client, group or team gains or loses with a method compared
    with a reference."""

    by: str  # "client", "group" or "team"
    name: str
    team: str
    samples: int
    method: str  # label
    against: str  # label of the reference: FedAvg or local-only training
    merit: float
    reference: float
    gain: Interval  # merit - reference
    p: float
    # Holm's correction over all lines with this method, reference and kind
    adjusted: float
    # "gains", "harmed", "unclear" or "few" (too few samples to test)
    verdict: str


def ledger(
    study: Study, level: float = 0.95, least: int = 10, kinds: Sequence[str] = KINDS
) -> list[Entry]:
    """Compare every client, group and team with FedAvg and with local-only training.

    If each seed splits the data differently, gains are means over the splits; if the clients differ
    between seeds, the ledger is that of the first seed. It is empty without per-sample results,
    which the tests need.
    """
    entries: list[Entry] = []
    if not study.sampled:
        return entries
    for against in dict.fromkeys(
        label for label in (study.reference, study.alone) if label is not None
    ):
        for label in study.labels:
            if label != against:
                for by in kinds:
                    entries += entries_of(study, label, against, by, level, least)
    return entries


def entries_of(
    study: Study, label: str, against: str, by: str, level: float, least: int
) -> list[Entry]:
    """Compare every client, group or team with any other method; without intervals and tests if
    results of single samples are not known."""
    names, samples, seeds = study.names(by), study.sizes(by).tolist(), study.judged_seeds
    if not names:
        return []
    new, old = (
        np.mean([study.merits(known, seed, by) for seed in seeds], 0) for known in (label, against)
    )
    low, high, p = _gain_ends(study, label, against, by, seeds, level, new - old, -(new + old))
    enough = np.array(samples) >= max(1, least)
    adjusted = holm(np.where(enough, p, np.nan).tolist()).tolist()
    teams = study.teams if by == "client" else ("",) * len(names)
    columns = zip(
        names,
        teams,
        samples,
        new.tolist(),
        old.tolist(),
        low.tolist(),
        high.tolist(),
        p.tolist(),
        adjusted,
        strict=True,
    )
    return [
        Entry(
            by,
            name,
            team,
            count,
            label,
            against,
            mine,
            its,
            Interval(mine - its, down, up),
            one,
            fair,
            _verdict(mine - its, fair, level),
        )
        for name, team, count, mine, its, down, up, one, fair in columns
    ]


def _verdict(gain: float, adjusted: float, level: float) -> str:
    if math.isnan(adjusted):
        return "few"
    return "unclear" if adjusted >= 1 - level or gain == 0 else "gains" if gain > 0 else "harmed"


def _gain_ends(
    study: Study,
    label: str,
    against: str,
    by: str,
    seeds: Sequence[int],
    level: float,
    gain: Floats,
    errors: Floats,
) -> tuple[Floats, Floats, Floats]:
    """(K,) ends of the intervals of gains, and p-values; NaN without per-sample results."""
    found = [one for seed in seeds if (one := _gains(study, label, against, seed, by)) is not None]
    none = np.full(len(gain), np.nan)
    if len(found) < len(seeds):
        return none, none, none
    bounded, shares = study.measure.bounded, not study.measure.whole
    reach = reach_of(np.concatenate([values for _, values in found])) if shares else 1.0
    if study.same_data or len(seeds) == 1:
        cell, gains = found[0][0], np.stack([values for _, values in found], 1)
        member = (cell >= 0) & ~np.isnan(gains).any(1)
        judged = Gains.of(gains[member], cell[member], len(gain)).judged(level, bounded, reach)
    else:  # the same clients, groups or teams, with different samples for each seed
        counted = [(cell >= 0) & ~np.isnan(values) for cell, values in found]
        judged = gains_over_splits(
            [values[member] for (_, values), member in zip(found, counted, strict=True)],
            [cell[member] for (cell, _), member in zip(found, counted, strict=True)],
            np.full(len(gain), split_ratio(study)),
            level,
            bounded,
            reach,
        )
    # a difference of roots is the difference of squares over the sum of the roots
    scale = 1 / np.where(errors > 0, errors, np.nan) if study.measure.squared else 1.0
    return (
        gain + (judged.low - judged.gain) * scale,
        gain + (judged.high - judged.gain) * scale,
        judged.p,
    )


def _gains(
    study: Study, label: str, against: str, seed: int, by: str
) -> tuple[NDArray[np.int64], Floats] | None:
    """(N,) the owner of each sample, and its gain."""
    cell = study.cells(by, seed)
    new, old = (study.sample_merits(known, seed, by) for known in (label, against))
    return None if cell is None or new is None or old is None else (cell, new - old)
