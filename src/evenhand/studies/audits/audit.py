"""What a classifier's predictions, or counts of them, say about clients and groups. Any system's:
nothing is trained here."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from evenhand.errors import require_known
from evenhand.files import check_formats, plain, write_json, write_tables
from evenhand.studies.audits import printing, words
from evenhand.studies.audits.basis import Row
from evenhand.studies.audits.numbers import Numbers
from evenhand.studies.audits.provenance import provenance

WIDTH = 100  # columns of a text that goes to no terminal


@dataclass(frozen=True, repr=False)
class Audit(Numbers):
    """Who is served how well, in words, numbers and tables; printed, it is the text of the command
    line: the answer, then tables. The arguments are those of :class:`Numbers`."""

    def __repr__(self) -> str:
        text = io.StringIO()
        self.show(Console(file=text, width=WIDTH, force_jupyter=False))
        return text.getvalue().rstrip()

    @property
    def sentences(self) -> list[str]:
        """The answer in at most four sentences."""
        return words.sentences(self)

    def show(self, console: Console) -> None:
        """Print the answer, how clients and groups are served, and differences between groups."""
        printing.show(self, console)

    def tables(self) -> dict[str, list[Row]]:
        """Rows of tables, by name.

        Of several group columns, gaps, pairs, ratios, scores and thresholds are by each column and
        by their combinations; groups and rates, too.
        """
        every = [*self.parts.values(), self]

        def all_of(rows: Any) -> list[Row]:
            return [
                ({"groups": one.by} if self.parts else {}) | row
                for one in every
                for row in rows(one)
                if not one.part or row.get("by", "group") == "group"  # others are in the whole
            ]

        kinds = {"clients": self.across_clients(), "groups": self.across_groups()}
        summary = [
            {"across": kind, "measure": name, **value._asdict()}
            for kind, values in kinds.items()
            for name, value in values.items()
        ]
        return {
            "clients": self.clients(),
            "groups": all_of(lambda one: one.groups()),
            "rates": all_of(lambda one: one.rates()),
            "summary": summary,
            "gaps": all_of(lambda one: one.gap_rows()),
            "pairs": all_of(lambda one: one.pairs),
            "ratios": all_of(lambda one: one.ratios),
            "scores": all_of(lambda one: one.scores),
            "calibration": all_of(lambda one: one.reliability),
            "thresholds": all_of(lambda one: one.sweep),
            "counts": self.count_rows(),
        }

    def table(self, name: str) -> pd.DataFrame:
        """One of :meth:`tables`."""
        tables = self.tables()
        require_known("table", name, tables)
        return pd.DataFrame(tables[name])

    def count_rows(self) -> list[Row]:
        """See :meth:`Counts.rows`; without those of small clients and groups where they are
        suppressed."""
        clients, groups = self.suppressed("client"), self.suppressed("group")
        return [
            row
            for row in self.counts.rows()
            if row["client"] not in clients and row["group"] not in groups
        ]

    def numbers(self) -> dict[str, Any]:
        """Everything for programs, as JSON knows it."""
        tables = self.tables()
        found: dict[str, Any] = plain(
            {
                "answer": self.sentences,
                "samples": int(self.counts.table.sum()),
                "labels": list(self.counts.labels),
                "positive": self.label,
                "across_clients": {k: v._asdict() for k, v in self.across_clients().items()},
                "across_groups": {k: v._asdict() for k, v in self.across_groups().items()},
                **{name: tables[name] for name in tables if name not in ("summary", "counts")},
                "groups": tables["groups"] if self.groups_named else [],
            }
        )
        return found

    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from: file, columns, options, version and date."""
        return provenance(self)

    def save(self, directory: str | Path, formats: Iterable[str] = ("csv",)) -> list[Path]:
        """Write tables, and provenance.json; the paths."""
        formats = tuple(formats)
        check_formats(formats)
        written = write_tables(Path(directory), self.tables(), formats)
        about = Path(directory) / "provenance.json"
        write_json(about, self.provenance())
        return [*written, about]
