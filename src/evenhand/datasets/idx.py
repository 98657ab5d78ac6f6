"""IDX files, the format of MNIST: a magic number, the length of each axis, the values (big
endian)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenhand.data.pool import Pool
from evenhand.data.storage.file import File, read
from evenhand.datasets.images import check_labels, image_pool
from evenhand.errors import DataError

Array = np.ndarray[Any, Any]
TYPES = {"uint8": 0x08, "int32": 0x0C}  # codes in the magic number


def read_idx(path: Path, file: File, axes: int, kind: str = "uint8") -> Array:
    """Read the array in an IDX file, read-only.

    Raises a DataError unless it is complete and has ``axes`` axes of type ``kind``.
    """
    content = read(path, file)
    start = 4 + 4 * axes
    magic, wanted = int.from_bytes(content[:4], "big"), TYPES[kind] << 8 | axes
    if len(content) >= 4 and magic != wanted:
        raise DataError(
            f"{path} has magic number {magic}, not {wanted}: it is not an IDX file of {kind} with"
            f" {axes} axes; download it again"
        )
    if len(content) < start:
        raise DataError(
            f"{path} is truncated: {len(content)} bytes, fewer than the {start} of its header;"
            " download it again"
        )
    shape = [int(length) for length in np.frombuffer(content, ">u4", axes, offset=4)]
    value = np.dtype(kind).newbyteorder(">")
    promised = math.prod(shape) * value.itemsize
    if len(content) - start != promised:
        fault = "is truncated" if len(content) - start < promised else "has trailing bytes"
        sizes = " x ".join(map(str, shape))
        raise DataError(
            f"{path} {fault}: {len(content) - start} bytes follow a header that promises {sizes}"
            f" {kind}; download it again"
        )
    if not promised:
        sizes = " x ".join(map(str, shape))
        raise DataError(f"{path} is empty: it has {sizes} {kind}; download it again")
    return np.frombuffer(content, value, offset=start).reshape(shape)


def read_images(
    paths: Sequence[Path],
    files: Sequence[File],
    label_names: tuple[str, ...],
    transposed: bool = False,
    first: int = 0,
) -> Pool:
    """Read images of 28 x 28 bytes with their labels.

    Args:
        paths: of images and labels of the training samples and, optionally, of official test
            samples.
        files: the same files as the catalogue describes them.
        label_names: of the classes.
        transposed: whether the files store columns in place of rows.
        first: the label of the first class.
    """
    sizes, images, labels = [], [], []
    for pair in range(0, len(files), 2):
        pixels = read_idx(paths[pair], files[pair], axes=3)
        codes = read_idx(paths[pair + 1], files[pair + 1], axes=1)
        if pixels.shape[1:] != (28, 28):
            raise DataError(
                f"{paths[pair]} has images of {pixels.shape[1]} x {pixels.shape[2]}, not 28 x 28"
                " pixels; download it again"
            )
        if len(pixels) != len(codes):
            raise DataError(
                f"{paths[pair]} has {len(pixels)} images, but {paths[pair + 1]} has {len(codes)}"
                " labels; use files of one source"
            )
        images.append(pixels.transpose(0, 2, 1) if transposed else pixels)
        labels.append(torch.tensor(codes).long() - first)
        check_labels(paths[pair + 1], labels[-1], len(label_names), first)
        sizes.append(len(codes))
    held_out = None if len(sizes) == 1 else torch.arange(sum(sizes)) >= sizes[0]
    return image_pool(
        torch.from_numpy(np.concatenate(images))[:, None], torch.cat(labels), label_names, held_out
    )
