"""The user's own tables: reading them, and making a federation of one."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import operator
import re
import warnings
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from evenhand.data.encoding import (
    MISSING,
    MOST_CATEGORIES,
    Column,
    Encoding,
    Ints,
    Values,
    fit_column,
    statistics,
    tally,
)
from evenhand.data.federation import Federation
from evenhand.data.partitions import deal
from evenhand.data.pool import Partition, Pool
from evenhand.data.samples import Part
from evenhand.errors import DataError, first_line, require_choice, require_whole

__all__ = ["Encoding", "from_frame", "parse", "read_table", "require_numbers", "require_values"]

MOST_CLASSES = 20  # whole numbers with more different values are a quantity, not classes
_TEXT = {".csv": ",", ".tsv": "\t", ".data": ","}
_CONDITION = re.compile(r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_DECIMAL_COMMA = re.compile(r"(^|;)\s*-?\d+,\d+\s*(;|$)", re.MULTILINE)
_LEADING_ZERO = re.compile(r'(^|[,;\t])\s*"?0\d+"?\s*([,;\t]|$)', re.MULTILINE)
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}


def read_table(path: str | Path) -> pd.DataFrame:
    """A table from a file: CSV (.csv) or tab-separated (.tsv), also compressed (.gz), or Parquet
    (.parquet, .pq).

    The first line of a text file has the column names. Empty fields, ?, NA and the like are missing
    values. A .csv file may be separated by semicolons, then also with decimal commas. Whole numbers
    with leading zeros (001) stay texts: they are codes.
    """
    path = Path(path)
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind not in (*_TEXT, ".parquet", ".pq"):
        raise DataError(
            f"{path} is no table that can be read; give a .csv, .tsv (or either with .gz) or"
            " .parquet file"
        )
    if not path.is_file():
        raise DataError(
            f"{path} is {'a folder' if path.is_dir() else 'not there'}; give the path of a table"
        )
    if kind in (".parquet", ".pq"):
        return _read_parquet(path)
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}") from error
    separator = _TEXT[kind]
    header = content.partition(b"\n")[0]
    if separator == "," and header.count(b";") > header.count(b","):
        separator = ";"
    return parse(content, str(path), separator=separator)


def parse(
    content: bytes,
    source: str,
    names: Sequence[str] | None = None,
    separator: str = ",",
    repeats: bool = False,
) -> pd.DataFrame:
    """A table from the bytes of a text file.

    Args:
        source: what to call it in errors, with the line.
        names: of the columns; None takes the first line.
        repeats: whether a name may be there twice; the second column is then called NAME.1.
    """
    text = _decode(content, source)
    if not text.strip():
        raise DataError(f"{source} is empty")
    if "\0" in text[:10_000]:
        raise DataError(f"{source} is not a table: it holds bytes that are no text")
    if names is None:
        _check_header(
            next(csv.reader(io.StringIO(text), delimiter=separator)), source, text, repeats
        )
    settings: dict[str, Any] = {
        "sep": separator,
        "decimal": "," if separator == ";" and _DECIMAL_COMMA.search(text) else ".",
        "header": 0 if names is None else None,
        "names": None if names is None else list(names),
        "index_col": False,
        "skipinitialspace": True,
        "keep_default_na": False,
        "na_values": list(MISSING),
        "low_memory": False,
    }
    try:
        with warnings.catch_warnings():
            # else pandas cuts long rows short
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table: pd.DataFrame = pd.read_csv(io.StringIO(text), **settings)
            if _LEADING_ZERO.search(text):
                _keep_zeros(table, pd.read_csv(io.StringIO(text), dtype=str, **settings))
    except (
        pd.errors.ParserError,
        pd.errors.ParserWarning,
        pd.errors.EmptyDataError,
        ValueError,
    ) as error:
        _check_lengths(text, source, names, separator)
        raise DataError(f"{source} is not a table: {first_line(error)}") from error
    if len(table) and bool(table.iloc[:, -1].isna().any()):
        # pandas fills up short rows; they lack a value in the last column
        _check_lengths(text, source, names, separator)
    return table


def _keep_zeros(table: pd.DataFrame, texts: pd.DataFrame) -> None:
    """Put the texts of columns in place of whole numbers, where some begin with 0."""
    for name in table.columns[[pd.api.types.is_numeric_dtype(dtype) for dtype in table.dtypes]]:
        if texts[name].str.fullmatch(r"0\d+").any():
            table[name] = texts[name]


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{source} line {line} is not UTF-8 text (byte {content[error.start]:#04x}); save the"
            " file as UTF-8"
        ) from error


def _check_header(header: list[str], source: str, text: str, repeats: bool) -> None:
    stripped = [name.strip() for name in header]
    twice = next((name for i, name in enumerate(stripped) if name and name in stripped[:i]), None)
    if twice is not None and not repeats:
        raise DataError(f"{source} has two columns named {twice!r}; rename one")
    if not text.partition("\n")[2].strip():
        raise DataError(f"{source} has column names but no rows")


def _check_lengths(text: str, source: str, names: Sequence[str] | None, separator: str) -> None:
    """Raise a DataError that names the first line with another number of fields than there are
    columns."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    width = len(names) if names is not None else len(next(reader))
    try:
        for fields in reader:
            if fields and len(fields) != width and any(field.strip() for field in fields):
                raise DataError(
                    f"{source} line {reader.line_num} has {len(fields)} fields; the table has"
                    f" {width} columns"
                )
    except csv.Error as error:
        raise DataError(
            f"{source} line {reader.line_num} cannot be read: {first_line(error)}"
        ) from error


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"reading {path} needs pyarrow; install evenhand[parquet], or save the table as CSV"
        ) from error
    try:
        stored = parquet.read_table(path)
    except (ValueError, OSError) as error:
        raise DataError(f"{path} is not a Parquet file, or damaged: {first_line(error)}") from error
    if len(set(stored.column_names)) < len(stored.column_names):
        twice = next(
            name for i, name in enumerate(stored.column_names) if name in stored.column_names[:i]
        )
        raise DataError(f"{path} has two columns named {twice!r}; rename one")
    table: pd.DataFrame = stored.to_pandas()
    if not len(table):
        raise DataError(f"{path} has columns but no rows")
    return table


