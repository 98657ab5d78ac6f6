"""New samples for a trained model, and the clients and groups they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.data.samples import Features
from evenhand.errors import brief, require
from evenhand.studies.runs.trial import Trial
from evenhand.studies.specs.spec import Spec
from evenhand.training.predicting import Ints, as_features

if TYPE_CHECKING:
    import pandas as pd

    from evenhand.data.tables.encoding import Encoding

MOST_NAMES = 10  # in a message


@dataclass(frozen=True)
class Rows:
    """Samples to predict for, and what the run knows about the columns of their table."""

    features: Features  # (N, ...)
    table: pd.DataFrame | None
    spec: Spec | None
    encoding: Encoding | None = None

    @classmethod
    def of(cls, trial: Trial, x: Any) -> Rows:
        """The samples of a table, an array or a dict of arrays."""
        from evenhand.data.tables.anew import as_pandas, encoded
        from evenhand.data.tables.missing import without

        if isinstance(x, str | Path):
            raise TypeError(f"x must hold samples, got the path {str(x)!r}; read the file first")
        table, encoding = as_pandas(x), trial.encoding
        spec = None if trial.source is None else trial.source.spec
        if table is None:
            inputs = as_features(x)
            require(len(inputs) > 0, "x has no samples")
            return cls(inputs, None, spec)
        if encoding is None:
            raise TypeError(
                "this run was not trained on a table; x must be an array or a tensor as its network"
                " takes it"
            )
        features = encoded(encoding, table)
        return cls(features, without(table, encoding.missing), spec, encoding)

    def codes(
        self,
        by: str,
        given: Any,
        known: Sequence[str],
        what: str,
        strangers: bool = False,
        way: str = "",
    ) -> Ints:
        """(N,) the codes of the rows' clients or groups.

        Args:
            by: "client" or "group".
            given: names; None takes the columns of the table.
            known: the names to find a code for.
            what: these are, in words.
            strangers: whether other names have the code -1; otherwise they raise.
            way: what to do about them besides naming another.
        """
        names = self._names(by, given, known)
        if names is None and strangers:
            return np.full(len(self.features), -1)
        if names is None:
            raise ValueError(
                f"say which {by} each row belongs to: {self._ways(by)}{way}; the {what} are"
                f" {_listed(known)}"
            )
        place = {name: code for code, name in enumerate(known)}
        codes = np.array([place.get(name, -1) for name in names], np.int64)
        unknown = np.flatnonzero(codes < 0)
        if len(unknown) and not strangers:
            first = names[int(unknown[0])]
            said = f"{by} {brief(first)} is not known" if first else f"the {by} is missing"
            raise ValueError(
                f"row {int(unknown[0]) + 1}: {said}; the {what} are {_listed(known)}; name one"
                f" of them{way}"
            )
        return codes

    def _names(self, by: str, given: Any, known: Sequence[str]) -> list[str] | None:
        from evenhand.data.tables.anew import group_names_in, names_in, texts

        if given is not None:
            return texts(given, len(self.features))
        column = self._column(by)
        if self.table is None or column is None:
            return None
        if by == "group":
            return group_names_in(self.table, column, known)
        from evenhand.data.tables.levels import condition_in

        condition = condition_in(self.table, column)
        if (condition[1] if condition else str(column)) not in map(str, self.table.columns):
            return None
        return names_in(self.table, "client", column)

    def _column(self, by: str) -> Any:
        """The column of clients or groups in the run's own table, if it is known."""
        data = {} if self.spec is None else self.spec.data
        named = data.get(by) if "partition" not in data or by == "group" else None
        if named is not None or self.encoding is None:
            return named
        # a run of a Python program: its table says it
        return self.encoding.client or None if by == "client" else list(self.encoding.group) or None

    def _ways(self, by: str) -> str:
        column = self._column(by)
        option = (
            "--for-client NAME or --client-column COLUMN" if by == "client" else "--group-column"
        )
        own = "" if self.table is None or column is None else f"a table with {column!r}, or "
        return f"{own}{by}= ({option})"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
