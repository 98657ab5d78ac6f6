"""Text data sets: Shakespeare by role, tweets, word vectors."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.data.leaf import read_leaf
from evenhand.data.pool import TEST, TRAIN, VAL, Pool
from evenhand.data.samples import Part
from evenhand.data.text import (
    ALPHABET,
    PADDING,
    UNKNOWN,
    WordVectors,
    glove,
    letter_codes,
    read_glove_text,
    tokens,
)
from evenhand.data.views import View
from evenhand.datasets.loaders.airline_sentiment import Tweet, airline_sentiment, pool_of
from evenhand.datasets.loaders.airline_sentiment import read as read_tweets
from evenhand.datasets.loaders.airline_sentiment import tweets as parse_tweets
from evenhand.datasets.loaders.sent140 import sent140
from evenhand.datasets.loaders.shakespeare import DROPPED, parts_in_time, shakespeare
from evenhand.datasets.loaders.shakespeare import parse as parse_plays
from evenhand.datasets.loaders.shakespeare import read as read_plays
from evenhand.errors import DataError

HERE = Path("plays.json")


def real(dataset: str, name: str) -> Path:
    path = Path(os.environ.get("EVENHAND_DATA", "nowhere")) / dataset / name
    if not path.is_file():
        pytest.skip(f"{dataset}/{name} is not in $EVENHAND_DATA")
    return path.parent.parent


def real_plays() -> Path:
    return real("shakespeare", "shakespeare_mit.json.gz")


def real_tweets() -> Path:
    real("glove", "glove_6b_100d_cut.npz")
    return real("airline_sentiment", "airline_tweets.csv.gz")


def complaint(kind: type[Exception], function: Callable[[], Any]) -> str:
    """The error's text, which is one line."""
    with pytest.raises(kind) as caught:
        function()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# letters


def test_the_alphabet_is_leafs() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert (
        ALPHABET
        == "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
    )


def test_letters_are_their_place_in_the_alphabet() -> None:
    assert letter_codes(ALPHABET).tolist() == list(range(80))
    assert letter_codes("").tolist() == []


@pytest.mark.parametrize("text", ["so{", "so\t", "so\xe9", "so\u2019", "so\x00", "so\xff"])
def test_letters_outside_the_alphabet_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"\(number 2\) is not in LEAF's alphabet") as caught:
        letter_codes(text)
    assert repr(text[2]) in str(caught.value)


# Shakespeare, small: three roles whose text counts up, so that a window tells where it is


