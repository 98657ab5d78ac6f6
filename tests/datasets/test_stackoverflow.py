"""Stack Overflow's next-word task, from small files in TensorFlow Federated's format."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

import evenhand as eh
from evenhand.data.views import View
from evenhand.datasets.loaders.stackoverflow import WORDS, read, stackoverflow, vocabulary
from evenhand.errors import DataError

# the codes of five known words are 1 to 5, unknown words are 6, sentences begin with 7 and end with 8
LIST = b"the\t90\nto\t80\ni\t70\nof\t60\n.\t50\nxml\t3\n"
ALL: dict[str, Any] = {"least": 1, "most": None, "words": 5, "length": 3}
TEXTS = {
    "00000001": ["i to", "the of the xml i"],
    "00000003": [f"the {'to ' * n}.".strip() for n in range(6)],
    "00000002": ["", "xml", "i of i"],
}


def files(
    root: Path, texts: dict[str, list[str]] = TEXTS, words: bytes = LIST, part: str = "train"
) -> Path:
    folder = root / "stackoverflow"
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / f"stackoverflow_{part}.h5", "w") as file:
        for user, sentences in texts.items():
            group = file.create_group(f"examples/{user}")
            for name in ("tokens", "title"):
                group.create_dataset(
                    name, data=[s.encode() for s in sentences], dtype=h5py.string_dtype("ascii")
                )
    (folder / "stackoverflow.word_count").write_bytes(words)
    return root


def windows(part: eh.Part, client: int) -> list[tuple[list[int], int]]:
    x, y, _ = part.client(client)
    return list(zip(x.tolist(), y.tolist(), strict=True))


def test_by_hand_every_word_is_predicted_from_those_before_it(tmp_path: Path) -> None:
    fed = stackoverflow(split={"test": 0.5}, root=files(tmp_path), **ALL)
    assert fed.names == ("00000001", "00000002", "00000003")
    assert fed.label_names == ("<pad>", "the", "to", "i", "of", ".", "<oov>", "<bos>", "<eos>")
    assert fed.test is not None
    # "i to" and its end; then three words of a longer sentence, without an end
    assert windows(fed.train, 0) == [([0, 0, 7], 3), ([0, 7, 3], 2), ([7, 3, 2], 8)]
    assert windows(fed.test, 0) == [([0, 0, 7], 1), ([0, 7, 1], 4), ([7, 1, 4], 1)]
    # an empty sentence only ends, an unknown word is 6
    assert windows(fed.train, 1) == [([0, 0, 7], 8), ([0, 0, 7], 6), ([0, 7, 6], 8)]
    assert windows(fed.test, 1) == [([0, 0, 7], 3), ([0, 7, 3], 4), ([7, 3, 4], 3)]


def test_windows_are_views_of_one_text(tmp_path: Path) -> None:
    fed = stackoverflow(root=files(tmp_path), **ALL)
    assert isinstance(fed.train.x, View)
    assert fed.train.x.source.dtype == torch.int16
    assert fed.train.x.source.stride() == (1, 1)


def test_no_sentence_is_in_two_parts(tmp_path: Path) -> None:
    texts = {"1": [f"w{k} w{k} w{k}" for k in range(10)]}
    words = b"".join(b"w%d %d\n" % (k, 99 - k) for k in range(10))
    how = {**ALL, "words": 10, "split": {"val": 0.2, "test": 0.3}}
    for order in ("file", "random"):
        fed = stackoverflow(root=files(tmp_path, texts, words), order=order, **how)
        parts = (fed.train, fed.val, fed.test)
        mine = [set(part.y.tolist()) for part in parts if part is not None]
        assert [len(codes) for codes in mine] == [5, 2, 3]
        assert sorted(code for codes in mine for code in codes) == list(range(1, 11))
        assert (mine == [{1, 2, 3, 4, 5}, {6, 7}, {8, 9, 10}]) == (order == "file")
    again = stackoverflow(root=tmp_path, order="random", **how)
    assert torch.equal(again.train.y, fed.train.y)


def test_some_windows_of_each_sentence_can_be_drawn(tmp_path: Path) -> None:
    whole = stackoverflow(split={"test": 0.0}, root=files(tmp_path), **ALL)
    assert whole.train.sizes.tolist() == [6, 6, 3 * 6]
    one = stackoverflow(split={"test": 0.0}, root=tmp_path, per_sentence=1, **ALL)
    assert one.train.sizes.tolist() == [2, 3, 6]  # of users with 2, 3 and 6 sentences
    for client in range(3):
        assert set(map(str, windows(one.train, client))) <= set(
            map(str, windows(whole.train, client))
        )
    firsts = [
        windows(stackoverflow(root=tmp_path, per_sentence=1, seed=seed, **ALL).train, 0)[0]
        for seed in range(12)
    ]
    assert len(set(map(str, firsts))) == 3  # each of its windows at some time


def test_users_are_chosen_by_their_sentences(tmp_path: Path) -> None:
    files(tmp_path)

    def names(**how: Any) -> Sequence[str]:
        return read(tmp_path, **{**ALL, **how}).names

    assert names(least=3) == ("00000002", "00000003")
    assert names(most=3) == ("00000001", "00000002")
    assert names(least=2, among=1) == ("00000001",)
    assert names(users=["00000003", "00000001"]) == ("00000001", "00000003")
    assert {names(users=1, seed=seed) for seed in range(20)} == {(user,) for user in TEXTS}
    for how, message in (
        (
            {"least": 7},
            r"none of 3 users has at least 7 sentences \(the largest has 6\); change least",
        ),
        ({"least": 4, "most": 5}, "none of 3 users has 4 to 5 sentences"),
        ({"users": 4}, "cannot draw 4 users: only 3 have at least 1 sentences"),
        ({"users": ["9"]}, "has no user '9'"),
        ({"users": "00000001"}, "users must be a number or a list of different names"),
        ({"words": 40_000}, "words must be at most 32763, got 40000"),
        ({"words": 7}, r"word_count has only 6 words, not 7; lower words"),
        ({"part": "heldout"}, 'part must be "train", "held_out" or "test"'),
        ({"part": "test"}, "stackoverflow_test.h5 is missing .*unpack https://"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            names(**how)
        assert "\n" not in str(caught.value)


def test_other_partitions_keep_the_order_of_the_split(tmp_path: Path) -> None:
    fed = stackoverflow("iid", {"test": 0.5}, 0, 2, files(tmp_path), **ALL)
    assert fed.clients == 2
    natural = stackoverflow(split={"test": 0.5}, root=tmp_path, **ALL)
    assert fed.test is not None
    assert natural.test is not None
    assert sorted(fed.test.y.tolist()) == sorted(natural.test.y.tolist())
    with pytest.raises(ValueError, match="val needs users as clients; remove val or partition"):
        stackoverflow("iid", {"val": 0.1}, 0, 2, tmp_path, **ALL)
    with pytest.raises(ValueError, match="split in sentence order has only val and test"):
        stackoverflow(split={"official": True}, root=tmp_path, **ALL)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the 9\nto\n", "line 2: not a word and its count"),
        (b"the many\n", "line 1: not a word and its count"),
        (b"the 9\nthe 8\n", "lists a word twice"),
        (b"\xff 9\nto 8\n", "line 1: the word is not UTF-8 text"),
    ],
)
def test_a_damaged_list_of_words_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / WORDS.name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        vocabulary(path, 2)


def test_damaged_files_of_users_are_refused(tmp_path: Path) -> None:
    path = files(tmp_path) / "stackoverflow" / "stackoverflow_train.h5"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(
        DataError, match=r"stackoverflow_train.h5 is not a complete HDF5 file"
    ) as caught:
        read(tmp_path, **ALL)
    assert "\n" not in str(caught.value)
    for name, data, message in (
        ("people/1/tokens", [b"a"], "has no group 'examples'"),
        ("examples/1/text", [b"a"], "user 1: there is no list 'tokens'"),
        ("examples/1/tokens", [1, 2], "user 1: tokens are not texts"),
    ):
        with h5py.File(path, "w") as file:
            file[name] = data
        with pytest.raises(DataError, match=message):
            read(tmp_path, **ALL)


def test_without_h5py_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"need h5py: pip install h5py \(extra: evenhand\[hdf5\]\)"):
        read(tmp_path, **ALL)
