"""The harm ledger: what every client, group and team gains or loses with each method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics.ledger import Gains, Judged
from evenhand.metrics.together import gains_over_splits
from evenhand.metrics.uncertainty import Interval, holm
from evenhand.studies.analysis.uncertain import split_ratio
from evenhand.studies.runs.study import Study

Floats = NDArray[np.float64]


class Entry(NamedTuple):
    """A line of the harm ledger: what a client, group or team gains or loses with a method against
    a reference."""

    by: str  # "client", "group" or "team"
    name: str
    team: str
    samples: int
    method: str  # label
    against: str  # label of the reference: FedAvg, or training alone
    merit: float
    reference: float
    gain: Interval  # merit - reference
    p: float
    # Holm's, over all entries of this method against this reference and of this kind
    adjusted: float
    # "gains", "harmed", "unclear" or "few" (fewer samples than the least that are judged)
    verdict: str


def ledger(study: Study, level: float = 0.95, least: int = 10) -> list[Entry]:
    """Every client, group and team against FedAvg and against staying alone.

    Where samples were dealt anew with each seed, gains are means over the splits, if the clients
    are the same; if they are others with each seed, the ledger is that of the first. Without the
    values of single samples there is none: nobody could say which gains are chance.
    """
    entries: list[Entry] = []
    if not study.sampled:
        return entries
    seeds = study.judged_seeds
    for against in dict.fromkeys(
        label for label in (study.reference, study.alone) if label is not None
    ):
        for label in study.labels:
            if label != against:
                for by in ("client", "group", "team"):
                    entries += _entries(study, label, against, by, seeds, level, least)
    return entries


def _entries(
    study: Study, label: str, against: str, by: str, seeds: Sequence[int], level: float, least: int
) -> list[Entry]:
    names, samples = study.names(by), study.sizes(by).tolist()
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
    """(K,) ends of the intervals of gains, and p-values; NaN where the samples' own values were not
    kept."""
    first = study.trials[label, seeds[0]]
    pairs = [
        (study.trials[label, seed].values, study.trials[against, seed].values) for seed in seeds
    ]
    kept = [(new, old) for new, old in pairs if new is not None and old is not None]
    cell = _cells(study, first.sample_client, first.sample_group, by)
    none = np.full(len(gain), np.nan)
    if cell is None or len(kept) < len(pairs):
        return none, none, none
    classifies = study.measure.column == "accuracy"
    # a difference of roots is that of the squares over the sum of the roots
    scale = 1 / np.where(errors > 0, errors, np.nan) if study.measure.squared else 1.0
    if not study.same_data and len(seeds) > 1:
        judged = _over_splits(study, label, against, by, seeds, level, len(gain))
        return (
            gain + (judged.low - judged.gain) * scale,
            gain + (judged.high - judged.gain) * scale,
            judged.p,
        )
    gains = np.stack([new - old if classifies else old - new for new, old in kept], 1)
    member = cell >= 0
    judged = Gains.of(gains[member], cell[member], len(gain)).judged(level, bounded=classifies)
    return (
        gain + (judged.low - judged.gain) * scale,
        gain + (judged.high - judged.gain) * scale,
        judged.p,
    )


def _over_splits(
    study: Study, label: str, against: str, by: str, seeds: Sequence[int], level: float, cells: int
) -> Judged:
    """Gains of the same clients, groups or teams where each seed splits the samples anew."""
    classifies = study.measure.column == "accuracy"
    found, where = [], []
    for seed in seeds:
        new, old = (study.trials[known, seed] for known in (label, against))
        assert new.values is not None  # see _gain_ends
        assert old.values is not None
        cell = _cells(study, new.sample_client, new.sample_group, by)
        assert cell is not None
        gain = new.values - old.values if classifies else old.values - new.values
        found.append(gain[cell >= 0])
        where.append(cell[cell >= 0])
    ratio = np.full(cells, split_ratio(study))
    return gains_over_splits(found, where, ratio, level, bounded=classifies)


def _cells(study: Study, client: Any, group: Any, by: str) -> NDArray[np.int64] | None:
    """(N,) the client, group or team of each sample; -1 for none."""
    if client is None or by == "client":
        return None if client is None else client.astype(np.int64)
    return np.asarray(group, np.int64) if by == "group" else study.team_codes[client]