def raw(length: int) -> str:
    return "".join(ALPHABET[(i // 7 + i) % 80] for i in range(length))


def file_of(lengths: dict[str, int], sexes: str, **changed: Any) -> bytes:
    table = {
        "users": list(lengths),
        "num_samples": [max(0, length - 80) for length in lengths.values()],
        "hierarchies": [name.split("/")[0] for name in lengths],
        "sex": list(sexes),
        "user_data": {name: {"raw": raw(length)} for name, length in lengths.items()},
    }
    return json.dumps(table | changed).encode()


SMALL = file_of({"one/A": 400, "one/B": 60, "two/C": 330, "two/D": 81}, "MUFM")


def text_of(codes: Tensor) -> str:
    return "".join(ALPHABET[code] for code in codes.tolist())


def test_windows_are_those_of_leaf() -> None:
    pool = parse_plays(HERE, SMALL)
    assert pool.client_names == ("one/A", "two/C", "two/D")  # B has less than a window
    expected = [(raw(n)[i : i + 80], raw(n)[i + 80]) for n in (400, 330, 81) for i in range(n - 80)]
    assert [
        (text_of(x), ALPHABET[y]) for x, y in zip(pool.x[:], pool.y.tolist(), strict=True)
    ] == expected
    assert pool.client is not None
    assert torch.bincount(pool.client).tolist() == [320, 250, 1]
    assert pool.team is not None
    assert [pool.team_names[team] for team in pool.team] == ["male", "female", "male"]
    assert parse_plays(HERE, SMALL, teams="play").team_names == ("one", "two")
    assert parse_plays(HERE, SMALL, teams="none").team is None


def positions(pool: Pool, part: Tensor, code: int) -> tuple[set[int], set[int]]:
    """Places in the whole text that inputs and answers of one part touch."""
    assert isinstance(pool.x, View)
    assert pool.x.rows is not None
    starts = pool.x.rows[part == code].tolist()
    return {start + i for start in starts for i in range(80)}, {start + 80 for start in starts}


@pytest.mark.parametrize(("val", "test"), [(0.0, 0.2), (0.1, 0.2), (0.25, 0.0)])
def test_a_gap_leaves_no_character_in_two_parts(val: float, test: float) -> None:
    pool = parse_plays(HERE, SMALL, least=200)
    part = parts_in_time(pool, val, test, margin=80)
    touched = {code: set.union(*positions(pool, part, code)) for code in (TRAIN, VAL, TEST)}
    assert not touched[TRAIN] & touched[VAL]
    assert not touched[TRAIN] & touched[TEST]
    assert not touched[VAL] & touched[TEST]
    assert bool(touched[VAL]) == bool(val)
    borders = (val > 0) + (test > 0)
    assert (part == DROPPED).sum() == 2 * 80 * borders
    # not a window more than needed is dropped: one step nearer, the parts would touch
    kept = [size - 80 * borders for size in (320, 250)]
    assert [int((part == TRAIN).sum()), len(part)] == [
        sum(round((1 - val - test) * size) for size in kept),
        570,
    ]
    if borders == 1:
        later = touched[VAL] | touched[TEST]
        ends = {max(place for place in touched[TRAIN] if place < 400), max(touched[TRAIN])}
        assert {min(place for place in later if place > end) - end for end in ends} == {1}


def test_without_a_gap_answers_are_new_but_windows_overlap() -> None:
    pool = parse_plays(HERE, SMALL, least=200)
    part = parts_in_time(pool, 0.0, 0.2, margin=0)
    (seen, learnt), (shown, asked) = positions(pool, part, TRAIN), positions(pool, part, TEST)
    assert seen & shown
    assert not asked & (seen | learnt)
    assert torch.bincount(part).tolist() == [456, 0, 114]  # 80 % and 20 % of 570


def test_parts_follow_time_within_each_role() -> None:
    pool = parse_plays(HERE, SMALL, least=200)
    part = parts_in_time(pool, 0.1, 0.2, margin=80)
    assert pool.client is not None
    for role in (0, 1):
        kept = part[(pool.client == role) & (part >= 0)].tolist()
        assert kept == sorted(kept)
        assert set(kept) == {TRAIN, VAL, TEST}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not a file of roles and their texts"),
        (b"[]", "is not a file of roles and their texts"),
        (file_of({"one/A": 100}, "M", users=None), "is not a file of roles"),
        (file_of({"one/A": 100}, "M", user_data={}), "'one/A' is missing"),
        (file_of({"one/A": 100}, "X"), "role 'one/A': unknown sex 'X'"),
        (
            file_of({"one/A": 100}, "M", num_samples=[21]),
            "role 'one/A': num_samples is 21, but its 100 characters make 20 windows",
        ),
        (
            file_of({"one/A": 3}, "M", num_samples=[0], user_data={"one/A": {"raw": "a~b"}}),
            "role 'one/A': character '~' (number 1)",
        ),
    ],
)
def test_damaged_plays_are_named(content: bytes, message: str) -> None:
    text = complaint(DataError, lambda: parse_plays(HERE, content))
    assert text.startswith("plays.json")
    assert message in text


def test_roles_are_chosen_by_number_team_or_name() -> None:
    def chosen(roles: Any, seed: int = 0, least: int = 1) -> tuple[str, ...]:
        return parse_plays(HERE, SMALL, least=least, roles=roles, seed=seed).client_names

    assert chosen({"male": 2}) == ("one/A", "two/D")
    assert chosen({"male": 1, "female": 1}, least=2) == ("one/A", "two/C")
    assert chosen(["two/D", "one/A"]) == ("one/A", "two/D")
    assert chosen(2, seed=1) == chosen(2, seed=1)
    assert {chosen(1, seed=seed) for seed in range(20)} == {("one/A",), ("two/C",), ("two/D",)}
    assert "cannot draw 4 roles: only 3 have at least 1 windows" in complaint(
        ValueError, lambda: chosen(4)
    )
    assert "cannot draw 2 female roles: only 1 have" in complaint(
        ValueError, lambda: chosen({"female": 2})
    )
    assert "there is no team 'child'" in complaint(ValueError, lambda: chosen({"child": 1}))
    assert "there is no role 'one/Z'" in complaint(ValueError, lambda: chosen(["one/Z"]))
    assert "role one/B has fewer than 1 windows" in complaint(ValueError, lambda: chosen(["one/B"]))
    assert "roles must be different names" in complaint(
        ValueError, lambda: chosen(["one/A", "one/A"])
    )
    assert "roles must be a whole number" in complaint(ValueError, lambda: chosen("one/A"))
    assert "no role has 999 windows" in complaint(ValueError, lambda: chosen(None, least=999))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "backwards"}, "order must be"),
        ({"gap": 1}, "gap must be true or false"),
        ({"least": 0}, "least must be"),
        ({"teams": "age"}, "teams must be"),
        ({"split": "official"}, "split in time order has only val and test"),
        ({"split": {"test": 0.2, "stratify": True}}, "split in time order has only val and test"),
        ({"split": {"val": 0.5, "test": 0.5}}, "must leave windows for training"),
        ({"split": {"test": -0.1}}, "test of split must be in [0, 1)"),
        (
            {"split": {"val": 0.1}, "partition": "iid", "clients": 3},
            "val in time order needs roles as clients",
        ),
    ],
)
def test_wrong_settings_of_shakespeare_are_named(settings: dict[str, Any], message: str) -> None:
    root = real_plays()
    assert message in complaint(ValueError, lambda: shakespeare(root=root, **settings))


