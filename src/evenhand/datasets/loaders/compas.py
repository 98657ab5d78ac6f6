"""COMPAS: defendants in Broward County, Florida, and whether they were charged again within two
years (ProPublica, 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from evenhand.data.federation import Federation
from evenhand.data.pool import Partition
from evenhand.data.storage.file import File, find, folder_of
from evenhand.data.storage.file import read as read_file
from evenhand.data.storage.locate import locate
from evenhand.data.tables.files import parse, require_numbers, require_values
from evenhand.errors import DataError, require_choice

CHECKSUM = "sha256:c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d"
HOME = "https://raw.githubusercontent.com/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a/"
FILES = (
    File("compas-scores-two-years.csv", HOME + "compas-scores-two-years.csv", CHECKSUM, CHECKSUM),
)
# the same rows without names, dates and case numbers; used if it is present
SHORT = File("compas_two_years.csv.gz")
# What is known about a defendant on the day of the assessment. Not used: the tool's own scores
# (decile_score, score_text, v_...), because they are what should be evaluated; is_recid and
# is_violent_recid, because they give the answer away; age_cat, because age says more.
FEATURES = (
    "sex",
    "age",
    "race",
    "juv_fel_count",
    "juv_misd_count",
    "juv_other_count",
    "priors_count",
    "c_charge_degree",
)
NUMBERS = ("age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count")
FILTERED_BY = ("days_b_screening_arrest", "is_recid", "score_text")
LABEL = "two_year_recid"
DIRICHLET = {"name": "dirichlet_groups", "clients": 10, "alpha": 0.5}


def read(root: Path | None = None) -> pd.DataFrame:
    """Read all 7,214 rows, with the columns of features, label and ProPublica's filter."""
    path = find(SHORT, (folder_of("compas", root),))
    file = FILES[0] if path is None else SHORT
    path = path or locate("compas", FILES, root)[0]
    rows = parse(read_file(path, file), str(path), repeats=True)
    needed = [*FEATURES, *FILTERED_BY, LABEL]
    for column in needed:
        if column not in rows:
            raise DataError(
                f"{path} has no column {column!r}; it must be ProPublica's two-year table"
            )
    require_values(rows, LABEL, (0, 1), str(path), 2)
    require_numbers(rows, NUMBERS, str(path), 2)
    return rows[needed]


def propublica(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that ProPublica's analysis keeps.

    These are people charged within 30 days of the assessment (so that it is the offence they were
    assessed for), with a record of new charges, a charge other than an ordinary traffic offence,
    and a score.
    """
    days = rows["days_b_screening_arrest"]
    return rows[
        days.between(-30, 30)
        & (rows["is_recid"] != -1)
        & (rows["c_charge_degree"] != "O")
        & rows["score_text"].notna()
    ]


def compas(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | None = None,
    group: str | Sequence[str] | None = "race",
    filter: str | None = "propublica",
    drop: Sequence[str] = (),
) -> Federation:
    """Load COMPAS: 6,172 defendants; the label is a new charge within two years (46 %).

    Args:
        partition: the data have no clients of their own; None distributes races over 10 clients by
            a Dirichlet draw with concentration 0.5.
        split: None keeps a fifth of each client's rows for testing.
        group: "race", "sex" or both. They are also features unless they are dropped.
        filter: "propublica" keeps the rows of ProPublica's analysis; None (or "none") all 7,214.
        drop: columns that are not features.
    """
    require_choice("filter", "none" if filter is None else filter, ("propublica", "none"))
    rows = read(root)
    if filter == "propublica":
        rows = propublica(rows)
    rows = rows[[*FEATURES, LABEL]].assign(
        **{LABEL: pd.Categorical.from_codes(rows[LABEL], pd.Index(["no new charge", "new charge"]))}
    )
    if partition is None and group is None:
        partition = {"name": "dirichlet", "clients": 10, "alpha": 0.5}
    return Federation.from_frame(
        rows,
        client=None,
        label=LABEL,
        group=group,
        drop=drop,
        partition=partition or DIRICHLET,
        split=split,
        seed=seed,
        clients=clients,
    )
