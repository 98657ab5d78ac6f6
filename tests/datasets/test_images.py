"""Image data sets: tiny files written here show how formats are read and what is refused; the real
ones are counted."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from evenhand.data.pool import Pool
from evenhand.data.storage.file import File, data_root
from evenhand.data.views import View
from evenhand.datasets.idx import read_idx, read_images
from evenhand.datasets.images import prepared
from evenhand.datasets.loaders import cifar, emnist, fashion_mnist, mnist
from evenhand.errors import DataError

NAMES = ("shirt", "shoe", "hat")


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where the data root lacks a file."""
    here = os.environ.get("EVENHAND_DATA") and (data_root() / name).is_file()
    return pytest.mark.skipif(
        not here, reason=f"{name} is not there; set EVENHAND_DATA to a folder that has it"
    )


needs_fashion = needs("fashion_mnist/train-images-idx3-ubyte.gz")
needs_writers = needs("mnist_writers/writers.npz")
needs_emnist = needs("emnist/emnist-byclass-subset-images-idx3-ubyte.gz")
needs_cifar = needs("cifar10/cifar-10-batches-bin/data_batch_1.bin")


# ---- tiny files


def idx_bytes(array: np.ndarray) -> bytes:
    """An IDX file, written byte by byte as its description says."""
    kind = {"uint8": 8, "int32": 12}[array.dtype.name]
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return (
        bytes([0, 0, kind, array.ndim])
        + lengths
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 0) if path.suffix == ".gz" else content)
    return path


def pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28)).astype(np.uint8)


def bytes_of(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


def tiny(folder: Path, *arrays: np.ndarray) -> tuple[list[Path], list[File]]:
    files = [File(f"{number}.gz") for number in range(len(arrays))]
    return [
        put(folder / file.name, idx_bytes(array)) for file, array in zip(files, arrays, strict=True)
    ], files


def toy_pool(folder: Path) -> Pool:
    """Six training and three test images of three classes."""
    return read_images(
        *tiny(folder, pixels(6), bytes_of(0, 1, 2, 2, 1, 0), pixels(3, 1), bytes_of(2, 1, 0)), NAMES
    )


def shown(pool: Pool) -> np.ndarray:
    return pool.x[:].numpy()


def test_idx_files_are_read_with_their_shape_and_type(tmp_path: Path) -> None:
    for array in (
        np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        np.array([[7, -1], [70_000, 2**31 - 1]], np.int32),
    ):
        for name in ("values.gz", "values"):
            path = put(tmp_path / name, idx_bytes(array))
            assert np.array_equal(read_idx(path, File(name), array.ndim, array.dtype.name), array)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda whole: whole[:-1],
            "is truncated: 23 bytes follow a header that promises 2 x 3 x 4 uint8",
        ),
        (
            lambda whole: whole + b"\0",
            "has trailing bytes: 25 bytes follow a header that promises 2 x 3 x 4 uint8",
        ),
        (lambda whole: whole[:10], "is truncated: 10 bytes, fewer than the 16 of its header"),
        (lambda whole: b"", "is truncated: 0 bytes, fewer than the 16 of its header"),
        (
            lambda whole: whole[:4] + b"\xff" * 8 + b"\0" * 4,
            "is empty: it has 4294967295 x 4294967295 x 0 uint8",
        ),
        (lambda whole: whole[:3] + b"\1" + whole[4:], "has magic number 2049, not 2051"),
        (lambda whole: b"<htm" + whole[4:], "has magic number 1013478509, not 2051"),
    ],
)
def test_a_damaged_idx_file_is_refused(
    damage: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    path = put(tmp_path / "images.gz", damage(idx_bytes(np.zeros((2, 3, 4), np.uint8))))
    with pytest.raises(
        DataError, match=f"^{re.escape(str(path))} {re.escape(message)}.*; download it again$"
    ):
        read_idx(path, File("images.gz"), axes=3)


def test_a_cut_or_altered_gz_file_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "images.gz", idx_bytes(pixels(2)))
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=re.escape(str(path))):
            read_idx(path, File("images.gz"), axes=3)


