"""Where data files are looked for, and what is said of those that cannot be used."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from evenhand.data.storage.file import File, data_root, find, read, verify
from evenhand.data.storage.locate import locate
from evenhand.errors import DataError

TEXT = b"a table\n" * 1000


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def refusal(path: Path, file: File) -> str:
    with pytest.raises(DataError) as error:
        read(path, file)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{path} ")
    return message


# the root


def test_the_root_is_what_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EVENHAND_DATA", "~/data")
    assert data_root() == tmp_path / "data"


@pytest.mark.parametrize("given", [None, ""])
def test_the_root_is_else_in_the_cache_directory_of_the_user(
    tmp_path: Path, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EVENHAND_DATA", raising=False)
    if given is not None:
        monkeypatch.setenv("EVENHAND_DATA", given)
    assert data_root() == tmp_path / "cache" / "evenhand"
    assert not list(tmp_path.iterdir())  # asking makes no folder


@pytest.mark.parametrize(
    ("system", "place"),
    [("linux", ".cache/evenhand"), ("darwin", "Library/Caches/evenhand")],
)
def test_the_cache_directory_is_the_usual_one_of_the_system(
    system: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("EVENHAND_DATA", raising=False)
    monkeypatch.setattr("sys.platform", system)
    assert data_root() == tmp_path / place


def test_a_folder_given_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "elsewhere"))
    path = put(tmp_path / "mine" / "set" / "a.csv", b"1")
    assert locate("set", [File("a.csv")], tmp_path / "mine") == [path]
    assert locate("set", [File("a.csv")], str(tmp_path / "mine")) == [path]
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "mine"))
    assert locate("set", [File("a.csv")]) == [path]


# finding


def test_paths_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    names = ["b", "deep/down/c", "a"]
    for name in names:
        put(tmp_path / "set" / name, b"")
    assert locate("set", [File(name) for name in names], tmp_path) == [
        tmp_path / "set" / name for name in names
    ]


def test_other_folders_are_looked_in_when_the_first_has_nothing(tmp_path: Path) -> None:
    there = put(tmp_path / "usr" / "share" / "a.gz", b"")
    mine = put(tmp_path / "set" / "b.gz", b"")
    put(tmp_path / "usr" / "share" / "b.gz", b"")
    also = [tmp_path / "nowhere", tmp_path / "usr" / "share"]
    assert locate("set", [File("a.gz"), File("b.gz")], tmp_path, also) == [there, mine]
    assert locate("absent", [File("a.gz")], tmp_path, also) == [there]


def test_a_file_may_be_compressed_or_not(tmp_path: Path) -> None:
    content = md5(TEXT)
    plain = put(tmp_path / "set" / "plain.csv", TEXT)
    packed = put(tmp_path / "set" / "packed.csv.gz", gzip.compress(TEXT))
    files = [File("plain.csv.gz", content=content), File("packed.csv", content=content)]
    assert locate("set", files, tmp_path) == [plain, packed]
    assert [read(path, file) for path, file in zip((plain, packed), files, strict=True)] == [
        TEXT,
        TEXT,
    ]
    exact = put(tmp_path / "set" / "packed.csv", TEXT)
    assert find(files[1], [tmp_path / "set"]) == exact


def test_a_folder_of_that_name_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "set" / "a.csv").mkdir(parents=True)
    assert find(File("a.csv"), [tmp_path / "set"]) is None


def test_what_is_missing_is_named_with_where_to_get_it_and_where_to_put_it(tmp_path: Path) -> None:
    place = tmp_path / "set" / "a.csv"

    def said(file: File) -> str:
        with pytest.raises(DataError) as error:
            locate("set", [file], tmp_path, download=False)
        return str(error.value)

    none = "is missing and cannot be downloaded automatically"
    assert said(File("a.csv")) == f"{place} {none}; put your copy there"
    assert (
        said(File("a.csv", hint="LEAF's scripts make it"))
        == f"{place} {none}; LEAF's scripts make it"
    )
    assert (
        said(File("a.csv", "https://example.org/a.csv"))
        == f"{place} is missing; download https://example.org/a.csv and put it there"
    )
    assert not list(tmp_path.iterdir())


def test_the_archive_of_a_file_is_named_after_its_address() -> None:
    assert (
        File("a", "https://example.org/x/my%20data.tar.gz?download=1#top", member="a").archive
        == "my data.tar.gz"
    )
    assert File("a", "https://example.org/a").archive is None
    assert File("a").archive is None


# reading


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_content_is_compared_uncompressed(tmp_path: Path, kind: str) -> None:
    packed = put(tmp_path / "a.gz", gzip.compress(TEXT))
    right = f"{kind}:{hashlib.new(kind, TEXT).hexdigest()}"
    assert read(packed, File("a.gz", content=right)) == TEXT
    assert read(packed, File("a.gz", content=right.upper().replace(kind.upper(), kind))) == TEXT
    wrong = f"{kind}:{hashlib.new(kind, TEXT[1:]).hexdigest()}"
    message = refusal(packed, File("a.gz", content=wrong))
    assert wrong.partition(":")[2] in message
    assert right.partition(":")[2] in message


@pytest.mark.parametrize("keep", [0, 2, 5, 9, 12, 30, -9, -8, -4, -1])
def test_a_file_cut_short_is_refused_wherever_it_was_cut(tmp_path: Path, keep: int) -> None:
    packed = gzip.compress(hashlib.shake_128(b"seed").digest(5000))
    assert "is truncated" in refusal(put(tmp_path / "a.gz", packed[:keep]), File("a.gz"))


def test_a_file_that_is_no_gzip_file_is_refused(tmp_path: Path) -> None:
    assert "Not a gzipped file" in refusal(
        put(tmp_path / "a.gz", b"<html>gone</html>"), File("a.gz")
    )


def test_flipped_bits_are_noticed(tmp_path: Path) -> None:
    packed = gzip.compress(hashlib.shake_128(b"seed").digest(5000))
    for place in (20, len(packed) // 2, len(packed) - 6, len(packed) - 2):
        changed = bytearray(packed)
        changed[place] ^= 4
        message = refusal(
            put(tmp_path / "a.gz", bytes(changed)), File("a.gz", "https://example.org/a.gz")
        )
        assert "is damaged" in message or "is truncated" in message
        assert message.endswith("; delete it and download it again")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    assert (
        refusal(tmp_path / "a.csv", File("a.csv"))
        == f"{tmp_path / 'a.csv'} cannot be read: Is a directory"
    )


def test_a_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    assert (
        read(put(tmp_path / "a.bin", b"\x1f\x8b not gzip"), File("a.bin")) == b"\x1f\x8b not gzip"
    )


# checking what is there


def test_a_file_is_verified_by_its_content_or_by_the_checksum_of_what_is_published(
    tmp_path: Path,
) -> None:
    packed = gzip.compress(TEXT)
    path = put(tmp_path / "a.gz", packed)
    url = "https://example.org/a.gz"
    assert verify(path, File("a.gz", url, "md5:00", md5(TEXT)))  # recompressed: the content counts
    assert verify(path, File("a.gz", url, md5(packed)))
    assert not verify(path, File("a.gz", url))
    # the checksum is the archive's
    assert not verify(path, File("a.gz", url, "md5:00", member="a.gz"))
    # unpacked by somebody
    assert not verify(put(tmp_path / "b", TEXT), File("b.gz", url, md5(packed)))
    with pytest.raises(
        DataError, match=f"its md5 is {md5(packed)[4:]}, not 00; delete it and download it again"
    ):
        verify(path, File("a.gz", url, "md5:00"))
    with pytest.raises(DataError, match="is truncated"):
        verify(put(tmp_path / "a.gz", packed[:-3]), File("a.gz", url))


# real files


def test_fashion_mnist_is_read_and_checked() -> None:
    from evenhand.datasets.loaders.fashion_mnist import DEBIAN, FILES

    places = [data_root() / "fashion_mnist", DEBIAN]
    if any(find(file, places) is None for file in FILES):
        pytest.skip("Fashion-MNIST is not in EVENHAND_DATA")
    paths = locate("fashion_mnist", FILES, also=[DEBIAN])
    assert (
        sum(len(read(path, file)) for path, file in zip(paths, FILES, strict=True))
        == 70_000 * 785 + 2 * 16 + 2 * 8
    )
