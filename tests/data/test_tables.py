"""Tables: what each kind of column becomes, worked out by hand; what is shared; files and their
faults."""

from __future__ import annotations

import datetime
import gzip
import json
import re
import shutil
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evenhand as eh
from evenhand.data.tables.columns import Column, client_sums, fit_column, statistics
from evenhand.data.tables.encoding import Encoding
from evenhand.data.tables.files import parse, read_table
from evenhand.data.tables.missing import emptied
from evenhand.data.tables.values import Values, text_of
from evenhand.errors import DataError

NAN = float("nan")


def patients() -> pd.DataFrame:
    """Six training rows of two clients, then two test rows."""
    return pd.DataFrame(
        {
            "site": ["b", "a", "a", "b", "b", "a", "a", "b"],
            "age": [10.0, 20.0, 30.0, NAN, 50.0, 90.0, 1e3, NAN],
            "colour": ["red", "blue", "?", "green", "red", "red", "violet", " blue "],
            "smokes": [0, 1, 1, 0, 0, 1, 1, 2],
            "ill": ["no", "yes", "yes", "no", "no", "no", "yes", "no"],
            "sex": ["F", "M", "F", "F", "M", None, "M", "F"],
        }
    )


TESTED = [False] * 6 + [True] * 2


def federation(table: pd.DataFrame | None = None, **settings: Any) -> eh.Federation:
    given = {"client": "site", "label": "ill", "held_out": TESTED, **settings}
    return eh.Federation.from_frame(patients() if table is None else table, **given)


def encoding_of(fed: eh.Federation) -> Encoding:
    assert fed.encoding is not None
    return fed.encoding


def column_of(fed: eh.Federation, name: str) -> Column:
    return next(column for column in encoding_of(fed).columns if column.name == name)


def encoded(values: Any, **settings: Any) -> tuple[Column, np.ndarray[Any, Any]]:
    """One column, fitted on all of its rows as one client's."""
    series = values if isinstance(values, pd.Series) else pd.Series(values)
    column = fit_column(
        Values("v", series), np.arange(len(series)), np.array([0, len(series)]), **settings
    )
    return column, column.encode(Values("v", series))[0] if column.kind != "left out" else np.empty(
        0
    )


# by hand


def test_every_number_of_a_small_table() -> None:
    fed = federation(drop=["sex"])
    # ages 10 20 30 50 90 (one missing): mean 40, squares 900 + 400 + 100 + 100 + 2500 = 4000, std
    # sqrt(800)
    std = 800**0.5
    assert encoding_of(fed).features == (
        "age",
        "age missing",
        "colour=blue",
        "colour=green",
        "colour=red",
        "colour=missing",
        "smokes=1",
    )
    assert fed.names == ("a", "b")
    expected_train = [
        [-20 / std, 0, 1, 0, 0, 0, 1],  # a: blue, 20
        [-10 / std, 0, 0, 0, 0, 1, 1],  # a: ?, 30
        [50 / std, 0, 0, 0, 1, 0, 1],  # a: red, 90
        [-30 / std, 0, 0, 0, 1, 0, 0],  # b: red, 10
        [0, 1, 0, 1, 0, 0, 0],  # b: green, no age
        [10 / std, 0, 0, 0, 1, 0, 0],  # b: red, 50
    ]
    torch.testing.assert_close(fed.train.x, torch.tensor(expected_train))
    assert fed.train.offsets.tolist() == [0, 3, 6]
    assert fed.label_names == ("no", "yes")
    assert fed.train.y.tolist() == [1, 1, 0, 0, 0, 0]
    assert fed.test is not None
    # a violet thing of 1000 years, and a blue one; smokes = 2 is neither of the two values known
    torch.testing.assert_close(
        fed.test.x, torch.tensor([[960 / std, 0, 0, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0, 0.5]])
    )
    assert {column.name: column.unseen for column in encoding_of(fed).columns} == {
        "age": 0,
        "colour": 1,
        "smokes": 1,
    }


def test_what_is_reported_of_each_column() -> None:
    fed = federation(drop=["sex"])
    age, colour, smokes = encoding_of(fed).columns
    assert (age.kind, age.missing, age.mean, age.std) == (
        "number",
        1,
        40.0,
        pytest.approx(800**0.5),
    )
    assert (colour.kind, colour.missing, colour.categories, colour.counts) == (
        "category",
        1,
        ("blue", "green", "red", "missing"),
        (1, 1, 3, 1),
    )
    assert (smokes.kind, smokes.missing, smokes.categories, smokes.counts) == (
        "yes/no",
        0,
        ("0", "1"),
        (3, 3),
    )
    assert encoding_of(fed).rows()[0] == {
        "column": "age",
        "kind": "number",
        "missing": 1,
        "values": "mean 40, std 28.28",
        "unseen": 0,
        "features": 2,
    }
    assert str(encoding_of(fed)).splitlines() == [
        "column  kind      missing  values                             unseen",
        "age     number    1        mean 40, std 28.28",
        "colour  category  1        blue 1, green 1, red 3, missing 1  1",
        "smokes  yes/no             0 3, 1 3                           1",
        "label ill: 2 classes, no, yes",
    ]
    assert repr(encoding_of(fed)) == "<Encoding: 3 of 3 columns, 7 features, label 'ill'>"


def test_dates_are_days_since_1970_and_standardised() -> None:
    stamps = pd.Series(pd.to_datetime(["1970-01-02", "1970-01-04", None, "1970-01-06"]))
    for dates in (
        stamps,
        stamps.dt.tz_localize("UTC"),
        pd.Series(["1970-01-02", "1970-01-04", "?", "1970-01-06"]),
        pd.Series(
            [datetime.date(1970, 1, 2), datetime.date(1970, 1, 4), None, datetime.date(1970, 1, 6)]
        ),
        stamps.dt.to_period("D"),
    ):
        column, block = encoded(dates)
        assert (column.kind, column.mean, column.std, column.missing) == (
            "date",
            3.0,
            pytest.approx((8 / 3) ** 0.5),
            1,
        )
        np.testing.assert_allclose(
            block, [[-(1.5**0.5), 0], [0, 0], [0, 1], [1.5**0.5, 0]], rtol=1e-6
        )


