"""CINIC-10: CIFAR-10's images and small ones from ImageNet of the same ten classes (Darlow,
Crowley, Antoniou and Storkey, 2018).

Officially PNG files in folders of their class, in folders train, valid and test.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.pool import Partition, Pool
from evenhand.data.storage.file import File, folder_of
from evenhand.data.storage.locate import locate
from evenhand.datasets.images import DIRICHLET, image_pool, prepared
from evenhand.datasets.loaders.cifar import CIFAR10_NAMES
from evenhand.errors import DataError, first_line, require, require_known

PARTS = ("train", "valid", "test")
EACH = 9_000  # images of every class in every part
FILES = (
    File(
        "CINIC-10.tar.gz",
        "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
        "md5:6ee4d0c996905fe93221de577967a372",
    ),
)
UNPACKED = "train/airplane/*.png"  # some of the files where the archive is unpacked

Pixels = NDArray[np.uint8]


def cinic10(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | None = None,
    classes: Sequence[int | str] | None = None,
    standardise: str = "scale",
    flat: bool = False,
    group: str | None = None,
    parts: Sequence[str] = PARTS,
) -> Federation:
    """270,000 photographs of ten kinds of things, 32 x 32 pixels in three colours: 90,000 each for
    training, validation and testing.

    PropFair pools all and tests on half of each client's: ``partition={"name": "dirichlet",
    "alpha": 0.5}, split={"test": 0.5}, clients=50``. Reading the PNG files takes half a minute and
    needs Pillow.

    Args:
        partition: None deals labels by a Dirichlet draw with concentration 0.5, to 10 clients.
        split: None tests on the official test images and trains on the others, the official
            validation images among them. Shares such as ``{"test": 0.5}`` are of all images.
        parts: which of the official parts to take; without "valid" there are 180,000 images.
        classes, standardise, flat, group: as for cifar10.
    """
    pool = prepared(read(root, parts), classes, standardise, flat, group)
    return deal(pool, partition or DIRICHLET, split, seed, clients)


def read(root: Path | None = None, parts: Sequence[str] = PARTS) -> Pool:
    """All images of some parts, (3, 32, 32) numbers from 0 to 1, part by part and class by class in
    the order of their file names; the test images are held out.

    They are read from the folders, or where these are not there from the official archive.
    """
    require(
        not isinstance(parts, str) and 0 < len(parts) == len(set(parts)),
        'parts must be a list such as ["train", "test"], got {!r}',
        parts,
    )
    for part in parts:
        require_known("part", part, PARTS)
    kept = [part for part in PARTS if part in parts]
    home = folder_of("cinic10", root)
    unpacked = [place for place in (home, home / "CINIC-10") if (place / "train").is_dir()]
    source = unpacked[0] if unpacked else locate("cinic10", FILES, root)[0]
    images = _images(source, kept)
    labels = torch.arange(10).repeat_interleave(EACH).repeat(len(kept))
    mixed = "test" in kept and len(kept) > 1
    held_out = torch.arange(len(labels)) >= len(labels) - 10 * EACH if mixed else None
    return image_pool(torch.from_numpy(images), labels, CIFAR10_NAMES, held_out)


def _images(source: Path, parts: Sequence[str]) -> Pixels:
    """(N, 3, 32, 32) in order, from a folder or an archive."""
    cells = {cell: place for place, cell in enumerate(product(parts, CIFAR10_NAMES))}
    images = np.empty((len(cells), EACH, 3, 32, 32), np.uint8)
    names: list[list[str]] = [[] for _ in cells]
    for name, content in (_members if source.is_file() else _files)(source, cells):
        part, kind, file = PurePosixPath(name).parts[-3:]
        place = cells[part, kind]
        if len(names[place]) < EACH:
            images[place, len(names[place])] = _decoded(f"{source}: {name}", content)
        names[place].append(file)
    for (part, kind), place in cells.items():
        if len(names[place]) != EACH:
            raise DataError(
                f"{source} has {len(names[place])} images in {part}/{kind}, not {EACH}; "
                + ("fetch it again" if source.is_file() else "unpack the archive again")
            )
        images[place] = images[place][np.argsort(names[place])]
    return images.reshape(-1, 3, 32, 32)


def _files(folder: Path, cells: Mapping[tuple[str, str], int]) -> Iterator[tuple[str, bytes]]:
    for part, kind in cells:
        for path in sorted((folder / part / kind).glob("*.png")):
            try:
                yield f"{part}/{kind}/{path.name}", path.read_bytes()
            except OSError as error:
                reason = error.strerror or first_line(error)
                raise DataError(f"{path} cannot be read: {reason}") from error


def _members(archive: Path, cells: Mapping[tuple[str, str], int]) -> Iterator[tuple[str, bytes]]:
    """The images in an archive, in the order in which they lie there: it is read only once."""
    try:
        with tarfile.open(archive, "r|*") as tar:
            for entry in tar:
                parts = PurePosixPath(entry.name).parts
                if entry.isreg() and entry.name.endswith(".png") and parts[-3:-1] in cells:
                    stream = tar.extractfile(entry)
                    assert stream is not None
                    yield entry.name, stream.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(
            f"{archive} is damaged: {first_line(error)}; remove it and fetch it again"
        ) from error


def _decoded(name: str, content: bytes) -> Pixels:
    """(3, 32, 32) the pixels of a PNG file."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError(
            "CINIC-10's PNG files need Pillow: pip install pillow (extra: evenhand[images])"
        ) from None
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            pixels = np.asarray(image.convert("RGB"), np.uint8)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{name} is no whole PNG file: {first_line(error)}; unpack or fetch it again"
        ) from error
    if pixels.shape != (32, 32, 3):
        height, width, _ = pixels.shape
        raise DataError(f"{name} has {height} x {width}, not 32 x 32 pixels; fetch it again")
    return pixels.transpose(2, 0, 1)
