"""Checks conditions on columns against an example of the nodes' tables."""

from __future__ import annotations

import pandas as pd

from evenhand.data.tables.levels import condition_in, levels_of
from evenhand.data.tables.values import Values


def require_both_sides(table: pd.DataFrame, what: str, name: str) -> None:
    """Raise if a condition is true in no row of a table, or in all."""
    condition = condition_in(table, name)
    if condition is None:
        return
    levels = levels_of(table, what, name)
    for side, word in ((1, "none"), (0, "all")):
        if len(levels.codes) and not bool((levels.codes == side).any()):
            values = Values(levels.column, table[levels.column])
            shown = values.in_order(values.levels[1])
            span = (
                f"{levels.column} goes from {shown[0]} to {shown[-1]}"
                if len(shown) > 1
                else f"{levels.column} has the values {', '.join(shown) or 'of no row'}"
            )
            raise ValueError(
                f"{what}: {name!r} holds in {word} of the {len(table)} rows; {span}; choose another"
                " condition"
            )
