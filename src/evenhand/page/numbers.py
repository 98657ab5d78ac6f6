"""Numbers as the page writes them, with their units and what they are about."""

from __future__ import annotations

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page.series import shown
from evenhand.studies.analysis.statistics import HEADINGS
from evenhand.studies.runs.study import Study

# statistics in the unit of a merit
OF_MERITS = ("mean", "pooled", "worst10", "best10", "min", "max")


def written(study: Study, name: str, value: float) -> float:
    """A statistic in the unit that it is written in."""
    if name in OF_MERITS:
        return float(shown(study.measure, value))
    power = {"std": 1, "variance": 2}.get(name, 0)
    return float(value * study.measure.scale**power)


def statistic_title(study: Study, name: str) -> str:
    """What an axis with a statistic is called."""
    unit = study.measure.unit if name in OF_MERITS else ""
    what = {"std": f", {study.measure.points}" if study.measure.points else ""}.get(name, unit)
    return (
        f"{HEADINGS[name]}: {study.measure.part} {study.measure.name}{what}"
        if name == "mean"
        else f"{HEADINGS[name]}{what}"
    )


def merit_words(study: Study) -> str:
    """What is measured, on which part of the data, as the beginning of a sentence."""
    return f"{study.measure.part.capitalize()} {study.measure.name}"


def merit_title(study: Study) -> str:
    """What an axis with merits is called."""
    smaller = "" if study.measure.column == "accuracy" else " (smaller is better)"
    return f"{study.measure.part} {study.measure.name}{study.measure.unit}{smaller}"


def statistic(study: Study, name: str, value: float) -> str:
    """A statistic as it is written: merits in their unit, indices with three digits."""
    if np.isnan(value):
        return "-"
    return f"{written(study, name, value):.{digits(study, name)}f}"


def digits(study: Study, name: str) -> int:
    """Digits after the point of a statistic."""
    return study.measure.digits if name in (*OF_MERITS, "std", "variance") else 3


def scale(study: Study, name: str) -> float:
    """What a difference of a statistic is multiplied with to be written."""
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


def over_words(study: Study, over: str) -> str:
    """What intervals are over."""
    return {
        "seeds+samples": f"over {len(study.seeds)} seeds and other test samples of these clients",
        "splits": f"over {len(study.seeds)} splits of the data",
        "seeds": f"over {len(study.seeds)} seeds",
        "samples": "over other test samples of the same clients",
        "clients": "over other clients like these",
        "both": "over other clients like these and other test samples",
        "nothing": "",
    }[over]