def test_a_file_with_another_checksum_is_refused(tmp_path: Path) -> None:
    content = idx_bytes(pixels(2))
    file = File("images.gz", content="md5:" + hashlib.md5(content).hexdigest())
    path = put(tmp_path / "images.gz", content)
    assert read_idx(path, file, axes=3).shape == (2, 28, 28)
    put(path, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_idx(path, file, axes=3)


def test_images_and_labels_must_fit(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"0\.gz has 3 images, but .*1\.gz has 2 labels; use files of one source"
    ):
        read_images(*tiny(tmp_path, pixels(3), bytes_of(0, 1)), NAMES)
    with pytest.raises(DataError, match=r"0\.gz has images of 14 x 28, not 28 x 28 pixels"):
        read_images(*tiny(tmp_path, pixels(3)[:, :14], bytes_of(0, 1, 2)), NAMES)
    with pytest.raises(
        DataError, match=r"1\.gz: row 2 \(from 0\) has label 3, but classes are 0 to 2"
    ):
        read_images(*tiny(tmp_path, pixels(4), bytes_of(0, 1, 3, 7)), NAMES)


def test_images_stay_bytes_and_are_seen_from_0_to_1(tmp_path: Path) -> None:
    pool = toy_pool(tmp_path)
    assert isinstance(pool.x, View)
    assert pool.x.source.dtype == torch.uint8
    assert shown(pool)[:6, 0] == pytest.approx(pixels(6) / 255, abs=1e-7)
    assert shown(pool)[6:, 0] == pytest.approx(pixels(3, 1) / 255, abs=1e-7)
    assert pool.y.tolist() == [0, 1, 2, 2, 1, 0, 2, 1, 0]
    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False] * 6 + [True] * 3


def test_statistics_are_of_the_training_images(tmp_path: Path) -> None:
    train = pixels(6).astype(float)
    everything = np.concatenate([pixels(6), pixels(3, 1)]).astype(float)
    whole = shown(prepared(toy_pool(tmp_path), standardise="dataset"))[:, 0]
    assert whole == pytest.approx((everything - train.mean()) / train.std(), abs=1e-5)
    each = shown(prepared(toy_pool(tmp_path), standardise="pixel"))[:, 0]
    assert each == pytest.approx(
        (everything - train.mean(0)) / (train.std(0) + 0.001), rel=1e-4, abs=1e-4
    )


def test_a_pixel_without_variance_stays_finite(tmp_path: Path) -> None:
    images = pixels(6)
    images[:, 0, 0] = 7
    pool = prepared(
        read_images(*tiny(tmp_path, images, bytes_of(0, 1, 2, 2, 1, 0)), NAMES), standardise="pixel"
    )
    assert shown(pool)[:, 0, 0, 0] == pytest.approx(0, abs=1e-3)


def test_chosen_classes_are_renumbered_in_the_order_given(tmp_path: Path) -> None:
    for classes in ([2, 0], ["hat", "shirt"], [2, "shirt"]):
        pool = prepared(toy_pool(tmp_path), classes)
        assert pool.y.tolist() == [1, 0, 0, 1, 0, 1]
        assert pool.label_names == ("hat", "shirt")
        assert np.array_equal(shown(pool), shown(toy_pool(tmp_path))[[0, 2, 3, 5, 6, 8]])
    with_statistics = shown(prepared(toy_pool(tmp_path), [2, 0], "dataset"))
    assert np.array_equal(
        with_statistics, shown(prepared(toy_pool(tmp_path), None, "dataset"))[[0, 2, 3, 5, 6, 8]]
    )


def test_flat_images_hold_the_same_numbers(tmp_path: Path) -> None:
    for standardise in ("scale", "dataset", "pixel"):
        square, flat = (
            shown(prepared(toy_pool(tmp_path), standardise=standardise, flat=flat))
            for flat in (False, True)
        )
        assert flat.shape == (9, 784)
        assert np.array_equal(square.reshape(9, 784), flat)


