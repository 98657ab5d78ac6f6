"""Texts that follow a rule: they are like a list of the same texts."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest

from evenhand.data.texts import Repeated, Texts

TEXTS = Texts(range(3), (), ("old", "young"), Repeated("", 2))
LIST = ["0", "1", "2", "old", "young", "", ""]


def test_texts_are_like_a_list_of_the_same_texts() -> None:
    assert len(TEXTS) == len(LIST)
    assert list(TEXTS) == LIST
    assert TEXTS == LIST
    assert tuple(LIST) == TEXTS
    assert LIST[:-1] != TEXTS
    assert [*LIST[:-1], "x"] != TEXTS
    assert TEXTS != "012"
    assert [TEXTS[place] for place in range(-7, 7)] == LIST * 2
    for key in (slice(None), slice(2, 5), slice(None, None, -2), slice(-9, 9), slice(5, 2)):
        assert TEXTS[key] == LIST[key]
        assert Repeated("a", 4)[key] == (["a"] * 4)[key]
    assert "young" in TEXTS
    assert 2 not in TEXTS
    assert (TEXTS.index("2"), TEXTS.count("")) == (2, 2)
    assert repr(TEXTS) == repr(LIST)
    assert not Texts()
    for place in (7, -8):
        with pytest.raises(IndexError):
            TEXTS[place]
    with pytest.raises(IndexError):
        Repeated("a", 2)[2]


def test_texts_are_stored_and_tabled_as_a_list_of_the_same_texts() -> None:
    assert pickle.loads(pickle.dumps(TEXTS)) == LIST
    assert np.array_equal(np.asarray(TEXTS), np.asarray(LIST))
    pd.testing.assert_frame_equal(
        pd.DataFrame({"name": TEXTS, "count": np.arange(7)}),
        pd.DataFrame({"name": LIST, "count": np.arange(7)}),
    )


def test_a_million_names_take_no_memory() -> None:
    many = Texts(range(10**9), Repeated("", 10**9))
    assert len(pickle.dumps(many)) < 1000
    assert (many[10**9 - 1], many[-1]) == ("999999999", "")