def test_a_time_zone_moves_the_day() -> None:
    column, _ = encoded(
        pd.Series(pd.to_datetime(["1970-01-01", "1970-01-02", "1970-01-03"])).dt.tz_localize(
            "Etc/GMT+12"
        )
    )
    assert column.mean == 1.5  # noon in Greenwich


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 3], "number"),
        ([1, 1, 2], "yes/no"),
        ([0.5, 7.25, 0.5], "yes/no"),
        ([1, NAN, 1], "yes/no"),  # there or not
        ([1, 2, NAN], "category"),  # two values and missing
        ([1.5, 2.5, 3.5], "number"),
        ([True, False, True], "yes/no"),
        ([True, False, None], "category"),
        (pd.array([1, 2, 3, None], dtype="Int64"), "number"),
        (pd.array([True, None, False], dtype="boolean"), "category"),
        (pd.array(["x", None, "y"], dtype="string"), "category"),
        (["1", "2.5", "?", "1e3"], "number"),  # numbers written as text
        (["1", "two", "3"], "category"),
        ([1, "1", 2.5, "b"], "category"),  # mixed: 1 and "1" are the same
        ([Decimal("1.5"), Decimal("2.5"), Decimal("4")], "number"),
        (pd.Categorical([1, 2, 3], categories=[3, 2, 1, 0]), "category"),
        (pd.to_timedelta([1, 2, 4], unit="D"), "number"),
        (["x", "x", "x"], "left out"),
        ([5, 5, 5], "left out"),
        ([NAN, NAN], "left out"),
        (["?", "", "NA"], "left out"),
        ([1 + 2j, 3j, 4], "left out"),
        ([[1], [2], [3]], "left out"),
    ],
)
def test_kinds_are_inferred(values: Any, kind: str) -> None:
    column, _ = encoded(values)
    assert column.kind == kind
    assert bool(column.why) == (kind == "left out")


def test_the_user_may_say_what_a_column_is() -> None:
    assert encoded([1, 2, 3], wanted="category")[0].categories == ("1", "2", "3")
    assert encoded([0, 1, 1, 0], wanted="number")[0].std == 0.5
    assert (
        encoded(["a", "b", "c"] * 20 + [str(i) + "x" for i in range(60)], wanted="category")[0].kind
        == "category"
    )
    fed = federation(categorical=["age"], numeric=["smokes"])
    assert column_of(fed, "age").categories == ("10", "20", "30", "50", "90", "missing")
    assert column_of(fed, "smokes").kind == "number"


def test_categories_keep_the_order_of_a_pandas_category_without_those_that_do_not_occur() -> None:
    column, _ = encoded(
        pd.Categorical(["low", "high", "low", "mid"], categories=["low", "mid", "high", "extreme"])
    )
    assert column.categories == ("low", "mid", "high")
    # by value, not by letter
    assert encoded([10, 9, 100, 9], wanted="category")[0].categories == ("9", "10", "100")


def test_identifiers_and_columns_with_too_many_values_are_left_out() -> None:
    names = [f"patient {i}" for i in range(20)]
    assert "identifier" in encoded(names)[0].why
    assert (
        "60 distinct values; at most 50 are allowed"
        in encoded([f"v{i}" for i in range(60)] * 2)[0].why
    )
    rows = np.arange(12)

    def kind(name: str, values: Any) -> str:
        return fit_column(Values(name, pd.Series(values)), rows, np.array([0, 12])).kind

    assert (
        kind("patient_id", range(12))
        == kind("patientId", range(12))
        == kind("Unnamed: 0", range(12))
        == "left out"
    )
    assert kind("humid", range(12)) == "number"  # ends in "id", but is no word of its own
    assert kind("patient_id", [1, *range(11)]) == "number"  # a value twice


def test_whole_numbers_have_one_name() -> None:
    assert {
        text_of(value) for value in (1, 1.0, "1", " 1 ", np.int8(1), np.float32(1), Decimal("1.0"))
    } == {"1"}
    assert text_of(0.1) == "0.1"
    assert text_of(np.bool_(True)) == "True"


# what is shared


def test_statistics_from_clients_sums_are_those_of_the_pooled_rows() -> None:
    rng = np.random.default_rng(0)
    # far from 0: a sum of plain squares would lose half the digits
    values = rng.normal(1e6, 3.0, 1000)
    values[rng.random(1000) < 0.1] = np.nan
    offsets = np.array([0, 1, 400, 401, 1000])
    missing, mean, std = statistics(values, offsets)
    assert missing == np.isnan(values).sum()
    assert mean == pytest.approx(np.nanmean(values), rel=1e-14)
    assert std == pytest.approx(np.nanstd(values), rel=1e-11)


def test_what_a_client_sends_depends_on_its_rows_alone() -> None:
    values = np.random.default_rng(1).normal(size=50)
    offsets = np.array([0, 7, 8, 30, 50])
    sums = client_sums(values, offsets)
    for k in range(4):
        alone = values[offsets[k] : offsets[k + 1]]
        assert sums[k] == client_sums(alone, np.array([0, len(alone)]))[0]


def test_test_rows_change_nothing_in_the_encoding() -> None:
    before = federation()
    table = patients()
    table.loc[6, ["age", "colour", "smokes"]] = [1e9, "octarine", 7]
    table.loc[7, ["age", "colour"]] = [-1e9, "?"]
    after = federation(table)
    assert torch.equal(before.train.x, after.train.x)
    same = [
        (one.kind, one.mean, one.std, one.categories, one.counts, one.missing)
        == (two.kind, two.mean, two.std, two.categories, two.counts, two.missing)
        for one, two in zip(encoding_of(before).columns, encoding_of(after).columns, strict=True)
    ]
    assert all(same)