def test_the_class_can_be_the_group(tmp_path: Path) -> None:
    pool = prepared(toy_pool(tmp_path), ["hat", "shirt"], group="class")
    assert pool.group is not None
    assert torch.equal(pool.group, pool.y)
    assert pool.group_names == ("hat", "shirt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"classes": [3]},
            r"classes must be numbers from 0 to 2 or names \(shirt, shoe, hat, ...\), got 3",
        ),
        ({"classes": ["sock"]}, "got 'sock'"),
        ({"classes": [1, "shoe"]}, "classes must differ"),
        ({"classes": []}, r"classes must be a list such as \[0, 2, 6\]"),
        ({"classes": "shoe"}, r"classes must be a list such as \[0, 2, 6\]"),
        ({"standardise": "z"}, 'standardise must be "scale", "dataset" or "pixel"'),
        ({"group": "label"}, "group must be None or \"class\", got 'label'"),
    ],
)
def test_wrong_options_are_refused(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(toy_pool(tmp_path), **options)


def test_official_emnist_images_are_turned_upright(tmp_path: Path) -> None:
    images = pixels(4)
    for folder, turned in (("emnist", images.transpose(0, 2, 1)), ("emnist/gzip", images)):
        for file, array in zip(
            emnist.FILES, (turned[:3], bytes_of(0, 10, 61), turned[3:], bytes_of(36)), strict=True
        ):
            put(tmp_path / folder / file.name, idx_bytes(array))
    pool = emnist.read(tmp_path)  # from its folder rather than from the unpacked archive there
    assert shown(pool)[:, 0] == pytest.approx(images / 255, abs=1e-7)
    assert [pool.label_names[label] for label in pool.y] == ["0", "A", "z", "a"]
    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False, False, False, True]


def test_an_emnist_subset_is_upright_and_has_no_official_split(tmp_path: Path) -> None:
    for file, array in zip(emnist.SUBSET, (pixels(2), bytes_of(0, 61)), strict=True):
        put(tmp_path / "emnist" / file.name, idx_bytes(array))
    pool = emnist.read(tmp_path)
    assert shown(pool)[:, 0] == pytest.approx(pixels(2) / 255, abs=1e-7)
    assert pool.held_out is None


def letter_files(root: Path, train: tuple[int, ...], test: tuple[int, ...]) -> np.ndarray:
    """EMNIST's letters as officially written: transposed, labels from 1; returns upright images."""
    images = pixels(len(train) + len(test))
    turned = images.transpose(0, 2, 1)
    arrays = turned[: len(train)], bytes_of(*train), turned[len(train) :], bytes_of(*test)
    for file, array in zip(emnist.LETTER_FILES, arrays, strict=True):
        put(root / "emnist" / file.name, idx_bytes(array))
    return images


def test_emnist_letters_are_numbered_from_one_in_their_files(tmp_path: Path) -> None:
    images = letter_files(tmp_path, (1, 26, 10, 2), (26, 11))
    assert emnist.LETTER_FILES[3].name == "emnist-letters-test-labels-idx1-ubyte.gz"
    pool = emnist.read(tmp_path, "letters")
    assert pool.y.tolist() == [0, 25, 9, 1, 25, 10]
    assert pool.label_names == tuple("abcdefghijklmnopqrstuvwxyz")
    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False] * 4 + [True] * 2
    assert shown(pool)[:, 0] == pytest.approx(images / 255, abs=1e-7)
    for label in (0, 27):
        letter_files(tmp_path, (1, label), (2,))
        with pytest.raises(DataError, match=f"row 1 .* has label {label}, but classes are 1 to 26"):
            emnist.read(tmp_path, "letters")


def test_ranges_of_emnist_classes(tmp_path: Path) -> None:
    letter_files(tmp_path, (1, 26, 10, 2, 11), (3,))
    fed = emnist.emnist("iid", {"test": 0.25}, 0, 1, tmp_path, kind="letters", classes="a-j")
    assert fed.label_names == tuple("abcdefghij")
    labels = torch.cat([part.y for part in (fed.train, fed.test) if part is not None])
    assert sorted(labels.tolist()) == [0, 1, 2, 9]
    assert emnist._chosen("B-D", "byclass") == ["B", "C", "D"]
    assert emnist._chosen("a-j", "byclass") == list("abcdefghij")
    assert emnist._chosen("b-b", "letters") == ["b"]
    for classes, kind, message in (
        ("j-a", "letters", "'j-a' is an empty range"),
        ("A-J", "letters", 'classes must be "all", a range such as "a-j" or a list, got'),
        ("digits", "letters", "got 'digits'"),
        ("a-j", "balanced", 'kind must be "byclass" or "letters"'),
    ):
        with pytest.raises(ValueError, match=message):
            emnist.emnist(root=tmp_path, kind=kind, classes=classes)


