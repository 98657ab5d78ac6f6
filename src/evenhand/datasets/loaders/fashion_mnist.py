"""Fashion-MNIST: 70,000 grey images of ten kinds of clothes (Xiao, Rasul and Vollgraf, 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.pool import Partition, Pool
from evenhand.data.storage.file import File
from evenhand.data.storage.locate import locate
from evenhand.datasets.idx import read_images
from evenhand.datasets.images import DIRICHLET, prepared

NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
# of the package dataset-fashion-mnist; only its .gz headers differ, not their contents
DEBIAN = Path("/usr/share/dataset-fashion-mnist")
FILES = tuple(
    File(name, HOME + name, f"md5:{published}", f"md5:{content}")
    for name, published, content in (
        (
            "train-images-idx3-ubyte.gz",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            "25c81989df183df01b3e8a0aad5dffbe",
            "9018921c3c673c538a1fc5bad174d6f9",
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            "bef4ecab320f06d8554ea6380940ec79",
            "8181f5470baa50b63fa0f6fddb340f0a",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            "bb300cfdad3c16e7a12a480ee83cd310",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    )
)


def read(root: Path | None = None) -> Pool:
    """Read all images as (1, 28, 28) numbers in [0, 1], with the 10,000 official test images
    held out."""
    return read_images(locate("fashion_mnist", FILES, root, also=(DEBIAN,)), FILES, NAMES)


def fashion_mnist(
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
    """Load Fashion-MNIST: 60,000 training and 10,000 test images of ten kinds of clothes, 28 x 28
    pixels.

    For the three clients of AFL and q-FFL, use ``fashion_mnist("by_class", classes=[0, 2, 6],
    standardise="pixel", flat=True)``; for the ten groups of FedMinMax, ``fashion_mnist("ssg",
    clients=40, group="class")``.

    Args:
        partition: None distributes labels over 10 clients by a Dirichlet draw with concentration
            0.5.
        split: None tests on the official test images.
        classes: numbers or names of the classes to keep, renumbered in this order.
        standardise: "scale" for pixels in [0, 1]; "dataset" for mean 0 and variance 1 over all
            training images; "pixel" for mean 0 and variance 1 of each pixel (with 0.001 of 255
            added to its standard deviation, as in the q-FFL code).
        flat: return images as vectors of 784 numbers instead of (1, 28, 28).
        group: "class" makes the class of a sample its group.
    """
    pool = prepared(read(root), classes, standardise, flat, group)
    return deal(pool, partition or DIRICHLET, split, seed, clients)
