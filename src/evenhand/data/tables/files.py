"""Reading tables from files, and checking their values."""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evenhand.data.tables.decoding import UTF8, decode
from evenhand.data.tables.endings import PARQUET, SEPARATORS, table_ending
from evenhand.data.tables.missing import missing_texts, without
from evenhand.data.tables.values import MISSING
from evenhand.errors import DataError, first_line

_DECIMAL_COMMA = re.compile(r"(^|;)\s*-?\d+,\d+\s*(;|$)", re.MULTILINE)
_QUOTED = re.compile(r'"[^"]*"')
_LEADING_ZERO = re.compile(r'(^|[,;\t])\s*"?0\d+"?\s*([,;\t]|$)', re.MULTILINE)


def read_table(
    path: str | Path, *, missing: object = (), encoding: str | None = None
) -> pd.DataFrame:
    """Read a table from a CSV (.csv), tab-separated (.tsv) or Parquet (.parquet, .pq) file.

    Text files may be compressed (.gz). Their first line has the column names; spaces around them
    are removed. Empty fields, ?, NA and the like are missing values. A .csv file may also be
    separated by tabs or semicolons; with semicolons it may have decimal commas. Whole numbers with
    leading zeros (001) stay text, because they are codes.

    Args:
        path: the file.
        missing: more texts that mean a missing value in any column, such as "<0.5" or "999".
        encoding: of a text file, such as "cp1252". None tries UTF-8, then UTF-16 if the bytes look
            like it, then cp1252; ``table.attrs["encoding"]`` names it if it is not UTF-8.

    Returns:
        A pandas table, for ``evenhand.Federation.from_frame``.
    """
    path, texts = Path(path), missing_texts(missing)
    ending = _checked(path)
    if ending in PARQUET:
        if encoding is not None:
            raise DataError(f"{path} is a Parquet file, which has no encoding; remove the encoding")
        return without(_read_parquet(path), texts)
    text, separator, taken = _read_text(path, ending, encoding)
    table = _parsed(text, str(path), separator=separator, missing=texts)
    if encoding is None and taken != UTF8:
        table.attrs["encoding"] = taken
    return table


def read_cells(path: str | Path, *, encoding: str | None = None) -> pd.DataFrame:
    """Read the same table with the cells of a text file as they are, to write them out again:
    52 stays 52, even if other cells of its column are empty."""
    path = Path(path)
    ending = _checked(path)
    if ending in PARQUET:
        return _read_parquet(path)
    text, separator, _ = _read_text(path, ending, encoding)
    if _decimal(text, separator) == ",":  # no numbers in a file separated by commas
        return _parsed(text, str(path), separator=separator)
    settings: dict[str, Any] = {"sep": separator, "index_col": False, "skipinitialspace": True}
    table: pd.DataFrame = pd.read_csv(
        io.StringIO(text), dtype=str, keep_default_na=False, **settings
    )
    table.columns = _names(table)
    return table


def _checked(path: Path) -> str:
    """Return the ending of a table's file; raise if it is none, or not there."""
    ending = table_ending(path.name)
    if ending is None:
        raise DataError(
            f"{path} is not a supported table; pass a .csv, .tsv (or either with .gz) or .parquet"
            " file"
        )
    if not path.is_file():
        raise DataError(
            f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; pass a table's path"
        )
    return ending


def _read_text(path: Path, ending: str, encoding: str | None) -> tuple[str, str, str]:
    """Return the text of a file, its separator and its encoding."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if ending.endswith(".gz") else content
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}") from error
    text, taken = decode(content, str(path), encoding)
    text = _with_plain_ends(text)
    return text, _separator(text, SEPARATORS[ending.removesuffix(".gz")]), taken


def parse(
    content: bytes, source: str, names: Sequence[str] | None = None, repeats: bool = False
) -> pd.DataFrame:
    """Parse a table from the bytes of a UTF-8 file, separated by commas.

    Args:
        content: the bytes.
        source: what to call the file in errors, which also name the line.
        names: of the columns; None takes the first line.
        repeats: whether a name may appear twice; the second column is then called NAME.1.
    """
    text = _with_plain_ends(decode(content, source).text)
    return _parsed(text, source, names, repeats=repeats)


def _with_plain_ends(text: str) -> str:
    r"""Return the text with "\n" line ends; old programs end lines with a carriage return only."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _separator(text: str, usual: str) -> str:
    """Return the separator of a .csv file: the most frequent of comma, semicolon and tab in the
    header."""
    if usual != ",":
        return usual
    header = _QUOTED.sub("", text.partition("\n")[0])
    return max((usual, ";", "\t"), key=header.count)