def require_values(
    table: pd.DataFrame, column: str, allowed: Collection[object], source: str, first_line: int = 1
) -> None:
    """Raise a DataError that names file and line unless every value of a column is one of
    ``allowed``."""
    bad = np.flatnonzero(~table[column].isin(list(allowed)).to_numpy())
    if len(bad):
        listed = ", ".join(map(str, allowed))
        raise DataError(
            f"{source} line {first_line + int(bad[0])}: {column} is {table[column].iloc[bad[0]]!s};"
            f" it must be one of {listed}"
        )


def require_numbers(
    table: pd.DataFrame,
    columns: Sequence[str],
    source: str,
    first_line: int = 1,
    missing: bool = False,
) -> None:
    """Raise a DataError that names file and line unless some columns hold finite numbers, or, where
    allowed, nothing."""
    for column in columns:
        numbers = pd.to_numeric(table[column], errors="coerce").to_numpy(
            dtype=np.float64, na_value=np.nan
        )
        fine = np.isfinite(numbers) | (table[column].isna().to_numpy() if missing else False)
        bad = np.flatnonzero(~fine)
        if len(bad):
            raise DataError(
                f"{source} line {first_line + int(bad[0])}: {column} is"
                f" {table[column].iloc[bad[0]]!s}, not a number"
            )


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
) -> Federation:
    """A federation from a table with a row for each sample.

    Columns become numbers by an :class:`Encoding` that is fitted on the training rows, by sums over
    clients; the federation keeps it (``federation.encoding``; print it). Every column is a feature
    but those of client, team, label, held_out and drop. Where a column is asked for, a condition on
    one will do: ``"age > 60"``, ``"education == Doctorate"``.

    Args:
        table: one row per sample. Rows without a client or a label are left out.
        client: the column that says whose each row is; None where a partition deals the rows.
        label: the column to predict, or a condition on one.
        group: a column or several, whose combinations are the groups of people to compare. It stays
            a feature unless dropped.
        team: a column that is the same in all rows of a client, such as a region.
        task: "classification", "regression" or "auto": text, yes/no and up to 20 whole numbers are
            classes.
        drop: columns that are no features.
        categorical: columns of numbers that are codes.
        numeric: columns of numbers that stay numbers although they have but two values, or look
            like an identifier.
        partition, split, seed, clients: how rows are dealt to clients and to train, val and test
            data.
        held_out: a column or array of true and false: the rows of an official test set.
        most_categories: a text column with more different values is left out.

    >>> sites, ages = ["a", "a", "b", "b"], [30, 50, 40, 60]
    >>> table = pd.DataFrame({"site": sites, "age": ages, "ill": ["no", "yes", "no", "yes"]})
    >>> fed = from_frame(table, client="site", label="ill", held_out=[False, False, True, False])
    >>> fed.names, fed.label_names, fed.encoding.features
    (('a', 'b'), ('no', 'yes'), ('age',))
    """
    require_choice("task", task, ("auto", "classification", "regression"))
    require_whole("most_categories", most_categories, 2)
    table = _checked(table)
    rows = len(table)
    answer, target = _labels(table, label, task)
    owner = None if client is None else levels_of(table, "client", client)
    if owner is not None and str(client) == str(label):
        raise ValueError(f"client and label are both {owner.column!r}; predict another column")
    if owner is None and partition is None:
        raise ValueError(
            'client must name a column; or give a partition, such as {"name": "dirichlet",'
            ' "clients": 10}'
        )
    tested, tested_column = _held_out(table, held_out)
    others = {
        answer.column,
        tested_column,
        *(str(name) for name in (client, team) if name is not None),
    }
    others |= {_find(table, "drop", name) for name in _several(drop)}
    wanted = {_find(table, "numeric", name): "number" for name in _several(numeric)}
    wanted |= {_find(table, "categorical", name): "category" for name in _several(categorical)}

    labelled = ~answer.missing
    kept = np.flatnonzero(labelled if owner is None else labelled & ~owner.missing)
    if not len(kept):
        raise DataError(
            "no row of the table has a label" + ("" if owner is None else " and a client")
        )
    without_client = 0 if owner is None else int((owner.missing & labelled).sum())
    reasons = (
        (f"no value of {answer.column}", rows - int(labelled.sum())),
        (f"no value of {client}", without_client),
    )
    y, label_names = _targets(answer, target, kept)
    group_codes, group_names = groups_of(table, group, kept, most_categories)
    client_codes, client_names, lost = _clients(owner, kept)
    teams, team_names = _teams(table, team, client_codes, client_names, kept)
    pool = Pool(
        x=torch.arange(len(kept))[:, None],
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
    federation = deal(pool, partition, split, seed, clients)

    values = [
        Values(name, table[name].iloc[kept], kept) for name in table.columns if name not in others
    ]
    encoding = Encoding(
        (), str(label), "classification" if label_names else "regression", label_names, lost=lost
    )
    encoding = replace(encoding, dropped=tuple(reason for reason in reasons if reason[1]))
    return _encoded(federation, encoding, values, wanted, most_categories)


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


def _several(names: object) -> list[object]:
    if names is None:
        return []
    return (
        list(names)
        if isinstance(names, Sequence | set | frozenset | pd.Index) and not isinstance(names, str)
        else [names]
    )


def _find(table: pd.DataFrame, what: str, name: object) -> str:
    """The column ``name``; raises a ValueError with the nearest names where there is none."""
    if str(name) in table.columns:
        return str(name)
    near = difflib.get_close_matches(str(name), list(table.columns), n=1)
    listed = ", ".join(table.columns[:12]) + (", ..." if len(table.columns) > 12 else "")
    raise ValueError(
        f"{what}: there is no column {str(name)!r}; "
        + (f"did you mean {near[0]!r}?" if near else f"the columns are {listed}")
    )


class Levels(NamedTuple):
    """The values of a column, or of a condition on one, as codes."""

    column: str
    codes: Ints  # (N,) -1 where missing
    names: tuple[str, ...]
    worded: bool  # whether names say what they mean without the column's

    @property
    def missing(self) -> NDArray[np.bool_]:
        return self.codes < 0


def levels_of(table: pd.DataFrame, what: str, name: object) -> Levels:
    """Codes of a column's values in their natural order, or of a condition, false before true."""
    condition = None if str(name) in table.columns else _CONDITION.fullmatch(str(name))
    if condition is None:
        column = _find(table, what, name)
        values = Values(column, table[column])
        codes, names = values.levels
        ordered = values.in_order(names)
        place = {level: code for code, level in enumerate(ordered)}
        renumbered = np.array([*(place[level] for level in names), -1], dtype=np.int64)[codes]
        worded = not (pd.api.types.is_bool_dtype(table[column].dtype) or values.kind() == "number")
        return Levels(column, renumbered, tuple(ordered), worded)
    column, sign, given = _find(table, what, condition[1]), condition[2], condition[3].strip("'\"")
    truth, missing = _compare(Values(column, table[column]), sign, given, what)
    names = (f"{column} {_OPPOSITE[sign]} {given}", f"{column} {sign} {given}")
    return Levels(column, np.where(missing, -1, truth).astype(np.int64), names, True)


def _compare(
    values: Values, sign: str, given: str, what: str
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(N,) whether the condition holds, and whether the value is missing."""
    kind = values.kind()
    if kind in ("number", "date"):
        raw = values.numbers if kind == "number" else values.days
        try:
            other = Values(what, pd.Series([given], dtype=object))
            bound = float((other.numbers if kind == "number" else other.days)[0])
        except DataError:
            raise ValueError(
                f"{what}: {values.name!r} holds {kind}s, so it cannot be compared with {given!r}"
            ) from None
        return _COMPARE[sign](raw, bound), np.isnan(raw)
    if sign not in ("==", "!="):
        raise ValueError(
            f"{what}: {values.name!r} holds text, which can be compared by == and != alone, not by"
            f" {sign}"
        )
    codes, names = values.levels
    if given not in names:
        raise ValueError(
            f"{what}: no row has {values.name} {given!r}; there are"
            f" {', '.join(values.in_order(names)[:10])}"
        )
    return _COMPARE[sign](codes, names.index(given)), codes < 0


def _labels(
    table: pd.DataFrame, label: object, task: str
) -> tuple[Levels, NDArray[np.float64] | None]:
    """The label as codes of classes, or, for a regression, with its numbers."""
    conditional = str(label) not in table.columns and _CONDITION.fullmatch(str(label)) is not None
    if conditional or task == "classification":
        if task == "regression":
            raise ValueError(
                f"task: {label!r} is a condition, which has two classes; use classification"
            )
        return levels_of(table, "label", label), None
    column = _find(table, "label", label)
    values = Values(column, table[column])
    kind = values.kind()
    if kind == "date" or (kind != "number" and task == "regression"):
        held = "dates" if kind == "date" else "text"
        way = "give a condition on it" if kind == "date" else 'use task="classification"'
        raise ValueError(
            f"label: {column!r} holds {held}, which cannot be predicted as a number; {way}"
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


def _targets(
    answer: Levels, target: NDArray[np.float64] | None, kept: Ints
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """The labels of the rows kept, and the names of their classes (none for a regression)."""
    if target is not None:
        if len(pd.unique(target[kept])) < 2:
            raise DataError(
                f"label {answer.column!r} is the same in all rows; there is nothing to learn"
            )
        return torch.from_numpy(target[kept]), ()
    used = np.flatnonzero(tally(answer.codes[kept], len(answer.names))[:-1])
    if len(used) < 2:
        raise DataError(
            f"label {answer.column!r} has one class only, {answer.names[int(used[0])]!r}; there is"
            " nothing to learn"
        )
    return torch.from_numpy(np.searchsorted(used, answer.codes[kept])), tuple(
        answer.names[int(code)] for code in used
    )


def groups_of(
    table: pd.DataFrame, group: object, kept: Ints, most: int
) -> tuple[Ints | None, tuple[str, ...]]:
    """Codes of the groups of the rows kept, and their names; rows without a value are of the group
    "unknown"."""
    columns = _several(group)
    if not columns:
        return None, ()
    parts: list[list[str]] = []
    combined = np.zeros(len(kept), dtype=np.int64)
    for column in columns:
        levels = levels_of(table, "group", column)
        if len(levels.names) > most:
            raise ValueError(
                f"group: {levels.column!r} has {len(levels.names)} different values; give a"
                f" condition, such as '{column} > ...'"
            )
        parts.append(
            [name if levels.worded else f"{levels.column}={name}" for name in levels.names]
            + ["unknown"]
        )
        combined = (
            combined * len(parts[-1])
            + np.where(levels.codes < 0, len(levels.names), levels.codes)[kept]
        )
    used, codes = np.unique(combined, return_inverse=True)
    shape = tuple(len(part) for part in parts)
    names = [
        " & ".join(part[i] for part, i in zip(parts, np.unravel_index(code, shape), strict=True))
        for code in used
    ]
    return codes.astype(np.int64), tuple(names)


def _clients(
    owner: Levels | None, kept: Ints
) -> tuple[Ints | None, tuple[str, ...], tuple[str, ...]]:
    """Codes and names of the clients of the rows kept, and names of those of whom none was."""
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


def _teams(
    table: pd.DataFrame, team: object, codes: Ints | None, names: tuple[str, ...], kept: Ints
) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """(clients,) the team of each client."""
    if team is None:
        return None, ()
    if codes is None:
        raise ValueError(
            "team needs a client column: teams are sets of clients; use group for sets of rows"
        )
    levels = levels_of(table, "team", team)
    shown = (
        *(name if levels.worded else f"{levels.column}={name}" for name in levels.names),
        "unknown",
    )
    of_row = np.where(levels.codes < 0, len(levels.names), levels.codes)[kept]
    of_client = np.zeros(len(names), dtype=np.int64)
    of_client[codes] = of_row  # some row's
    odd = np.flatnonzero(of_client[codes] != of_row)
    if len(odd):
        first = int(odd[0])
        both = f"{shown[int(of_row[first])]!r} and {shown[int(of_client[codes[first]])]!r}"
        raise DataError(
            f"team: client {names[int(codes[first])]} has rows of {both}; a client has one team,"
            " use group for rows"
        )
    used, renumbered = np.unique(of_client, return_inverse=True)
    return torch.from_numpy(renumbered.astype(np.int64)), tuple(shown[int(code)] for code in used)


def _held_out(table: pd.DataFrame, held_out: object) -> tuple[NDArray[np.bool_] | None, str | None]:
    """(N,) whether a row is of the official test set, and the column that says so."""
    if held_out is None:
        return None, None
    column = _find(table, "held_out", held_out) if isinstance(held_out, str) else None
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


def _encoded(
    federation: Federation,
    encoding: Encoding,
    values: list[Values],
    wanted: dict[str, str],
    most: int,
) -> Federation:
    """The federation of row numbers with every row encoded, by an encoding fitted on its training
    rows."""
    rows = {
        name: part.x[:, 0].numpy()
        for name in ("train", "val", "test")
        if (part := getattr(federation, name)) is not None
    }
    offsets = federation.train.offsets.numpy()
    away = np.concatenate(
        [rows[name] for name in ("val", "test") if name in rows] or [rows["train"][:0]]
    )
    columns: list[Column] = []
    blocks: list[NDArray[np.float32]] = []
    for column_values in values:
        column = fit_column(
            column_values, rows["train"], offsets, wanted.get(column_values.name), most
        )
        if column.kind != "left out":
            block, unseen = column.encode(column_values)
            blocks.append(block)
            column = replace(column, unseen=int(unseen[away].sum()))
        columns.append(column)
    if not blocks:
        raise DataError(
            "no column is left to learn from; see that the table has columns other than client and"
            " label that vary"
        )
    matrix = torch.from_numpy(np.concatenate(blocks, axis=1))
    encoding = replace(encoding, columns=tuple(columns))
    if encoding.task == "regression":
        mean, std = statistics(federation.train.y.numpy(), offsets)[1:]
        if not 0 < std < np.inf:
            raise DataError(
                f"label {encoding.label!r} is the same in all training rows, or too large to add up"
            )
        encoding = replace(encoding, label_mean=mean, label_std=std)

    def finished(name: str) -> Part | None:
        part: Part | None = getattr(federation, name)
        if part is None:
            return None
        y = (
            part.y
            if encoding.task == "classification"
            else ((part.y - encoding.label_mean) / encoding.label_std).float()
        )
        return replace(part, x=matrix[torch.from_numpy(rows[name])], y=y)

    train = finished("train")
    assert train is not None
    return replace(
        federation, train=train, val=finished("val"), test=finished("test"), encoding=encoding
    )
