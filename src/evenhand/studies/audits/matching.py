"""Match labels and predictions that mean the same: True, 1, 1.0 and yes are one label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from evenhand.data.tables.levels import Levels, condition_in
from evenhand.data.tables.values import Values
from evenhand.errors import DataError, unknown

BOOLEANS = {
    **dict.fromkeys(("0", "false", "f", "no", "n"), False),
    **dict.fromkeys(("1", "true", "t", "yes", "y"), True),
}
MOST_NUMBERS = 20  # a label with more different numbers, not all whole, is a measurement
MOST_LABELS = 50
SHOWN = 6  # values to list in a message


class Matched(NamedTuple):
    """The labels of two columns, and the code of each value."""

    names: tuple[str, ...]
    of_truth: list[int]
    of_guess: list[int]


def match(truth: Sequence[str], guess: Sequence[str], label: object, prediction: object) -> Matched:
    """Labels by their names in the label column; labels that are only predicted come last.

    >>> match(["False", "True"], ["0", "1"], "y", "p").names
    ('False', 'True')
    """
    if {*truth, *guess} and all(plain(name) in BOOLEANS for name in (*truth, *guess)):
        values = [BOOLEANS[plain(name)] for name in (*truth, *guess)]
        spelt = {
            value: next(n for n in (*truth, *guess) if BOOLEANS[plain(n)] is value)
            for value in sorted(set(values))
        }
        place = {value: code for code, value in enumerate(spelt)}
        codes = [place[value] for value in values]
        return Matched(tuple(spelt.values()), codes[: len(truth)], codes[len(truth) :])
    exact = set(truth) & set(guess)
    read = str if len(exact) == len(set(guess)) else plain
    names: dict[str, str] = {}
    for name in (*truth, *guess):
        names.setdefault(read(name), name)
    shared = {read(name) for name in truth} & {read(name) for name in guess}
    if guess and not shared:
        raise DataError(
            f"{label!r} and {prediction!r} have no value in common: {label} has"
            f" {shown(truth)}, {prediction} has {shown(guess)}; use the same values in both, or a"
            f' condition such as "{prediction} == {guess[-1]}"'
        )
    order = list(names)
    return Matched(
        tuple(names.values()),
        [order.index(read(name)) for name in truth],
        [order.index(read(name)) for name in guess],
    )


def plain(name: str) -> str:
    """A value without differences between programs: case, and zeros after the decimal point."""
    text = name.strip().lower()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


def find_label(name: object, labels: Sequence[str]) -> str:
    """The label called ``name``, also in another spelling; raises if there is none."""
    if isinstance(name, str) and name in labels:
        return name
    wanted = plain(str(name))
    for label in labels:
        if plain(label) == wanted:
            return label
    for label in labels:
        if BOOLEANS.get(plain(label), label) is BOOLEANS.get(wanted, name):
            return label
    raise ValueError(unknown("label", str(name), labels))


def check_label(table: pd.DataFrame, label: object, levels: Levels) -> None:
    """Raise if a label looks like a measurement."""
    if condition_in(table, label) is not None:
        return
    values = Values(levels.column, table[levels.column])
    if values.kind() != "number":
        if len(levels.names) > MOST_LABELS:
            raise DataError(
                f"{str(label)!r} has {len(levels.names)} different values ({shown(levels.names)});"
                f' use a condition such as "{label} == {levels.names[0]}"'
            )
        return
    numbers = values.numbers[~np.isnan(values.numbers)]
    whole = bool((numbers == np.floor(numbers)).all())
    if len(levels.names) > (MOST_LABELS if whole else MOST_NUMBERS):
        raise DataError(
            f"{str(label)!r} looks continuous ({len(levels.names)} different numbers from"
            f" {numbers.min():.4g} to {numbers.max():.4g}); use a condition such as"
            f' "{label} >= {np.median(numbers):.4g}"'
        )


def check_prediction(
    table: pd.DataFrame, prediction: object, truth: Sequence[str], levels: Levels
) -> None:
    """Raise if a prediction looks like a score or is not a label."""
    if condition_in(table, prediction) is not None:
        return
    known = {plain(name) for name in truth}
    strange = [name for name in levels.names if plain(name) not in known]
    values = Values(levels.column, table[levels.column])
    if strange and values.kind() == "number":
        numbers = values.numbers[~np.isnan(values.numbers)]
        low, high = f"{numbers.min():.3g}", f"{numbers.max():.3g}"
        broken = bool((numbers != np.floor(numbers)).any())
        if broken and numbers.min() >= 0 and numbers.max() <= 1:
            raise DataError(
                f"{str(prediction)!r} looks like a score (values {low} to {high}); pass --score"
                f" {prediction}, and --threshold if it is not 0.5"
            )
        if broken or len(strange) > SHOWN:
            raise DataError(
                f"{str(prediction)!r} holds numbers that are not labels (values {low} to {high};"
                f" labels {shown(truth)}); pass --score {prediction} --threshold T, or a condition"
                f' such as "{prediction} >= {np.median(numbers):.3g}"'
            )
    if len(strange) > MOST_LABELS:
        raise DataError(
            f"{str(prediction)!r} holds {len(strange)} values that are not among the labels"
            f" ({shown(truth)}); give the column with the predicted label"
        )


def shown(names: Sequence[str]) -> str:
    """The first few names."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
