"""A small table of a user's own, with everything a table can have, and runs that are trained on it
from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tests.support.commands import invoke

SITES = ("East", "North", "West")
QUICK = ("--rounds", "3", "--no-report", "-q", "--device", "cpu")


def visits(size: int = 240, seed: int = 0) -> pd.DataFrame:
    """Rows with categories, missing values, codes with leading zeros, and labels of three kinds:
    ``stage`` of three texts, ``ill`` 0 or 1, and ``weight``, a number."""
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, size).astype(float)
    sex = rng.choice(["f", "m"], size)
    pay = rng.choice(["cash", "card", "bill"], size).astype(object)
    risk = age / 30 + (sex == "m") + (pay == "cash") + rng.normal(0, 0.7, size)
    table = pd.DataFrame(
        {
            "site": rng.choice(SITES, size, p=[0.5, 0.3, 0.2]),
            "age": age,
            "sex": sex,
            "pay": pay,
            "ward": rng.choice(["007", "012", "120"], size),
            "stage": np.select([risk < 2.3, risk < 3.3], ["low", "middle"], "high"),
            "ill": (risk > 2.8).astype(int),
            "weight": np.round(50 + 8 * risk + rng.normal(0, 2, size), 1),
        }
    )
    table.loc[rng.random(size) < 0.1, "age"] = np.nan
    table.loc[rng.random(size) < 0.1, "pay"] = None
    return table


def write(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as people do: whole numbers without a point, empty cells where none is known."""
    text = table.assign(age=table["age"].astype("Int64")) if "age" in table else table
    text.to_csv(path, index=False)
    return path


def train(table: Path, label: str, directory: Path, *options: str, command: str = "run") -> Path:
    """Train on a table from the command line, and return the run directory."""
    drop = [name for name in ("stage", "ill", "weight") if name != label]
    roles = ("--client", "site", "--label", label, "--group", "sex", *QUICK)
    dropped = (option for name in drop for option in ("--drop", name))
    given = ("--data", str(table), *roles, *dropped, *options, "--out", str(directory))
    code, _, err = invoke(command, *given)
    assert code == 0, err
    return directory
