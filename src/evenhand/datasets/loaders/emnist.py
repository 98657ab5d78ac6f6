"""EMNIST by class: handwritten digits and letters (Cohen, Afshar, Tapson and van Schaik, 2017)."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.pool import Partition, Pool
from evenhand.data.storage.file import File, find, folder_of
from evenhand.data.storage.locate import locate
from evenhand.datasets.idx import read_images
from evenhand.datasets.images import DIRICHLET, prepared
from evenhand.errors import require_choice

NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
CHOICES: dict[str, Sequence[str] | None] = {
    "all": None,
    "digits": string.digits,
    "uppercase": string.ascii_uppercase,
    "lowercase": string.ascii_lowercase,
    "lowercase a-j": "abcdefghij",
}
FILES = tuple(
    File(
        name,
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        member=f"gzip/{name}",
    )
    for part in ("train", "test")
    for name in (
        f"emnist-byclass-{part}-images-idx3-ubyte.gz",
        f"emnist-byclass-{part}-labels-idx1-ubyte.gz",
    )
)
SUBSET = tuple(
    File(f"emnist-byclass-subset-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1")
)


def read(root: Path | None = None) -> Pool:
    """The official by-class files, test images held out; or, where they are not there but a subset
    is, that subset.

    Images are upright, (1, 28, 28) numbers from 0 to 1. The official files hold them transposed,
    subsets upright.
    """
    folder = folder_of("emnist", root)
    unpacked = folder / "gzip"  # what unpacking the official archive by hand gives
    if find(SUBSET[0], (folder,)) and not find(FILES[0], (folder, unpacked)):
        return read_images(locate("emnist", SUBSET, root), SUBSET, NAMES)
    return read_images(
        locate("emnist", FILES, root, also=(unpacked,)), FILES, NAMES, transposed=True
    )


def emnist(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | None = None,
    classes: str | Sequence[int | str] = "all",
    standardise: str = "scale",
    flat: bool = False,
    group: str | None = None,
) -> Federation:
    """697,932 training and 116,323 test images of digits and letters, 28 x 28 pixels, in 62 classes
    of unequal size.

    The skewed FEMNIST of FedProx and GIFAIR: ``classes="lowercase a-j"`` with ``partition={"name":
    "classes_per_client", "k": 5, "clients": 200}`` (GIFAIR: 100 clients).

    Args:
        partition: None deals labels by a Dirichlet draw with concentration 0.5, to 10 clients. The
            files do not say who wrote what.
        split: None keeps the official test images for testing, 20 % of each client's images where
            only a subset is there.
        classes: "all", "digits", "uppercase", "lowercase", "lowercase a-j", or a list of characters
            or class numbers; they are renumbered in this order.
        standardise, flat, group: as for fashion_mnist.
    """
    if isinstance(classes, str):
        require_choice("classes", classes, tuple(CHOICES))
    chosen = CHOICES[classes] if isinstance(classes, str) else classes
    pool = prepared(read(root), None if chosen is None else list(chosen), standardise, flat, group)
    return deal(pool, partition or DIRICHLET, split, seed, clients)
