"""The checked contents of a finished run's files: tables, arrays and metadata."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import DataError, RunError, first_line
from evenhand.metrics.scores import Columns
from evenhand.metrics.thresholds import Thresholds
from evenhand.privacy.record import Privacy
from evenhand.reading import (
    RESTORE,
    damaged,
    from_cell,
    read_cells,
    read_json,
    read_rows,
    read_tensors,
    read_text,
    value_of,
)
from evenhand.targets import Target
from evenhand.training.checkpoints import HISTORY
from evenhand.training.directory import ENCODING, SPEC, THRESHOLDS
from evenhand.training.manifest import Manifest, Sealed

if TYPE_CHECKING:
    from evenhand.data.tables.encoding import Encoding

TEXT = ("by", "name", "team", "left_out")  # columns with text
KINDS = ("client", "everyone", "group", "team")  # of rows of scores
SHARES = (
    "accuracy",
    "balanced_accuracy",
    "precision",
    "recall",
    "specificity",
    "auc",
    "calibration_error",
)
COUNTS = ("count", "train_count")


def rounds_done(folder: Path) -> int:
    """The rounds in a history."""
    return len(read_rows(folder / HISTORY)) if (folder / HISTORY).exists() else 0


def privacy_in(table: Mapping[str, Any] | None) -> Privacy | None:
    """What a private run may claim, from its file."""
    return None if table is None else Privacy.from_json(table)


def read_scores(path: Path, way_out: str = RESTORE) -> Columns:
    """The columns of scores; raises if they are invalid."""
    columns = read_columns(path, way_out)
    for name in ("by", "name", "count"):
        if name not in columns:
            raise damaged(path, f"it has no column {name!r}", way_out)
    for line, kind in enumerate(columns["by"], 2):
        if kind not in KINDS:
            reason = f"line {line} has by = {kind!r}, not one of {', '.join(KINDS)}"
            raise damaged(path, reason, way_out)
    for name in (*SHARES, *COUNTS):
        values = columns.get(name)
        if values is None or not len(values):
            continue
        known = values[~np.isnan(values.astype(np.float64))]
        wrong = (known < 0) | (known > 1) if name in SHARES else (known < 0) | (known % 1 != 0)
        if wrong.any():
            wanted = "between 0 and 1" if name in SHARES else "a whole number"
            reason = f"{name} is {known[wrong][0]}, not {wanted}"
            raise damaged(path, reason, way_out)
    return columns


def read_columns(path: Path, way_out: str = RESTORE) -> Columns:
    """The columns of a table: texts as lists, numbers as arrays with NaN for empty cells."""
    header, *lines = read_cells(path, way_out)
    by_column = list(zip(*lines, strict=True)) or [()] * len(header)
    columns: Columns = {}
    for name, cells in zip(header, by_column, strict=True):
        if name in TEXT:
            columns[name] = [from_cell(cell) for cell in cells]
        elif any(cells):
            columns[name] = _numbers(cells, name, path, way_out)
    return columns


def _numbers(cells: Sequence[str], name: str, path: Path, way_out: str) -> NDArray[Any]:
    """A column as an array; raises if it has other text, or a whole number that is too large."""
    if "_" not in "".join(cells):  # Python reads 1_0 as 10
        for kind, known in ((int, cells), (float, [cell or "nan" for cell in cells])):
            try:
                found = np.array(list(map(kind, known)))
            except ValueError:
                continue
            if found.dtype.kind in "if" and not (np.abs(found) >= 2**63).any():
                return found
    values = [value_of(cell) if cell else math.nan for cell in cells]
    for line, value in enumerate(values, 2):
        if isinstance(value, str) or (abs(value) > 2**63 and isinstance(value, int)):
            reason = f"{name} in line {line} is {str(value)[:40]!r}, not a number"
            raise damaged(path, reason, way_out)
    return np.array(values)


def read_arrays(path: Path, way_out: str = RESTORE) -> dict[str, Any]:
    """The arrays of a file, by name."""
    return {name: tensor.numpy() for name, tensor in read_tensors(path, way_out)[0].items()}


def read_thresholds(folder: Path, run: Path) -> Thresholds | None:
    """The thresholds of a method's predictions; None without a file. ``run``: the directory of the
    run, for the message if it is damaged."""
    way_out, path = find_again(run), folder / THRESHOLDS
    held = Sealed(folder)
    if not held.has(THRESHOLDS) or not (path.exists() or path.is_symlink()):
        return None
    if held.manifest is not None and (fault := held.manifest.fault(THRESHOLDS)):
        raise damaged(path, fault, way_out)
    text = read_text(path, way_out)
    try:
        return Thresholds.from_json(text)
    except RunError as error:
        raise damaged(path, first_line(error), way_out) from error


def read_encoding(directory: Path, way_out: str = RESTORE) -> Encoding | None:
    """How the table of a run became numbers; None for other data."""
    from evenhand.data.tables.encoding import Encoding  # it loads pandas

    held = Sealed(directory, way_out)
    if not held.has(ENCODING):
        return None
    path = held.path(ENCODING)
    saved = read_json(path, way_out)
    try:
        return Encoding.from_json(saved)
    except DataError as error:
        raise damaged(path, first_line(error), way_out) from error


def find_again(run: Path) -> str:
    """What to do about thresholds that are damaged."""
    return f"find them again with: evenhand thresholds {shlex.quote(str(run))}"


def read_about(path: Path, way_out: str = RESTORE) -> Mapping[str, Any]:
    """The metadata of a run."""
    about = read_json(path, way_out)
    kinds: dict[str, type | tuple[type, ...]] = {
        "spec": str,
        "data": str,
        "judged_on": str,
        "labels": list,
        "label": str,
        "label_scale": (int, float),
        "seed": int,
        "versions": dict,
        "server": dict,
        "federation": dict,
        "predicts": dict,
    }
    for name, kind in kinds.items():
        if name in about and not isinstance(about[name], kind):
            raise damaged(path, f"{name} is {str(about[name])[:40]!r}", way_out)
    scale = about.get("label_scale", 1.0)
    if not (math.isfinite(scale) and scale > 0):
        raise damaged(path, f"label_scale is {scale}, not a positive number", way_out)
    return about


def target_of(about: Mapping[str, Any]) -> Target | None:
    """What the models of a run predict; None for runs of earlier versions."""
    return Target.from_json(about["predicts"]) if "predicts" in about else None


def kind_of(about: Mapping[str, Any]) -> str | None:
    """What kind of thing the models of a run predict, see :mod:`evenhand.targets`; None if it is
    unknown."""
    target = target_of(about)
    if target is not None:
        return target.kind
    # earlier versions said this of a user's own loss only
    return {True: "class", False: "number"}.get(about.get("classifies", None))


def refuse_method(folder: Path, manifest: Manifest | None) -> None:
    """Raise if a folder is that of a method in a run's directory."""
    run = folder.parent
    if manifest is None or not manifest.owner.method or (folder / SPEC).exists():
        return
    if (run / SPEC).exists():
        raise RunError(
            f"{folder} holds one method of a run; give the directory of the run, {run}, and the"
            f" method {manifest.owner.method}"
        )
