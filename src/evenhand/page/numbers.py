"""Numbers as the report writes them, with units and titles."""

from __future__ import annotations

import html

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page.series import shown
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.analysis.statistics import HEADINGS
from evenhand.studies.runs.study import Study

# statistics in the unit of a merit
OF_MERITS = ("mean", "pooled", "worst10", "best10", "min", "max")


def written(study: Study, name: str, value: float) -> float:
    """A statistic in the unit it is shown in."""
    if name in OF_MERITS:
        return float(shown(study.measure, value))
    power = {"std": 1, "variance": 2}.get(name, 0)
    return float(value * study.measure.scale**power)


def statistic_title(study: Study, name: str) -> str:
    """The title of an axis with a statistic."""
    unit = study.measure.unit if name in OF_MERITS else ""
    what = {"std": f", {study.measure.points}" if study.measure.points else ""}.get(name, unit)
    return (
        f"{HEADINGS[name]}: {study.measure.part} {study.measure.name}{what}"
        if name == "mean"
        else f"{HEADINGS[name]}{what}"
    )


def merit_words(study: Study) -> str:
    """The measure and its split, at the beginning of a sentence: "Test accuracy"."""
    return f"{study.measure.part.capitalize()} {study.measure.name}"


def merit_title(study: Study) -> str:
    """The title of an axis with merits."""
    smaller = "" if study.measure.percent else " (smaller is better)"
    return f"{study.measure.part} {study.measure.name}{study.measure.unit}{smaller}"


def statistic(study: Study, name: str, value: float) -> str:
    """A statistic as text: merits in their unit, indices with three digits."""
    if np.isnan(value):
        return "-"
    return f"{written(study, name, value):.{digits(study, name)}f}"


def ends_words(study: Study, name: str, interval: Interval) -> str:
    """A statistic with its unit and interval: 77.5 % [70.1, 84.0]."""
    unit = study.measure.percent if name in OF_MERITS else ""
    value = f"{statistic(study, name, interval.value)}{unit}"
    if np.isnan(interval.low) or np.isnan(interval.high):
        return value
    low, high = sorted((written(study, name, interval.low), written(study, name, interval.high)))
    return f"{value} [{low:.{digits(study, name)}f}, {high:.{digits(study, name)}f}]"


def digits(study: Study, name: str) -> int:
    """Digits after the point of a statistic."""
    return study.measure.digits if name in (*OF_MERITS, "std", "variance") else 3


def scale(study: Study, name: str) -> float:
    """The factor from a difference of a statistic to the number shown."""
    return float(
        study.measure.scale ** {**dict.fromkeys((*OF_MERITS, "std"), 1), "variance": 2}.get(name, 0)
    )


def points(interval: Interval) -> str:
    """A gap with its interval, in points."""
    if np.isnan(interval.value):
        return "-"
    return f"{100 * interval.value:.1f}" + (
        "" if np.isnan(interval.low) else f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    )


def signed(value: float, digits: int) -> str:
    """A change with its sign; zero after rounding has none.

    >>> signed(1.25, 1), signed(-0.04, 1), signed(-2, 1)
    ('+1.2', '0.0', '−2.0')
    """
    written = f"{abs(value):.{digits}f}"
    return written if float(written) == 0 else f"{'+' if value > 0 else chr(0x2212)}{written}"


def change(interval: Interval, scale: float, digits: int) -> str:
    """A change with its interval: +2.5 [-1.0, +6.0]."""
    if np.isnan(interval.value):
        return "-"
    ends = (
        ""
        if np.isnan(interval.low)
        else f" [{signed(scale * interval.low, digits)}, {signed(scale * interval.high, digits)}]"
    )
    return signed(scale * interval.value, digits) + ends


def gain_unit(study: Study) -> str:
    """The unit of gains; plus is always better."""
    if study.measure.percent:
        return f"points of {study.measure.name}"
    return f"where + is a smaller {study.measure.words[0]}"


def gain_title(study: Study, against: str) -> str:
    """The title of an axis with gains."""
    return f"gain (+) or loss (\u2212) compared with {against}, {gain_unit(study)}"


def counts(study: Study, merit: float, samples: int) -> str:
    """How many samples are predicted correctly: "15 of 23"; "" if the measure is no such share."""
    if np.isnan(merit) or not study.measure.of_shares:
        return ""
    right = merit * samples
    whole = abs(right - round(right)) < 1e-6
    return f"{right:,.{0 if whole else 1}f} of {samples:,}"


def served(study: Study, merit: float, samples: int) -> str:
    """The merit of a client or group, with counts: 15 of 23 (65.2 %)."""
    if np.isnan(merit):
        return "no samples"
    value = f"{study.measure.show(merit)}{study.measure.percent}"
    if found := counts(study, merit, samples):
        return f"{found} ({value})"
    return f"{study.measure.words[0]} {value} on {samples:,} sample{'s' * (samples != 1)}"


def gain_words(study: Study, entry: Entry) -> str:
    """The gain of a client or group, with counts, for a figure."""
    gain = change(entry.gain, study.measure.scale, study.measure.digits)
    now, before = (served(study, merit, entry.samples) for merit in (entry.merit, entry.reference))
    return f"{html.escape(entry.name, quote=False)}: {gain}<br>{now}<br>{before} with " + (
        html.escape(entry.against, quote=False)
    )


def over_words(study: Study, over: str) -> str:
    """What the intervals are over, in words."""
    return {
        "seeds+samples": f"over {len(study.seeds)} seeds and test samples of these clients",
        "splits": f"over {len(study.seeds)} splits of the data",
        "seeds": f"over {len(study.seeds)} seeds",
        "samples": "over test samples of these clients",
        "clients": "over clients like these",
        "both": "over clients like these and test samples",
        "nothing": "",
    }[over]