def test_text_in_a_test_row_of_a_number_is_an_error_that_names_the_row() -> None:
    table = patients().astype({"age": object})
    table.loc[7, "age"] = "old"
    with pytest.raises(DataError, match=r"column 'age': 'old' in row 8 is not a number"):
        federation(table)


def test_the_order_of_rows_and_clients_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    table = pd.DataFrame(
        {
            "site": rng.choice(list("abcd"), 80),
            "x": rng.normal(5, 2, 80),
            "c": rng.choice(["u", "v", "w"], 80),
            "y": rng.integers(0, 2, 80),
            "tested": rng.random(80) < 0.3,
        }
    )
    order = rng.permutation(80)
    one, two = (
        eh.Federation.from_frame(rows, client="site", label="y", held_out="tested")
        for rows in (table, table.iloc[order])
    )
    renamed = eh.Federation.from_frame(
        table.assign(site=table["site"].map(dict(zip("abcd", "zyxw", strict=True)))),
        client="site",
        label="y",
        held_out="tested",
    )
    assert encoding_of(one).features == encoding_of(two).features == encoding_of(renamed).features
    for client in range(4):
        rows = [
            sorted(fed.train.client(k)[0].tolist())
            for fed, k in ((one, client), (two, client), (renamed, 3 - client))
        ]
        np.testing.assert_allclose(rows[0], rows[1], rtol=1e-5)
        np.testing.assert_allclose(rows[0], rows[2], rtol=1e-5)


# groups, teams, labels, clients


def test_groups_are_intersections_of_those_that_occur() -> None:
    fed = federation(group=["sex", "smokes"])
    assert fed.group_names == (
        "F & smokes=0",
        "F & smokes=1",
        "F & smokes=2",
        "M & smokes=0",
        "M & smokes=1",
        "unknown & smokes=1",
    )
    assert fed.train.group is not None
    # a: M smokes, F smokes, unknown smokes; b: F, F, M
    assert fed.train.group.tolist() == [4, 1, 5, 0, 0, 3]
    assert federation(group="sex").group_names == ("F", "M", "unknown")


def test_a_group_stays_a_feature_unless_it_is_dropped() -> None:
    assert "sex" in {column.name for column in encoding_of(federation(group="sex")).columns}
    fed = federation(group="sex", drop=["sex"])
    assert "sex" not in {column.name for column in encoding_of(fed).columns}
    assert fed.group_names == ("F", "M", "unknown")


def test_client_team_label_and_split_are_no_features() -> None:
    table = patients().assign(
        region=lambda rows: rows["site"].map({"a": "north", "b": "south"}), tested=TESTED
    )
    fed = eh.Federation.from_frame(
        table, client="site", label="ill", team="region", held_out="tested"
    )
    assert [column.name for column in encoding_of(fed).columns] == [
        "age",
        "colour",
        "smokes",
        "sex",
    ]
    assert fed.team_names == ("north", "south")
    assert fed.teams is not None
    assert fed.teams.tolist() == [0, 1]


def test_a_team_must_be_the_same_in_all_rows_of_a_client() -> None:
    with pytest.raises(DataError, match=r"team: client . has rows of 'F' and 'M'|'M' and 'F'"):
        federation(patients().assign(sex=["F", "M", "F", "F", "M", "F", "M", "F"]), team="sex")
    with pytest.raises(ValueError, match="team needs a client column"):
        eh.Federation.from_frame(
            patients(), client=None, label="ill", team="sex", partition="iid", clients=2
        )


def test_a_condition_makes_a_label_a_group_or_a_client() -> None:
    table = patients().assign(target=[0, 1, 2, 3, 0, 0, 1, 0])
    fed = federation(table, label="target > 0")
    assert fed.label_names == ("target <= 0", "target > 0")
    assert fed.train.y.tolist() == [1, 1, 0, 0, 1, 0]
    assert "target" not in {column.name for column in encoding_of(fed).columns}
    fed = federation(table, label="target", group="age>=30", client="colour == red")
    assert fed.group_names == ("age < 30", "age >= 30", "unknown")
    assert fed.names == ("colour != red", "colour == red")
    assert encoding_of(fed).dropped == (("no value of colour == red", 1),)
    dated = table.assign(day=["2020-01-01", "2020-06-01"] * 4)
    # a has rows 1, 2, 5; b 0, 3, 4
    assert federation(dated, label="day < 2020-03-01").train.y.tolist() == [0, 1, 0, 1, 0, 1]


def test_the_column_of_a_condition_is_a_feature_for_a_group_alone() -> None:
    table = patients().assign(
        bed=[200, 10, 10, 200, 200, 10, 10, 200], day=[1, 2, 3, 4, 5, 6, 7, 8], n=range(8)
    )
    conditions = {"client": "site == a", "team": "bed > 100", "held_out": "day > 6"}
    fed = federation(table, label="n > 3", group="age > 25", **conditions)
    assert [column.name for column in encoding_of(fed).columns] == [
        "age",
        "colour",
        "smokes",
        "ill",
        "sex",
    ]
    assert fed.team_names == ("bed <= 100", "bed > 100")
    assert fed.group_names == ("age <= 25", "age > 25", "unknown")


def test_a_condition_chooses_the_rows_to_test_on() -> None:
    table = patients().assign(year=[2019, 2019, 2020, 2018, 2019, 2020, 2021, 2022])
    by_year = federation(table, held_out="year >= 2021")
    by_hand = federation(table.drop(columns="year"), held_out=TESTED)
    assert by_year.fingerprint() == by_hand.fingerprint()
    assert encoding_of(by_year) == encoding_of(by_hand)
    with pytest.raises(DataError, match="true or false in every row, found a missing value of 'a"):
        federation(held_out="age > 20")
    with pytest.raises(ValueError, match="held_out: there is no column 'yaer'; did you mean 'year"):
        federation(table, held_out="yaer > 2020")