def test_emnist_classes_have_names() -> None:
    assert [len(chosen) for chosen in emnist.CHOICES.values() if chosen is not None] == [
        10,
        26,
        26,
        10,
    ]
    with pytest.raises(
        ValueError,
        match=(
            'classes must be "all", "digits", "uppercase", "lowercase", "lowercase a-j", a range'
            ' such as "a-j" or a list, got \'letters\'; for both cases as one class, use kind = "letters"'
        ),
    ):
        emnist.emnist(classes="letters")


def cifar_file(path: Path, *records: tuple[int, ...]) -> np.ndarray:
    """Write labels and random images; the images (n, 3, 32, 32)."""
    planes = (
        np.random.default_rng(len(records))
        .integers(0, 256, (len(records), 3, 32, 32))
        .astype(np.uint8)
    )
    put(
        path,
        b"".join(
            bytes(labels) + image.tobytes() for labels, image in zip(records, planes, strict=True)
        ),
    )
    return planes


TINY10 = cifar.Layout(
    "cifar10", (File("one.bin"), File("two.bin"), File("test.bin")), (2, 3, 1), (NAMES,)
)
TINY100 = cifar.Layout(
    "cifar100", (File("train.bin"), File("test.bin")), (2, 1), (("things", "animals"), NAMES)
)


def test_cifar_records_are_a_label_and_three_planes(tmp_path: Path) -> None:
    labels = ((2,), (0,)), ((1,), (1,), (2,)), ((0,),)
    planes = [
        cifar_file(tmp_path / "cifar10" / file.name, *some)
        for file, some in zip(TINY10.files, labels, strict=True)
    ]
    pool = cifar.read(TINY10, tmp_path)
    assert shown(pool) == pytest.approx(np.concatenate(planes) / 255, abs=1e-7)
    assert pool.y.tolist() == [2, 0, 1, 1, 2, 0]
    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False] * 5 + [True]


def test_cifar100_has_a_superclass_and_a_class(tmp_path: Path) -> None:
    cifar_file(tmp_path / "cifar100" / "train.bin", (1, 2), (0, 1))
    cifar_file(tmp_path / "cifar100" / "test.bin", (0, 0))
    fine, coarse = cifar.read(TINY100, tmp_path), cifar.read(TINY100, tmp_path, label=0)
    assert [fine.label_names[label] for label in fine.y] == ["hat", "shoe", "shirt"]
    assert [coarse.label_names[label] for label in coarse.y] == ["animals", "things", "things"]


def test_damaged_cifar_files_are_refused(tmp_path: Path) -> None:
    train, test = (tmp_path / "cifar100" / name for name in ("train.bin", "test.bin"))
    cifar_file(test, (0, 0))
    for records, change, message in (
        ([(1, 2), (0, 1)], slice(-1), "is truncated: 6147 bytes, not 2 records of 3074"),
        ([(1, 2)], slice(None), "is truncated: 3074 bytes, not 2 records of 3074"),
        ([(1, 2)] * 3, slice(None), "has trailing bytes: 9222 bytes, not 2 records of 3074"),
        ([(1, 2), (0, 3)], slice(None), r": row 1 \(from 0\) has label 3, but classes are 0 to 2"),
        ([(2, 2), (0, 1)], slice(None), r": row 0 \(from 0\) has label 2, but classes are 0 to 1"),
    ):
        cifar_file(train, *records)
        train.write_bytes(train.read_bytes()[change])
        with pytest.raises(DataError, match=f"^{re.escape(str(train))} ?{message}"):
            cifar.read(TINY100, tmp_path)