def _decimal(text: str, separator: str) -> str:
    """Return the decimal mark; only a table separated by semicolons may have commas."""
    return "," if separator == ";" and _DECIMAL_COMMA.search(text) else "."


def _parsed(
    text: str,
    source: str,
    names: Sequence[str] | None = None,
    separator: str = ",",
    repeats: bool = False,
    missing: tuple[str, ...] = (),
) -> pd.DataFrame:
    if not text.strip():
        raise DataError(f"{source} is empty")
    if "\0" in text[:10_000]:
        raise DataError(f"{source} is not a table: it contains bytes that are not text")
    if names is None:
        _check_header(
            next(csv.reader(io.StringIO(text), delimiter=separator)), source, text, repeats
        )
    settings: dict[str, Any] = {
        "sep": separator,
        "decimal": _decimal(text, separator),
        "header": 0 if names is None else None,
        "names": None if names is None else list(names),
        "index_col": False,
        "skipinitialspace": True,
        "keep_default_na": False,
        "na_values": [*MISSING, *missing],
        "low_memory": False,
    }
    try:
        with warnings.catch_warnings():
            # otherwise pandas truncates long rows
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
        # pandas pads short rows, which then lack a value in the last column
        _check_lengths(text, source, names, separator)
    table.columns = _names(table)
    return without(table, missing)


def _names(table: pd.DataFrame) -> list[str]:
    """Names of columns without spaces around them."""
    stripped = (str(name).strip() for name in table.columns)
    return [name or f"Unnamed: {place}" for place, name in enumerate(stripped)]


def _keep_zeros(table: pd.DataFrame, texts: pd.DataFrame) -> None:
    """Replace columns of whole numbers by their texts if some have leading zeros."""
    for name in table.columns[[pd.api.types.is_numeric_dtype(dtype) for dtype in table.dtypes]]:
        if texts[name].str.fullmatch(r"0\d+").any():
            table[name] = texts[name]


def _check_header(header: list[str], source: str, text: str, repeats: bool) -> None:
    stripped = [name.strip() for name in header]
    twice = next((name for i, name in enumerate(stripped) if name and name in stripped[:i]), None)
    if twice is not None and not repeats:
        forms = sorted({name for name in header if name.strip() == twice})
        if len(forms) > 1:
            raise DataError(
                f"{source} has columns {' and '.join(map(repr, forms))}, which differ only in"
                " spaces; rename one"
            )
        raise DataError(f"{source} has two columns named {twice!r}; rename one")
    if not text.partition("\n")[2].strip():
        raise DataError(f"{source} has column names but no rows")


def _check_lengths(text: str, source: str, names: Sequence[str] | None, separator: str) -> None:
    """Raise a DataError that names the first line whose number of fields is wrong."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    width = len(names) if names is not None else len(next(reader))
    try:
        for fields in reader:
            if fields and len(fields) != width and any(field.strip() for field in fields):
                raise DataError(
                    f"{source} line {reader.line_num} has {len(fields)} fields, but the table has"
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
            f"reading {path} needs pyarrow: pip install pyarrow (extra: evenhand[parquet]), or save"
            " the table as CSV"
        ) from error
    try:
        stored = parquet.read_table(path)
        table: pd.DataFrame = stored.to_pandas()
    except MemoryError:
        raise
    except Exception as error:  # with damaged bytes, pyarrow can raise anything
        raise DataError(f"{path} is not a Parquet file, or damaged: {first_line(error)}") from error
    if len(set(stored.column_names)) < len(stored.column_names):
        twice = next(
            name for i, name in enumerate(stored.column_names) if name in stored.column_names[:i]
        )
        raise DataError(f"{path} has two columns named {twice!r}; rename one")
    if not len(table):
        raise DataError(f"{path} has columns but no rows")
    return table


def require_values(
    table: pd.DataFrame, column: str, allowed: Collection[object], source: str, first_line: int = 1
) -> None:
    """Raise a DataError that names file and line unless every value of a column is in
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
    """Raise a DataError that names file and line unless columns have finite numbers.

    With ``missing``, cells may also be empty.
    """
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