def test_a_column_whose_name_looks_like_a_condition_is_that_column() -> None:
    table = patients().rename(columns={"ill": "x > 1"})
    assert federation(table, label="x > 1").label_names == ("no", "yes")
    table = patients().assign(**{"age > 60": TESTED})
    assert (
        federation(table, held_out="age > 60").fingerprint()
        == federation(patients(), held_out=TESTED).fingerprint()
    )


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("colour > red", "text, which can only be compared with == and !="),
        ("colour == mauve", "no row has colour 'mauve'; the values are blue, green, red"),
        ("age > old", "'age' has numbers and cannot be compared with 'old'"),
        ("agee > 3", "there is no column 'agee'; did you mean 'age'"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(condition: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        federation(label=condition)


def test_a_regression_is_standardised_by_training_rows_and_can_be_undone() -> None:
    table = patients().assign(cost=[2.5, 4.0, 6.0, 8.5, 10.5, 12.0, 1e6, -1.0])
    fed = federation(table, label="cost", drop=["ill"])
    encoding = encoding_of(fed)
    train = np.array([4.0, 6.0, 12.0, 2.5, 8.5, 10.5])
    assert (encoding.task, fed.label_names) == ("regression", ())
    assert encoding.label_mean == pytest.approx(7.25)
    assert encoding.label_std == pytest.approx(train.std())
    torch.testing.assert_close(fed.train.y, torch.tensor((train - 7.25) / train.std()).float())
    torch.testing.assert_close(encoding.unscaled(fed.train.y), torch.tensor(train).float())
    assert "a number, mean 7.25" in encoding.notes()[0]


def test_the_task_is_inferred_and_may_be_given() -> None:
    numbers = patients().assign(
        n=[0, 1, 2, 0, 1, 2, 0, 1], many=range(8), half=[0.5, 1, 1, 2, 2, 3, 3, 4]
    )
    assert federation(numbers, label="n").label_names == ("0", "1", "2")
    assert encoding_of(federation(numbers, label="n", task="regression")).task == "regression"
    assert encoding_of(federation(numbers, label="half")).task == "regression"
    assert len(federation(numbers, label="half", task="classification").label_names) == 5
    whole = pd.DataFrame({"site": ["a"] * 30, "x": range(30), "y": range(30)})
    # more than 20 values
    assert (
        encoding_of(eh.Federation.from_frame(whole, client="site", label="y")).task == "regression"
    )
    with pytest.raises(ValueError, match="has text, which cannot be predicted as a number"):
        federation(task="regression")
    with pytest.raises(ValueError, match="has dates"):
        federation(patients().assign(day=pd.date_range("2020", periods=8)), label="day")
    with pytest.raises(ValueError, match="task must be"):
        federation(task="ranking")


def test_rows_without_label_or_client_are_left_out_and_reported() -> None:
    table = patients()
    table.loc[0, "ill"] = "?"
    table.loc[1, "site"] = None
    encoding = encoding_of(federation(table))
    assert encoding.dropped == (("no value of ill", 1), ("no value of site", 1))
    assert "1 row skipped: no value of ill" in encoding.notes()


def test_a_client_all_of_whose_rows_are_left_out_is_reported() -> None:
    table = patients()
    table.loc[table["site"] == "b", "ill"] = None
    fed = federation(table)
    assert fed.names == ("a",)
    assert encoding_of(fed).lost == ("b",)
    assert "client b skipped: none of its rows can be used" in encoding_of(fed).notes()


def test_an_infinite_number_is_an_error_with_row_and_column() -> None:
    table = patients()
    table.loc[3, "age"] = np.inf
    with pytest.raises(
        DataError, match="column 'age': 'inf' in row 4 is not a finite number; correct or empty it"
    ):
        federation(table)
    table.loc[0, "ill"] = None  # rows are counted in the user's table, whatever was left out
    with pytest.raises(DataError, match="row 4"):
        federation(table)


def test_numbers_that_cannot_be_added_up_are_an_error() -> None:
    with pytest.raises(DataError, match="column 'age' has numbers too large to add up"):
        federation(patients().assign(age=[1e308, -1e308, 1e308, 1e307, 1, 2, 3, 4]))
    with pytest.raises(
        DataError,
        match="column 'age' has a value in row 7 that is far too large compared with the others",
    ):
        federation(patients().assign(age=[1, 2, 3, 4, 5, 6, 1e300, 4]))


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (lambda t: t.iloc[:0], {"held_out": None}, "the table has no rows"),
        (lambda t: t.assign(ill="no"), {}, "label 'ill' has only one class, 'no'"),
        (lambda t: t.assign(ill=None), {}, "no row of the table has a label and a client"),
        (lambda t: t[["site", "ill"]], {}, "no feature column is left"),
        (
            lambda t: t.assign(ill=2.5),
            {"task": "regression"},
            "label 'ill' is the same in all rows",
        ),
        (
            lambda t: t.set_axis(["site", "age", "age", "smokes", "ill", "sex"], axis=1),
            {},
            "two columns named 'age'",
        ),
        (
            lambda t: t,
            {"held_out": ["maybe"] * 8},
            "held_out must be true or false in every row, found maybe",
        ),
    ],
)
def test_tables_that_cannot_be_used_are_refused(
    change: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        federation(change(patients()), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client": "siet"}, "client: there is no column 'siet'; did you mean 'site'"),
        (
            {"drop": ["nothing_like_it_at_all"]},
            "drop: there is no column .*; the columns are site, age",
        ),
        ({"client": None}, "client must name a column; or pass a partition"),
        ({"held_out": [True]}, "held_out must have an entry for each of the 8 rows"),
        (
            {"group": "age", "most_categories": 2},
            "group: 'age' has 6 distinct values; use a condition",
        ),
    ],
)
def test_wrong_arguments_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        federation(**settings)


def test_only_a_data_frame_will_do() -> None:
    with pytest.raises(TypeError, match="must be a pandas DataFrame, got dict"):
        eh.Federation.from_frame({"a": [1]}, client="a", label="a")  # type: ignore[arg-type]


# awkward frames


