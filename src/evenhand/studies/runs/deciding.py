"""Find and save thresholds for the methods of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from evenhand.errors import require_known
from evenhand.metrics.threshold_words import LAWFUL, WIDTH, change_of
from evenhand.metrics.thresholds import Thresholds
from evenhand.studies.runs.directories import SavedRun, run_directories
from evenhand.studies.runs.trial import Trial
from evenhand.training.directory import THRESHOLDS
from evenhand.training.places import alone

HEADER = ("method", "seed", "gap", "accuracy", "change [95 % interval]")


def decide(
    directory: Path, methods: Sequence[str] = (), save: bool = True, **options: Any
) -> list[tuple[Trial, Thresholds]]:
    """Find thresholds for each method and seed of a run, comparison or sweep.

    Args:
        methods: labels of methods; all of them by default.
        save: write them next to the models, whose predictions then use them.
        options: those of :meth:`evenhand.Result.thresholds`.
    """
    found = []
    for trial in _trials(directory, methods):
        try:
            found.append((trial, trial.thresholds(**options)))
        except ValueError as error:
            raise ValueError(f"{trial.method.label}: {error}") from error
    if save:
        with alone(directory):
            for trial, thresholds in found:
                trial.using(thresholds).save_thresholds()
    return found


def remove(directory: Path, methods: Sequence[str] = ()) -> list[Path]:
    """Delete the thresholds of each method and seed, and return their files; predictions then
    compare with 0.5."""
    with alone(directory):
        return [
            trial.folder / THRESHOLDS
            for trial in _trials(directory, methods)
            if trial.remove_thresholds()
        ]


def _trials(directory: Path, methods: Sequence[str]) -> list[Trial]:
    """The trials of some methods, by default of all."""
    runs = [SavedRun.read(path, directory) for path in run_directories(directory)]
    trials = [trial for run in runs for trial in run.trials]
    for method in methods:
        require_known("method", method, list(dict.fromkeys(one.method.label for one in trials)))
    return [trial for trial in trials if not methods or trial.method.label in methods]


def lines(found: Sequence[tuple[Trial, Thresholds]]) -> list[str]:
    """What thresholds cost: in detail for one method and seed, else a row for each."""
    if len(found) == 1:
        return str(found[0][1]).splitlines()
    rows = [HEADER, *(_row(*one) for one in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    first = found[0][1]
    # notes, most often the same for all seeds of a method, are said once
    notes = dict.fromkeys(
        f"{trial.method.label}: {note}" for trial, one in found for note in one.cautions()
    )
    law = [] if first.common or first.by == "client" else [LAWFUL]
    goal = next(first.sentences())
    said = [line for text in (*notes, *law) for line in wrap(text, WIDTH)]
    return [
        *wrap(goal, WIDTH),
        "",
        *table,
        "(% at threshold 0.5 → now)",
        *([""] * any(said)),
        *said,
    ]


def _row(trial: Trial, found: Thresholds) -> tuple[str, ...]:
    rows = {row["by"]: row for row in found.effect_rows if row["by"] != "unit"}
    both = [
        f"{100 * rows[kind]['before']:.1f} → {100 * rows[kind]['after']:.1f}"
        if kind in rows
        else "-"
        for kind in ("gap", "everyone")
    ]
    return (trial.method.label, str(trial.seed), *both, change_of(rows["everyone"]))