def test_cifar_colours_are_standardised_with_the_published_numbers(tmp_path: Path) -> None:
    planes = cifar_file(tmp_path / "cifar100" / "train.bin", (1, 2), (0, 1))
    cifar_file(tmp_path / "cifar100" / "test.bin", (0, 0))
    for flat in (False, True):
        pool = prepared(
            cifar.read(TINY100, tmp_path),
            standardise="dataset",
            flat=flat,
            channels=cifar.CHANNELS10,
        )
        mean, std = (
            np.array(values)[:, None, None]
            for values in ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
        )
        assert shown(pool)[:2].reshape(2, 3, 32, 32) == pytest.approx(
            (planes / 255 - mean) / std, abs=1e-5
        )


def test_cifar100_has_a_hundred_classes_in_twenty_superclasses() -> None:
    coarse, fine = cifar.CIFAR100.labels
    assert (len(coarse), len(fine)) == (20, 100)
    assert list(fine) == sorted(fine)
    assert list(coarse) == sorted(coarse)
    assert (
        cifar.CIFAR100.files[0].name
        == cifar.CIFAR100.files[0].member
        == "cifar-100-binary/train.bin"
    )


def writer_files(
    root: Path, monkeypatch: pytest.MonkeyPatch, table: np.ndarray, test: np.ndarray
) -> None:
    """Tiny MNIST files with QMNIST's tables of labels."""
    # without the checksums of the real files
    monkeypatch.setattr(mnist, "FILES", tuple(File(file.name) for file in mnist.FILES))
    folder = root / "mnist_writers"
    arrays = (pixels(4), bytes_of(3, 1, 4, 1), pixels(2, 1), bytes_of(5, 9))
    for file, array in zip(mnist.FILES, arrays, strict=True):
        put(folder / file.name, idx_bytes(array))
    for file, array in zip(mnist.TABLES, (table, test), strict=True):
        put(folder / file.name, idx_bytes(array.astype(np.int32)))


# digit, population and writer of each image, then columns of no interest here
TRAIN_TABLE = np.array([[3, 4, 2100, 0, 9], [1, 0, 17, 1, 9], [4, 4, 2100, 2, 9], [1, 0, 3, 3, 9]])
TEST_TABLE = np.array([[5, 4, 2400, 0, 9], [9, 0, 90, 1, 9]])


def test_writers_come_from_qmnist_where_nothing_else_tells_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer_files(tmp_path, monkeypatch, TRAIN_TABLE, TEST_TABLE)
    pool = mnist.read_writers(tmp_path)
    assert pool.client is not None
    assert pool.team is not None
    assert [pool.client_names[code] for code in pool.client] == [
        "writer 2100",
        "writer 17",
        "writer 2100",
        "writer 3",
    ]
    assert dict(
        zip(pool.client_names, (pool.team_names[code] for code in pool.team), strict=True)
    ) == {
        "writer 3": "staff",
        "writer 17": "staff",
        "writer 2100": "students",
    }
    assert pool.y.tolist() == [3, 1, 4, 1]
    assert shown(pool)[:, 0] == pytest.approx(pixels(4) / 255, abs=1e-7)
    assert mnist.read_writers(tmp_path, "test").client_names == ("writer 90", "writer 2400")
    assert len(mnist.read_writers(tmp_path, "all").client_names) == 5
    with pytest.raises(ValueError, match='writers must be "train", "test" or "all"'):
        mnist.read_writers(tmp_path, "both")


def test_a_table_of_other_images_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_digit, wrong_population = TRAIN_TABLE.copy(), TRAIN_TABLE.copy()
    wrong_digit[2, 0], wrong_population[3, 1] = 7, 6
    for table, message in (
        (
            wrong_digit,
            (
                r"qmnist-train-labels-idx2-int.gz: row 2 \(from 0\) has digit 7, but MNIST has 4; download"
                r" both again"
            ),
        ),
        (wrong_population, r"row 3 \(from 0\) has hsf 6, not 0 or 4"),
        (TRAIN_TABLE[:3], "has 5 images, not 6"),
    ):
        writer_files(tmp_path, monkeypatch, table, TEST_TABLE)
        with pytest.raises(DataError, match=message):
            mnist.read_writers(tmp_path)