def test_names_that_are_no_text_and_an_index_with_repeats_do_not_disturb() -> None:
    table = patients().set_axis([0, 1, 2, 3, 4, ("a", 5)], axis=1)
    table.index = [7] * 8
    fed = eh.Federation.from_frame(table, client=0, label=4, group=[("a", 5)], held_out=TESTED)
    reference = federation(group="sex")
    assert torch.equal(fed.train.x, reference.train.x)
    assert fed.group_names == reference.group_names
    assert torch.equal(
        encoding_of(fed).transform(table.iloc[:3]),
        encoding_of(reference).transform(patients().iloc[:3]),
    )


def test_nullable_types_and_plain_ones_give_the_same() -> None:
    plain = federation().train.x
    assert torch.equal(federation(patients().convert_dtypes()).train.x, plain)
    assert torch.equal(
        federation(
            patients().astype({"colour": "category", "sex": "category", "site": "category"})
        ).train.x,
        plain,
    )
    assert torch.equal(federation(patients().astype(object)).train.x, plain)


def test_a_partition_deals_rows_that_have_no_client() -> None:
    table = pd.concat([patients()] * 10, ignore_index=True)
    fed = eh.Federation.from_frame(
        table,
        client=None,
        label="ill",
        group="sex",
        partition={"name": "dirichlet", "alpha": 1.0},
        clients=4,
    )
    assert fed.clients == 4
    assert len(fed.train.x) + len(fed.test.x if fed.test is not None else []) == 80
    assert column_of(fed, "site").kind == "yes/no"  # nobody's client: a feature like any other


def test_groups_and_labels_stay_with_their_rows_through_a_partition() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1000, 300)
    table = pd.DataFrame({"x": x, "y": x % 3, "g": x % 5})
    fed = eh.Federation.from_frame(
        table,
        client=None,
        label="y",
        group="g",
        drop=["g"],
        partition="iid",
        clients=7,
        split={"val": 0.1, "test": 0.2},
    )
    column = column_of(fed, "x")
    for part in (fed.train, fed.val, fed.test):
        assert part is not None
        assert part.group is not None
        value = (part.x[:, 0].double() * column.std + column.mean).round().long()
        assert torch.equal(value % 3, part.y)
        assert torch.equal(value % 5, part.group)


# the encoding on new rows


def test_transform_gives_what_training_used() -> None:
    fed = federation()
    encoding = encoding_of(fed)
    assert fed.test is not None
    again = encoding.transform(patients())
    assert torch.equal(again[[1, 2, 5, 0, 3, 4]], fed.train.x)
    assert torch.equal(again[[6, 7]], fed.test.x)
    assert again.dtype == torch.float32


def test_transform_takes_columns_in_any_order_and_counts_what_it_has_not_seen() -> None:
    encoding = encoding_of(federation())
    new = patients().iloc[[6, 0]][["smokes", "sex", "colour", "age"]].assign(other=1)
    assert torch.equal(encoding.transform(new), encoding.transform(patients().iloc[[6, 0]]))
    assert encoding.unseen(new) == {"colour": 1}
    assert encoding.transform(patients().iloc[:0]).shape == (0, len(encoding.features))


def test_transform_names_the_column_that_is_wrong() -> None:
    encoding = encoding_of(federation())
    with pytest.raises(DataError, match="column 'age' is missing; the model needs it"):
        encoding.transform(patients().drop(columns="age"))
    with pytest.raises(DataError, match="column 'age': 'old' in rows 1, 2, 3 and 5 more are not"):
        encoding.transform(patients().assign(age="old"))
    with pytest.raises(DataError, match="column 'age' appears twice"):
        encoding.transform(pd.concat([patients(), patients()[["age"]]], axis=1))


def test_an_encoding_survives_json() -> None:
    table = patients().assign(cost=np.linspace(0, 1, 8), constant=1)
    for fed in (federation(), federation(table, label="cost")):
        encoding = encoding_of(fed)
        again = Encoding.from_json(json.loads(json.dumps(encoding.to_json(), allow_nan=False)))
        assert again == encoding
        assert torch.equal(again.transform(table), encoding.transform(table))


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"format": 2, "columns": []},
        {"format": 1, "columns": [{"name": "x"}], "label": "y"},
        {"format": 1},
    ],
)
def test_what_is_no_saved_encoding_is_refused(saved: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="this is not a saved encoding"):
        Encoding.from_json(saved)


CELLS = {
    "number": st.one_of(st.floats(-1e6, 1e6), st.integers(-5, 5), st.none()),
    "text": st.one_of(st.sampled_from(["a", "b", "", "?", "é", "0"]), st.none()),
    "flag": st.booleans(),
    "mixed": st.one_of(st.integers(0, 3), st.sampled_from(["x", "1"]), st.none(), st.booleans()),
}


@given(data=st.data(), rows=st.integers(2, 25))
@settings(max_examples=60, deadline=None)
def test_any_frame_becomes_finite_numbers_that_transform_repeats(
    data: st.DataObject, rows: int
) -> None:
    columns = {
        name: data.draw(st.lists(cells, min_size=rows, max_size=rows))
        for name, cells in CELLS.items()
    }
    table = pd.DataFrame(
        {name: pd.Series(values, dtype=object) for name, values in columns.items()}
    )
    table["steady"] = np.arange(rows) % 3 - 1.0  # so that something is left to learn from
    table["site"] = data.draw(st.lists(st.sampled_from("pq"), min_size=rows, max_size=rows))
    table["y"] = np.arange(rows) % 2
    tested = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    # each client trains on something
    tested[[table["site"].eq(site).idxmax() for site in table["site"].unique()]] = False
    try:
        fed = eh.Federation.from_frame(table, client="site", label="y", held_out=tested)
    except DataError as error:
        assert re.search("no feature column is left|is not a number|are not numbers", str(error))  # noqa: PT017 - any may happen, none must
        return
    encoding = encoding_of(fed)
    matrix = encoding.transform(table)
    assert bool(torch.isfinite(matrix).all())
    assert matrix.shape == (rows, len(encoding.features)) == (rows, fed.train.x.shape[1])
    order = np.argsort(table["site"].to_numpy()[~tested], kind="stable")
    assert torch.equal(matrix[np.flatnonzero(~tested)[order]], fed.train.x)
    place = 0
    for column in encoding.columns:
        block = fed.train.x[:, place : place + len(column.features)].double()
        place += len(column.features)
        if column.kind == "number":
            present = block[:, 0] if not column.missing else block[block[:, 1] == 0, 0]
            assert float(present.mean()) == pytest.approx(0, abs=1e-5)
            assert float(present.square().mean()) == pytest.approx(1, rel=1e-4)
        elif column.kind == "category":
            # every training row has a category that is known
            assert bool((block.sum(1) == 1).all())
            assert block.sum(0).tolist() == list(column.counts)
    assert Encoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


