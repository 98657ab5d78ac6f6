"""What all trackers have in common: what they are told, and what happens if one fails."""

from __future__ import annotations

import logging
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from evenhand.algorithms.naming import described, plain_fields
from evenhand.engines import processes
from evenhand.errors import first_line
from evenhand.local import described_solver
from evenhand.metrics.scores import Row
from evenhand.training.callbacks import Callback, Moment, RunInfo
from evenhand.training.result import Result
from evenhand.version import __version__

log = logging.getLogger(__name__)

SCORES = ("accuracy", "loss", "rmse", "mae")  # columns of the scores that are tracked
MOST_CLIENTS = 100  # with more, only groups and teams get numbers of their own
ELSEWHERE = ("local", "cohort", "seed")  # fields of Settings that are tracked in another way
Plain = str | int | float | bool


class Tracker(Callback):
    """A callback that sends settings, the history and the final scores to an experiment tracker.

    Write ``begin``, ``log`` and ``end`` for a tracker of your own. An error in ``begin`` ends the
    run before its first round. Later errors are a warning, and training continues untracked. With
    several processes, the first one tracks.
    """

    only_watches = True
    _tracks = False

    def require_package(self) -> None:
        """Raise an ImportError that says what to install, if it is missing."""

    def check(self, run: RunInfo) -> None:
        self.require_package()

    @abstractmethod
    def begin(self, run: RunInfo) -> None:
        """Begin to track a run."""

    @abstractmethod
    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Track the numbers of the history after a round."""

    @abstractmethod
    def end(self, result: Result) -> None:
        """Track the final scores, and close what is open."""

    def on_run_start(self, run: RunInfo) -> None:
        self._tracks = processes.is_first()
        if self._tracks:
            self.begin(run)

    def on_round_end(self, moment: Moment) -> None:
        self._try(lambda: self.log(moment.round, numbers_in(moment.row)), moment.round)

    def on_run_end(self, result: Result) -> None:
        self._try(lambda: self.end(result), len(result.history_rows))

    def _try(self, send: Callable[[], None], round: int) -> None:
        if not self._tracks:
            return
        try:
            send()
        except Exception as error:
            self._tracks = False
            log.warning(
                "%s has failed after round %d (%s: %s); training continues and is tracked no more",
                type(self).__name__,
                round,
                type(error).__name__,
                first_line(error),
            )


def numbers_in(row: Row) -> dict[str, float]:
    """Return the numbers of a row of the history; a column without a value is left out.

    >>> numbers_in({"round": 3, "loss": 0.5, "mean": float("nan"), "left_out": "", "void": False})
    {'loss': 0.5}
    """
    return {
        name: float(value)
        for name, value in row.items()
        if name != "round"
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and not math.isnan(value)
    }


def settings_in(run: RunInfo) -> dict[str, Plain]:
    """Return hyper-parameters and settings of a run, by names such as "local.lr"."""
    settings, cohort = run.settings, run.settings.cohort
    plain = {
        field.name: _plain(getattr(settings, field.name))
        for field in fields(settings)
        if field.name not in ELSEWHERE
    }
    cohorts = {"name": type(cohort).__name__.lower(), **plain_fields(cohort)}
    about = {
        "method": described(run.algorithm),
        "local": described_solver(settings.local),
        "cohort": cohorts,
        "clients": run.federation.clients,
        "seed": run.seed,
    }
    return flat(plain | about)


def tags_of(run: RunInfo) -> dict[str, str]:
    """Return what identifies a run: method, seed, data and version."""
    return {
        **({"folder": run.folder} if run.folder else {}),
        "method": run.label,
        "seed": str(run.seed),
        "data": run.federation.fingerprint(),
        "evenhand": __version__,
    }


def scores_in(result: Result) -> dict[str, float]:
    """Return the final numbers: over clients ("final/worst10"), of each client, group and team
    ("client/clinic 1/accuracy")."""
    found = {f"final/{name}": float(value) for name, value in result.summary.items()}
    rows = result.score_rows
    few = sum(row["by"] == "client" for row in rows) <= MOST_CLIENTS
    for row in rows:
        if few or row["by"] != "client":
            for name in SCORES:
                found[f"{row['by']}/{row['name']}/{name}"] = float(row.get(name, math.nan))
    return {name: value for name, value in found.items() if not math.isnan(value)}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Plain]:
    """Return a nested table as one of plain values.

    >>> flat({"rounds": 3, "local": {"lr": 0.1}, "seeds": (1, 2), "device": None})
    {'rounds': 3, 'local.lr': 0.1, 'seeds': '(1, 2)'}
    """
    found: dict[str, Plain] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = value if isinstance(value, Plain) else str(value)
    return found


def cleaned(name: str) -> str:
    """Return a name with the characters that all trackers accept.

    >>> cleaned("client/Zürich (1)/loss")
    'client/Z_rich _1_/loss'
    """
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)


def missing(package: str, extra: str, name: str) -> ImportError:
    """Return the error about a package that is not installed."""
    return ImportError(f"{name} needs {package}: pip install {package} (extra: evenhand[{extra}])")


def _plain(value: Any) -> Plain | None:
    if value is None or isinstance(value, Plain):
        return value
    if isinstance(value, Mapping):  # of metrics by name
        return ", ".join(value) or None
    return str(getattr(value, "__name__", type(value).__name__))