def test_a_damaged_archive_of_writers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer_files(tmp_path, monkeypatch, TRAIN_TABLE, TEST_TABLE)
    archive = tmp_path / "mnist_writers" / "writers.npz"
    np.savez(archive, train_writer=[1, 2, 3, 4])
    for content in (archive.read_bytes(), archive.read_bytes()[:50], b"", b"no archive"):
        archive.write_bytes(content)
        with pytest.raises(
            DataError,
            match=r"writers.npz is damaged: .*; delete it to use QMNIST's table instead$",
        ):
            mnist.read_writers(tmp_path)


@pytest.mark.parametrize("module", [fashion_mnist, mnist, emnist])
def test_every_file_has_a_home_and_a_checksum(module: ModuleType) -> None:
    for file in (
        *module.FILES,
        *getattr(module, "TABLES", ()),
        *cifar.CIFAR10_FILES,
        *cifar.CIFAR100_FILES,
    ):
        assert re.fullmatch(r"https?://.*", file.url)
        assert re.fullmatch("md5:[0-9a-f]{32}", file.checksum)
        assert file.content is None or re.fullmatch("md5:[0-9a-f]{32}", file.content)


# ---- the real files


def counts(labels: torch.Tensor) -> list[int]:
    return torch.bincount(labels).tolist()