# Shakespeare, real


def test_shakespeare_has_the_published_counts() -> None:
    root = real_plays()
    pool = read_plays(root)
    assert (len(pool), len(pool.client_names)) == (4_215_098, 1153)
    assert pool.client is not None
    assert pool.team is not None
    sizes = torch.bincount(pool.client)
    assert (round(float(sizes.double().mean())), int(sizes.max())) == (3656, 61_209)
    assert float(sizes.double().median()) == 1138
    assert round(float(sizes.double().std(correction=0))) == 6017
    assert ((sizes >= 64).sum(), (sizes > 1000).sum()) == (1065, 615)
    windows = torch.bincount(pool.team[pool.client])
    assert dict(zip(pool.team_names, windows.tolist(), strict=True)) == {
        "male": 3_396_252,
        "female": 732_725,
        "unknown": 86_121,
    }
    assert isinstance(pool.x, View)
    assert len(pool.x.source.unfold(1, 1, 80).unique()) == 72  # distinct characters
    assert len(read_plays(root, teams="play").team_names) == 37
    everyone = json.loads(
        gzip.decompress((root / "shakespeare" / "shakespeare_mit.json.gz").read_bytes())
    )
    assert (len(everyone["users"]), everyone["sex"].count("M"), everyone["sex"].count("F")) == (
        1338,
        964,
        146,
    )


def storage(part: Part) -> tuple[int, int]:
    assert isinstance(part.x, View)
    return part.x.source.data_ptr(), part.x.source.untyped_storage().nbytes()


def test_all_roles_load_at_once_and_share_one_text() -> None:
    root = real_plays()
    federation = shakespeare(root=root, least=1, gap=False)
    assert federation.clients == 1153
    assert federation.test is not None
    assert len(federation.train.x) + len(federation.test.x) == 4_215_098
    assert storage(federation.train) == storage(federation.test)
    place, nbytes = storage(federation.train)
    # one byte a character of the file, where windows by themselves would take 337 MB
    assert nbytes == 4_314_627
    assert federation.train.x.source.stride() == (1, 1)  # type: ignore[union-attr]
    moved = federation.train.samples(torch.float32, torch.device("cpu")).x
    assert isinstance(moved, View)
    assert moved.source.data_ptr() == place


def test_least_counts_windows_besides_the_gap() -> None:
    root = real_plays()
    with_gap, without = shakespeare(root=root), shakespeare(root=root, gap=False)
    for federation in (with_gap, without):
        assert federation.test is not None
        assert int((federation.train.sizes + federation.test.sizes).min()) >= 64
    assert without.clients == 1065
    assert with_gap.clients == 993  # roles with 144 windows or more


