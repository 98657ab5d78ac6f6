"""CINIC-10 in its official layout: real PNG files, written here."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import evenhand as eh
from evenhand.data.views import View
from evenhand.datasets.catalogue import CATALOGUE
from evenhand.datasets.entry import PRESENT
from evenhand.datasets.loaders import cinic10
from evenhand.datasets.loaders.cifar import CIFAR10_NAMES
from evenhand.errors import DataError

PARTS = ("train", "valid", "test")
EACH = 2


def colour(part: str, label: int, number: int) -> tuple[int, int, int]:
    return 10 * PARTS.index(part) + number, label, 255


def image(colours: tuple[int, int, int], mode: str = "RGB", size: int = 32) -> bytes:
    """A PNG file of one colour, but for the pixel in row 1 and column 2, which is black."""
    picture = Image.new(mode, (size, size), colours if mode == "RGB" else colours[0])
    picture.putpixel((2, 1), (0, 0, 0) if mode == "RGB" else 0)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def files() -> dict[str, bytes]:
    """Two images of every class in every part; the names sort against the order of numbers."""
    return {
        f"{part}/{name}/{prefix}-{label}.png": image(colour(part, label, number))
        for part in PARTS
        for label, name in enumerate(CIFAR10_NAMES)
        for number, prefix in ((1, "n02690373_1"), (0, "cifar10-train"))
    }


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cinic10, "EACH", EACH)


def unpacked(root: Path, inside: str = "") -> Path:
    for name, content in files().items():
        path = root / "cinic10" / inside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def packed(root: Path, prefix: str = "./") -> Path:
    path = root / "cinic10" / "CINIC-10.tar.gz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"README.md": b"about", **files()}.items():
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return root


def test_images_are_read_by_part_class_and_name(tmp_path: Path) -> None:
    pool = cinic10.read(unpacked(tmp_path))
    assert len(pool) == 3 * 10 * EACH
    assert pool.label_names == CIFAR10_NAMES
    assert pool.y.tolist() == [label for label in range(10) for _ in range(EACH)] * 3
    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False] * 40 + [True] * 20
    assert isinstance(pool.x, View)
    expected = [
        colour(part, label, number)
        for part in PARTS
        for label in range(10)
        for number in range(EACH)
    ]
    assert pool.x.source[:, :, 0, 0].tolist() == [list(values) for values in expected]
    assert not pool.x.source[:, :, 1, 2].any()  # rows come before columns
    assert pool.x.source[:, 2, 2, 1].unique().tolist() == [255]
    assert pool.x[:].max().item() == 1


@pytest.mark.parametrize("prefix", ["", "./", "CINIC-10/"])
def test_the_archive_and_the_folders_give_the_same(tmp_path: Path, prefix: str) -> None:
    archive = cinic10.read(packed(tmp_path / "packed", prefix)).x[:]
    assert torch.equal(archive, cinic10.read(unpacked(tmp_path / "one")).x[:])
    assert torch.equal(archive, cinic10.read(unpacked(tmp_path / "two", "CINIC-10")).x[:])


def test_propfairs_protocol_pools_all_parts(tmp_path: Path) -> None:
    fed = eh.datasets.cinic10(
        {"name": "dirichlet", "alpha": 0.5, "least": 2}, {"test": 0.5}, 0, 4, unpacked(tmp_path)
    )
    assert fed.test is not None
    sizes = torch.stack([fed.train.sizes, fed.test.sizes])
    assert sizes.sum().item() == 60
    assert (sizes[0] - sizes[1]).abs().max() <= 1
    reds = fed.train.x[:][:, 0, 0, 0] * 255  # tens: the official part
    assert {int(red) // 10 for red in reds.round()} == {0, 1, 2}


def test_official_parts_can_be_chosen(tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    fed = eh.datasets.cinic10("iid", clients=2, root=root, parts=["test", "train"])
    assert fed.test is not None
    assert (len(fed.train.x), len(fed.test.x)) == (20, 20)
    assert cinic10.read(root, ["valid"]).held_out is None
    for parts, message in (
        ("train", r'parts must be a list such as \["train", "test"\], got'),
        ([], "parts must be a list"),
        (["train", "train"], "parts must be a list"),
        (["val"], "unknown part 'val'; did you mean 'valid'"),
    ):
        with pytest.raises(ValueError, match=message):
            cinic10.read(root, parts)


def test_grey_images_have_three_equal_colours(tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    (root / "cinic10/train/airplane/cifar10-train-0.png").write_bytes(image((9, 9, 9), "L"))
    view = cinic10.read(root).x
    assert isinstance(view, View)
    assert view.source[0, :, 0, 0].tolist() == [9, 9, 9]


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    path = root / "cinic10/valid/ship/cifar10-train-8.png"
    whole = path.read_bytes()
    for content, message in (
        (whole[:-30], "valid/ship/cifar10-train-8.png is not a complete PNG file"),
        (b"<html>", "valid/ship/cifar10-train-8.png is not a complete PNG file"),
        (image((1, 2, 3), size=16), "cifar10-train-8.png has 16 x 16 pixels, not 32 x 32"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            cinic10.read(root)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match="1 images in valid/ship, not 2; unpack the archive again"):
        cinic10.read(root)
    for name in ("a.png", "b.png"):
        (path.parent / name).write_bytes(whole)
    with pytest.raises(DataError, match="3 images in valid/ship, not 2"):
        cinic10.read(root)


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path) / "cinic10" / "CINIC-10.tar.gz"
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(DataError, match=r"CINIC-10.tar.gz (is damaged|has \d+ images)"):
        cinic10.read(tmp_path)


def test_without_pillow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpacked(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        DataError, match=r"need Pillow: pip install pillow \(extra: evenhand\[images\]\)"
    ):
        cinic10.read(root)


def test_the_catalogue_finds_the_archive_or_the_folders(tmp_path: Path) -> None:
    entry = CATALOGUE["cinic10"]
    assert entry.state(tmp_path).kind != PRESENT
    assert entry.state(packed(tmp_path / "a")).kind == PRESENT
    assert entry.state(unpacked(tmp_path / "b")).kind == PRESENT


def test_the_order_does_not_depend_on_the_archive(tmp_path: Path) -> None:
    """Names are in order in the result, whatever their order in the archive."""
    names = [name for name in files() if name.startswith("train/cat/")]
    assert names != sorted(names)
    view = cinic10.read(packed(tmp_path)).x
    assert isinstance(view, View)
    assert np.array_equal(view.source[6:8, 0, 0, 0], [0, 1])
