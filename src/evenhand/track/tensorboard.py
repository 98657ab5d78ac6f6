"""TensorBoard as a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from evenhand.errors import RunError, first_line
from evenhand.track.tracker import Tracker, cleaned, missing, scores_in, settings_in, tags_of
from evenhand.training.callbacks import RunInfo
from evenhand.training.result import Result


@dataclass
class TensorBoard(Tracker):
    """Write event files that TensorBoard shows: ``tensorboard --logdir DIRECTORY``.

    Every run gets a folder of its own in ``directory``, named after method and seed. A resumed run
    continues in its folder.

    Args:
        directory: where the folders are.
    """

    directory: str | Path = "runs/tensorboard"
    _open: Any = field(default=None, init=False, repr=False, compare=False)  # writer and settings

    def require_package(self) -> None:
        _writer_class()

    def begin(self, run: RunInfo) -> None:
        place = folder_for(Path(self.directory) / _name(run), resumed=bool(run.history))
        # events of rounds after the checkpoint are from before the interruption
        purged = len(run.history) + 1 if run.history else None
        try:
            writer = _writer_class()(str(place), purge_step=purged)
        except OSError as error:
            raise RunError(f"TensorBoard cannot write to {place}: {first_line(error)}") from error
        known = settings_in(run)
        rows = [f"| {key} | {value} |" for key, value in {**tags_of(run), **known}.items()]
        writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]), 0)
        self._open = (writer, known)

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        writer, _ = self._open
        for name, value in numbers.items():
            writer.add_scalar(cleaned(name), value, round)
        writer.flush()

    def end(self, result: Result) -> None:
        writer, known = self._open
        scores = scores_in(result)
        for name, value in scores.items():
            writer.add_scalar(cleaned(name), value, len(result.history_rows))
        if result.stopped is not None:
            writer.add_text("stopped", str(result.stopped), result.stopped.round)
        final = {key: value for key, value in scores.items() if key.startswith("final/")}
        for part in import_module("torch.utils.tensorboard.summary").hparams(known, final):
            writer.file_writer.add_summary(part)
        writer.close()


def _name(run: RunInfo) -> str:
    return run.folder or f"{run.label}-seed-{run.seed}"


def folder_for(wanted: Path, resumed: bool) -> Path:
    """Return the folder of a run: the last one of this name if it is resumed, else a new one."""
    names = (wanted.with_name(f"{wanted.name}-{number}") for number in count(2))
    there, free = None, wanted
    while free.exists():
        there, free = free, next(names)
    return there if resumed and there is not None else free


def _writer_class() -> Any:
    try:
        return import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:
        raise missing("tensorboard", "tensorboard", "eh.track.TensorBoard") from None