def test_the_papers_choices_of_roles() -> None:
    root = real_plays()
    gifair = shakespeare(root=root, roles={"male": 25, "female": 10})
    assert gifair.teams is not None
    assert torch.bincount(gifair.teams).tolist() == [10, 25]
    assert gifair.team_names == ("female", "male")
    propfair = shakespeare(root=root, least=10_000, roles=20, split={"test": 0.5})
    assert propfair.clients == 20
    assert propfair.test is not None
    kept = propfair.train.sizes + propfair.test.sizes
    assert int(kept.min()) >= 10_000
    assert int((propfair.train.sizes - propfair.test.sizes).abs().max()) <= 1
    hamlet = shakespeare(root=root, roles=["hamlet/HAMLET"])
    assert hamlet.names == ("hamlet/HAMLET",)


def test_shakespeare_dealt_in_other_ways() -> None:
    root = real_plays()
    random = shakespeare(root=root, roles=5, order="random", split={"val": 0.1, "test": 0.2})
    assert random.clients == 5
    assert random.val is not None
    # tested on the roles' last words, whoever holds them
    mixed = shakespeare(root=root, roles=5, partition="iid", clients=4)
    assert mixed.clients == 4
    drawn = shakespeare(root=root, clients=7)
    assert drawn.clients == 7
    assert drawn.teams is not None
    assert len(drawn.teams) == 7


