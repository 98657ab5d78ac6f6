"""A small multi-task data set: 29 tasks with 9 features, the toy file of MOCHA's code (Smith et
al., 2017)."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.pool import Partition, Pool
from evenhand.data.storage.file import File
from evenhand.data.storage.file import read as read_file
from evenhand.data.storage.locate import locate
from evenhand.errors import DataError

FILES = (
    File(
        "landmine_mocha_small.npz",
        content="sha256:c6e64765b970c2ed7f60139020fda7fe7a48038c93ae319754a3e156d5b31ea2",
        hint="it was made from data/small.mat of github.com/gingsmith/fmtl",
    ),
)


def landmine(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | str | None = None,
) -> Federation:
    """Load a small data set for quick tests: 1,464 samples with 9 features; each of 29 tasks is a
    client.

    A client has 44 to 69 samples; 6 % of all samples are positive.
    """
    return deal(read(root), partition, split, seed, clients)


def read(root: Path | str | None = None) -> Pool:
    """Read all samples; labels -1 and 1 become 0 and 1."""
    (path,) = locate("landmine", FILES, root)
    return parse(path, read_file(path, FILES[0]))


def parse(path: Path, content: bytes) -> Pool:
    """Parse and check the bytes of the file."""
    try:
        with np.load(io.BytesIO(content)) as arrays:
            x, y, task = (arrays[name] for name in ("X", "y", "task"))
    except (KeyError, OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if x.ndim != 2 or y.shape != (len(x),) or task.shape != (len(x),):
        raise DataError(
            f"{path}: X, y and task have shapes {x.shape}, {y.shape} and {task.shape}; they must"
            " have the same number of rows"
        )
    for name, wrong in (
        ("X is not finite", ~np.isfinite(x).all(axis=1)),
        ("y is neither -1 nor 1", ~np.isin(y, (-1, 1))),
    ):
        if wrong.any():
            raise DataError(f"{path}, row {int(np.flatnonzero(wrong)[0])}: {name}")
    sizes = np.bincount(task)
    if (sizes == 0).any():
        raise DataError(f"{path}: task {int(np.flatnonzero(sizes == 0)[0])} has no samples")
    return Pool(
        x=torch.from_numpy(x.astype(np.float32)),
        y=torch.from_numpy((y > 0).astype(np.int64)),
        label_names=("-1", "1"),
        client=torch.from_numpy(task.astype(np.int64)),
        client_names=tuple(f"task {number}" for number in range(len(sizes))),
    )
