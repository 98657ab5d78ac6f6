"""Heart Disease: patients of four hospitals, and whether their arteries are narrowed (Janosi,
Steinbrunn, Pfisterer and Detrano, UCI)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evenhand.data.federation import Federation
from evenhand.data.pool import Partition
from evenhand.data.storage.file import File, find, folder_of
from evenhand.data.storage.file import read as read_file
from evenhand.data.storage.locate import locate
from evenhand.data.tables.files import parse, require_numbers, require_values
from evenhand.errors import DataError, require_choice

HOME = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
CHECKSUMS = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
FILES = tuple(
    File(
        f"processed.{hospital}.data",
        f"{HOME}processed.{hospital}.data",
        f"sha256:{known}",
        f"sha256:{known}",
    )
    for hospital, known in CHECKSUMS.items()
)
# all four in one file, with a header and a column "hospital"; used if it is present
JOINED = File("heart_disease.csv")
COLUMNS = (
    *(
        "age",
        "sex",
        "cp",
        "trestbps",
        "chol",
        "fbs",
        "restecg",
        "thalach",
        "exang",
        "oldpeak",
        "slope",
        "ca",
        "thal",
    ),
    "target",
)
CODES = ("cp", "restecg", "slope", "thal")  # numbers that are codes
RARE = ("slope", "ca", "thal")  # rarely recorded by most hospitals


def read(root: Path | None = None) -> pd.DataFrame:
    """Read the 920 rows of the four hospitals as published, with a column "hospital"."""
    joined = find(JOINED, (folder_of("heart_disease", root),))
    if joined is not None:
        return _checked(parse(read_file(joined, JOINED), str(joined)), str(joined), first_line=2)
    tables = []
    for hospital, path, file in zip(
        CHECKSUMS, locate("heart_disease", FILES, root), FILES, strict=True
    ):
        rows = parse(read_file(path, file), str(path), names=COLUMNS)
        tables.append(_checked(rows.assign(hospital=hospital), str(path), first_line=1))
    return pd.concat(tables, ignore_index=True)


def _checked(rows: pd.DataFrame, source: str, first_line: int) -> pd.DataFrame:
    for column in ("hospital", *COLUMNS):
        if column not in rows:
            raise DataError(
                f"{source} has no column {column!r}; its columns must be hospital,"
                f" {', '.join(COLUMNS)}"
            )
    require_values(rows, "hospital", tuple(CHECKSUMS), source, first_line)
    require_values(rows, "target", range(5), source, first_line)
    require_values(rows, "sex", (0, 1), source, first_line)
    require_numbers(rows, COLUMNS, source, first_line, missing=True)
    return rows[["hospital", *COLUMNS]].astype(dict.fromkeys(COLUMNS, np.float64))


def heart_disease(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | None = None,
    group: str | Sequence[str] | None = "sex",
    cleaning: str = "impute",
    drop: Sequence[str] = (),
) -> Federation:
    """Load Heart Disease: 920 patients of four hospitals; the label is a narrowed artery.

    The hospitals are in Cleveland (303 patients), Budapest (294), Zurich and Basel (123) and Long
    Beach (200). The label is positive if an artery is narrowed by more than half (target > 0): 46,
    36, 93 and 75 % of their patients.

    Args:
        partition: None makes each hospital a client.
        split: None keeps a fifth of each hospital's patients for testing.
        group: a column, several, or a condition such as "age > 60".
        cleaning: "impute" keeps all rows and handles missing values. A cholesterol or a blood
            pressure of 0, which no living patient has, counts as missing (172 rows, including all
            of Switzerland's). "flamby" removes slope, ca and thal, then every incomplete row, as
            FLamby's Fed-Heart-Disease does: 740 rows, 303 / 261 / 46 / 130.
        drop: columns that are not features.
    """
    require_choice("cleaning", cleaning, ("impute", "flamby"))
    rows = read(root)
    if cleaning == "flamby":
        rows = rows.drop(columns=list(RARE)).dropna()
    else:
        rows[["trestbps", "chol"]] = rows[["trestbps", "chol"]].replace(0, np.nan)
    rows["sex"] = rows["sex"].map({0.0: "female", 1.0: "male"})
    rows["target"] = pd.Categorical.from_codes(
        rows["target"].gt(0).astype(int), pd.Index(["healthy", "disease"])
    )
    return Federation.from_frame(
        rows,
        client="hospital",
        label="target",
        group=group,
        drop=drop,
        categorical=[column for column in CODES if column in rows],
        partition=partition,
        split=split,
        seed=seed,
        clients=clients,
    )