class NextLetter(nn.Module):
    """Embedding, a mean over the last letters, a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.dense = nn.Embedding(80, 8), nn.Linear(8, 80)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.dense(self.embedding(x)[:, -5:].mean(1))
        return output


def test_both_engines_train_on_windows_as_on_copies() -> None:
    federation = shakespeare(root=real_plays(), roles=3, least=150, seed=2, split={"test": 0.5})
    assert isinstance(federation.train.x, View)
    rows = [federation.train.client(k) for k in range(3)]
    copies = eh.Federation.from_arrays([{"x": x[:200].long(), "y": y[:200]} for x, y, _ in rows])
    offsets = copies.train.offsets
    kept = torch.cat(
        [
            torch.arange(int(start), int(start) + size)
            for start, size in zip(federation.train.offsets, offsets.diff(), strict=False)
        ]
    )
    views = eh.Federation(
        train=Part(federation.train.x.pick(kept), federation.train.y[kept], offsets)
    )
    local = eh.LocalSGD(lr=0.5, steps=2, batch_size=16)
    results = [
        eh.fit(NextLetter(), data, eh.FedAvg(), rounds=2, local=local, engine=engine)
        for data, engine in ((views, "loop"), (views, "vmap"), (copies, "loop"))
    ]
    start = NextLetter().state_dict()
    for key, value in results[0].params.items():
        assert not torch.equal(value, start[key])
        torch.testing.assert_close(results[1].params[key], value, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(results[2].params[key], value, rtol=0, atol=0)


# tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@united  THANK you!!", ["<user>", "thank", "you", "!", "!"]),
        ("can't won\u2019t it's", ["ca", "n't", "wo", "n't", "it", "'s"]),
        ("see http://t.co/aB1 or www.x.org/y?z", ["see", "<url>", "or", "<url>"]),
        ("2 bags, 10:30, $1,200.50", ["2", "bags", ",", "10:30", ",", "$", "1,200.50"]),
        ("wait... what…", ["wait", "...", "what", "..."]),
        ("#Fail_whale &lt;3 ☕", ["#", "fail", "_", "whale", "<", "3", "☕"]),
        ("'quoted' rock'n'roll", ["'", "quoted", "'", "rock", "'", "n", "'", "roll"]),
        ("", []),
    ],
)
def test_tweets_are_cut_into_tokens(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


VECTORS = WordVectors(("thank", "you", "not", "did"), torch.arange(12.0).reshape(6, 2))


def test_texts_become_codes_of_fixed_length() -> None:
    codes = VECTORS.encode(
        ["Thank you", "did you thank you you you you", "", "didn't @me"], length=4
    )
    assert codes.tolist() == [[2, 3, 0, 0], [5, 3, 2, 3], [0, 0, 0, 0], [5, 4, 1, 0]]
    assert (PADDING, UNKNOWN) == (0, 1)
    assert codes.dtype == torch.int32
    assert VECTORS.encode([]).shape == (0, 25)
    twitter = WordVectors(("<user>", "n't", "not"), torch.zeros(5, 2))
    # a list that has the short form uses it
    assert twitter.encode(["@me don't"], length=3).tolist() == [[2, 1, 3]]
    assert "length must be" in complaint(ValueError, lambda: VECTORS.encode(["x"], length=0))


# word vectors


def glove_lines(words: list[str], dimensions: int = 50) -> tuple[str, np.ndarray[Any, Any]]:
    values = np.random.default_rng(0).normal(size=(len(words), dimensions)).round(5)
    return (
        "".join(
            f"{word} {' '.join(map(str, row))}\n"
            for word, row in zip(words, values.tolist(), strict=True)
        ),
        values,
    )


def test_official_word_vectors_are_read(tmp_path: Path) -> None:
    text, values = glove_lines(["the", ",", "n't", "café"])
    (tmp_path / "glove").mkdir()
    (tmp_path / "glove" / "glove.6B.50d.txt").write_text(text, encoding="utf-8")
    vectors = glove(tmp_path, dimensions=50)
    assert vectors.words == ("the", ",", "n't", "café")
    expected = torch.from_numpy(values).float()
    torch.testing.assert_close(vectors.vectors[2:], expected)
    assert vectors.vectors[0].tolist() == [0.0] * 50
    torch.testing.assert_close(vectors.vectors[1], expected.mean(0))
    assert vectors.codes["the"] == 2
    assert repr(vectors) == "<WordVectors: 4 words, 50 dimensions>"
    few = glove(tmp_path, dimensions=50, most=2)
    assert few.words == ("the", ",")
    torch.testing.assert_close(few.vectors[1], expected[:2].mean(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:2], lines[2][:-30]], "line 3: 4"),
        (
            lambda lines: [lines[0], "of x" + lines[1][2:], lines[2]],
            "line 2: not a word and 50 numbers",
        ),
        (
            lambda lines: [lines[0], lines[1].rsplit(" ", 1)[0] + " nan", lines[2]],
            "line 2: the vector of ',' is not finite",
        ),
        (
            lambda lines: [lines[0], lines[1] + " 0.5", lines[2]],
            "line 2: 51 numbers instead of 50",
        ),
        (lambda lines: [lines[0], lines[1], lines[0]], "line 3: word 'the' appears twice"),
        (lambda lines: [], "is empty"),
    ],
)
def test_damaged_word_vectors_are_named(
    tmp_path: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    path = tmp_path / "glove.6B.50d.txt"
    path.write_text("\n".join(change(glove_lines(["the", ",", "of"])[0].splitlines())))
    text = complaint(DataError, lambda: read_glove_text(path, 50))
    assert text.startswith(str(path))
    assert message in text


def test_words_that_are_not_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "glove.6B.50d.txt"
    path.write_bytes(glove_lines(["the"])[0].encode() + b"\xff" + glove_lines(["x"])[0].encode())
    assert "line 2: the word is not UTF-8" in complaint(
        DataError, lambda: read_glove_text(path, 50)
    )


def test_missing_word_vectors_say_where_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_OFFLINE", "1")
    text = complaint(DataError, lambda: glove(tmp_path, dimensions=300))
    assert "https://nlp.stanford.edu/data/glove.6B.zip" in text
    assert str(tmp_path / "glove") in text
    assert "dimensions must be 50, 100, 200 or 300" in complaint(
        ValueError, lambda: glove(tmp_path, dimensions=64)
    )
    assert "most must be" in complaint(ValueError, lambda: glove(tmp_path, most=0))


def test_the_cut_word_vectors_have_the_published_counts() -> None:
    vectors = glove(real("glove", "glove_6b_100d_cut.npz"))
    assert vectors.vectors.shape == (11_971 + 2, 100)
    assert vectors.vectors.dtype == torch.float32
    torch.testing.assert_close(
        vectors.vectors[vectors.codes["the"]][:3],
        torch.tensor([-0.038194, -0.24487, 0.72812]),
        atol=1e-3,
        rtol=1e-3,
    )
    assert bool(torch.isfinite(vectors.vectors).all())
    assert len(glove(real("glove", "glove_6b_100d_cut.npz"), most=100).words) == 100


def test_cut_word_vectors_that_were_changed_are_refused(tmp_path: Path) -> None:
    good = real("glove", "glove_6b_100d_cut.npz") / "glove" / "glove_6b_100d_cut.npz"
    (tmp_path / "glove").mkdir()
    (tmp_path / "glove" / good.name).write_bytes(good.read_bytes()[:-1000])
    assert good.name in complaint(DataError, lambda: glove(tmp_path))


# airline tweets

HEADER = "airline,airline_sentiment,negativereason,tweet_created,text\n"


def rows_of(text: str) -> list[Tweet]:
    return parse_tweets(Path("tweets.csv"), text.encode())


def test_tweets_are_read_with_either_kind_of_date() -> None:
    rows = rows_of(
        HEADER + 'Delta,negative,Late,2/24/2015 11:35,"late, again\nand'
        ' again"\nUnited,positive,,2015-02-17 11:35:52 -0800,"a ""good"" day"\n'
    )
    assert [(row.airline, row.sentiment, row.day, row.text) for row in rows] == [
        ("Delta", "negative", "2015-02-24", "late, again\nand again"),
        ("United", "positive", "2015-02-17", 'a "good" day'),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no column 'airline' in its first line"),
        ("airline,airline_sentiment,text\n", "has no column 'tweet_created'"),
        (HEADER, "has no tweets"),
        (
            HEADER + "Delta,negative,,2/24/2015 11:35,fine\nDelta,angry,,2/24/2015 11:35,bad\n",
            "row 2: unknown label 'angry'",
        ),
        (
            HEADER + "Delta,negative,,2/24/2015 11:35,fine\nDelta,nega",
            "row 2: 2 fields instead of 5",
        ),
        (HEADER + "Delta,negative,,yesterday,fine\n", "row 1: tweet_created is 'yesterday'"),
        (HEADER + "Delta,negative,,2/24/2015 11:35, \n", "row 1: the text is missing"),
        (HEADER + ",negative,,2/24/2015 11:35,fine\n", "row 1: the airline is missing"),
        (HEADER + 'Delta,negative,,2/24/2015 11:35,"fine', "is damaged: unexpected end of data"),
    ],
)
def test_damaged_tweets_are_named(content: str, message: str) -> None:
    text = complaint(DataError, lambda: rows_of(content))
    assert text.startswith("tweets.csv")
    assert message in text


def test_tweets_that_are_not_utf8_are_named() -> None:
    assert "is damaged" in complaint(
        DataError, lambda: parse_tweets(Path("tweets.csv"), HEADER.encode() + b"\xff\xfe")
    )


def test_days_are_clients_and_airlines_their_teams() -> None:
    lines = [
        ("Delta", "negative", "2/24/2015 1:00", "a"),
        ("Delta", "neutral", "2/25/2015 1:00", "b"),
        ("United", "positive", "2/24/2015 2:00", "c"),
    ]
    rows = rows_of(HEADER + "".join(f"{a},{s},,{d},{t}\n" for a, s, d, t in [*lines, lines[0]]))
    pool = pool_of(rows, VECTORS, by="day")
    assert pool.client_names == ("Delta 2015-02-24", "Delta 2015-02-25", "United 2015-02-24")
    assert pool.team is not None
    assert [pool.team_names[team] for team in pool.team] == ["Delta", "Delta", "United"]
    assert pool.y.tolist() == [0, 1, 2, 0]
    two = pool_of(rows, VECTORS, by="airline", binary=True, distinct=True)
    assert (two.y.tolist(), two.label_names, two.client_names) == (
        [0, 1],
        ("negative", "positive"),
        ("Delta", "United"),
    )
    assert two.team is None
    assert "by must be" in complaint(ValueError, lambda: pool_of(rows, VECTORS, by="hour"))
    assert "binary must be true or false" in complaint(
        ValueError, lambda: pool_of(rows, VECTORS, by="day", binary=1)
    )  # type: ignore[arg-type]


def test_airline_tweets_have_the_published_counts() -> None:
    root = real_tweets()
    pool = read_tweets(root)
    assert (len(pool), pool.x.shape[1], pool.label_names) == (
        14_640,
        25,
        ("negative", "neutral", "positive"),
    )
    assert torch.bincount(pool.y).tolist() == [9178, 3099, 2363]
    assert pool.client is not None
    table = torch.bincount(pool.client * 3 + pool.y).reshape(6, 3).tolist()
    assert dict(zip(pool.client_names, table, strict=True)) == {
        "United": [2633, 697, 492],
        "US Airways": [2263, 381, 269],
        "American": [1960, 463, 336],
        "Southwest": [1186, 664, 570],
        "Delta": [955, 723, 544],
        "Virgin America": [181, 171, 152],
    }
    path = root / "airline_sentiment" / "airline_tweets.csv.gz"
    rows = parse_tweets(path, gzip.decompress(path.read_bytes()))
    assert sum(row.sentiment != "neutral" for row in rows) == 11_541
    long = glove(root).encode((row.text for row in rows), length=60)
    known = float((long > UNKNOWN).sum() / (long != PADDING).sum())
    assert 0.82 < known < 0.88  # the word list covers about 85 % of the tokens
    assert int(long.max()) < len(glove(root).vectors)


def test_airline_tweets_by_day_make_a_federation_with_teams() -> None:
    federation = airline_sentiment(root=real_tweets(), by="day")
    assert federation.clients == 49
    assert federation.team_names == (
        "American",
        "Delta",
        "Southwest",
        "US Airways",
        "United",
        "Virgin America",
    )


def test_kaggles_own_table_will_do(tmp_path: Path) -> None:
    (tmp_path / "airline_sentiment").mkdir()
    (tmp_path / "glove").mkdir()
    (tmp_path / "glove" / "glove.6B.50d.txt").write_text(glove_lines(["good", "bad"])[0])
    header = "tweet_id,airline_sentiment,airline_sentiment_confidence,airline,text,tweet_created\n"
    body = "".join(
        f"{i},{'positive' if i % 2 else 'negative'},1.0,Delta,{'good' if i % 2 else 'bad'},2015-02-24"
        " 11:35:52 -0800\n"
        for i in range(8)
    )
    (tmp_path / "airline_sentiment" / "Tweets.csv").write_text(header + body)
    federation = airline_sentiment(root=tmp_path, binary=True, dimensions=50, split={"test": 0.25})
    assert federation.train.x[:, 0].tolist() == [2 if y else 3 for y in federation.train.y.tolist()]  # type: ignore[index]
    assert len(federation.train.x) == 6


def test_missing_tweets_say_where_to_get_them(tmp_path: Path) -> None:
    assert "Kaggle" in complaint(DataError, lambda: read_tweets(tmp_path))


# Sent140


def tweet(text: str) -> list[str]:
    return ["2087", "Sat May 16 23:58:44 UTC 2009", "NO_QUERY", "somebody", text, "training"]


def test_sent140_is_read_from_leafs_files(tmp_path: Path) -> None:
    (tmp_path / "glove").mkdir()
    (tmp_path / "glove" / "glove.6B.50d.txt").write_text(glove_lines(["good", "bad"])[0])
    for part, y in (("train", [0, 4, "0", "4", 1]), ("test", ["0", 4])):
        folder = tmp_path / "sent140" / "data" / part
        folder.mkdir(parents=True)
        x = [tweet("bad" if label in (0, "0") else "@you good thing") for label in y]
        (folder / "all.json").write_text(
            json.dumps(
                {"users": ["eve"], "num_samples": [len(y)], "user_data": {"eve": {"x": x, "y": y}}}
            )
        )
    federation = sent140(root=tmp_path, dimensions=50, length=3)
    assert federation.train.y.tolist() == [0, 1, 0, 1, 1]
    assert federation.train.x[:].tolist() == [[3, 0, 0], [1, 2, 1], [3, 0, 0], [1, 2, 1], [1, 2, 1]]
    assert federation.test is not None
    assert federation.test.y.tolist() == [0, 1]
    assert federation.label_names == ("negative", "positive")


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (tweet("fine"), 2, "user 'eve', row 1: unknown label 2; sentiments are 0 and 4"),
        (
            tweet("fine")[:4],
            0,
            "user 'eve', row 1: x must be a text, or a row with the text as its fifth entry",
        ),
        ([*tweet("")[:4], None], 0, "user 'eve', row 1: x must be a text"),
    ],
)
def test_damaged_sent140_is_named(tmp_path: Path, x: Any, y: Any, message: str) -> None:
    path = tmp_path / "all.json"
    path.write_text(
        json.dumps(
            {
                "users": ["eve"],
                "num_samples": [2],
                "user_data": {"eve": {"x": [tweet("ok"), x], "y": [0, y]}},
            }
        )
    )
    text = complaint(DataError, lambda: read_leaf(path))
    assert f"{path}, " in text
    assert message in text