# files


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_tables_are_read_from_every_format(tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [1.5, NAN, 3.0], "b": ["x, y", "z", None]})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "t.csv.gz", index=False)
    table.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    table.to_csv(tmp_path / "t.data.gz", index=False)
    shutil.copy(tmp_path / "t.csv.gz", tmp_path / "T2.CSV.GZ")
    for name in ("t.csv", "t.csv.gz", "t.tsv", "t.data.gz", "T2.CSV.GZ"):
        pd.testing.assert_frame_equal(read_table(tmp_path / name), table)
    pytest.importorskip("pyarrow")
    table.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(str(tmp_path / "t.parquet")), table, check_dtype=False)


def test_markers_of_missing_values_and_a_byte_order_mark_are_understood(tmp_path: Path) -> None:
    table = read_table(
        written(tmp_path / "t.csv", "\ufeffage, city\r\n1, Bonn\r\n?, NA\r\n , \r\nN/A,None\r\n")
    )
    assert table.columns.tolist() == ["age", "city"]
    assert table["age"].isna().tolist() == [False, True, True, True]
    assert table["city"].tolist()[3] == "None"  # a word like any other


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("a,b\n", "has column names but no rows"),
        ("a,b,a\n1,2,3\n", "has two columns named 'a'; rename one"),
        ("a,b\n1,2\n3,4,5\n", "line 3 has 3 fields, but the table has 2 columns"),
        ("a,b\n1,2,9\n3,4,5\n", "line 2 has 3 fields, but the table has 2 columns"),
        ("a,b,c\n1,2,3\n4,5\n", "line 3 has 2 fields, but the table has 3 columns"),
        ("a,b\n1,2\n'x',\"unclosed\n3,4\n", "is not a table|line . "),
        (
            # UTF-8 but for one byte: cp1252 would make two wrong letters of each of the others
            "a,b\n1,Zürich\n2,Köln\n3,M".encode() + b"\xfcnchen\n",
            r"line 4 is not utf-8 text \(byte 0xfc at position 25\); save the file as UTF-8, or pass"
            " its encoding with --encoding NAME",
        ),
        (
            b"\x89PNG\0\0\0,\n1,2",
            r"is not a table, or its encoding cannot be guessed \(byte 0x00 at position 4\);"
            " pass it with --encoding NAME",
        ),
        ("a,b, a\n1,2,3\n", "has columns ' a' and 'a', which differ only in spaces"),
        (b"a\0b,c\n1,2\n", "is not a table: it contains bytes that are not text"),
    ],
)
def test_a_file_that_is_no_table_gives_one_line_with_its_name(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = written(tmp_path / "bad.csv", content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value).splitlines()) == 1


def test_paths_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.csv does not exist"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(DataError, match=r"notes.docx is not a supported table; pass a .csv"):
        read_table(written(tmp_path / "notes.docx", "x"))
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder.csv is a folder"):
        read_table(tmp_path / "folder.csv")


def test_damaged_compressed_files_are_told(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 1000)
    for content in (whole[:-20], b"a,b\n1,2\n"):
        with pytest.raises(DataError, match=r"bad.csv.gz cannot be read"):
            read_table(written(tmp_path / "bad.csv.gz", content))
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"bad.parquet is not a Parquet file, or damaged"):
        read_table(written(tmp_path / "bad.parquet", b"PAR1 but not really"))


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        DataError,
        match=r"needs pyarrow: pip install pyarrow \(extra: evenhand\[parquet\]\), or save",
    ):
        read_table(written(tmp_path / "t.parquet", b"PAR1"))


def test_a_short_row_that_ends_in_a_missing_value_is_no_error() -> None:
    assert len(parse(b"a,b\n1,\n2,3\n\n4,?\n", "t")) == 3


def test_what_the_user_calls_missing_is_missing_in_every_column(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "crp,age\n<0.5,999\n1.5,999.0\n  <0.5 ,40\n2.25,41\n")
    assert read_table(path)["crp"].tolist() == ["<0.5", "1.5", "<0.5 ", "2.25"]
    for missing in (["<0.5", "999"], ["<0.5", 999.0]):
        read = read_table(path, missing=missing)
        assert read["age"].tolist()[2:] == [40.0, 41.0]
        assert read["age"].isna().tolist() == [True, True, False, False]
        assert [Values("crp", read["crp"]).numbers.tolist()[i] for i in (1, 3)] == [1.5, 2.25]
        assert read["crp"].isna().tolist() == [True, False, True, False]
    pytest.importorskip("pyarrow")
    pd.DataFrame({"crp": ["<0.5", "x"], "age": [999, 40]}).to_parquet(tmp_path / "t.parquet")
    read = read_table(tmp_path / "t.parquet", missing=["<0.5", 999])
    assert read.isna().to_numpy().tolist() == [[True, True], [False, False]]
    with pytest.raises(DataError, match=r"t.parquet is a Parquet file, which has no encoding"):
        read_table(tmp_path / "t.parquet", encoding="utf-8")


