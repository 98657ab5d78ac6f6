"""Files that are complete or absent: written to a temporary file, flushed to disk, then renamed."""

from __future__ import annotations

import csv
import errno
import fcntl
import glob
import io
import json
import math
import os
import re
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evenhand import tree
from evenhand.errors import RunError, WriteError, first_line, require_choice
from evenhand.reading import DIGEST, FORMULA, digest_of
from evenhand.reading import read_rows as read_rows
from evenhand.reading import read_tensors as read_tensors
from evenhand.tree import Tree

FORMATS = ("csv", "parquet", "json")  # of tables
# the name of an incomplete file: a dot, its name, a dot, and eight letters or digits
_PARTIAL = re.compile(r"\.(.+\.(?:csv|html|json|parquet|safetensors|toml))\.[a-z0-9_]{8}")
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it writable"),
}


def cache_home() -> Path:
    """evenhand's folder in the user's cache directory."""
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or usual).expanduser() / "evenhand"


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves either the old or the new version."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{glob.escape(path.name)}.????????"):
            _remove_unless_alive(left)
        try:
            _write(path, content)
        except FileNotFoundError:  # another process took it for a leftover before it was locked
            _write(path, content)
    except OSError as error:
        raise cannot_write(path, error) from error


def _write(path: Path, content: bytes) -> None:
    # named before it is created, so that an interruption here also removes it
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            with suppress(OSError):  # some network file systems have no locks
                # the system releases the lock when this process ends
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself
    finally:
        os.close(directory)


def cannot_write(path: str | Path, error: OSError) -> WriteError:
    """Return the error for a file that cannot be written: which file, why, and what to do."""
    if isinstance(error, WriteError):
        return error
    remedy = _REMEDIES.get(error.errno or 0)
    found = WriteError(
        f"cannot write {path}: {error.strerror or first_line(error)}"
        + (f"; {remedy}" if remedy else "")
    )
    found.errno = error.errno
    return found


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV table: columns in order of first appearance, floats with all digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = io.StringIO()
    # the writer ignores that readers take a lone \\r for the end of a row
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


def as_cell(value: Any) -> Any:
    """Return a value for a CSV cell.

    Text that a spreadsheet would run as a formula gets a leading apostrophe, the way spreadsheets
    mark such text themselves.
    """
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file."""
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


def check_formats(formats: Iterable[str]) -> None:
    """Raise if tables cannot be written in one of these formats."""
    for name in formats:
        require_choice("format", name, FORMATS)
        if name == "parquet" and find_spec("pyarrow") is None:
            raise RunError(
                "Parquet files need pyarrow: pip install pyarrow (extra: evenhand[parquet])"
            )


def write_tables(
    directory: Path,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    formats: Iterable[str] = ("csv",),
) -> list[Path]:
    """Write each table as NAME.csv, NAME.parquet or NAME.json, and return the paths.

    Tables without rows are not written.
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
        # a hyper-parameter may be a number in one row and a text or list in another; a Parquet
        # column has one type
        if len(kinds) > 1:
            frame[name] = frame[name].map(str, na_action="ignore")
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """Convert values to JSON's types; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(value: Any) -> str:
    """Return the JSON text of any value that ``plain`` converts."""
    return json.dumps(plain(value), indent=2)


def write_tensors(path: Path, tensors: Tree, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a tree to a safetensors file."""
    from safetensors.torch import save

    flat = {
        key: leaf.detach().cpu().contiguous().clone() for key, leaf in tree.flatten(tensors).items()
    }
    # the format sorts its keys, but sums over a tree depend on their order; it shuffles metadata,
    # so all of ours is one entry
    about = {"order": list(flat), **(metadata or {})}
    about[DIGEST] = digest_of(flat, json.dumps(about))
    write_atomic(path, save(flat, {"evenhand": json.dumps(about)}))


def is_partial(path: Path) -> bool:
    """Whether a file's name marks it as incomplete."""
    return _PARTIAL.fullmatch(path.name) is not None


def clear_partial(directory: Path) -> None:
    """Remove incomplete files of killed processes from a directory, but not those still being
    written."""
    if directory.is_dir():
        for path in directory.iterdir():
            if is_partial(path):
                _remove_unless_alive(path)


def _remove_unless_alive(path: Path) -> None:
    """Remove an incomplete file unless the process that writes it holds its lock."""
    with suppress(OSError):  # it was just renamed, or its writer is alive
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)
