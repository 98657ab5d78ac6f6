"""Audit the predictions of any classifier, or counts of them, by client and group."""

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
from evenhand.studies.analysis.local import local_rows
from evenhand.studies.audits import printing, words
from evenhand.studies.audits.basis import Row
from evenhand.studies.audits.numbers import Numbers
from evenhand.studies.audits.provenance import provenance

WIDTH = 100  # columns of a text that goes to no terminal


@dataclass(frozen=True, repr=False)
class Audit(Numbers):
    """How well predictions serve clients and groups, in sentences and tables; printed, it is the
    output of the command line. The arguments are those of :class:`Numbers`."""

    def __repr__(self) -> str:
        text = io.StringIO()
        self.show(Console(file=text, width=WIDTH, force_jupyter=False))
        return text.getvalue().rstrip()

    @property
    def sentences(self) -> list[str]:
        """The answer in at most four sentences."""
        return words.sentences(self)

    def show(self, console: Console) -> None:
        """Print the answer, then tables of clients, groups and gaps."""
        printing.show(self, console)

    def tables(self) -> dict[str, list[Row]]:
        """Rows of tables, by name.

        With several group columns, tables about groups have rows for each column and for their
        combinations.
        """
        every = [*self.parts.values(), self]

        def all_of(rows: Any) -> list[Row]:
            return [
                ({"groups": one.by} if self.parts else {}) | row
                for one in every
                for row in rows(one)
                if not one.part or row.get("by", "group") == "group"  # the whole has clients
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
            "local_gaps": all_of(lambda one: local_rows(one.gaps, one.local)),
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
        """See :meth:`Counts.rows`; without suppressed clients and groups."""
        clients, groups = self.suppressed("client"), self.suppressed("group")
        return [
            row
            for row in self.counts.rows()
            if row["client"] not in clients and row["group"] not in groups
        ]

    def numbers(self) -> dict[str, Any]:
        """All results as values for JSON."""
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
        """How the results were made: file, columns, options, version and date."""
        return provenance(self)

    def save(self, directory: str | Path, formats: Iterable[str] = ("csv",)) -> list[Path]:
        """Write tables and provenance.json; return their paths."""
        formats = tuple(formats)
        check_formats(formats)
        written = write_tables(Path(directory), self.tables(), formats)
        about = Path(directory) / "provenance.json"
        write_json(about, self.provenance())
        return [*written, about]