def test_missing_is_text_and_no_comparison_also_with_decimal_commas(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "site;crp\na;0,2\nb;<0,5\na;1,5\n")
    read = read_table(path, missing="<0,5")["crp"]
    assert read.tolist()[::2] == [0.2, 1.5]  # 0.2 is below 0.5, and a value
    assert bool(np.isnan(read[1]))


def test_missing_in_a_frame_is_missing_in_new_rows_too() -> None:
    table = patients().assign(crp=["<0.5", "1", "2", "3", "6", "<0.5", "9", "9"])
    fed = federation(table, missing=["<0.5", "red"])
    crp = column_of(fed, "crp")
    # 1, 2, 3, 6 of the training rows: mean 3, squares 4 + 1 + 0 + 9, std sqrt(14 / 4)
    assert (crp.kind, crp.missing, crp.mean) == ("number", 2, 3.0)
    assert crp.std == pytest.approx(3.5**0.5)
    # three red ones and a question mark
    assert column_of(fed, "colour").counts == (1, 1, 4)
    encoding = encoding_of(fed)
    assert encoding.missing == ("<0.5", "red")
    again = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    new = table.iloc[[0]]
    place = encoding.features.index("crp missing")
    assert again.transform(new)[0, place - 1 : place + 1].tolist() == [0, 1]
    with pytest.raises(DataError, match="column 'crp': '<1' in row 1 is not a number"):
        again.transform(new.assign(crp="<1"))


def test_missing_numbers_are_numbers_in_texts_too() -> None:
    column = pd.Series(["999.0", "9.99e2", "99", "x", None, 999])
    assert emptied(column, ("999",)).isna().tolist() == [True, True, False, False, True, True]
    assert emptied(column, ()) is column
    lists = pd.Series([[1], [2]])
    assert emptied(lists, ("999",)) is lists


def test_missing_takes_texts_and_numbers_alone() -> None:
    with pytest.raises(TypeError, match=r"missing must be texts or numbers, got \{'age': 9\}"):
        federation(missing=[{"age": 9}])


def test_an_encoding_is_saved_with_the_texts_that_mean_missing_only_if_there_are_some() -> None:
    assert "missing" not in encoding_of(federation()).to_json()
    assert encoding_of(federation(missing=["999"])).to_json()["missing"] == ["999"]


UMLAUTS = "Größe;Straße\n1,80;Nürnberg «Süd»\n1,75;Žižkov\n"


@pytest.mark.parametrize(
    ("content", "guessed"),
    [
        (UMLAUTS.encode(), None),
        (UMLAUTS.encode("utf-8-sig"), None),
        (UMLAUTS.encode("utf-16"), "utf-16"),
        (UMLAUTS.encode("utf-16-le"), "utf-16-le"),
        (UMLAUTS.encode("utf-16-be"), "utf-16-be"),
        (b"\xfe\xff" + UMLAUTS.encode("utf-16-be"), "utf-16"),
        (UMLAUTS.encode("utf-32"), "utf-32"),
        (UMLAUTS.encode("cp1252"), "cp1252"),
    ],
)
def test_encodings_are_guessed_and_told(
    tmp_path: Path, content: bytes, guessed: str | None
) -> None:
    read = read_table(written(tmp_path / "t.csv", content))
    assert read.columns.tolist() == ["Größe", "Straße"]
    assert read["Größe"].tolist() == [1.8, 1.75]
    assert read["Straße"].tolist() == ["Nürnberg «Süd»", "Žižkov"]
    assert read.attrs.get("encoding") == guessed


