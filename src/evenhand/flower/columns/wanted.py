"""What a codebook of all nodes is for: the label, the groups, and columns to drop."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from evenhand.data.tables.missing import missing_texts
from evenhand.errors import SpecError, first_line, require_known, require_number
from evenhand.flower.codebook_text import MISSING, toml_text, toml_texts

ENTRIES = ("label", "group", "drop", "test", "missing")

TEXT = """\
# What to predict from the nodes' tables. Means, spreads and categories of all other columns come
# from the nodes, as sums, before the first round; the server writes them into codebook.toml in the
# run directory. Nodes send the names of all columns except those in drop.

label = {label}  # the column to predict, or a condition on one: "stage > 2"
group = {group}  # columns whose combinations are the groups to compare; [] for none
drop = {drop}  # columns that are not features
test = {test}  # the share of each node's rows kept for testing
{missing}"""


@dataclass(frozen=True)
class Columns:
    """Which columns of the nodes' tables have a special role; see :class:`Codebook`."""

    label: str
    group: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    test: float = 0.2
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_number("test", self.test, "[0, 1)", "it is the share of rows kept for testing")

    def to_toml(self) -> str:
        """The file, with comments, for :meth:`load`."""
        return TEXT.format(
            label=toml_text(self.label),
            group=toml_texts(self.group),
            drop=toml_texts(self.drop),
            test=self.test,
            missing=MISSING.format(toml_texts(self.missing)) if self.missing else "",
        )

    @classmethod
    def load(cls, path: str | Path) -> Columns:
        """The columns in a TOML file."""
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8"))
        except (OSError, TypeError, ValueError) as error:
            raise SpecError(
                f"{Path(path).name} cannot be read as columns: {first_line(error)}"
            ) from error

    @classmethod
    def parse(cls, text: str) -> Columns:
        """The columns in a TOML text.

        >>> Columns.parse('label = "ill"' + chr(10) + 'drop = ["name"]').drop
        ('name',)
        """
        found = tomllib.loads(text)
        for name in found:
            require_known("entry", name, ENTRIES)
        if not isinstance(found.get("label"), str):
            raise ValueError("label is missing or not a text")
        lists = {}
        for name in ("group", "drop"):
            given = found.get(name, [])
            if not isinstance(given, str | list):
                raise ValueError(f"{name} must be a list of columns, got {given!r}")
            lists[name] = tuple(map(str, [given] if isinstance(given, str) else given))
        missing = missing_texts(found.get("missing", []))
        return cls(found["label"], **lists, test=found.get("test", 0.2), missing=missing)
