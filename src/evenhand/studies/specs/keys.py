"""The keys of a spec file and the type of each value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenhand.errors import SpecError, unknown

KINDS: dict[str, type] = {
    **dict.fromkeys(("name", "loss", "engine", "device", "precision", "weights", "evaluate"), str),
    **dict.fromkeys(("rounds", "seed", "folds", "eval_every", "checkpoint_every"), int),
    **dict.fromkeys(("data", "model", "local", "cohort", "metrics", "select", "tune"), dict),
    **dict.fromkeys(("methods", "seeds"), list),
    **dict.fromkeys(("resplit", "track_weights"), bool),
    "validation": float,
}
KIND_NAMES = {
    dict: "a table",
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}
LISTS = {"methods": "a list of tables", "seeds": "a list of whole numbers"}


def check_kinds(table: Mapping[str, Any], source: str) -> None:
    """Raise for an unknown key or a value of the wrong type; errors name ``source``."""
    for key, value in table.items():
        if key not in KINDS:
            raise SpecError(unknown(f"key in {source}:", key, KINDS))
        if not is_a(value, KINDS[key]):
            raise SpecError(
                f"{source}: {key} must be {LISTS.get(key) or KIND_NAMES[KINDS[key]]}, got {value!r}"
            )


def is_a(value: Any, kind: type) -> bool:
    """Whether a TOML value has this type: true is not a number, and 1 is also a float."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
