"""Building a federation from a table with one row per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from evenhand.data.contents import Contents
from evenhand.data.dealing import Assignment, assign
from evenhand.data.pool import Partition, Pool, Rows
from evenhand.data.tables.bad_cells import for_each
from evenhand.data.tables.columns import MOST_CATEGORIES, Column, fit_column, statistics
from evenhand.data.tables.encoding import Encoding
from evenhand.data.tables.giveaways import Answer
from evenhand.data.tables.hints import Feature, hints_of
from evenhand.data.tables.levels import find_column, groups_of, levels_of, listed
from evenhand.data.tables.missing import missing_texts, without
from evenhand.data.tables.roles import (
    clients_of,
    held_out_rows,
    label_of,
    targets_of,
    teams_of,
    usable_rows,
)
from evenhand.data.tables.values import Values
from evenhand.errors import DataError, require_choice, require_whole


def from_frame(
    table: pd.DataFrame,
    *,
    client: object,
    label: object,
    group: object = None,
    team: object = None,
    task: str = "auto",
    drop: Sequence[object] = (),
    categorical: Sequence[object] = (),
    numeric: Sequence[object] = (),
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    held_out: object = None,
    clients: int | None = None,
    most_categories: int = MOST_CATEGORIES,
    missing: object = (),
) -> Contents:
    """Build the contents of ``evenhand.Federation.from_frame`` from a table with one row per
    sample.

    Columns become numbers by an ``evenhand.Encoding`` that is fitted on the training rows, by sums
    over clients; print ``federation.encoding`` to see it. Every column is a feature except those
    used for client, team, label, held_out and drop. Client, label, group, team and held_out may
    also be a condition on a column: ``"age > 60"``, ``"education == Doctorate"``.

    Args:
        table: one row per sample. Rows without a client or a label are skipped.
        client: the column that names the client of each row; None if a partition assigns the rows.
        label: the column to predict.
        group: a column, or several whose combinations are the groups of people to compare. It stays
            a feature unless it is dropped.
        team: a column that is the same in all rows of a client, such as a region.
        task: "classification", "regression" or "auto": text, yes/no and up to 20 distinct whole
            numbers are classes.
        drop: columns that are not features.
        categorical: columns of numbers that are codes.
        numeric: columns of numbers that stay numbers although they have only two values or look
            like an identifier.
        partition: how rows are distributed over clients, as in ``evenhand.deal``.
        split: how each client's rows are split, as in ``evenhand.deal``.
        seed: of partition and split.
        held_out: a column, a condition or an array of booleans that marks an official test set.
        clients: the number of clients, for partitions that need it.
        most_categories: a text column with more distinct values is not used.
        missing: texts or numbers that mean a missing value in any column, such as "<0.5" or 999;
            they are compared with the whole cell.

    >>> sites, ages = ["a", "a", "b", "b"], [30, 50, 40, 60]
    >>> table = pd.DataFrame({"site": sites, "age": ages, "ill": ["no", "yes", "no", "yes"]})
    >>> made = from_frame(table, client="site", label="ill", held_out=[False, False, True, False])
    >>> made.names, made.label_names, made.encoding.features
    (('a', 'b'), ('no', 'yes'), ('age',))
    """
    require_choice("task", task, ("auto", "classification", "regression"))
    require_whole("most_categories", most_categories, 2)
    empty = missing_texts(missing)
    table = without(_checked(table), empty)
    answer, target = label_of(table, label, task)
    owner = None if client is None else levels_of(table, "client", client)
    if owner is not None and str(client) == str(label):
        raise ValueError(f"client and label are both {owner.column!r}; predict another column")
    if owner is None and partition is None:
        raise ValueError(
            'client must name a column; or pass a partition such as {"name": "dirichlet",'
            ' "clients": 10}'
        )
    if owner is None and team is not None:
        raise ValueError(
            "team needs a client column: teams are sets of clients; use group for sets of rows"
        )
    region = None if team is None else levels_of(table, "team", team)
    tested, tested_column = held_out_rows(table, held_out)
    others = {answer.column, tested_column, *(find_column(table, "drop", n) for n in listed(drop))}
    others |= {levels.column for levels in (owner, region) if levels is not None}
    wanted = {find_column(table, "numeric", name): "number" for name in listed(numeric)}
    wanted |= {find_column(table, "categorical", n): "category" for n in listed(categorical)}

    kept, dropped = usable_rows(answer, owner, client)
    y, label_names = targets_of(answer, target, kept)
    group_codes, group_names = groups_of(table, group, kept, most_categories)
    client_codes, client_names, lost = clients_of(owner, kept)
    teams, team_names = teams_of(region, client_codes, client_names, kept)
    rows = Rows(
        y=y,
        label_names=label_names,
        group=None if group_codes is None else torch.from_numpy(group_codes),
        group_names=group_names,
        client=None if client_codes is None else torch.from_numpy(client_codes),
        client_names=client_names,
        team=teams,
        team_names=team_names,
        held_out=None if tested is None else torch.from_numpy(tested[kept]),
    )
    assignment = assign(rows, partition, split, seed, clients)
    values = [
        Values(name, table[name].iloc[kept], kept) for name in table.columns if name not in others
    ]
    columns, matrix = _encoded(values, assignment, wanted, most_categories)
    task = "classification" if label_names else "regression"
    hints = hints_of(
        table,
        kept,
        [Feature(*pair, wanted.get(pair[0].name)) for pair in zip(columns, values, strict=True)],
        {"clients": (client, owner), "teams": (team, region), "classes": (label, answer)},
        [str(column).strip() for column in listed(group)],
        Answer(y.numpy(), len(label_names)),
    )
    encoding = Encoding(
        columns,
        str(label),
        task,
        label_names,
        dropped=dropped,
        lost=lost,
        missing=empty,
        client="" if client is None or partition is not None else str(client),
        group=tuple(str(column).strip() for column in listed(group)),
        hints=hints,
    )
    if task == "regression":
        encoding, y = _standardised(encoding, y, assignment)
    contents = assignment.contents(Pool(matrix, y, label_names), torch.from_numpy(kept))
    return contents._replace(encoding=encoding)


def _checked(table: pd.DataFrame) -> pd.DataFrame:
    if not isinstance(table, pd.DataFrame):
        raise TypeError(
            f"table must be a pandas DataFrame, got {type(table).__name__}; read a file with"
            " read_table"
        )
    names = [str(name) for name in table.columns]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise DataError(f"the table has two columns named {twice!r}; rename one")
    if not len(table):
        raise DataError("the table has no rows")
    return table.set_axis(names, axis=1).reset_index(drop=True)


def _encoded(
    values: list[Values], assignment: Assignment, wanted: dict[str, str], most: int
) -> tuple[tuple[Column, ...], torch.Tensor]:
    """Return the encoding of every column, fitted on the training rows, and (N, features) all
    rows."""
    train = assignment.train.rows.numpy()
    held_out = [share.rows.numpy() for share in (assignment.val, assignment.test) if share]
    away = np.concatenate(held_out or [train[:0]])
    offsets = assignment.train.offsets.numpy()

    def encoded(cells: Values) -> tuple[Column, NDArray[np.float32] | None]:
        column = fit_column(cells, train, offsets, wanted.get(cells.name), most)
        if column.kind == "left out":
            return column, None
        block, unseen = column.encode(cells)
        return replace(column, unseen=int(unseen[away].sum())), block

    pairs = for_each(values, encoded)
    blocks = [block for _, block in pairs if block is not None]
    if not blocks:
        raise DataError(
            "no feature column is left; the table needs columns besides client and label whose"
            " values vary"
        )
    return tuple(column for column, _ in pairs), torch.from_numpy(np.concatenate(blocks, axis=1))


def _standardised(
    encoding: Encoding, y: torch.Tensor, assignment: Assignment
) -> tuple[Encoding, torch.Tensor]:
    """Scale the labels of a regression to mean 0 and standard deviation 1 in the training rows."""
    train = assignment.train
    mean, std = statistics(y[train.rows].numpy(), train.offsets.numpy())[1:]
    if not 0 < std < np.inf:
        raise DataError(
            f"label {encoding.label!r} is the same in all training rows, or too large to add up"
        )
    return replace(encoding, label_mean=mean, label_std=std), ((y - mean) / std).float()
