"""EMNIST: handwritten digits and letters (Cohen, Afshar, Tapson and van Schaik, 2017)."""

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
from evenhand.errors import require, require_choice

NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
CHOICES: dict[str, Sequence[str] | None] = {
    "all": None,
    "digits": string.digits,
    "uppercase": string.ascii_uppercase,
    "lowercase": string.ascii_lowercase,
    "lowercase a-j": "abcdefghij",
}
LETTERS = tuple(string.ascii_lowercase)  # of the set "letters": each is both cases


def _official(kind: str) -> tuple[File, ...]:
    return tuple(
        File(
            name,
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "md5:58c8d27c78d21e728a6bc7b3cc06412e",
            member=f"gzip/{name}",
        )
        for part in ("train", "test")
        for name in (
            f"emnist-{kind}-{part}-images-idx3-ubyte.gz",
            f"emnist-{kind}-{part}-labels-idx1-ubyte.gz",
        )
    )


FILES = _official("byclass")
LETTER_FILES = _official("letters")
SUBSET = tuple(
    File(f"emnist-byclass-subset-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1")
)


def read(root: Path | None = None, kind: str = "byclass") -> Pool:
    """The official files, test images held out; by class also a subset, where that is there and
    they are not.

    Images are upright, (1, 28, 28) numbers from 0 to 1. The official files hold them transposed,
    subsets upright.
    """
    require_choice("kind", kind, ("byclass", "letters"))
    folder = folder_of("emnist", root)
    unpacked = folder / "gzip"  # what unpacking the official archive by hand gives
    if kind == "letters":
        paths = locate("emnist", LETTER_FILES, root, also=(unpacked,))
        return read_images(paths, LETTER_FILES, LETTERS, transposed=True, first=1)
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
    kind: str = "byclass",
) -> Federation:
    """Handwritten digits and letters, 28 x 28 pixels: 697,932 training and 116,323 test images in
    62 classes of unequal size, or 124,800 and 20,800 in 26 equal ones.

    The skewed FEMNIST of FedProx and GIFAIR: ``classes="a-j"`` with ``partition={"name":
    "classes_per_client", "k": 5, "clients": 200}`` (GIFAIR: 100 clients with ``"samples": 500``).
    By class there are too few c, f, g, i and j for GIFAIR's sizes with even shares of five letters:
    add ``"share": "available"``, or take ``kind="letters"``.

    Args:
        partition: None deals labels by a Dirichlet draw with concentration 0.5, to 10 clients. The
            files do not say who wrote what.
        split: None keeps the official test images for testing, 20 % of each client's images where
            only a subset is there.
        classes: "all", "digits", "uppercase", "lowercase", "lowercase a-j", a range such as "a-j",
            or a list of characters or class numbers; they are renumbered in this order.
        standardise, flat, group: as for fashion_mnist.
        kind: "byclass" has digits, capitals and lower-case letters; "letters" has 26 classes, a to
            z, each of them capitals and lower case together.
    """
    chosen = _chosen(classes, kind)
    pool = prepared(read(root, kind), chosen, standardise, flat, group)
    return deal(pool, partition or DIRICHLET, split, seed, clients)


def _chosen(classes: str | Sequence[int | str], kind: str) -> list[int | str] | None:
    """The classes to keep, in order; None for all."""
    require_choice("kind", kind, ("byclass", "letters"))
    names = NAMES if kind == "byclass" else LETTERS
    if not isinstance(classes, str):
        return list(classes)
    if len(classes) == 3 and classes[1] == "-" and {classes[0], classes[2]} <= set(names):
        first, last = names.index(classes[0]), names.index(classes[2])
        require(first <= last, "classes {!r} is an empty range; turn it round", classes)
        return list(names[first : last + 1])
    choices = CHOICES if kind == "byclass" else {"all": None}
    require(
        classes in choices,
        'classes must be {}, a range such as "a-j" or a list, got {!r}{}',
        ", ".join(f'"{name}"' for name in choices),
        classes,
        '; both cases as one class: kind = "letters"' if classes == "letters" else "",
    )
    chosen = choices[classes]
    return None if chosen is None else list(chosen)
