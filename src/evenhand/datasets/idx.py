"""IDX files, the format of MNIST and its relatives: a magic number, the length of each axis, the
values; all big endian."""

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
    """The array in an IDX file; read-only. Raises a DataError unless it has ``axes`` axes of
    ``kind`` and is whole."""
    content = read(path, file)
    start = 4 + 4 * axes
    magic, wanted = int.from_bytes(content[:4], "big"), TYPES[kind] << 8 | axes
    if len(content) >= 4 and magic != wanted:
        raise DataError(
            f"{path} has magic number {magic}, not {wanted}: it is no IDX file of {kind} with"
            f" {axes} axes; fetch it again"
        )
    if len(content) < start:
        raise DataError(
            f"{path} is cut short: {len(content)} bytes, fewer than the {start} of its header;"
            " fetch it again"
        )
    shape = [int(length) for length in np.frombuffer(content, ">u4", axes, offset=4)]
    value = np.dtype(kind).newbyteorder(">")
    promised = math.prod(shape) * value.itemsize
    if len(content) - start != promised:
        fault = "is cut short" if len(content) - start < promised else "has trailing bytes"
        sizes = " x ".join(map(str, shape))
        raise DataError(
            f"{path} {fault}: {len(content) - start} bytes follow a header that promises {sizes}"
            f" {kind}; fetch it again"
        )
    if not promised:
        sizes = " x ".join(map(str, shape))
        raise DataError(f"{path} holds nothing: it has {sizes} {kind}; fetch it again")
    return np.frombuffer(content, value, offset=start).reshape(shape)


def read_images(
    paths: Sequence[Path],
    files: Sequence[File],
    label_names: tuple[str, ...],
    transposed: bool = False,
    first: int = 0,
) -> Pool:
    """Images of 28 x 28 bytes with their labels.

    Args:
        paths, files: images and labels of the training samples, then, where there are such, of the
            official test samples.
        transposed: the files hold columns where others hold rows.
        first: the label that stands for the first class.
    """
    sizes, images, labels = [], [], []
    for pair in range(0, len(files), 2):
        pixels = read_idx(paths[pair], files[pair], axes=3)
        codes = read_idx(paths[pair + 1], files[pair + 1], axes=1)
        if pixels.shape[1:] != (28, 28):
            raise DataError(
                f"{paths[pair]} has images of {pixels.shape[1]} x {pixels.shape[2]}, not 28 x 28"
                " pixels; fetch it again"
            )
        if len(pixels) != len(codes):
            raise DataError(
                f"{paths[pair]} has {len(pixels)} images, {paths[pair + 1]} {len(codes)} labels;"
                " take both from one source"
            )
        images.append(pixels.transpose(0, 2, 1) if transposed else pixels)
        labels.append(torch.tensor(codes).long() - first)
        check_labels(paths[pair + 1], labels[-1], len(label_names), first)
        sizes.append(len(codes))
    held_out = None if len(sizes) == 1 else torch.arange(sum(sizes)) >= sizes[0]
    return image_pool(
        torch.from_numpy(np.concatenate(images))[:, None], torch.cat(labels), label_names, held_out
    )
