"""CINIC-10: CIFAR-10's images and small ImageNet images of the same ten classes (Darlow, Crowley,
Antoniou and Storkey, 2018).

The official files are PNG images in a folder per class, inside the folders train, valid and test.
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
EACH = 9_000  # images per class and part
FILES = (
    File(
        "CINIC-10.tar.gz",
        "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
        "md5:6ee4d0c996905fe93221de577967a372",
    ),
)
UNPACKED = "train/airplane/*.png"  # some of the files of an unpacked archive

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
    """Load CINIC-10: 270,000 colour images in ten classes, 32 x 32 pixels.

    There are 90,000 images each for training, validation and testing. PropFair pools all of them
    and tests on half of each client's images: ``partition={"name": "dirichlet", "alpha": 0.5},
    split={"test": 0.5}, clients=50``. Reading the PNG files takes half a minute and needs Pillow.
    ``classes``, ``standardise``, ``flat`` and ``group`` are those of ``cifar10``.

    Args:
        partition: None distributes labels over 10 clients by a Dirichlet draw with concentration
            0.5.
        split: None tests on the official test images and trains on all others, including the
            official validation images. Shares such as ``{"test": 0.5}`` are of all images.
        parts: which official parts to use; without "valid" there are 180,000 images.
    """
    pool = prepared(read(root, parts), classes, standardise, flat, group)
    return deal(pool, partition or DIRICHLET, split, seed, clients)


def read(root: Path | None = None, parts: Sequence[str] = PARTS) -> Pool:
    """Read all images of some parts as (3, 32, 32) numbers in [0, 1], with the test images held
    out.

    They come part by part and class by class, in the order of their file names, from the folders
    or, if there are none, from the official archive.
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
    """Return (N, 3, 32, 32) images in order, from a folder or an archive."""
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
                + ("download it again" if source.is_file() else "unpack the archive again")
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
    """Yield the images in an archive in storage order, so that it is read only once."""
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
            f"{archive} is damaged: {first_line(error)}; delete it and download it again"
        ) from error


def _decoded(name: str, content: bytes) -> Pixels:
    """Return (3, 32, 32) the pixels of a PNG file."""
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
            f"{name} is not a complete PNG file: {first_line(error)}; unpack or download it again"
        ) from error
    if pixels.shape != (32, 32, 3):
        height, width, _ = pixels.shape
        raise DataError(f"{name} has {height} x {width} pixels, not 32 x 32; download it again")
    return pixels.transpose(2, 0, 1)
