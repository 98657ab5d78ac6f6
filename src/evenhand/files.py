"""Files that are either whole or not there: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenhand import tree
from evenhand.errors import RunError, first_line, require_choice
from evenhand.tree import Tree

FORMATS = ("csv", "parquet", "json")  # of tables
# what makes a spreadsheet calculate, also after the marks that we have put before it
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that only the owner can read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself
    finally:
        os.close(directory)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV table; columns in the order of their first appearance, floats with all digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = io.StringIO()
    # the writer forgets that readers take a lone \\r for the end of a row
    ends = any("\r" in value for row in rows for value in row.values() if isinstance(value, str))
    writer = csv.DictWriter(
        buffer,
        columns,
        lineterminator="\n",
        quoting=csv.QUOTE_NONNUMERIC if ends else csv.QUOTE_MINIMAL,
    )
    writer.writeheader()
    writer.writerows(
        {
            key: "" if isinstance(value, float) and math.isnan(value) else as_cell(value)
            for key, value in row.items()
        }
        for row in rows
    )
    write_atomic(path, buffer.getvalue().encode())


def read_rows(path: Path, text: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The inverse of :func:`write_rows`.

    Numbers become numbers, True and False bool, empty cells missing keys.

    Columns in ``text`` stay as they are: a client may be called "007".
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        {
            key: from_cell(cell) if key in text else _value(cell)
            for key, cell in row.items()
            if cell != ""
        }
        for row in rows
    ]


def as_cell(value: Any) -> Any:
    """A value for a cell of a CSV file; a text that a spreadsheet would take for a formula gets an
    apostrophe in front, as spreadsheets write such texts themselves."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def from_cell(text: str) -> str:
    """The inverse of :func:`as_cell`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return from_cell(text)


def write_json(path: Path, content: Any) -> None:
    """A JSON file."""
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


def check_formats(formats: Iterable[str]) -> None:
    """Raise where tables cannot be written so."""
    for name in formats:
        require_choice("format", name, FORMATS)
        if name == "parquet" and find_spec("pyarrow") is None:
            raise RunError("Parquet files need pyarrow: pip install evenhand[parquet]")


def write_tables(
    directory: Path,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    formats: Iterable[str] = ("csv",),
) -> list[Path]:
    """Write each table as NAME.csv, NAME.parquet or NAME.json; the paths.

    Tables without rows are left out.
    """
    written = []
    for name, rows in tables.items():
        for kind in formats if rows else ():
            path = directory / f"{name}.{kind}"
            if kind == "csv":
                write_rows(path, rows)
            elif kind == "json":
                write_json(path, plain(list(rows)))
            else:
                write_atomic(path, _parquet(rows))
            written.append(path)
    return written


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    for name in frame.columns:
        kinds = {
            float if isinstance(value, int | float) else type(value)
            for value in frame[name].dropna()
        }
        # a hyper-parameter that is a number here and a text or list there; Parquet's columns have
        # one kind
        if len(kinds) > 1:
            frame[name] = frame[name].map(str, na_action="ignore")
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """Values as JSON knows them; numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(value: Any) -> str:
    """Text of :func:`plain` values."""
    return json.dumps(plain(value), indent=2)


def write_tensors(path: Path, tensors: Tree, metadata: Mapping[str, Any] | None = None) -> None:
    """A safetensors file from a tree."""
    from safetensors.torch import save

    flat = {
        key: leaf.detach().cpu().contiguous().clone() for key, leaf in tree.flatten(tensors).items()
    }
    # the format sorts its keys, and sums over a tree depend on their order; it shuffles its
    # metadata, so there is one entry
    about = {"order": list(flat), "sha256": _digest(flat), **(metadata or {})}
    write_atomic(path, save(flat, {"evenhand": json.dumps(about)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Flat tensors, in the order they were written, and metadata.

    :func:`evenhand.tree.unflatten` makes a tree of them.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["evenhand"])
            flat = {key: file.get_tensor(key) for key in about["order"]}
        if _digest(flat) != about["sha256"]:
            raise RunError(f"{path} is damaged: its contents do not match their checksum")
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RunError(f"{path} cannot be read: {first_line(error)}") from error
    return flat, about


def _digest(flat: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key, leaf in flat.items():
        digest.update(f"{key} {leaf.dtype} {tuple(leaf.shape)}".encode())
        digest.update(leaf.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def clear_partial(directory: Path, names: Iterable[str]) -> None:
    """Remove what a killed process left half-written of files ``names``."""
    for name in names:
        for path in directory.glob(f".{name}.*"):
            path.unlink()