def moments(pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel of the training images, pixels from 0 to 1."""
    view = prepared(pool, standardise="dataset").x
    assert isinstance(view, View)
    assert view.scale is not None
    assert view.shift is not None
    std = 1 / (255 * view.scale[:, 0, 0].double())
    return (-view.shift[:, 0, 0] * std).numpy(), std.numpy()


@needs_fashion
def test_fashion_mnist_has_its_published_counts_and_moments() -> None:
    pool = fashion_mnist.read()
    assert pool.held_out is not None
    assert counts(pool.y[~pool.held_out]) == [6000] * 10
    assert counts(pool.y[pool.held_out]) == [1000] * 10
    assert np.concatenate(moments(pool)) == pytest.approx([0.28604, 0.35302], abs=1e-5)


@needs_fashion
def test_the_three_clients_of_afl() -> None:
    fed = fashion_mnist.fashion_mnist("by_class", classes=[0, 2, 6], standardise="pixel", flat=True)
    assert fed.names == ("T-shirt/top", "Pullover", "Shirt")
    assert fed.test is not None
    assert fed.train.sizes.tolist() == [6000] * 3
    assert fed.test.sizes.tolist() == [1000] * 3
    for client in range(3):
        x, y, _ = fed.train.client(client)
        assert x.shape == (6000, 784)
        assert set(y.tolist()) == {client}


@needs_fashion
def test_fashion_mnist_by_class_as_groups_reaches_every_part() -> None:
    fed = fashion_mnist.fashion_mnist("ssg", clients=40, group="class")
    assert (fed.clients, fed.groups) == (40, 10)
    counted = fed.census().group_counts
    assert counted is not None
    assert ((counted > 0).sum(1) == 1).all()
    assert fed.test is not None
    assert fed.test.group is not None
    assert torch.equal(fed.test.group, fed.test.y)


@needs_fashion
def test_debians_package_is_found_where_the_root_has_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian compresses the same content anew: other bytes, other headers."""
    package = tmp_path / "package"
    for file in fashion_mnist.FILES:
        content = gzip.decompress((data_root() / "fashion_mnist" / file.name).read_bytes())
        put(package / file.name, content)
    monkeypatch.setattr(fashion_mnist, "DEBIAN", package)
    monkeypatch.setenv("EVENHAND_OFFLINE", "1")
    assert counts(fashion_mnist.read(tmp_path / "empty").y) == [7000] * 10


@needs_fashion
def test_a_damaged_copy_of_a_real_file_is_refused(tmp_path: Path) -> None:
    for file in fashion_mnist.FILES:
        put(tmp_path / "fashion_mnist" / file.name, b"").write_bytes(
            (data_root() / "fashion_mnist" / file.name).read_bytes()
        )
    path = tmp_path / "fashion_mnist" / "t10k-labels-idx1-ubyte.gz"
    labels = bytearray(gzip.decompress(path.read_bytes()))
    labels[8] ^= 1
    put(path, bytes(labels))
    with pytest.raises(DataError, match=re.escape(str(path))):
        fashion_mnist.read(tmp_path)


@needs_writers
def test_mnist_has_its_published_counts_and_moments() -> None:
    pool = mnist.read()
    assert pool.held_out is not None
    assert counts(pool.y[~pool.held_out]) == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert counts(pool.y[pool.held_out]) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.concatenate(moments(pool)) == pytest.approx([0.1307, 0.3081], abs=5e-5)


@needs_writers
def test_mnist_has_539_training_writers_in_two_populations() -> None:
    pool = mnist.read_writers()
    assert pool.client is not None
    assert pool.team is not None
    sizes = torch.bincount(pool.client)
    assert (len(pool.client_names), int(sizes.min()), int(sizes.max()), int(sizes.median())) == (
        539,
        19,
        131,
        116,
    )
    assert pool.team_names == ("staff", "students")
    assert counts(pool.team) == [289, 250]
    assert counts(pool.team[pool.client]) == [30_950, 29_050]
    test = mnist.read_writers(writers="test")
    assert test.client is not None
    assert test.team is not None
    assert counts(test.team) == [48, 249]
    assert counts(test.team[test.client]) == [4999, 5001]
    assert not set(pool.client_names) & set(test.client_names)
    assert len(mnist.read_writers(writers="all").client_names) == 539 + 297


@needs_writers
def test_populations_stay_attached_as_teams_or_as_groups() -> None:
    fed = mnist.mnist_writers()
    assert (fed.clients, fed.team_names) == (539, ("staff", "students"))
    assert fed.test is not None
    assert len(fed.train.x) + len(fed.test.x) == 60_000
    assert mnist.mnist_writers(teams=False).teams is None
    mixed = mnist.mnist_writers({"name": "iid", "clients": 5})
    assert mixed.teams is None
    assert mixed.group_names == ("staff", "students")
    assert mixed.train.group is not None
    assert mixed.test is not None
    assert mixed.test.group is not None
    assert counts(torch.cat([mixed.train.group, mixed.test.group])) == [30_950, 29_050]


@needs_emnist
def test_the_emnist_subset_has_its_counts() -> None:
    pool = emnist.read()
    assert len(pool) == 51_923
    table = np.load(data_root() / "emnist" / "emnist-byclass-subset-index.npz")
    assert list(emnist.NAMES) == [chr(code) for code in table["label_ascii"]]
    letters = prepared(pool, list("abcdefghij"))
    assert counts(letters.y) == [1644, 853, 432, 1683, 4092, 400, 589, 1479, 427, 317]
    assert max(counts(pool.y)[:36]) == 1000


@needs_emnist
def test_the_skewed_femnist_gives_every_client_five_letters() -> None:
    fed = emnist.emnist(
        {"name": "classes_per_client", "k": 5, "clients": 100}, classes="lowercase a-j"
    )
    assert fed.label_names == tuple("abcdefghij")
    assert fed.clients == 100
    for client in range(100):
        assert len(fed.train.client(client)[1].unique()) == 5


@needs_cifar
def test_cifar10_has_its_published_counts_and_moments() -> None:
    pool = cifar.read()
    batches = [
        [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981],
        [984, 1007, 1010, 995, 1010, 988, 1008, 1026, 987, 985],
        [994, 1042, 965, 997, 990, 1029, 978, 1015, 961, 1029],
        [1003, 963, 1041, 976, 1004, 1021, 1004, 981, 1024, 983],
        [1014, 1014, 952, 1016, 997, 1025, 980, 977, 1003, 1022],
        [1000] * 10,
    ]
    assert [counts(pool.y[start : start + 10_000]) for start in range(0, 60_000, 10_000)] == batches
    assert pool.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert isinstance(pool.x, View)
    first = pool.x.source[:10_000].permute(0, 2, 3, 1).contiguous().numpy()
    assert hashlib.sha256(first.tobytes()).hexdigest()[:16] == "fc115a3de050d667"
    mean, std = moments(pool)
    assert mean == pytest.approx([0.49140, 0.48216, 0.44653], abs=1e-5)
    assert std == pytest.approx([0.24703, 0.24349, 0.26159], abs=1e-5)
    assert np.concatenate([mean, std]) == pytest.approx(np.concatenate(cifar.CHANNELS10), abs=5e-5)
