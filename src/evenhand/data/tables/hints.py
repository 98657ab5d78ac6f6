"""Hints about possible problems of a table that can be read, to look at before training.

A hint changes nothing. Each has a condition that ordinary columns do not meet.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evenhand.data.tables.bad_cells import Bad, enumerated, mark_missing
from evenhand.data.tables.columns import IDENTIFIER, Column
from evenhand.data.tables.date_texts import almost_dates, compact_dates, foreign_dates
from evenhand.data.tables.giveaways import Answer, about_giveaway
from evenhand.data.tables.levels import Levels, condition_in, levels_of
from evenhand.data.tables.look_alikes import about_look_alikes
from evenhand.data.tables.sentinels import sentinels
from evenhand.data.tables.values import Floats, Ints, Values, no_numbers, tally, text_of

FEWEST_ROWS = 20  # fewer rows cannot distinguish an identifier from numbers that happen to differ
REPEATED = 0.01  # the largest share of rows whose identifier another row also has
# pairs of equal numbers to expect by chance if numbers were drawn from their range; an identifier
# has at most a tenth of them
PAIRS = 5
# distinct texts of a column that may be numeric, and the least share of them that are numbers
FEWEST_NUMBERS, MOST_NUMBERS = 10, 0.8
_SAMPLE = 20  # texts that decide whether to check all of them
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+$")


@dataclass(frozen=True)
class Feature:
    """A column, its encoding, and the values of the rows that are used."""

    column: Column
    values: Values
    wanted: str | None = None  # "number" or "category" if the user says so

    @property
    def is_text(self) -> bool:
        """Whether the column is stored as text."""
        dtype = self.values.series.dtype
        return pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype)

    @property
    def numbers(self) -> Floats | None:
        """The values of a numeric column, else None."""
        return self.values.numbers if self.column.kind == "number" else None

    @property
    def fate(self) -> str:
        """How it is used, for people."""
        kinds = {"number": "used as numbers", "left out": "not used"}
        return kinds.get(self.column.kind, "used as categories")


def hints_of(
    table: pd.DataFrame,
    kept: Ints,
    features: Sequence[Feature],
    roles: Mapping[str, tuple[object, Levels | None]],
    groups: Sequence[str],
    answer: Answer,
) -> tuple[str, ...]:
    """Return hints about possible problems of a table.

    Args:
        table: the table.
        kept: the rows that are used.
        features: the feature columns.
        roles: the columns or conditions that the user named and their values, by what these are:
            "clients", "teams", "classes".
        groups: the columns whose values are groups.
        answer: the label of the rows kept.
    """
    hints: list[str] = []
    encoding = table.attrs.get("encoding")  # guessed by read_table, if it is not UTF-8
    if encoding is not None:
        hints.append(
            f"the file is not UTF-8 and was read as {encoding}; if letters look wrong, pass its"
            " encoding with --encoding NAME"
        )
    used = {feature.column.name for feature in features}
    apart = [name for name in groups if name in table.columns and name not in used]
    for role, levels in [
        *_spelled(table, roles),
        *(("groups", levels_of(table, "group", name)) for name in apart),
    ]:
        counts = tally(levels.codes[kept], len(levels.names))[:-1]
        hints += _of_role(role, levels, counts.tolist())
    for feature in features:
        hints += _of_feature(feature, features, feature.column.name in groups)
        told = about_giveaway(feature.column, feature.values, answer)
        hints += [told] if told else []
    return tuple(hints)


def _spelled(
    table: pd.DataFrame, roles: Mapping[str, tuple[object, Levels | None]]
) -> Iterator[tuple[str, Levels]]:
    """Yield the columns with a role, and what their values are; for a condition on texts, its
    column."""
    for role, (name, levels) in roles.items():
        if levels is not None and condition_in(table, name) is None:
            yield role, levels
        elif levels is not None and not pd.api.types.is_numeric_dtype(table[levels.column].dtype):
            yield "values in a condition", levels_of(table, role, levels.column)


def _of_role(role: str, levels: Levels, counts: Sequence[int]) -> Iterator[str]:
    used = [code for code, count in enumerate(counts) if count]
    names, counts = [levels.names[code] for code in used], [counts[code] for code in used]
    told = about_look_alikes(levels.column, names, counts, f"different {role}")
    if told:
        yield told
    rows = sum(counts)
    if role == "clients" and rows >= FEWEST_ROWS and 2 * len(names) > rows:
        yield (
            f"{levels.column!r} makes {len(names)} clients of {rows} rows; if it identifies people,"
            " pass the column of their site to --client"
        )


def _of_feature(feature: Feature, others: Sequence[Feature], is_group: bool) -> Iterator[str]:
    numbers = feature.numbers
    if numbers is not None:
        if feature.wanted is None:
            yield from _about_identifier(feature.column.name, numbers)
        yield from _about_sentinels(feature.column.name, numbers, others)
        date = compact_dates(numbers)
        if date is not None:
            year, month, day = date // 10_000, date // 100 % 100, date % 100
            yield (
                f"{feature.column.name!r} has numbers such as {date} that look like dates but are"
                f" used as plain numbers; write {year}-{month:02}-{day:02}, or remove it with"
                f" {_drop(feature.column.name)}"
            )
    elif feature.is_text and feature.column.kind != "date":
        told = list(_of_text(feature)) if feature.wanted is None else []
        yield from told or _about_spellings(feature, is_group)


def _of_text(feature: Feature) -> Iterator[str]:
    """Yield hints about texts that are almost dates or numbers."""
    name, names = feature.column.name, feature.values.levels[1]
    told = foreign_dates(names)
    if told is not None:
        yield f"{name!r} has {told} and is {feature.fate}; write them as 2024-05-31 to use them"
        return
    bad = almost_dates(names)
    if bad:
        yield _about_bad(feature, feature.values.bad("date (year-month-day)", bad))
        return
    if not _mostly_numbers(names[:_SAMPLE]) or len(names) < FEWEST_NUMBERS:
        return
    odd = _no_numbers(names)
    if odd and _mostly_numbers(names):
        yield _about_bad(feature, feature.values.bad("number", odd))
    elif not odd:
        comma = next(text for text in names if _DECIMAL_COMMA.match(text))
        yield (
            f"{name!r} has numbers with a decimal comma ({comma!r}) and is {feature.fate}; write"
            " them with a point, or save the file with semicolons between fields"
        )


def _about_spellings(feature: Feature, is_group: bool) -> Iterator[str]:
    if feature.column.kind != "left out" or is_group:
        codes, names = feature.values.levels
        counts = tally(codes, len(names))[:-1].tolist()
        kept = "different groups" if is_group else "different categories"
        told = about_look_alikes(feature.column.name, names, counts, kept)
        if told:
            yield told


def _about_bad(feature: Feature, bad: Bad) -> str:
    return (
        f"{bad}, so it is {feature.fate}; correct or empty such cells, or {mark_missing(bad.texts)}"
    )


def _no_numbers(names: Sequence[str]) -> list[str]:
    """Return the texts that are not numbers, not even with a decimal comma."""
    return [text for text in no_numbers(names) if not _DECIMAL_COMMA.match(text)]


def _mostly_numbers(names: Sequence[str]) -> bool:
    return len(names) - len(_no_numbers(names)) >= MOST_NUMBERS * len(names)


def _about_identifier(name: str, numbers: Floats) -> Iterator[str]:
    present = numbers[~np.isnan(numbers)]
    # the first few rule out most columns
    if len(present) < FEWEST_ROWS or not all(map(_are_whole, (present[:100], present))):
        return
    distinct = len(pd.unique(present))
    if IDENTIFIER.search(name):
        yield (
            f"{name!r} is named like an identifier but is used as numbers, because values repeat"
            f" ({distinct} distinct ones in {len(present)} rows); remove it with {_drop(name)}"
        )
        return
    repeats = len(present) - distinct
    by_chance = len(present) ** 2 / (2 * (float(present.max() - present.min()) + 1))
    steps = np.diff(present)
    rising = bool((steps > 0).all()) or bool((steps < 0).all())
    if (by_chance >= PAIRS and repeats <= min(REPEATED * len(present), by_chance / 10)) or rising:
        every = "in every row" if not repeats else f"in all but {repeats} of {len(present)} rows"
        yield (
            f"{name!r} has a different whole number {every} and looks like an identifier; remove it"
            f" with {_drop(name)}"
        )


def _are_whole(numbers: Floats) -> bool:
    return bool((numbers == np.round(numbers)).all())


def _about_sentinels(name: str, numbers: Floats, others: Sequence[Feature]) -> Iterator[str]:
    for found in sentinels(numbers):
        code = text_of(found.code)
        also = [
            other.column.name
            for other in others
            if other.column.name != name and _means(other, found.code)
        ]
        if also:
            shown = enumerated([*map(repr, also[:2]), *(["others"] if len(also) > 2 else [])])
            way = f"empty those cells (--missing {code} would also empty cells of {shown})"
        else:
            way = f"pass --missing {code}"
        yield (
            f"{name!r} is {code} in {found.rows} of {found.present} rows while the others lie"
            f" between {found.low:.6g} and {found.high:.6g}; if it means missing, {way}"
        )


def _means(feature: Feature, code: float) -> bool:
    """Whether the number is an ordinary value of a column."""
    if feature.numbers is None:
        return feature.column.kind != "left out" and text_of(code) in feature.values.levels[1]
    codes = [found.code for found in sentinels(feature.numbers)]
    return code not in codes and bool((feature.numbers == code).any())


def _drop(name: str) -> str:
    return f"--drop {shlex.quote(name)}"
