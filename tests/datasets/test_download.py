"""Downloads, against a real server that can misbehave."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evenhand.data.storage import download
from evenhand.data.storage.file import File
from evenhand.data.storage.locate import locate
from evenhand.errors import DataError
from tests.support.file_server import LIGHT, Site, serving

CONTENT = bytes(hashlib.shake_128(b"evenhand").digest(1_000_000))
OTHER = bytes(hashlib.shake_128(b"another version").digest(1_000_000))


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        site.files["/big.bin"] = CONTENT
        site.etags["/big.bin"] = '"one"'
        yield site


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.delenv("EVENHAND_OFFLINE", raising=False)


def big(site: Site, checksum: str | None = md5(CONTENT)) -> File:
    return File("big.bin", f"{site.url}/big.bin", checksum)


def folder_of(root: Path) -> set[str]:
    """Everything in the data set's folder but the lock."""
    return {
        path.relative_to(root / "set").as_posix()
        for path in (root / "set").rglob("*")
        if path.is_file()
    } - {".lock"}


def ranges(site: Site) -> list[str | None]:
    return [request.range for request in site.requests]


def refusal(root: Path, *files: File) -> str:
    """The one line that a user reads."""
    with pytest.raises(DataError) as error:
        locate("set", files, root)
    message = str(error.value)
    assert "\n" not in message
    return message


# the file comes


def test_a_missing_file_is_downloaded_once_and_nothing_else_is_left(
    site: Site, tmp_path: Path
) -> None:
    for _ in range(2):
        (path,) = locate("set", [big(site)], tmp_path)
        assert path == tmp_path / "set" / "big.bin"
        assert path.read_bytes() == CONTENT
    assert len(site.requests) == 1
    assert folder_of(tmp_path) == {"big.bin"}


