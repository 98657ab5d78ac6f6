"""The options --track and --stop-early."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from evenhand.track import Tracker

TRACKERS = ("mlflow", "tensorboard")
BOARD = "tensorboard"  # the folder in a run directory

track_option = click.option(
    "--track",
    "tracked",
    multiple=True,
    metavar="TRACKER[:PLACE]",
    help=(
        "Send the history and the final scores of every run to mlflow, mlflow:URI, tensorboard or"
        " tensorboard:DIR; repeat for several.  [default of DIR: tensorboard in the run directory]"
    ),
)
stop_option = click.option(
    "--stop-early",
    "stop_early",
    metavar="METRIC[:PATIENCE]",
    help=(
        "Stop training when METRIC on validation data has not improved for PATIENCE evaluations,"
        " and return the best model. Data without a validation split get one, of a fifth of the"
        " training samples. Examples: --stop-early worst10, --stop-early loss:10.  [default of"
        " PATIENCE: 5]"
    ),
)


def early_stopping(text: str, validation: float) -> dict[str, Any]:
    """What the option changes in a spec: [early_stopping], and the share of validation data.

    >>> early_stopping("loss:10", 0.3)
    {'early_stopping': {'metric': 'loss', 'patience': 10}, 'validation': 0.3}
    """
    from evenhand.errors import SpecError
    from evenhand.studies.runs.comparing import VALIDATION

    metric, colon, patience = text.partition(":")
    if colon and not re.fullmatch(r"\d+", patience):
        raise SpecError(
            f"cannot read --stop-early {text!r}; give a metric and a number of evaluations, such as"
            " worst10:5"
        )
    table = {"metric": metric, **({"patience": int(patience)} if colon else {})}
    return {"early_stopping": table, "validation": validation or VALIDATION}


def check_trackers(tracked: Sequence[str]) -> None:
    """Raise for an unknown tracker or a missing package."""
    for callback in trackers(tracked, Path("run")):
        callback.require_package()


def trackers(tracked: Sequence[str], directory: Path) -> list[Tracker]:
    """The trackers of a run in ``directory``."""
    from evenhand.errors import SpecError, unknown
    from evenhand.track import MLflow, TensorBoard

    found: list[Tracker] = []
    for text in tracked:
        name, colon, place = text.partition(":")
        if name not in TRACKERS:
            raise SpecError(unknown("tracker in --track", name, TRACKERS))
        if colon and not place:
            raise SpecError(f"--track {text} names no place; write --track {name} for the default")
        if name == "mlflow":
            found.append(MLflow(directory.resolve().name, uri=place or None))
        else:
            found.append(TensorBoard(Path(place).expanduser() if place else directory / BOARD))
    return found
