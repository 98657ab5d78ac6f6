"""evenhand data list and evenhand data fetch, as a user meets them."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from evenhand.cli import main
from evenhand.data.storage.file import File
from evenhand.datasets import DATASETS, catalogue
from evenhand.datasets.catalogue import CATALOGUE
from evenhand.datasets.entry import BY_HAND, EMBEDDED, FETCH, GENERATED, PRESENT, Entry, Need
from tests.support.file_server import LIGHT, Site, serving

ONE, TWO = b"one" * 1000, b"two" * 2000

Call = Callable[..., tuple[int, str, str]]


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        site.files |= {"/one.gz": gzip.compress(ONE), "/two": TWO}
        yield site


@pytest.fixture
def root(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root, and a catalogue of small data sets whose home is the test server."""
    one = File("one.gz", f"{site.url}/one.gz", md5(site.files["/one.gz"]), md5(ONE))
    two = File("deep/two", f"{site.url}/two", md5(TWO))
    private = File("private.csv", hint="its owner has it")
    entries = (
        Entry(
            "public",
            "two files",
            "3",
            "7",
            "made for tests",
            needs=lambda: (Need("public", (one, two), megabytes=1.5),),
        ),
        Entry(
            "private",
            "a table",
            "1",
            "2",
            "nobody's",
            needs=lambda: (Need("private", (private,), instead=((File("copy.csv"),),)),),
        ),
        Entry(
            "both",
            "a table and a file",
            "1",
            "2",
            "",
            needs=lambda: (Need("private", (private,)), Need("public", (two,))),
        ),
        Entry(
            "shared",
            "lies in another folder",
            "1",
            "2",
            "",
            needs=lambda: (Need("shared", (one,), also=("public",)),),
        ),
        Entry(
            "system",
            "a package has it",
            "1",
            "2",
            "",
            needs=lambda: (Need("system", (one,), also=(str(tmp_path / "usr"),)),),
        ),
        Entry(
            "leafy",
            "as LEAF writes it",
            "1",
            "2",
            "",
            needs=lambda: (Need("leafy", (private,), pattern="**/*.json*"),),
        ),
        Entry("inside", "in a package", "1", "2", "", EMBEDDED),
    )
    monkeypatch.setattr(catalogue, "CATALOGUE", {entry.name: entry for entry in entries})
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "root"))
    monkeypatch.delenv("EVENHAND_OFFLINE", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path / "root"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main(["data", *arguments], prog_name="evenhand")
        captured = capsys.readouterr()
        return int(done.value.code or 0), captured.out, captured.err

    return run


def put(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# the catalogue


def test_the_catalogue_has_every_data_set_and_no_other() -> None:
    assert set(CATALOGUE) == set(DATASETS)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=list(CATALOGUE))
def test_every_entry_is_sound(entry: Entry) -> None:
    assert entry.name.isidentifier()
    for line in (entry.about, entry.clients, entry.source):
        assert line
        assert "\n" not in line
    assert len(entry.about) <= 80
    needs = entry.needs()
    assert bool(entry.kind) != bool(needs)
    assert entry.kind in ("", EMBEDDED, GENERATED)
    for need in needs:
        assert need.files
        for file in (*need.files, *(file for files in need.instead for file in files)):
            assert not Path(file.name).is_absolute()
            assert ".." not in Path(file.name).parts
            for checksum in filter(None, (file.checksum, file.content)):
                assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", checksum)
            if file.url:
                assert urlsplit(file.url).scheme in ("http", "https")
                assert file.checksum or file.content, (
                    f"a download of {file.name} could not be verified"
                )
                assert file.member is None or file.archive
            else:
                assert file.member is None
        assert (need.megabytes > 0) == any(file.url for file in need.files)


def test_an_empty_root_has_nothing_present(tmp_path: Path) -> None:
    kinds = {entry.name: entry.state(tmp_path).kind for entry in CATALOGUE.values()}
    assert kinds.pop("fashion_mnist") in (PRESENT, FETCH)  # a package may have brought it
    assert set(kinds.values()) == {EMBEDDED, GENERATED, FETCH, BY_HAND}


# list


def test_the_list_says_what_is_here_and_what_can_be_fetched(
    root: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # no line is broken
    put(root / "public" / "one.gz")
    put(tmp_path / "usr" / "one.gz")
    put(root / "leafy" / "data" / "train" / "part_7.json.gz")
    code, out, err = call("list")
    assert (code, err) == (0, "")
    assert f"Data root: {root}" in out
    rows = {words[0]: line for line in out.splitlines() if (words := line.split())}
    ends = {
        "public": "fetch (1.5 MB)",
        "private": "by hand",
        "both": "by hand",
        "shared": "present",
        "leafy": "present",
        "inside": "embedded",
    }
    assert {name: rows[name].rstrip().endswith(end) for name, end in ends.items()} == dict.fromkeys(
        ends, True
    )
    assert f"present in {tmp_path / 'usr'}" in rows["system"]
    assert "\x1b" not in out


def test_the_list_as_json_has_everything(root: Path, call: Call) -> None:
    put(root / "private" / "copy.csv")
    put(root / "public" / "one.gz")
    code, out, err = call("list", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)
    assert listed["root"] == str(root)
    found = {record["name"]: record for record in listed["datasets"]}
    assert found["public"] == {
        "name": "public",
        "about": "two files",
        "clients": "3",
        "samples": "7",
        "source": "made for tests",
        "files": FETCH,
        "folders": [str(root / "public")],
        "missing": [str(root / "public" / "deep" / "two")],
        "megabytes": 1.5,
    }
    assert (found["private"]["files"], found["private"]["missing"]) == (PRESENT, [])
    assert (found["both"]["files"], found["inside"]["files"]) == (BY_HAND, EMBEDDED)


def test_listing_makes_nothing_and_asks_nobody(root: Path, site: Site, call: Call) -> None:
    call("list")
    assert not root.exists()
    assert site.requests == []


# fetch


def test_files_are_fetched_once_and_it_is_said_where_they_are(
    root: Path, site: Site, call: Call
) -> None:
    code, out, err = call("fetch", "public", "inside")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"public: 2 files in {root / 'public'}, {root / 'public' / 'deep'}, 2 of them new",
        "  made for tests",
        "inside: embedded, needs no files",
    ]
    assert (root / "public" / "deep" / "two").read_bytes() == TWO
    code, out, _ = call("fetch", "public")
    assert (code, "all were here" in out) == (0, True)
    assert len(site.requests) == 2


def test_a_data_set_that_lies_in_two_folders_is_whole(root: Path, site: Site, call: Call) -> None:
    put(root / "public" / "one.gz", site.files["/one.gz"])
    code, out, _ = call("fetch", "shared")
    assert (code, site.requests) == (0, [])
    assert f"shared: 1 file in {root / 'public'}, all were here" in out


def test_check_finds_a_damaged_file(root: Path, site: Site, call: Call) -> None:
    call("fetch", "public")
    code, out, err = call("fetch", "public", "--check")
    assert (code, err) == (0, "")
    assert "2 checked, 0 without a known checksum" in out
    damaged = put(root / "public" / "deep" / "two", TWO[:-1])
    assert call("fetch", "public")[0] == 0  # presence is what is asked for
    code, _, err = call("fetch", "public", "--check")
    assert code == 1
    assert (
        err
        == f"evenhand: {damaged} is damaged or another version: its md5 is {md5(TWO[:-1])[4:]}, not"
        f" {md5(TWO)[4:]}; " + "delete it and download it again\n"
    )
    damaged.unlink()
    assert call("fetch", "public", "--check")[0] == 0


def test_check_says_what_it_could_not_check(root: Path, call: Call) -> None:
    put(root / "private" / "copy.csv")
    assert "0 checked, 1 without a known checksum" in call("fetch", "private", "--check")[1]


def test_what_cannot_be_fetched_is_one_line_and_the_others_are_fetched(
    root: Path, site: Site, call: Call
) -> None:
    code, out, err = call("fetch", "private", "nothing", "pubic", "public")
    assert code == 1
    assert out.startswith("public: 2 files")
    assert err.splitlines() == [
        (
            f"evenhand: {root / 'private' / 'private.csv'} is missing and cannot be"
            " downloaded automatically; its owner has it"
        ),
        "evenhand: there is no data set 'nothing'; evenhand data list shows all",
        "evenhand: there is no data set 'pubic'; did you mean public?",
    ]


def test_a_server_that_refuses_is_one_line(root: Path, site: Site, call: Call) -> None:
    del site.files["/two"]
    code, _, err = call("fetch", "public")
    assert code == 1
    assert err.count("\n") == 1
    assert err.startswith(
        f"evenhand: {site.url}/two cannot be downloaded: the server answered 404 Not Found; put the"
        " file at "
    )
    assert (root / "public" / "one.gz").exists()  # what came, stays


def test_a_name_is_asked_for(call: Call) -> None:
    code, _, err = call("fetch")
    assert code == 2
    assert "NAME..." in err


# the real thing

LIST = [sys.executable, "-m", "evenhand", "data"]


def test_the_command_lists_the_data_sets_of_the_library(tmp_path: Path) -> None:
    environment = {**os.environ, "EVENHAND_DATA": str(tmp_path)}
    done = subprocess.run(
        [*LIST, "list", "--json"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [record["name"] for record in json.loads(done.stdout)["datasets"]] == list(CATALOGUE)


STOPPED = f"""
{LIGHT}
from evenhand.datasets import catalogue
from evenhand.data.storage.file import File
from evenhand.cli import main
need = catalogue.Need("slow", (File("two", sys.argv[1], sys.argv[2]),))
catalogue.CATALOGUE = dict(slow=catalogue.Entry("slow", "", "", "", "", needs=lambda: (need,)))
main(["data", "fetch", "slow"])
"""


def test_an_interrupted_fetch_ends_with_130_and_goes_on_next_time(
    site: Site, tmp_path: Path
) -> None:
    site.delay, site.block = 0.1, 1000
    environment = {**os.environ, "EVENHAND_DATA": str(tmp_path)}
    command = [sys.executable, "-c", STOPPED, f"{site.url}/two", md5(TWO)]
    partial = tmp_path / "slow" / "two.partial"
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) as process:
        while not partial.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (
        130,
        "",
        "stopped; run the same command to resume the download\n",
    )
    assert partial.exists()
    assert not (tmp_path / "slow" / "two").exists()
    site.delay = 0
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "slow" / "two").read_bytes() == TWO
