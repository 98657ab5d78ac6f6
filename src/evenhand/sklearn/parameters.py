"""Parameters of parameters: the fields of a frozen dataclass, named as scikit-learn names them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from evenhand.errors import unknown

SEPARATOR = "__"


def split(name: str) -> tuple[str, str]:
    """Return the parameter and the rest of a name.

    >>> split("algorithm__inner__q"), split("rounds")
    (('algorithm', 'inner__q'), ('rounds', ''))
    """
    first, _, rest = name.partition(SEPARATOR)
    return first, rest


def inner_parameters(name: str, value: object) -> dict[str, Any]:
    """Return the fields of a dataclass and of the dataclasses in it, by their whole names."""
    found: dict[str, Any] = {}
    for field, held in _fields(value).items():
        key = f"{name}{SEPARATOR}{field}"
        found |= {key: held, **inner_parameters(key, held)}
    return found


def with_parameters(name: str, value: Any, changes: Mapping[str, Any]) -> Any:
    """Return a dataclass with some fields changed, also fields of the dataclasses in it."""
    known = _fields(value)
    direct: dict[str, Any] = {}
    deeper: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, given in changes.items():
        field, rest = split(key)
        if field not in known:
            what = f"parameter of {name}={type(value).__name__}(...):"
            raise ValueError(unknown(what, field, known))
        if rest:
            deeper[field][rest] = given
        else:
            direct[field] = given
    for field, given in deeper.items():
        held = direct.get(field, known[field])
        direct[field] = with_parameters(f"{name}{SEPARATOR}{field}", held, given)
    return dataclasses.replace(value, **direct)


def _fields(value: object) -> dict[str, Any]:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    return {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init
    }
