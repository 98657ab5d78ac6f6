"""File name endings of tables."""

from __future__ import annotations

SEPARATORS = {".csv": ",", ".tsv": "\t", ".data": ","}  # of text files
PARQUET = (".parquet", ".pq")
ENDINGS = (*SEPARATORS, *(f"{ending}.gz" for ending in SEPARATORS), *PARQUET)


def table_ending(name: str) -> str | None:
    """Return the ending that marks a file as a table, in lower case; None for another file.

    >>> table_ending("Patients.CSV.gz"), table_ending("study.toml")
    ('.csv.gz', None)
    """
    return next((ending for ending in ENDINGS if name.lower().endswith(ending)), None)
