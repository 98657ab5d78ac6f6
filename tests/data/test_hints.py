"""Hints about a table: when each appears, the numbers in it, and the nearest case without it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import evenhand as eh
from evenhand.data.tables.date_texts import almost_dates, compact_dates, foreign_dates
from evenhand.data.tables.giveaways import _by_level, _by_threshold, _correlation
from evenhand.data.tables.look_alikes import look_alikes
from evenhand.data.tables.sentinels import sentinels
from evenhand.datasets import loader

ROWS = 200
NAN = float("nan")


def table(**columns: Any) -> pd.DataFrame:
    """Two sites, an age, a label that none of them tells, and more columns."""
    rng = np.random.default_rng(0)
    given = {
        "site": rng.choice(["p", "q"], ROWS),
        "age": rng.integers(20, 80, ROWS),
        "ill": rng.choice(["no", "yes"], ROWS),
    }
    return pd.DataFrame({**given, **columns})


def hints(given: pd.DataFrame | None = None, /, **columns: Any) -> list[str]:
    settings = {
        key: columns.pop(key)
        for key in ("label", "client", "group", "team", "drop", "numeric", "categorical", "missing")
        if key in columns
    }
    made = eh.Federation.from_frame(
        table(**columns) if given is None else given,
        **{"client": "site", "label": "ill", "split": {"test": 0.0}, **settings},
    )
    assert made.encoding is not None
    return list(made.encoding.hints)


def with_first(values: Any, **first: Any) -> list[Any]:
    """A list whose first entries are others."""
    changed = list(values)
    for value, count in first.values():
        changed[:count] = [value] * count
    return changed


def test_an_ordinary_table_gives_no_hint() -> None:
    assert hints() == []


def test_hints_are_in_what_is_printed_and_not_in_what_is_saved() -> None:
    encoding = eh.Federation.from_frame(
        table(number=np.arange(ROWS)), client="site", label="ill"
    ).encoding
    assert encoding is not None
    assert len(encoding.hints) == 1
    assert str(encoding).splitlines()[-1] == f"hint: {encoding.hints[0]}"
    assert "hints" not in encoding.to_json()


# identifiers

LOOKS_LIKE_ONE = " and looks like an identifier; remove it with --drop "


@pytest.mark.parametrize(
    "numbers",
    [
        np.arange(ROWS) + 1,
        np.random.default_rng(1).permutation(ROWS) + 10_001,  # in any order
        np.sort(np.random.default_rng(1).choice(10**9, ROWS, replace=False)),  # rising, far apart
        np.sort(np.random.default_rng(1).choice(10**9, ROWS, replace=False))[::-1],
        [NAN, *range(1, ROWS)],
    ],
)
def test_a_different_whole_number_in_every_row_is_called_an_identifier(numbers: Any) -> None:
    assert hints(record=numbers) == [
        "'record' has a different whole number in every row" + LOOKS_LIKE_ONE + "record"
    ]


def test_an_identifier_may_repeat_in_one_row_of_a_hundred() -> None:
    numbers = np.random.default_rng(1).permutation(ROWS)
    numbers[:2] = numbers[2:4]  # 198 different numbers in 200 rows
    assert hints(**{"case no": numbers}) == [
        "'case no' has a different whole number in all but 2 of 200 rows"
        + LOOKS_LIKE_ONE
        + "'case no'"
    ]
    numbers[4] = numbers[5]  # 197
    assert hints(record=numbers) == []


@pytest.mark.parametrize(
    "numbers",
    [
        np.random.default_rng(1).permutation(ROWS) + 0.5,  # no whole numbers
        # incomes: that they differ says nothing, since they have room
        np.random.default_rng(1).choice(90_000, ROWS, replace=False) + 10_000,
        np.random.default_rng(1).integers(0, ROWS, ROWS),
    ],
)
def test_other_numbers_are_no_identifiers(numbers: Any) -> None:
    assert hints(record=numbers) == []


def test_chance_decides_how_much_room_different_numbers_need() -> None:
    # n^2 / (2 range) pairs by chance: 200^2 / (2 * 4000) = 5, 200^2 / (2 * 4001) < 5
    rng = np.random.default_rng(1)
    inner = rng.choice(np.arange(1, 3999), ROWS - 2, replace=False)
    assert len(hints(record=[3999, 0, *inner])) == 1
    assert hints(record=[4000, 0, *inner]) == []
    # one of the five pairs is there: so few may be chance
    assert hints(record=[3999, 0, inner[1], *inner[1:]]) == []


def test_few_rows_and_what_the_user_calls_a_number_are_no_identifiers() -> None:
    short = table(record=np.arange(ROWS)).head(19)
    assert hints(short) == []
    assert len(hints(table(record=np.arange(ROWS)).head(20))) == 1
    assert hints(record=np.arange(ROWS), numeric=["record"]) == []


def test_a_column_that_is_called_an_id_and_repeats_is_told() -> None:
    assert hints(patient_id=np.arange(ROWS) // 2) == [
        "'patient_id' is named like an identifier but is used as numbers, because values repeat (100"
        " distinct ones in 200 rows); remove it with --drop patient_id"
    ]
    assert hints(humid=np.arange(ROWS) // 2) == []
    assert hints(patient_id=np.arange(ROWS)) == []  # it is left out


# spellings


def test_spellings_of_clients_groups_labels_teams_and_categories_are_told() -> None:
    site = with_first(["Nord", "Süd"] * 100, small=("nord", 12))
    # of the first 12 rows, six were Nord
    assert hints(site=site) == [
        "'site' has 'Nord' (94 rows) and 'nord' (12 rows), which may mean the same but count as"
        " different clients; unify them in the file"
    ]
    sex = with_first(["F", "M"] * 100, word=("male", 3))
    ending = ", which may mean the same but count as different {}; unify them in the file"
    told = "'sex' has 'M' (99 rows) and 'male' (3 rows)" + ending
    assert hints(sex=sex) == [told.format("categories")]
    assert hints(sex=sex, group="sex") == [told.format("groups")]
    assert hints(sex=sex, group="sex", drop=["sex"]) == [told.format("groups")]
    assert hints(sex=sex, group=["sex", "site"], categorical=["sex"]) == [told.format("groups")]
    assert hints(ill=sex) == [told.replace("'sex'", "'ill'").format("classes")]
    assert hints(ill=sex, label="ill == M") == [
        told.replace("'sex'", "'ill'").format("values in a condition")
    ]
    team = np.where(np.asarray(site) == "Süd", "east", "East")
    assert hints(site=site, team="region", region=team)[1] == (
        f"'region' has 'East' ({(team == 'East').sum()} rows) and 'east'"
        f" ({(team == 'east').sum()} rows){ending.format('teams')}"
    )


def test_rows_without_a_label_are_not_counted() -> None:
    given = table(sex=with_first(["F", "M"] * 100, word=("male", 3)))
    given.loc[:9, "ill"] = None
    assert hints(given) == []
    given.loc[2, "ill"] = "yes"
    assert "'M' (95 rows) and 'male' (1 row)," in hints(given)[0]


def test_many_spellings_are_cut_short() -> None:
    names = [form for town in "abcde" for form in (town * 3, town * 3 + " ", (town * 3).upper())]
    kinds = ["Xx", "xX", "XX", "xx", "X x", "x X"]
    told = hints(town=(names * 20)[:ROWS], kind=(kinds * 40)[:ROWS])
    assert "; and 2 more such sets, which may mean the same" in told[0]
    assert told[0].count("rows)") == 6
    assert told[1].startswith(
        "'kind' has 'Xx' (34 rows), 'xX' (34 rows), 'XX' (33 rows) and 'xx' (33 rows); 'X x'"
    )
    assert "'X x' (33 rows) and 'x X' (33 rows)" in told[1]


@pytest.mark.parametrize(
    ("names", "same"),
    [
        (["m", "M", "male", "f"], [[0, 1, 2]]),
        (["New York", "new  york", "New-York", "new_york", "York"], [[0, 1, 2, 3]]),
        (["Zürich", "Zu\u0308rich"], [[0, 1]]),  # how some systems write an umlaut
        (["Straße", "STRASSE"], [[0, 1]]),
        (["n", "none", "normal"], []),  # two words with the letter
        (["n", "no", "yes"], []),
        (["n", "y", "nope", "yes"], [[0, 2], [1, 3]]),
        (["A", "AB", "B", "0"], []),  # blood groups
        (["I", "III", "V"], []),  # stages
        (["A+", "A-", "a+"], [[0, 2]]),
        (["<=50K", ">50K"], []),
        (["no", "normal", "none"], []),
        (["m", "m1x"], []),
        (["a", *(f"{letter}xx" for letter in "abcdefghi")], [[0, 1]]),  # ten values
        (["a", *(f"{letter}xx" for letter in "abcdefghij")], []),
        ([str(i) for i in range(5001)] + ["X", "x"], []),
    ],
)
def test_which_names_look_alike(names: list[str], same: list[list[int]]) -> None:
    assert look_alikes(names) == same


# codes for missing values


def test_a_code_far_outside_of_the_rest_is_told_with_its_numbers() -> None:
    chol = with_first([564.0, 126.0, 250.0, 236.5] * 50, code=(999, 14))
    assert hints(chol=chol) == [
        "'chol' is 999 in 14 of 200 rows while the others lie between 126 and 564; if it means missing,"
        " pass --missing 999"
    ]
    assert hints(chol=chol, missing=[999]) == []
    assert hints(chol=chol, categorical=["chol"]) == []


def test_a_code_that_other_columns_have_as_a_value_is_to_be_emptied_by_hand() -> None:
    chol = with_first(np.linspace(126, 564, ROWS), code=(0, 20))
    told = "if it means missing, empty those cells (--missing 0 would also empty cells of "
    sex = [0, 1] * 100
    assert hints(chol=chol, sex=sex)[0].endswith(f"{told}'sex')")
    visits = list(range(10)) * 20
    assert hints(chol=chol, sex=sex, visits=visits, more=visits)[0].endswith(
        f"{told}'sex', 'visits' and others)"
    )
    # where it is a code, too, it may go
    assert hints(chol=chol, weight=chol[::-1])[0].endswith("pass --missing 0")


def far(code: float, count: int, low: float = 100, high: float = 200) -> list[float]:
    return with_first(np.linspace(low, high, ROWS), code=(code, count))


@pytest.mark.parametrize("code", [99999, 9999, 999, -1, -9, -99, -999, -9999, 0])
def test_every_code_is_known(code: float) -> None:
    found = sentinels(np.array(far(code, 5)))
    assert [(one.code, one.rows, one.present) for one in found] == [(code, 5, ROWS)]
    assert [one.code for one in sentinels(np.array(far(99, 5, 10, 60)))] == [99]


@pytest.mark.parametrize(
    ("numbers", "codes"),
    [
        (far(998, 5), []),  # no code
        (far(999, 3), [999]),
        (far(999, 2), []),  # not repeatedly
        (far(999, 100), [999]),
        (far(999, 101), []),  # most rows
        (far(0, 60), [0]),
        (far(0, 61), []),  # nothing unusual
        (far(999, 5, 900, 1100), []),  # among the rest
        (far(99, 5, 20, 98), []),  # the next age
        # -1, 0 and 1 are a scale; so is 0 beside four other values, not beside five
        ([-1] * 20 + [0, 1] * 90, []),
        ([0] * 20 + [100, 101, 102, 103] * 45, []),
        ([0] * 20 + [100, 101, 102, 103, 104] * 36, [0]),
        ([99] * 20 + [1, 2] * 90, [99]),
        # below 0 where nothing else is; and where something is
        ([-9] * 20 + list(range(0, 100, 5)) * 9, [-9]),
        ([-9] * 20 + list(range(-5, 95, 5)) * 9, []),
        ([-1] * 20 + [0, 1, 2, 3, 4] * 36, [-1]),
        ([-1] * 20 + [0, 1, 2, 3] * 45, []),
        # a long tail: 17 deviations from the mean of the rest
        ([99999] * 5 + [41310] + [0] * 294, []),
        ([999] * 4 + [-9] * 3 + list(np.linspace(50, 60, 93)), [999, -9]),
        ([999.0] * 4 + [NAN] * 3 + list(np.linspace(50, 60, 93)), [999]),
        ([999] * 50 + [7] * 60, []),  # the rest is one value
        ([999, -9] * 50, []),
        ([], []),
    ],
)
def test_which_numbers_stand_out(numbers: list[float], codes: list[float]) -> None:
    assert [found.code for found in sentinels(np.array(numbers, dtype=float))] == codes


def test_how_far_outside_is_far() -> None:
    # 50 and 150: mean 100, deviation 50. A code is 1 deviation off the nearest at 0, and then 2
    # off the mean; both ends and three inner values as often
    rest = [50.0, 80, 100, 120, 150] * 40
    mean, std = np.mean(rest), np.std(rest)
    assert (mean - 0) / std < 3
    assert sentinels(np.array([0.0] * 10 + rest)) == []
    nearer = [value + 10 for value in rest]  # 110 off the mean is 3.25 deviations of 33.8
    assert (mean + 10) / std > 3
    assert [one.code for one in sentinels(np.array([0.0] * 10 + nearer))] == [0]
    # 3 deviations off the mean but less than 1 off the nearest
    wide = [20.0] * 3 + [100.0, 101, 102, 103, 104] * 40
    assert sentinels(np.array([0.0] * 10 + [*wide])) != []
    near = [5.0] * 3 + [100.0, 101, 102, 103, 104] * 40
    assert sentinels(np.array([0.0] * 10 + near)) == []


# dates


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["01/02/2024", "13/02/2024", "02/02/2024"], "with the day first ('13/02/2024')"),
        (["1.2.24", "31.12.24", "2.2.24"], "with the day first ('31.12.24')"),
        (["13-02-2024 10:00", "01-02-2024 11:30", "2-2-2024"], "with the day first ('13-02-"),
        (["13-02-2024", "01-02-2024", "x"], None),
        (["01/02/2024", "02/13/2024", "02/02/2024"], "with the month first ('02/13/2024')"),
        (
            ["01/02/2024", "02/03/2024", "12/12/2024"],
            "that may begin with the day or with the month ('01/02/2024')",
        ),
        (
            ["13/02/2024", "02/13/2024", "02/02/2024"],
            "with the day first ('13/02/2024') and with the month first ('02/13/2024')",
        ),
        (
            ["2024/02/13", "2024/02/14", "2024/02/15"],
            "that are not written with hyphens ('2024/02/13')",
        ),
        (["13/02/2024", "14/02/2024"], None),  # two texts
        (["13/13/2024", "14/14/2024", "15/15/2024"], None),
        (["32/01/2024", "33/01/2024", "00/01/2024"], None),
        (["1.2.3", "1.2.4", "1.3.0"], None),  # versions
        (["2024-02-13", "2024-02-14", "2024-02-15"], None),  # read as dates
        ([f"{day:02}/02/2024" for day in range(1, 19)] + ["soon", "x"], "with the day first"),
        ([f"{day:02}/02/2024" for day in range(1, 18)] + ["soon", "x"], None),  # under 90 %
    ],
)
def test_which_texts_are_dates_in_another_form(texts: list[str], told: str | None) -> None:
    found = foreign_dates(texts)
    assert (found is None) if told is None else (found or "").startswith(f"dates {told}")


def test_dates_in_another_form_are_told_with_what_becomes_of_them() -> None:
    days = pd.date_range("2024-01-01", periods=ROWS).strftime("%d/%m/%Y")
    assert hints(seen=days) == [
        "'seen' has dates with the day first ('13/01/2024') and is not used; write them as"
        " 2024-05-31 to use them"
    ]
    assert hints(seen=list(days[:20]) * 10)[0].startswith(
        "'seen' has dates with the day first ('13/01/2024') and is used as categories; "
    )
    assert hints(seen=pd.date_range("2024-01-01", periods=ROWS).strftime("%Y-%m-%d")) == []


def test_a_slip_among_dates_is_told() -> None:
    days = with_first(pd.date_range("2024-01-01", periods=ROWS).strftime("%Y-%m-%d"))
    days[4], days[6] = "2024-02-30", "2024-02-30"
    assert hints(seen=days) == [
        "column 'seen': '2024-02-30' in rows 5 and 7 are not dates (year-month-day), so it is"
        " not used; correct or empty such cells, or pass --missing 2024-02-30 if it means missing"
    ]
    assert hints(seen=days, missing="2024-02-30") == []
    dates = [f"2024-01-0{day}" for day in range(1, 10)]
    assert almost_dates([*dates, "x"]) == ["x"]
    assert almost_dates([*dates[:8], "x", "y"]) == []
    assert almost_dates(dates) == []


def test_numbers_that_look_like_dates_are_told() -> None:
    days = [20240101 + i % 28 for i in range(ROWS)]
    assert hints(seen=days) == [
        "'seen' has numbers such as 20240101 that look like dates but are used as plain numbers;"
        " write 2024-01-01, or remove it with --drop seen"
    ]
    days[0] = 20241301
    assert hints(seen=days) == []
    assert compact_dates(np.array([20240228.0, 20240230, 20240231])) == 20240228
    for odd in (20240232.0, 20240200, 20240228.5, 18991231, 21000101):
        assert compact_dates(np.array([20240228.0, odd])) is None
    assert compact_dates(np.array([NAN])) is None


# numbers with a slip


def test_texts_among_few_numbers_are_told() -> None:
    crp = with_first([str(i % 20 / 10) for i in range(ROWS)], low=("<0.1", 5))
    crp[7] = "n.d."
    assert hints(crp=crp) == [
        "column 'crp': '<0.1' in rows 1, 2, 3 and 2 more and 'n.d.' in row 8 are not numbers, so"
        " it is used as categories; correct or empty such cells, or pass --missing '<0.1' --missing"
        " n.d. if they mean missing"
    ]
    assert hints(crp=crp, missing=["<0.1", "n.d."]) == []
    assert hints(crp=crp, categorical=["crp"]) == []


def test_codes_with_a_few_words_are_no_numbers_with_a_slip() -> None:
    assert hints(visits=[*"12345678", "9+", "0"] * 20) != []  # ten texts, nine of them numbers
    assert hints(visits=([*"12345678", "9+"] * 23)[:ROWS]) == []  # nine texts
    assert hints(grade=([*"12345678", "a", "b"] * 20)) != []  # eight of ten
    assert hints(grade=([*"1234567", "a", "b", "c"] * 20)) == []


def test_decimal_commas_in_another_file_are_told() -> None:
    crp = [f"{i % 20},5" for i in range(ROWS)]
    assert hints(crp=crp) == [
        "'crp' has numbers with a decimal comma ('0,5') and is used as categories; write them with"
        " a point, or save the file with semicolons between fields"
    ]
    assert hints(crp=[f"{i % 20}, 5" for i in range(ROWS)]) == []


# clients


def test_a_client_for_nearly_every_row_is_told() -> None:
    who = [f"w{i}" for i in range(101)] * 2
    assert hints(table(site=who[:ROWS])) == [
        "'site' makes 101 clients of 200 rows; if it identifies people, pass the"
        " column of their site to --client"
    ]
    assert hints(table(site=[f"w{i}" for i in range(100)] * 2)) == []
    assert hints(table(site=who[:ROWS]).head(19)) == []


# the encoding of the file


def test_the_encoding_that_was_guessed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    given = table(town=["Zürich", "Bern", "Köln", "Genf"] * 50)
    path.write_bytes(given.to_csv(index=False).encode("cp1252"))
    assert hints(eh.read_table(path)) == [
        "the file is not UTF-8 and was read as cp1252; if letters look wrong, pass its encoding with"
        " --encoding NAME"
    ]
    assert hints(eh.read_table(path, encoding="cp1252")) == []
    path.write_bytes(given.to_csv(index=False).encode())
    assert hints(eh.read_table(path)) == []


# columns that tell the label


def test_a_column_that_tells_the_label_is_told() -> None:
    ill = table()["ill"]
    others = int(min((ill == "no").sum(), (ill == "yes").sum()))
    most = int(0.02 * others)  # errors that are few enough
    assert most == 1
    for values in (
        np.where(ill == "yes", "dead", "alive"),  # categories
        np.where(ill == "yes", 3, 1),  # a yes/no
        np.where(ill == "yes", 50.0, 20.0) + np.arange(ROWS) % 30 / 3,  # a threshold
        np.where(ill == "yes", NAN, np.arange(ROWS) % 60),  # there or not
    ):
        told = "'outcome' by itself predicts the label in {} % of the rows; if it is known only after the"
        told += " label, remove it with --drop outcome"
        assert hints(outcome=values) == [told.format("100")]
        changed = pd.Series(values)
        row = int(ill.eq("yes").idxmax())
        other = int(ill.eq("no").idxmax())
        changed[row] = values[other]
        assert hints(outcome=changed) == [told.format("99.5")]
        again = int(ill[row + 1 :].eq("yes").idxmax())
        changed[again] = values[other]
        assert hints(outcome=changed) == []
    assert hints(outcome=np.where(ill == "yes", "dead", "alive"), drop=["outcome"]) == []


def test_a_label_hardly_anyone_has_is_told_by_nothing() -> None:
    ill = with_first(["no"] * ROWS, few=("yes", 10))
    assert len(hints(ill=ill, outcome=[*"d" * 10, *"a" * 190])) == 1
    ill[0] = "no"
    assert hints(ill=ill, outcome=[*"a", *"d" * 9, *"a" * 190]) == []


def test_few_rows_and_hardly_repeated_values_tell_no_label() -> None:
    given = table()
    given["outcome"] = np.where(given["ill"] == "yes", "dead", "alive")
    assert len(hints(given.head(50))) == 1
    assert hints(given.head(49)) == []
    # each word for eight rows or so: there is not much that they could tell wrongly
    words = [f"w{'y' if ill == 'yes' else 'n'}{i % 12}" for i, ill in enumerate(given["ill"])]
    assert hints(word=words) == []


def test_a_number_that_all_but_equals_the_label_is_told() -> None:
    rng = np.random.default_rng(0)
    cost = rng.normal(0, 1, ROWS)
    assert hints(cost=cost, label="cost", euros=-2 * cost + 0.001 * rng.normal(size=ROWS)) == [
        "'euros' almost equals the label (correlation -0.9999); if it is known only after the"
        " label, remove it with --drop euros"
    ]
    assert hints(cost=cost, label="cost", euros=cost + 0.1 * rng.normal(size=ROWS)) == []
    noisy = cost + 0.04 * rng.normal(size=ROWS)
    assert _correlation(noisy, cost) == pytest.approx(np.corrcoef(noisy, cost)[0, 1])
    gaps = np.where(np.arange(ROWS) % 2 == 0, NAN, noisy)
    assert _correlation(gaps, cost) == pytest.approx(np.corrcoef(noisy[1::2], cost[1::2])[0, 1])
    assert _correlation(np.ones(ROWS), cost) == 0


def test_errors_of_levels_and_thresholds_are_those_of_all_rules() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        y = rng.integers(0, 2, 12)
        raw = rng.integers(0, 6, 12).astype(float)
        best = min(
            int(((raw > cut) != (y == up)).sum()) for cut in np.arange(-1, 7) for up in (0, 1)
        )
        assert _by_threshold(raw, y) == best
        gone = np.where(rng.random(12) < 0.3, NAN, raw)
        here = ~np.isnan(gone)
        apart = min(int(y[~here].sum()), int((1 - y[~here]).sum()))
        rest = _by_threshold(gone[here], y[here]) if here.any() else 0
        assert _by_threshold(gone, y) == apart + rest
        codes, classes = rng.integers(-1, 4, 12), rng.integers(0, 3, 12)
        wrong = 12 - sum(
            max(int((classes[codes == code] == k).sum()) for k in range(3)) for code in range(-1, 4)
        )
        assert _by_level(codes, classes, 3) == wrong


# data sets that were looked at before


def of_data_set(name: str, **settings: Any) -> tuple[str, ...]:
    root = os.environ.get("EVENHAND_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"the files of {name} are not in EVENHAND_DATA")
    encoding = loader(name)(**settings).encoding
    assert encoding is not None
    return encoding.hints


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adult", {}),
        ("adult", {"client": "workclass"}),
        ("compas", {}),
        ("compas", {"filter": None}),
        ("heart_disease", {}),
        ("acs_income", {}),
        ("acs_income", {"codes": "numbers"}),
    ],
)
def test_real_data_sets_give_no_hint(name: str, settings: dict[str, Any]) -> None:
    assert of_data_set(name, **settings) == ()


def test_a_cholesterol_of_0_that_a_paper_kept_is_told() -> None:
    told = of_data_set("heart_disease", cleaning="flamby")
    assert len(told) == 1
    assert told[0].startswith(
        "'chol' is 0 in 79 of 740 rows while the others lie between 85 and 603; if it means missing, "
    )