def test_a_named_encoding_is_not_guessed(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", UMLAUTS.encode("cp1250"))
    read = read_table(path, encoding="cp1250")
    assert read["Straße"].tolist() == ["Nürnberg «Süd»", "Žižkov"]
    assert "encoding" not in read.attrs
    marked = written(tmp_path / "marked.csv", b"\xef\xbb\xbf" + UMLAUTS.encode())
    assert read_table(marked, encoding="utf-8").columns[0] == "Größe"
    for name in ("cp99", "base64"):
        with pytest.raises(
            DataError, match=f"unknown text encoding '{name}'; use a name that Python knows"
        ):
            read_table(path, encoding=name)
    utf16 = "a;b\n1;2\nü;3".encode("utf-16-le")[:-1]
    with pytest.raises(
        DataError, match=r"odd.csv line 3 is not utf-16 text \(byte 0x33 at position 20\)"
    ):
        read_table(written(tmp_path / "odd.csv", utf16), encoding="utf-16")


def test_names_of_columns_have_no_spaces_around_them(tmp_path: Path) -> None:
    text = '\ufeff" age ",site , "weight, kg", \u00a0sex\n1,a,2,f\n'
    read = read_table(written(tmp_path / "t.csv", text))
    assert read.columns.tolist() == ["age", "site", "weight, kg", "sex"]
    blank = read_table(written(tmp_path / "blank.csv", 'a," ",,c\n1,2,3,4\n'))
    assert blank.columns.tolist() == ["a", "Unnamed: 1", "Unnamed: 2", "c"]
    # a spec of an earlier version may have the spaces
    table = patients().assign(tested=TESTED)
    fed = eh.Federation.from_frame(table, client=" site", label="ill ", held_out="tested")
    assert fed.names == ("a", "b")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a\tb, c\td\n1\t2\t3\n", ["a", "b, c", "d"]),
        ('"a;b;c",d\n1,2\n', ["a;b;c", "d"]),  # semicolons in quotes separate nothing
        ("a;b\n1;2\n", ["a", "b"]),
        ("a\n1\n", ["a"]),
    ],
)
def test_what_separates_the_fields_of_a_csv_file_is_seen_in_its_header(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    assert read_table(written(tmp_path / "t.csv", text)).columns.tolist() == names


def test_all_bad_cells_of_all_columns_are_one_error() -> None:
    rows = 120
    table = pd.DataFrame(
        {
            "site": ["a", "b"] * 60,
            "crp": [str(i / 10) for i in range(rows)],
            "age": [str(i) for i in range(rows)],
            "weight": np.linspace(40, 99, rows),
            "fine": np.arange(rows) % 7,
            "ill": ["yes", "no", "no", "yes"] * 30,
        }
    )
    table.loc[[3, 8, 11, 40, 41], "crp"] = "<0.5"
    table.loc[[7, 9], "crp"] = ["n.d.", "n d"]
    table.loc[12, "crp"] = "x" * 50
    table.loc[5, "age"] = "forty"
    table.loc[[0, 1], "weight"] = [np.inf, -np.inf]
    with pytest.raises(DataError) as caught:
        eh.Federation.from_frame(table, client="site", label="ill")
    assert str(caught.value) == (
        "column 'crp': '<0.5' in rows 4, 9, 12 and 2 more, 'n.d.' in row 8, 'n d' in row 10 and 1"
        " other text are not numbers; column 'age': 'forty' in row 6 is not a number; column"
        " 'weight': '-inf' in row 2 and 'inf' in row 1 are not finite numbers; correct or empty"
        " them, pass --missing '<0.5' --missing n.d. --missing 'n d' if they mean missing, or pass"
        " the column to --drop or --categorical"
    )
    # what was called missing is gone, and the rest is still told
    with pytest.raises(DataError) as caught:
        eh.Federation.from_frame(
            table, client="site", label="ill", missing=["<0.5", "n.d.", "n d"], drop=["weight"]
        )
    long = f"'{'x' * 37}...' in row 13"
    assert str(caught.value).startswith(
        f"column 'crp': {long} is not a number; column 'age': 'forty' in row 6 is not a number; "
    )


def test_bad_cells_of_very_many_columns_are_counted() -> None:
    table = pd.DataFrame({f"c{i}": [*map(str, range(99)), "x"] for i in range(10)})
    table = table.assign(site="a", ill=["yes", "no"] * 50)
    with pytest.raises(DataError, match="; 2 more columns with such cells; correct") as caught:
        eh.Federation.from_frame(table, client="site", label="ill")
    assert str(caught.value).count("in row 100") == 8


# the whole way


def test_a_model_trained_on_a_table_separates_it_and_predicts_new_rows() -> None:
    rng = np.random.default_rng(0)
    age, wing = rng.normal(60, 10, 240), rng.choice(["east", "west"], 240)
    ill = np.where(age + 15 * (wing == "west") > 67, "yes", "no")
    table = pd.DataFrame(
        {"site": rng.choice(["p", "q", "r"], 240), "age": age, "wing": wing, "ill": ill}
    )
    fed = eh.Federation.from_frame(table, client="site", label="ill", group="wing")
    module = torch.nn.Linear(2, 2)
    result = eh.fit(
        module, fed, eh.FedAvg(), rounds=30, local=eh.LocalSGD(lr=0.5, epochs=1, batch_size=32)
    )
    module.load_state_dict(result.params)
    new = pd.DataFrame({"age": [40, 62, 62, 85], "wing": ["west", "east", "west", "east"]})
    predicted = [fed.label_names[k] for k in module(encoding_of(fed).transform(new)).argmax(1)]
    assert predicted == ["no", "no", "yes", "yes"]


def test_a_hundred_thousand_rows_of_as_many_clients_take_no_loop_over_clients() -> None:
    rng = np.random.default_rng(0)
    count = 100_000
    table = pd.DataFrame(
        {
            "who": rng.permutation(count),
            "x": rng.normal(size=count),
            "c": rng.choice(list("abc"), count),
        }
    )
    fed = eh.Federation.from_frame(
        table.assign(y=rng.integers(0, 2, count)), client="who", label="y", split={"test": 0.0}
    )
    assert fed.clients == count
    assert float(fed.train.x[:, 0].double().square().mean()) == pytest.approx(1, rel=1e-5)


# ---- files as people save them


def test_semicolons_and_decimal_commas_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site;weight, kg;ill\na;70,5;yes\na;80,25;no\nb;60;yes\n")
    table = read_table(tmp_path / "t.csv")
    assert table.columns.tolist() == ["site", "weight, kg", "ill"]
    assert table["weight, kg"].tolist() == [70.5, 80.25, 60.0]
    (tmp_path / "points.csv").write_text("site;weight\na;70.5\nb;60\n")
    assert read_table(tmp_path / "points.csv")["weight"].tolist() == [70.5, 60.0]


def test_codes_with_leading_zeros_stay_codes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site,zip,age\n001,01234,7\n01,01234,08\n1,99999,9\n")
    table = read_table(tmp_path / "t.csv")
    assert table["site"].tolist() == ["001", "01", "1"]
    assert table["zip"].tolist() == ["01234", "01234", "99999"]
    (tmp_path / "plain.csv").write_text("site,share\n1,0.5\n2,0\n")
    assert read_table(tmp_path / "plain.csv")["share"].tolist() == [0.5, 0.0]


def test_one_odd_cell_in_a_column_of_numbers_is_an_error_that_names_it() -> None:
    table = pd.DataFrame(
        {
            "site": ["a"] * 100,
            "age": [str(i) for i in range(99)] + ["unknown age"],
            "ill": ["yes", "no"] * 50,
        }
    )
    for seed in range(4):  # whether it comes to be a training row or a test row
        with pytest.raises(DataError, match=r"column 'age'.*'unknown age' in row 100 is"):
            eh.Federation.from_frame(table, client="site", label="ill", seed=seed)


def test_client_and_label_must_differ() -> None:
    table = pd.DataFrame({"site": ["a", "b"] * 5, "age": range(10)})
    with pytest.raises(
        ValueError, match="client and label are both 'site'; predict another column"
    ):
        eh.Federation.from_frame(table, client="site", label="site")


def test_a_dash_is_a_missing_number() -> None:
    table = pd.DataFrame(
        {"site": ["a"] * 6, "age": ["1", "2", "3", "-", "5", "6"], "ill": ["yes", "no"] * 3}
    )
    federation = eh.Federation.from_frame(table, client="site", label="ill", split={"test": 0.0})
    assert federation.encoding is not None
    assert federation.encoding.features == ("age", "age missing")
