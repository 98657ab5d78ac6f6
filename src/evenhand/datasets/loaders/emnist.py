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
LETTERS = tuple(string.ascii_lowercase)  # of the set "letters", where each class has both cases


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
    """Read the official files, with the test images held out.

    For "byclass", a subset is used if it is present and the official files are not. Images are
    returned upright, as (1, 28, 28) numbers in [0, 1]; the official files have them transposed,
    subsets upright.
    """
    require_choice("kind", kind, ("byclass", "letters"))
    folder = folder_of("emnist", root)
    unpacked = folder / "gzip"  # the folder if the official archive is unpacked by hand
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
    """Load EMNIST: handwritten digits and letters, 28 x 28 pixels.

    "byclass" has 697,932 training and 116,323 test images in 62 classes of unequal size, "letters"
    has 124,800 and 20,800 in 26 equal ones.

    For the skewed FEMNIST of FedProx and GIFAIR, use ``classes="a-j"`` with ``partition={"name":
    "classes_per_client", "k": 5, "clients": 200}`` (GIFAIR: 100 clients with ``"samples": 500``).
    In "byclass" there are too few c, f, g, i and j for GIFAIR's sizes with even shares of five
    letters: add ``"share": "available"``, or use ``kind="letters"``.

    ``standardise``, ``flat`` and ``group`` are those of ``fashion_mnist``.

    Args:
        partition: None distributes labels over 10 clients by a Dirichlet draw with concentration
            0.5; the files do not name the writers.
        split: None tests on the official test images, or on 20 % of each client's images if there
            is only a subset.
        classes: "all", "digits", "uppercase", "lowercase", "lowercase a-j", a range such as "a-j",
            or a list of characters or class numbers; they are renumbered in this order.
        kind: "byclass" has digits, capitals and lower-case letters; "letters" has 26 classes, a to
            z, with capitals and lower case together.
    """
    chosen = _chosen(classes, kind)
    pool = prepared(read(root, kind), chosen, standardise, flat, group)
    return deal(pool, partition or DIRICHLET, split, seed, clients)


def _chosen(classes: str | Sequence[int | str], kind: str) -> list[int | str] | None:
    """Return the classes to keep, in order; None for all."""
    require_choice("kind", kind, ("byclass", "letters"))
    names = NAMES if kind == "byclass" else LETTERS
    if not isinstance(classes, str):
        return list(classes)
    if len(classes) == 3 and classes[1] == "-" and {classes[0], classes[2]} <= set(names):
        first, last = names.index(classes[0]), names.index(classes[2])
        require(first <= last, "classes {!r} is an empty range; swap its ends", classes)
        return list(names[first : last + 1])
    choices = CHOICES if kind == "byclass" else {"all": None}
    require(
        classes in choices,
        'classes must be {}, a range such as "a-j" or a list, got {!r}{}',
        ", ".join(f'"{name}"' for name in choices),
        classes,
        '; for both cases as one class, use kind = "letters"' if classes == "letters" else "",
    )
    chosen = choices[classes]
    return None if chosen is None else list(chosen)
