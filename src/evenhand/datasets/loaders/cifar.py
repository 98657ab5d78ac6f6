"""CIFAR-10 and CIFAR-100: small colour photographs (Krizhevsky, 2009), in their official binary
layout.

Every record is one label byte (CIFAR-100: superclass, then class), followed by the 32 x 32 bytes of
the red, green and blue planes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.pool import Partition, Pool
from evenhand.data.storage.file import File
from evenhand.data.storage.file import read as read_bytes
from evenhand.data.storage.locate import locate
from evenhand.datasets.images import DIRICHLET, check_labels, image_pool, prepared
from evenhand.errors import DataError


class Layout(NamedTuple):
    """How a data set is stored in its files; the last file has the test images."""

    dataset: str
    files: tuple[File, ...]
    rows: tuple[int, ...]  # images in each file
    labels: tuple[tuple[str, ...], ...]  # class names for each label byte


def _file(archive: str, checksum: str, name: str, content: str | None = None) -> File:
    url = f"https://www.cs.toronto.edu/~kriz/{archive}"
    return File(
        name, url, f"md5:{checksum}", None if content is None else f"md5:{content}", member=name
    )


CIFAR10_FILES = tuple(
    _file(
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        f"cifar-10-batches-bin/{name}.bin",
        content,
    )
    for name, content in (
        ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
        ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
        ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
        ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
        ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
    )
)
CIFAR100_FILES = tuple(
    _file(
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        f"cifar-100-binary/{name}.bin",
    )
    for name in ("train", "test")
)
CIFAR10_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
FINE = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse
    mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy
    porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper
    snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television
    tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"""
COARSE = """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things
    large_natural_outdoor_scenes large_omnivores_and_herbivores medium_mammals
    non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2"""
CIFAR10 = Layout("cifar10", CIFAR10_FILES, (10_000,) * 6, (CIFAR10_NAMES,))
CIFAR100 = Layout(
    "cifar100", CIFAR100_FILES, (50_000, 10_000), (tuple(COARSE.split()), tuple(FINE.split()))
)
# mean and standard deviation of red, green and blue in the training images, as usually quoted
CHANNELS10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CHANNELS100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def read(layout: Layout = CIFAR10, root: Path | None = None, label: int = -1) -> Pool:
    """Read all images as (3, 32, 32) numbers in [0, 1], with the test images held out.

    ``label`` says which label byte to use.
    """
    width = len(layout.labels)
    images = np.empty((sum(layout.rows), 3072), np.uint8)
    codes = np.empty((len(images), width), np.uint8)
    start = 0
    for path, file, rows in zip(
        locate(layout.dataset, layout.files, root), layout.files, layout.rows, strict=True
    ):
        content = read_bytes(path, file)
        if len(content) != rows * (width + 3072):
            fault = "is truncated" if len(content) < rows * (width + 3072) else "has trailing bytes"
            raise DataError(
                f"{path} {fault}: {len(content)} bytes, not {rows} records of {width + 3072};"
                " download it again"
            )
        records = np.frombuffer(content, np.uint8).reshape(rows, width + 3072)
        part = slice(start, start + rows)
        codes[part], images[part] = records[:, :width], records[:, width:]
        for byte, names in enumerate(layout.labels):
            check_labels(path, torch.from_numpy(codes[part, byte]), len(names))
        start += rows
    held_out = torch.arange(len(images)) >= len(images) - layout.rows[-1]
    labels = torch.from_numpy(codes[:, label])
    return image_pool(
        torch.from_numpy(images).reshape(-1, 3, 32, 32), labels, layout.labels[label], held_out
    )


def cifar10(
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
    """Load CIFAR-10: 50,000 training and 10,000 test colour images in ten classes, 32 x 32 pixels.

    Args:
        partition: None distributes labels over 10 clients by a Dirichlet draw with concentration
            0.5, as in PropFair's experiments.
        split: None tests on the official test images.
        classes: numbers or names of the classes to keep, renumbered in this order.
        standardise: "scale" for pixels in [0, 1]; "dataset" for mean 0 and variance 1 of each
            colour; "pixel" for mean 0 and variance 1 of each pixel.
        flat: return images as vectors of 3072 numbers instead of (3, 32, 32).
        group: "class" makes the class of a sample its group.
    """
    pool = prepared(read(CIFAR10, root), classes, standardise, flat, group, CHANNELS10)
    return deal(pool, partition or DIRICHLET, split, seed, clients)


def cifar100(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | None = None,
    coarse: bool = False,
    classes: Sequence[int | str] | None = None,
    standardise: str = "scale",
    flat: bool = False,
    group: str | None = None,
) -> Federation:
    """Load CIFAR-100: 50,000 training and 10,000 test colour images in 100 classes, 32 x 32 pixels.

    The other arguments are those of ``cifar10``.

    Args:
        coarse: use the 20 superclasses of five classes each as labels.
    """
    pool = prepared(
        read(CIFAR100, root, label=0 if coarse else 1),
        classes,
        standardise,
        flat,
        group,
        CHANNELS100,
    )
    return deal(pool, partition or DIRICHLET, split, seed, clients)
