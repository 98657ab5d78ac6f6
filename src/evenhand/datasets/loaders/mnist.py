"""MNIST, and MNIST by writer."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.pool import Partition, Pool
from evenhand.data.storage.file import File, folder_of
from evenhand.data.storage.file import read as read_bytes
from evenhand.data.storage.locate import locate
from evenhand.datasets.idx import read_idx, read_images
from evenhand.datasets.images import DIRICHLET, prepared
from evenhand.errors import DataError, require, require_choice

NAMES = tuple("0123456789")
HOME = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FILES = tuple(
    File(name, HOME + name, f"md5:{published}", f"md5:{content}")
    for name, published, content in (
        (
            "train-images-idx3-ubyte.gz",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "6bbc9ace898e44ae57da46a324031adb",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "a25bea736e30d166cdddb491f175f624",
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            "9fb629c4189551a2d022fa330f9573f3",
            "2646ac647ad5339dbf082846283269ea",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            "ec29112dd5afa0611ce80d1b7f02629c",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    )
)
QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
TABLES = tuple(  # who wrote which digit, as QMNIST publishes it
    File(name, QMNIST + name, f"md5:{published}")
    for name, published in (
        ("qmnist-train-labels-idx2-int.gz", "0058f8dd561b90ffdd0f734c6a30e5e4"),
        ("qmnist-test-labels-idx2-int.gz", "5b5b05890a5e13444e108efe57b788aa"),
    )
)
ARCHIVE = File("writers.npz")  # the same columns of the same rows; used if it is present
# NIST's hsf series: Census Bureau and NIST staff, high-school students
POPULATIONS = {0: "staff", 4: "students"}


def read(root: Path | None = None) -> Pool:
    """Read all images as (1, 28, 28) numbers in [0, 1], with the 10,000 official test images
    held out."""
    return read_images(
        locate("mnist", FILES, root, also=(folder_of("mnist_writers", root),)), FILES, NAMES
    )


def mnist(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | None = None,
    classes: Sequence[int | str] | None = None,
    standardise: str = "scale",
    flat: bool = False,
    group: str | None = None,
) -> Federation:
    """Load MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 x 28 pixels.

    LeCun, Cortes and Burges, 1998. ``classes``, ``standardise``, ``flat`` and ``group`` are those
    of ``fashion_mnist``.

    Args:
        partition: None distributes labels over 10 clients by a Dirichlet draw with concentration
            0.5.
        split: None tests on the official test images.
    """
    pool = prepared(read(root), classes, standardise, flat, group)
    return deal(pool, partition or DIRICHLET, split, seed, clients)


def read_writers(root: Path | None = None, writers: str = "train") -> Pool:
    """Read the images with writers as clients and their populations as teams; no image is held
    out."""
    require_choice("writers", writers, ("train", "test", "all"))
    folder = folder_of("mnist_writers", root)
    pool = read_images(
        locate("mnist_writers", FILES, root, also=(folder_of("mnist", root),)), FILES, NAMES
    )
    assert pool.held_out is not None
    archive = folder / ARCHIVE.name
    source, table = (archive, _from_archive(archive)) if archive.is_file() else _from_qmnist(root)
    checked_table(source, table, pool.y)
    rows = (
        torch.arange(len(pool))
        if writers == "all"
        else (pool.held_out == (writers == "test")).nonzero().flatten()
    )
    _, population, writer = table[:, rows]
    ids, client = torch.unique(writer, return_inverse=True)
    team = torch.empty(len(ids), dtype=torch.int64)
    team[client] = torch.searchsorted(torch.tensor(list(POPULATIONS)), population)
    return replace(
        pool.select(rows),
        client=client,
        client_names=tuple(f"writer {number}" for number in ids.tolist()),
        team=team,
        team_names=tuple(POPULATIONS.values()),
        held_out=None,
    )


def checked_table(source: Path, table: Tensor, labels: Tensor) -> None:
    """Raise a DataError unless the table (label, population and writer per image) fits these
    images."""
    if table.shape[1] != len(labels):
        raise DataError(
            f"{source} has {table.shape[1]} images, not {len(labels)}; download it again"
        )
    wrong = (table[0] != labels).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{source}: row {row} (from 0) has digit {int(table[0, row])}, but MNIST has"
            f" {int(labels[row])}; download both again"
        )
    unknown = torch.isin(table[1], torch.tensor(list(POPULATIONS))).logical_not().nonzero()
    if len(unknown):
        row = int(unknown[0])
        raise DataError(
            f"{source}: row {row} (from 0) has hsf {int(table[1, row])}, not 0 or 4; download the"
            " file again"
        )


def _from_archive(path: Path) -> Tensor:
    """Return (3, 70000) digit, population and writer of the training and then the test images."""
    try:
        arrays = np.load(io.BytesIO(read_bytes(path, ARCHIVE)))
        columns = [
            [arrays[f"{part}_{name}"] for part in ("train", "test")]
            for name in ("qmnist_label", "hsf", "writer")
        ]
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{path} is damaged: {error}; delete it to use QMNIST's table instead"
        ) from error
    return torch.from_numpy(
        np.stack([np.concatenate(column).astype(np.int64) for column in columns])
    )


def _from_qmnist(root: Path | None) -> tuple[Path, Tensor]:
    """Return the same from QMNIST's label files, and where it was found.

    Their first columns are digit, population and writer.
    """
    paths = locate("mnist_writers", TABLES, root)
    train, test = (
        read_idx(path, file, axes=2, kind="int32") for path, file in zip(paths, TABLES, strict=True)
    )
    # QMNIST has 50,000 more test digits, which MNIST lost
    table = np.concatenate([train[:, :3], test[:10_000, :3]])
    return paths[0], torch.from_numpy(table.astype(np.int64).T.copy())


def mnist_writers(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | None = None,
    writers: str = "train",
    classes: Sequence[int | str] | None = None,
    standardise: str = "scale",
    flat: bool = False,
    group: str | None = None,
    teams: bool = True,
) -> Federation:
    """Load MNIST by writer: 539 clients with 19 to 131 digits each, in two populations.

    The writers are those that Yadav and Bottou found for every digit (QMNIST, 2019). A client's
    team is "staff" (Census Bureau and NIST, whose forms are easier to read) or "students" (of a
    high school). ``classes``, ``standardise``, ``flat`` and ``group`` are those of
    ``fashion_mnist``.

    Args:
        partition: None makes each writer a client. If a partition mixes writers, populations become
            the samples' groups.
        split: None keeps 20 % of each writer's digits for testing.
        writers: "train" for the 539 writers of MNIST's training images, "test" for the 297 other
            writers of its test images, or "all".
        teams: False ignores the populations; methods that compare teams then compare writers.
    """
    require(isinstance(teams, bool), "teams must be true or false, got {!r}", teams)
    pool = read_writers(root, writers)
    if not teams:
        pool = replace(pool, team=None, team_names=())
    pool = prepared(pool, classes, standardise, flat, group)
    return deal(pool, partition, split, seed, clients)
