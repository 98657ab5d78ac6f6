"""ACS Income: who earns more than 50,000 dollars, by state (American Community Survey 2018; Ding et
al., NeurIPS 2021)."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evenhand.data.federation import Federation
from evenhand.data.pool import Partition
from evenhand.data.storage.file import File
from evenhand.data.storage.file import read as read_file
from evenhand.data.storage.locate import locate
from evenhand.errors import DataError, first_line, require_choice

COLUMNS = ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P")
FILES = (
    File(
        "acs_income_2018_35states.npz",
        hint=(
            f"save arrays {', '.join(COLUMNS)}, label, state and state_names from folktables'"
            " ACSIncome rows with numpy.savez"
        ),
    ),
)
NAMES: dict[str, dict[int, str]] = {
    "SEX": {1: "male", 2: "female"},
    "RAC1P": {
        1: "White",
        2: "Black",
        3: "Asian",
        4: "American Indian or Alaska Native",
        5: "other or several",
    },
    "MAR": {1: "married", 2: "not married"},
    "COW": {
        1: "private, for profit",
        2: "private, not for profit",
        3: "local government",
        4: "state government",
        5: "federal government",
        6: "self-employed",
        7: "self-employed, incorporated",
        8: "unpaid",
    },
}
# the census's families of occupations and parts of the world, by the first code of each
OCCUPATIONS = {
    **{
        10: "managers",
        500: "business",
        800: "finance",
        1005: "computers",
        1305: "engineering",
        1600: "science",
    },
    **{
        2001: "community",
        2100: "law",
        2205: "education",
        2600: "arts and media",
        3000: "medicine",
        3601: "health support",
    },
    **{
        3700: "protection",
        4000: "food",
        4200: "cleaning",
        4330: "personal care",
        4700: "sales",
        5000: "office",
        6005: "farming",
    },
    **{
        6200: "construction",
        6800: "extraction",
        7000: "repair",
        7700: "production",
        9005: "transport",
        9800: "military",
    },
}
ORIGINS = {
    1: "United States",
    60: "US islands",
    100: "Europe",
    200: "Asia",
    300: "Americas",
    400: "Africa",
    500: "Oceania",
}


def read(root: Path | None = None) -> pd.DataFrame:
    """Read all rows as the census's codes, with a column "state" of names."""
    path = locate("acs_income", FILES, root)[0]
    try:
        with np.load(io.BytesIO(read_file(path, FILES[0]))) as stored:
            arrays = {name: stored[name] for name in (*COLUMNS, "label", "state", "state_names")}
    except KeyError as error:
        raise DataError(f"{path} is incomplete: {first_line(error).strip(chr(39))}") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged: {first_line(error)}") from error
    names = arrays.pop("state_names")
    count = len(arrays["label"])
    for name, values in arrays.items():
        if values.shape != (count,):
            raise DataError(
                f"{path}: {name} has shape {list(values.shape)}, but label has {count} entries;"
                " they must have the same length"
            )
        low, high = _bounds(name, len(names))
        bad = np.flatnonzero(~((values >= low) & (values <= high)))  # in this form, NaN is bad
        if len(bad):
            raise DataError(
                f"{path} row {int(bad[0]) + 1}: {name} is {values[bad[0]]}; it must be {low} to"
                f" {high}"
            )
    return pd.DataFrame(arrays).assign(state=names[arrays["state"]])


def _bounds(name: str, states: int) -> tuple[int, int]:
    """Return the smallest and the largest code of a column."""
    if name in NAMES:
        return min(NAMES[name]), max(NAMES[name])
    return {
        "label": (0, 1),
        "state": (0, states - 1),
        "AGEP": (0, 99),
        "SCHL": (1, 24),
        "WKHP": (1, 99),
        "RELP": (0, 17),
    }.get(name, (1, 9999))


def acs_income(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | None = None,
    group: str | Sequence[str] | None = "SEX",
    codes: str = "families",
    drop: Sequence[str] = (),
) -> Federation:
    """Load ACS Income: 171,185 people in 35 US states; the label is an income above 50,000 dollars.

    Each state has 3,064 to 5,000 rows; 36 % are positive. AGEP, SCHL (schooling, 24 levels) and
    WKHP (hours per week) are numbers, the other columns are categories.

    Args:
        partition: None makes each state a client; ``clients`` then draws some of them.
        split: None keeps a fifth of each state's rows for testing.
        group: "SEX", "RAC1P" (race) or both.
        codes: "families" groups the 529 occupations into the census's 25 families and the 222
            places of birth into seven parts of the world, as categories; "numbers" uses the codes
            as numbers, like folktables.
        drop: columns that are not features.
    """
    require_choice("codes", codes, ("families", "numbers"))
    rows = read(root)
    for column, names in NAMES.items():
        rows[column] = rows[column].map(names)
    if codes == "families":
        rows["OCCP"] = _family(rows["OCCP"], OCCUPATIONS)
        rows["POBP"] = _family(rows["POBP"], ORIGINS)
    rows["income"] = pd.Categorical.from_codes(
        rows.pop("label"), pd.Index(["up to 50,000", "above 50,000"])
    )
    return Federation.from_frame(
        rows,
        client="state",
        label="income",
        group=group,
        drop=drop,
        categorical=["RELP"],
        partition=partition,
        split=split,
        seed=seed,
        clients=clients,
    )


def _family(codes: pd.Series[Any], families: Mapping[int, str]) -> pd.Series[Any]:
    names = pd.Series(list(families.values()), dtype="category")
    place = np.searchsorted(list(families), codes.to_numpy(), side="right") - 1
    return pd.Series(names.to_numpy()[place], index=codes.index, dtype=str)
