"""Reading the files of a run directory: errors name the file and say what to do."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenhand.errors import RunError, first_line

DIGEST = "digest"  # in the metadata of tensors: SHA-256 of tensors and metadata
# text that a spreadsheet runs as a formula, also after the apostrophes that we put before it
FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
RESTORE = "restore a copy, or repeat the run in another directory"


def damaged(path: Path, reason: str, way_out: str = RESTORE) -> RunError:
    """Return the error for a file that is not as it was written."""
    return RunError(f"{path} is damaged: {reason}; {way_out}")


def read_text(path: Path, way_out: str = RESTORE) -> str:
    """Read a UTF-8 text file."""
    _require_file(path, way_out)
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(path, f"byte {error.start} is not UTF-8", way_out) from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error


def _require_file(path: Path, way_out: str) -> None:
    if not path.is_file():
        reason = "it is a directory" if path.is_dir() else "it is missing"
        raise damaged(path, reason, way_out)


def read_rows(path: Path, text: Sequence[str] = (), way_out: str = RESTORE) -> list[dict[str, Any]]:
    """Read the rows of a CSV table; the inverse of ``evenhand.files.write_rows``.

    Numbers become numbers, True and False become bool, and empty cells are missing keys. Columns in
    ``text`` stay text: a client may be called "007".
    """
    header, *lines = read_cells(path, way_out)
    return [
        {
            key: from_cell(cell) if key in text else value_of(cell)
            for key, cell in zip(header, line, strict=True)
            if cell != ""
        }
        for line in lines
    ]


def read_cells(path: Path, way_out: str = RESTORE) -> list[list[str]]:
    """Read the lines of a CSV table as text, checking that each is as long as the header."""
    content = io.StringIO(read_text(path, way_out), newline="")
    try:
        lines = list(csv.reader(content, strict=True))
    except csv.Error as error:
        raise damaged(path, first_line(error), way_out) from error
    if not lines:
        raise damaged(path, "it is empty", way_out)
    header = lines[0]
    if "" in header or len({*header}) < len(header):
        raise damaged(path, "its first line does not name every column once", way_out)
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(header):
            reason = f"line {number} has {len(line)} cells, the first {len(header)}"
            raise damaged(path, reason, way_out)
    return lines


def value_of(text: str) -> Any:
    """The number, the truth value or the text of a cell."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float) if "_" not in text else ():  # Python reads 1_0 as 10
        try:
            return kind(text)
        except ValueError:
            continue
    return from_cell(text)


def from_cell(text: str) -> str:
    """Undo ``evenhand.files.as_cell``."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def read_json(path: Path, way_out: str = RESTORE) -> dict[str, Any]:
    """Read the object in a JSON file."""
    try:
        found = json.loads(read_text(path, way_out))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not valid JSON ({first_line(error)})", way_out) from error
    if not isinstance(found, dict):
        raise damaged(path, "it holds no JSON object", way_out)
    return found


def read_tensors(path: Path, way_out: str = RESTORE) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read flat tensors, in the order they were written, and metadata.

    ``evenhand.tree.unflatten`` turns the tensors into a tree.
    """
    from safetensors import SafetensorError, safe_open

    _require_file(path, way_out)
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["evenhand"])
            # earlier versions had a digest of the tensors only
            digest, text = about.pop(DIGEST, None), json.dumps(about)
            if digest is None:
                digest, text = about["sha256"], ""
            flat = {key: file.get_tensor(key) for key in about["order"]}
            whole = digest == digest_of(flat, text) and flat.keys() == {*file.keys()}
    except (
        SafetensorError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,  # torch's, and for deep nesting
    ) as error:
        raise damaged(path, first_line(error), way_out) from error
    if not whole:
        raise damaged(path, "its contents do not match their checksum", way_out)
    return flat, about


def digest_of(flat: Mapping[str, Tensor], about: str) -> str:
    """Return the SHA-256 of tensors and metadata."""
    digest = hashlib.sha256(about.encode())
    for key, leaf in flat.items():
        digest.update(f"{key} {leaf.dtype} {tuple(leaf.shape)}".encode())
        digest.update(leaf.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