def test_a_downloaded_file_can_be_read_by_whom_the_umask_allows(site: Site, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        (path,) = locate("set", [big(site)], tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_only_missing_files_are_asked_for(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "small.txt").write_text("mine")
    locate("set", [File("small.txt", f"{site.url}/small.txt"), big(site)], tmp_path)
    assert site.paths() == ["/big.bin"]


def test_a_file_may_lie_in_a_folder_of_the_data_set(site: Site, tmp_path: Path) -> None:
    (path,) = locate(
        "set", [File("raw/deep/big.bin", f"{site.url}/big.bin", md5(CONTENT))], tmp_path
    )
    assert path == tmp_path / "set" / "raw" / "deep" / "big.bin"
    assert path.read_bytes() == CONTENT


def test_bytes_are_kept_as_published_when_the_server_calls_its_gz_file_an_encoding(
    site: Site, tmp_path: Path
) -> None:
    packed = gzip.compress(b"text")
    site.files["/a.txt.gz"], site.encoding = packed, "gzip"
    (path,) = locate("set", [File("a.txt.gz", f"{site.url}/a.txt.gz", md5(packed))], tmp_path)
    assert path.read_bytes() == packed


def test_a_server_that_does_not_tell_the_length_is_believed(site: Site, tmp_path: Path) -> None:
    site.lengths = False
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT


# the connection breaks


def test_after_a_cut_only_the_rest_is_asked_for(site: Site, tmp_path: Path) -> None:
    site.cuts = [400_000]
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    have = len(CONTENT) - site.requests[1].sent
    assert 400_000 - download.CHUNK < have <= 400_000
    assert ranges(site) == [None, f"bytes={have}-"]
    assert [request.status for request in site.requests] == [200, 206]
    assert site.requests[1].if_range == '"one"'
    assert folder_of(tmp_path) == {"big.bin"}


def test_a_download_that_moves_on_may_be_cut_more_often_than_there_are_pauses(
    site: Site, tmp_path: Path
) -> None:
    site.cuts = [100_000] * 9
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert sum(request.sent for request in site.requests) < len(CONTENT) + 9 * download.CHUNK


def test_a_server_without_ranges_is_asked_again_from_the_start(site: Site, tmp_path: Path) -> None:
    site.ranges, site.cuts = False, [400_000]
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert [request.status for request in site.requests] == [200, 200]


def test_a_download_that_does_not_move_on_is_given_up_and_kept_for_later(
    site: Site, tmp_path: Path
) -> None:
    site.ranges, site.cuts = False, [400_000] * 50
    message = refusal(tmp_path, big(site))
    assert len(site.requests) == 1 + len(download.PAUSES)
    assert f"{site.url}/big.bin cannot be downloaded: " in message
    assert "bytes are kept" in message
    assert str(tmp_path / "set" / "big.bin") in message
    assert folder_of(tmp_path) == {"big.bin.partial", "big.bin.partial.json"}
    site.ranges, site.cuts = True, []
    have = (tmp_path / "set" / "big.bin.partial").stat().st_size
    assert have > 300_000
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert site.requests[-1].range == f"bytes={have}-"


def test_a_changed_file_is_not_glued_to_the_old_one(site: Site, tmp_path: Path) -> None:
    interrupted(site, tmp_path)
    site.files["/big.bin"], site.etags["/big.bin"] = OTHER, '"two"'
    (path,) = locate("set", [big(site, md5(OTHER))], tmp_path)
    assert path.read_bytes() == OTHER
    assert [request.status for request in site.requests[-1:]] == [200]


def test_without_an_etag_the_date_of_the_last_change_tells_versions_apart(
    site: Site, tmp_path: Path
) -> None:
    del site.etags["/big.bin"]
    site.modified["/big.bin"] = "Sat, 01 Jan 2022 00:00:00 GMT"
    interrupted(site, tmp_path)
    site.files["/big.bin"], site.modified["/big.bin"] = OTHER, "Sun, 02 Jan 2022 00:00:00 GMT"
    (path,) = locate("set", [big(site, None)], tmp_path)
    assert path.read_bytes() == OTHER
    assert site.requests[-1].if_range == "Sat, 01 Jan 2022 00:00:00 GMT"


def test_a_weak_etag_is_no_mark_of_a_version(site: Site, tmp_path: Path) -> None:
    site.etags["/big.bin"] = 'W/"one"'
    interrupted(site, tmp_path, None)
    site.files["/big.bin"] = OTHER
    (path,) = locate("set", [big(site, None)], tmp_path)
    assert path.read_bytes() == OTHER
    assert site.requests[-1].range is None  # without a mark or a checksum nobody would notice


def test_parts_of_two_versions_are_noticed_by_the_checksum_and_the_file_is_fetched_anew(
    site: Site, tmp_path: Path
) -> None:
    del site.etags["/big.bin"]
    interrupted(site, tmp_path)
    site.files["/big.bin"] = OTHER
    (path,) = locate("set", [big(site, md5(OTHER))], tmp_path)
    assert path.read_bytes() == OTHER
    assert [request.status for request in site.requests[-2:]] == [206, 200]


def test_a_part_that_was_not_asked_for_is_refused(site: Site, tmp_path: Path) -> None:
    site.cuts, site.first_byte = [400_000], 7
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert [request.status for request in site.requests] == [200, 206, 200]


def test_a_part_that_is_longer_than_the_file_is_thrown_away(site: Site, tmp_path: Path) -> None:
    leave_part(tmp_path, big(site), CONTENT + b"more", length=None)
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert [request.status for request in site.requests] == [416, 200]


def test_a_part_from_another_address_is_thrown_away(site: Site, tmp_path: Path) -> None:
    leave_part(tmp_path, File("big.bin", f"{site.url}/elsewhere"), OTHER[:5000])
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert ranges(site) == [None]


@pytest.mark.parametrize("note", ["", "[1, 2]", "{"])
def test_a_part_with_a_damaged_note_is_thrown_away(site: Site, tmp_path: Path, note: str) -> None:
    leave_part(tmp_path, big(site), OTHER[:5000])
    (tmp_path / "set" / "big.bin.partial.json").write_text(note)
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert ranges(site) == [None]


def test_a_part_that_is_whole_is_placed_without_a_request(site: Site, tmp_path: Path) -> None:
    leave_part(tmp_path, big(site), CONTENT, length=len(CONTENT))
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert site.requests == []
    assert folder_of(tmp_path) == {"big.bin"}


def interrupted(site: Site, root: Path, checksum: str | None = md5(CONTENT)) -> None:
    """Leave behind what a download does that goes on failing after 400,000 bytes."""
    site.cuts, site.statuses = [400_000], []
    ranges_before, site.ranges = site.ranges, True
    before = download.PAUSES
    download.PAUSES = ()
    try:
        refusal(root, big(site, checksum))
    finally:
        download.PAUSES = before
    site.ranges = ranges_before
    assert folder_of(root) == {"big.bin.partial", "big.bin.partial.json"}


def leave_part(root: Path, file: File, content: bytes, length: int | None = len(CONTENT)) -> None:
    folder = root / "set"
    folder.mkdir()
    (folder / f"{file.name}.partial").write_bytes(content)
    (folder / f"{file.name}.partial.json").write_text(
        json.dumps({"url": file.url, "validator": '"one"', "length": length})
    )


# the server does not have it


@pytest.mark.parametrize(
    ("status", "words"), [(404, "404 Not Found"), (403, "403 Forbidden"), (410, "410 Gone")]
)
def test_a_refusal_is_final(site: Site, tmp_path: Path, status: int, words: str) -> None:
    site.statuses = [status] * 9
    message = refusal(tmp_path, big(site))
    assert (
        message
        == f"{site.url}/big.bin cannot be downloaded: the server answered {words}; put the file at"
        f" {tmp_path / 'set' / 'big.bin'} by hand"
    )
    assert len(site.requests) == 1
    assert folder_of(tmp_path) == set()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path, status: int) -> None:
    site.statuses = [status] * 2
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert len(site.requests) == 3


def test_a_server_that_stays_busy_is_given_up(site: Site, tmp_path: Path) -> None:
    site.statuses = [503] * 50
    assert "the server answered 503 Service Unavailable; try again later" in refusal(
        tmp_path, big(site)
    )
    assert len(site.requests) == 1 + len(download.PAUSES)


def test_a_silent_server_is_given_up_in_time(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT", (1.0, 0.1))
    site.delay = 1.0
    started = time.monotonic()
    assert "no answer within 0.1 s" in refusal(tmp_path, big(site))
    assert time.monotonic() - started < 3


def test_a_closed_port_is_called_by_its_name(tmp_path: Path) -> None:
    with serving() as gone:
        pass
    assert f"{gone.url}/x cannot be downloaded: Connection refused; try again later" in refusal(
        tmp_path, File("x", f"{gone.url}/x")
    )


# the file is another one


def test_a_wrong_checksum_is_refused_and_nothing_is_left(site: Site, tmp_path: Path) -> None:
    site.files["/big.bin"] = OTHER
    message = refusal(tmp_path, big(site))
    assert (
        f"{site.url}/big.bin is not the published file: expected {md5(CONTENT)}, got {md5(OTHER)}"
        in message
    )
    assert folder_of(tmp_path) == set()
    assert len(site.requests) == 1


def test_a_wrong_checksum_after_a_resumed_download_is_refused_after_one_whole_one(
    site: Site, tmp_path: Path
) -> None:
    site.files["/big.bin"], site.cuts = OTHER, [400_000]
    assert "is not the published file" in refusal(tmp_path, big(site))
    assert [request.status for request in site.requests] == [200, 206, 200]
    assert folder_of(tmp_path) == set()


def test_sha256_works_as_well(site: Site, tmp_path: Path) -> None:
    locate("set", [big(site, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")], tmp_path)
    assert "expected sha256:00" in refusal(
        tmp_path, File("other", f"{site.url}/big.bin", "sha256:00")
    )


def test_a_file_of_which_only_the_content_is_known_is_checked_by_that(
    site: Site, tmp_path: Path
) -> None:
    site.files["/a.gz"] = gzip.compress(b"words")
    locate("set", [File("a.gz", f"{site.url}/a.gz", content=md5(b"words"))], tmp_path)
    message = refusal(tmp_path, File("b.gz", f"{site.url}/a.gz", content=md5(b"other words")))
    assert f"{site.url}/a.gz is not the published file and was not kept" in message
    assert folder_of(tmp_path) == {"a.gz"}


# archives

MEMBERS = {
    "top/one.bin": CONTENT[:300_000],
    "top/two.txt.gz": gzip.compress(b"two"),
    "top/unwanted": b"no",
}


def tar_of(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


Pack = Callable[[dict[str, bytes]], bytes]
PACKS = pytest.mark.parametrize(
    "pack",
    [tar_of, lambda members: tar_of(members, "w:xz"), zip_of],
    ids=["tar.gz", "tar.xz", "zip"],
)


def members(site: Site, archive: bytes) -> tuple[File, File]:
    """Two files that come in one archive; the second lies first in it."""
    site.files["/all%20of%20it.pack"] = archive
    url, checksum = f"{site.url}/all%20of%20it.pack", md5(archive)
    two = File("two.txt.gz", url, checksum, md5(b"two"), member="top/two.txt.gz")
    return two, File("here/one.bin", url, checksum, member="top/one.bin")


@PACKS
def test_members_of_an_archive_come_with_one_download_and_the_archive_goes(
    site: Site, tmp_path: Path, pack: Pack
) -> None:
    two, one = locate("set", members(site, pack(MEMBERS)), tmp_path)
    assert (one.read_bytes(), gzip.decompress(two.read_bytes())) == (CONTENT[:300_000], b"two")
    assert len(site.requests) == 1
    assert folder_of(tmp_path) == {"here/one.bin", "two.txt.gz"}


def test_members_with_a_leading_dot_are_found(site: Site, tmp_path: Path) -> None:
    locate(
        "set",
        members(site, tar_of({f"./{name}": content for name, content in MEMBERS.items()})),
        tmp_path,
    )
    assert folder_of(tmp_path) == {"here/one.bin", "two.txt.gz"}


def test_an_archive_is_resumed_like_any_file(site: Site, tmp_path: Path) -> None:
    site.cuts = [200_000]
    locate("set", members(site, tar_of(MEMBERS)), tmp_path)
    assert site.requests[0].status == 200
    assert site.requests[1].range is not None
    assert folder_of(tmp_path) == {"here/one.bin", "two.txt.gz"}


def test_members_that_are_there_stay_as_they_are(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set" / "here").mkdir(parents=True)
    (tmp_path / "set" / "here" / "one.bin").write_bytes(b"mine")
    locate("set", members(site, tar_of(MEMBERS)), tmp_path)
    assert (tmp_path / "set" / "here" / "one.bin").read_bytes() == b"mine"


@PACKS
def test_an_archive_that_the_user_put_there_is_used_and_stays(
    site: Site, tmp_path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_OFFLINE", "1")
    archive = pack(MEMBERS)
    files = members(site, archive)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "all of it.pack").write_bytes(archive)
    locate("set", files, tmp_path)
    assert site.requests == []
    assert folder_of(tmp_path) == {"here/one.bin", "two.txt.gz", "all of it.pack"}


def test_a_wrong_archive_that_the_user_put_there_is_refused_and_stays(
    site: Site, tmp_path: Path
) -> None:
    files = members(site, tar_of(MEMBERS))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "all of it.pack").write_bytes(tar_of(MEMBERS)[:-9])
    assert "all of it.pack is not the published file: expected md5:" in refusal(tmp_path, *files)
    assert folder_of(tmp_path) == {"all of it.pack"}


def test_paths_written_in_an_archive_are_never_used(site: Site, tmp_path: Path) -> None:
    evil = {"../../evil": b"1", "/tmp/evil-evenhand": b"2", "top/../../evil": b"3", **MEMBERS}
    for pack in (tar_of, zip_of):
        root = tmp_path / pack.__name__
        locate("set", members(site, pack(evil)), root)
        assert folder_of(root) == {"here/one.bin", "two.txt.gz"}
    assert not list(tmp_path.rglob("evil*"))
    assert not Path("/tmp/evil-evenhand").exists()


def test_a_link_in_an_archive_is_not_followed(site: Site, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        link = tarfile.TarInfo("top/one.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    _, one = members(site, buffer.getvalue())
    assert "does not contain 'top/one.bin'" in refusal(tmp_path, one)
    assert not list(tmp_path.rglob("one.bin*"))


def test_a_member_that_is_missing_is_named(site: Site, tmp_path: Path) -> None:
    two, one = members(site, zip_of({"top/one.bin": b"1"}))
    assert "does not contain 'top/two.txt.gz'" in refusal(tmp_path, two, one)


@pytest.mark.parametrize(
    "archive",
    [tar_of(MEMBERS)[:150_000], zip_of(MEMBERS)[:150_000], b"<html>", b""],
    ids=["tar", "zip", "page", "empty"],
)
def test_a_damaged_archive_without_a_checksum_is_refused(
    site: Site, tmp_path: Path, archive: bytes
) -> None:
    site.files["/a.tar.gz"] = archive
    message = refusal(tmp_path, File("one.bin", f"{site.url}/a.tar.gz", member="top/one.bin"))
    assert "is damaged" in message or "has no file" in message
    assert not list(tmp_path.rglob("one.bin*"))


# several at once, and the end of a process

CHILD = f"""
{LIGHT}
from pathlib import Path
from evenhand.data.storage.file import File, read
from evenhand.data.storage.locate import locate
url, checksum, root = sys.argv[1:4]
file = File("big.bin", url, checksum)
print("ready", flush=True)
sys.stdin.readline()
print(len(read(locate("set", [file], Path(root))[0], file)), flush=True)
"""


@pytest.fixture
def child(site: Site, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start another process that waits for a line and then downloads."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, f"{site.url}/big.bin", md5(CONTENT), str(tmp_path)]
        started.append(subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def wait_until_ready(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"


def wait_for_bytes(path: Path, count: int) -> None:
    deadline = time.monotonic() + 10
    while not path.exists() or path.stat().st_size < count:
        assert time.monotonic() < deadline, "the download did not begin"
        time.sleep(0.01)


def test_two_processes_at_once_share_one_download(
    site: Site, tmp_path: Path, child: Callable[[], subprocess.Popen[str]]
) -> None:
    site.delay = 0.03
    both = child(), child()
    wait_until_ready(*both)
    for process in both:
        go(process)
    for process in both:
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, f"{len(CONTENT)}\n", "")
    assert len(site.requests) == 1
    assert (tmp_path / "set" / "big.bin").read_bytes() == CONTENT
    assert folder_of(tmp_path) == {"big.bin"}


def test_threads_at_once_share_one_download(site: Site, tmp_path: Path) -> None:
    site.delay = 0.01
    found: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(locate("set", [big(site)], tmp_path)[0].read_bytes())
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 4
    assert len(site.requests) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_midway_leaves_its_part_to_the_next(
    site: Site, tmp_path: Path, child: Callable[[], subprocess.Popen[str]], how: signal.Signals
) -> None:
    site.delay, site.block = 0.05, 50_000
    process = child()
    wait_until_ready(process)
    go(process)
    partial = tmp_path / "set" / "big.bin.partial"
    wait_for_bytes(partial, 150_000)
    process.send_signal(how)
    assert process.wait(timeout=10) in (-how, 1)
    have = partial.stat().st_size
    assert folder_of(tmp_path) == {"big.bin.partial", "big.bin.partial.json"}
    site.delay = 0
    (path,) = locate("set", [big(site)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert site.requests[-1].range == f"bytes={have}-"
    assert site.requests[-1].sent == len(CONTENT) - have


# the disk


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="the system has no /dev/full to stand for a full disk"
)
def test_a_full_disk_is_one_line(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "big.bin.partial").symlink_to("/dev/full")
    assert (
        refusal(tmp_path, big(site))
        == f"cannot write to {tmp_path / 'set'}: No space left on device; make room, then try again"
    )


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A data root with one file in which this process may not write, whoever runs it."""
    root = Path(tempfile.mkdtemp())
    (root / "set").mkdir()
    (root / "set" / "there.txt").write_text("here I am")
    for folder in (root, root / "set"):
        folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may write everywhere
    try:
        yield root
    finally:
        os.seteuid(user)
        for folder in (root, root / "set"):
            folder.chmod(0o755)
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        root.rmdir()


def test_a_read_only_root_is_read_and_says_that_it_cannot_take_downloads(
    site: Site, read_only: Path
) -> None:
    assert (
        locate("set", [File("there.txt", f"{site.url}/there.txt")], read_only)[0].read_text()
        == "here I am"
    )
    wanted = (
        "Permission denied; set EVENHAND_DATA to a folder that can be written to, then try again"
    )
    assert refusal(read_only, big(site)) == f"cannot write to {read_only / 'set'}: {wanted}"
    with pytest.raises(DataError, match=r"cannot write to .*new: Permission denied"):
        locate("new", [big(site)], read_only)
    assert site.requests == []


def test_a_root_that_is_a_file_is_one_line(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError, match=r"cannot write to .*file/set: Not a directory; set EVENHAND_DATA"
    ):
        locate("set", [big(site)], tmp_path / "file")


# who may download


def test_nothing_is_downloaded_offline(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "set" / "big.bin"
    monkeypatch.setenv("EVENHAND_OFFLINE", "1")
    assert (
        refusal(tmp_path, big(site))
        == f"{path} is missing; download {site.url}/big.bin and put it there"
    )
    monkeypatch.setenv("EVENHAND_OFFLINE", "0")
    with pytest.raises(DataError, match="is missing; download"):
        locate("set", [big(site)], tmp_path, download=False)
    assert site.requests == []
    assert not (tmp_path / "set").exists()
    locate("set", [big(site)], tmp_path)
    assert len(site.requests) == 1


def test_offline_an_archive_is_what_to_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_OFFLINE", "1")
    file = File("data/one.bin", "https://example.org/x/all.zip?raw=1", member="one.bin")
    folder = tmp_path / "set"
    assert (
        refusal(tmp_path, file)
        == f"{folder}/data/one.bin is missing; download https://example.org/x/all.zip?raw=1 and put"
        f" it at {folder}/all.zip"
    )


def test_nothing_is_downloaded_where_another_file_could_not_be(site: Site, tmp_path: Path) -> None:
    private = File("private.csv", hint="ask its owner for it")
    path = tmp_path / "set" / "private.csv"
    assert (
        refusal(tmp_path, big(site), private)
        == f"{path} is missing and cannot be downloaded automatically; ask its owner for it"
    )
    assert site.requests == []


# what a user sees


def in_terminal(site: Site, root: Path) -> str:
    """What another process writes to a terminal while it downloads."""
    import pty

    leader, follower = pty.openpty()
    command = [sys.executable, "-c", CHILD, f"{site.url}/big.bin", md5(CONTENT), str(root)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, stdin=-1, stdout=-1, stderr=follower, text=True, env=environment
    ) as process:
        os.close(follower)
        wait_until_ready(process)
        go(process)
        written = b""
        while True:
            try:
                some = os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
            if not some:
                break
            written += some
        os.close(leader)
    return written.decode()


def test_a_terminal_shows_a_bar(site: Site, tmp_path: Path) -> None:
    site.delay = 0.03
    shown = in_terminal(site, tmp_path)
    assert "big.bin" in shown
    assert "1.0/1.0 MB" in shown
    assert (tmp_path / "set" / "big.bin").read_bytes() == CONTENT
