"""How the work of the kernels for convolutions is divided among programs and their steps."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

PROGRAMS = 264  # two for each multiprocessor of an H200
ENOUGH = 1056  # programs whose sums over places may be divided among more
MOST_SPLITS = 32
NARROW = 5  # channels from which 16 are read faster than a part of them
PLACES_AT_ONCE = 64  # in a sum over places
WORTH_PARTS = 16  # channels from which numbers are divided into parts before a product


class Taps(NamedTuple):
    """The rows (or columns) of a filter that can touch the image, in a launch."""

    number: int
    first: int  # in the filter
    start: int  # in the image, under the first tap at the first place


def used_taps(count: int, start: int, reach: int, move: int, places: int, size: int) -> Taps:
    """Of ``count`` taps, those that touch an image of ``size`` from any of the ``places``."""
    used = [
        tap
        for tap in range(count)
        if start + tap * reach + (places - 1) * move >= 0 and start + tap * reach < size
    ]
    first = used[0] if used else 0
    return Taps(len(used), first, start + first * reach)


def power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def depth_block(depth: int, most: int) -> tuple[int, bool]:
    """How much of the depth a product takes at once, and whether that divides it."""
    for block in (128, 64, 32, 16):
        if block <= most and depth % block == 0:
            return block, True
    return 32, False


class Tile(NamedTuple):
    """What a program computes, and how."""

    places: int
    outputs: int
    depth: int  # of a product at once
    aligned: bool  # whether that divides the whole depth
    warps: int = 4
    stages: int = 3


def placing_tile(source: Tensor, clients: int, places: int, outputs: int) -> Tile:
    block, aligned = depth_block(source.shape[4], 64 if source.element_size() == 2 else 32)
    high, wide = 128, 128 if outputs >= 128 else max(16, power_of_two(outputs))
    if clients * -(-places // high) * -(-outputs // wide) < PROGRAMS:
        high, wide = 64, min(wide, 64)
    return Tile(high, wide, block, aligned, 8 if high * wide >= 128 * 128 else 4)


def in_splits(steps: int, programs: int) -> tuple[int, int]:
    """Into how many sums the steps are divided to keep a GPU busy, and the steps of each."""
    each = -(-steps // max(1, min(MOST_SPLITS, ENOUGH // programs, steps // 4)))
    return -(-steps // each), each


class Sums(NamedTuple):
    """How the places of an output are added up into gradients of filters."""

    taken: tuple[int, int, int]  # images, rows and columns in one step, powers of two
    outputs: int  # filters, and entries of each, of a program
    depth: int
    aligned: bool
    warps: int
    stages: int
    steps: int
    splits: int
    each: int  # steps of a split


def sums(slopes: Tensor, x: Tensor, sides: list[int]) -> Sums:
    _, clients, images, rows, columns, outputs = slopes.shape
    tile = filter_tile(x, outputs, sides)
    across = min(tile.places, power_of_two(columns))
    down = min(tile.places // across, power_of_two(rows))
    taken = (tile.places // (across * down), down, across)
    steps = -(-images // taken[0]) * -(-rows // down) * -(-columns // across)
    tiles = -(-outputs // tile.outputs) * -(-sides[0] * sides[1] * x.shape[5] // tile.depth)
    return Sums(
        *(taken, tile.outputs, tile.depth, tile.aligned, tile.warps, tile.stages, steps),
        *in_splits(steps, clients * tiles),
    )


def filter_tile(x: Tensor, outputs: int, sides: list[int]) -> Tile:
    """Places of a step, filters, and entries of a filter that a program computes.

    As measured on an H200. Slopes are read once for every block of entries, so blocks span taps.
    """
    depth, half, parts = x.shape[5], x.element_size() == 2, len(x)
    high = min(128 if half else 64, max(16, power_of_two(outputs)))
    most = 128 if half and not (parts == 3 and high == 128) else 64
    block = min(most, max(16, power_of_two(math.prod(sides) * depth)))
    places = 64 if parts == 1 and (half or block <= 32) else 32
    return Tile(
        *(places, high, block, depth % block == 0),
        warps=8 if parts == 3 and high == 128 else 4,
        stages=3 if half and block >= 64 else 2,
    )


def parts(precision: str, channels: int) -> int:
    """Into how many parts numbers are divided before products over places.

    There both factors lie the wrong way round for TF32. Every number is read often, so it pays to
    divide it once; with few channels it does not.
    """
    return {"tf32": 2, "tf32x3": 3}.get(precision, 1) if channels >= WORTH_PARTS else 1


def sum_splits(slopes: Tensor) -> tuple[int, int]:
    return in_splits(-(-slopes[0, ..., 0].numel() // PLACES_AT_ONCE), len(slopes))
