"""Columns of a table with a special role: label, client, team, official test set."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from evenhand.data.tables.levels import Levels, condition_in, find_column, levels_of
from evenhand.data.tables.values import Floats, Ints, Values, tally
from evenhand.errors import DataError

MOST_CLASSES = 20  # whole numbers with more distinct values are a quantity, not classes


def label_of(table: pd.DataFrame, label: object, task: str) -> tuple[Levels, Floats | None]:
    """Return the label as codes of classes or, for a regression, with its numbers."""
    conditional = condition_in(table, label) is not None
    if conditional or task == "classification":
        if task == "regression":
            raise ValueError(
                f"task: {label!r} is a condition, so it has two classes; use classification"
            )
        return levels_of(table, "label", label), None
    column = find_column(table, "label", label)
    values = Values(column, table[column])
    kind = values.kind()
    if kind == "date" or (kind != "number" and task == "regression"):
        held = "dates" if kind == "date" else "text"
        way = "use a condition on it" if kind == "date" else 'use task="classification"'
        raise ValueError(
            f"label: {column!r} has {held}, which cannot be predicted as a number; {way}"
        )
    if kind == "number":
        numbers = values.numbers
        distinct = pd.unique(numbers[~np.isnan(numbers)])
        if (
            task == "regression"
            or len(distinct) > MOST_CLASSES
            or bool((distinct != np.round(distinct)).any())
        ):
            return (
                Levels(column, np.where(np.isnan(numbers), -1, 0).astype(np.int64), (), False),
                numbers,
            )
    return levels_of(table, "label", label), None


def targets_of(
    answer: Levels, target: Floats | None, kept: Ints
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Return the labels of the rows kept, and the names of their classes (none for a
    regression)."""
    if target is not None:
        if len(pd.unique(target[kept])) < 2:
            raise DataError(
                f"label {answer.column!r} is the same in all rows; there is nothing to learn"
            )
        return torch.from_numpy(target[kept]), ()
    used = np.flatnonzero(tally(answer.codes[kept], len(answer.names))[:-1])
    if len(used) < 2:
        raise DataError(
            f"label {answer.column!r} has only one class, {answer.names[int(used[0])]!r}; there is"
            " nothing to learn"
        )
    return torch.from_numpy(np.searchsorted(used, answer.codes[kept])), tuple(
        answer.names[int(code)] for code in used
    )


def usable_rows(
    answer: Levels, owner: Levels | None, client: object
) -> tuple[Ints, tuple[tuple[str, int], ...]]:
    """Return the rows with a label and a client, and why and how many others are skipped."""
    labelled = ~answer.missing
    kept = np.flatnonzero(labelled if owner is None else labelled & ~owner.missing)
    if not len(kept):
        raise DataError(
            "no row of the table has a label" + ("" if owner is None else " and a client")
        )
    without_client = 0 if owner is None else int((owner.missing & labelled).sum())
    reasons = (
        (f"no value of {answer.column}", len(labelled) - int(labelled.sum())),
        (f"no value of {client}", without_client),
    )
    return kept, tuple(reason for reason in reasons if reason[1])


def clients_of(
    owner: Levels | None, kept: Ints
) -> tuple[Ints | None, tuple[str, ...], tuple[str, ...]]:
    """Return codes and names of the clients of the rows kept, and names of clients without such
    rows."""
    if owner is None:
        return None, (), ()
    count = tally(owner.codes[kept], len(owner.names))[:-1]
    used = np.flatnonzero(count)
    lost = tuple(owner.names[int(code)] for code in np.flatnonzero(count == 0))
    return (
        np.searchsorted(used, owner.codes[kept]),
        tuple(owner.names[int(code)] for code in used),
        lost,
    )


def teams_of(
    region: Levels | None, codes: Ints | None, names: tuple[str, ...], kept: Ints
) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """Return (clients,) the team of each client, and the names of teams."""
    if region is None or codes is None:
        return None, ()
    of_table, shown = region.filled
    of_row = of_table[kept]
    of_client = np.zeros(len(names), dtype=np.int64)
    of_client[codes] = of_row  # some row's
    odd = np.flatnonzero(of_client[codes] != of_row)
    if len(odd):
        first = int(odd[0])
        both = f"{shown[int(of_row[first])]!r} and {shown[int(of_client[codes[first]])]!r}"
        raise DataError(
            f"team: client {names[int(codes[first])]} has rows of {both}; a client has one team, so"
            " use group instead"
        )
    used, renumbered = np.unique(of_client, return_inverse=True)
    return torch.from_numpy(renumbered.astype(np.int64)), tuple(shown[int(code)] for code in used)


def held_out_rows(
    table: pd.DataFrame, held_out: object
) -> tuple[NDArray[np.bool_] | None, str | None]:
    """Return (N,) whether a row is in the official test set, and the column that says so."""
    if held_out is None:
        return None, None
    if isinstance(held_out, str) and condition_in(table, held_out) is not None:
        levels = levels_of(table, "held_out", held_out)
        if bool(levels.missing.any()):
            raise DataError(
                f"held_out must be true or false in every row, found a missing value of"
                f" {levels.column!r}"
            )
        return levels.codes == 1, levels.column
    column = find_column(table, "held_out", held_out) if isinstance(held_out, str) else None
    flags = table[column].to_numpy() if column is not None else np.asarray(held_out)
    if flags.shape != (len(table),):
        raise ValueError(
            f"held_out must have an entry for each of the {len(table)} rows, got"
            f" {list(flags.shape)}"
        )
    truth = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    codes, names = Values(column or "held_out", pd.Series(flags)).levels
    if bool((codes < 0).any()) or any(name.lower() not in truth for name in names):
        bad = next((name for name in names if name.lower() not in truth), "a missing value")
        raise DataError(f"held_out must be true or false in every row, found {bad}")
    return np.array([truth[name.lower()] for name in names], dtype=bool)[codes], column
