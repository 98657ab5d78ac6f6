"""Methods by name: a method's table in a spec, and how a user's own method is found.

evenhand's methods have the names of ``evenhand.ALGORITHMS``. A user's own method is named by the
module that defines it and its class: ``mypackage:MyMethod``.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from evenhand.algorithm import Algorithm
from evenhand.algorithms import ALGORITHMS
from evenhand.errors import SpecError, first_line, unknown

Table = dict[str, Any]

RESERVED = ("name", "label", "local")  # keys of a method's table that are not hyper-parameters


def algorithm_table(algorithm: Algorithm, own: bool = False) -> Table:
    """Return the table from which a spec rebuilds ``algorithm``, without default values.

    Raises a SpecError for a user's own method, unless ``own`` allows naming it by its module.
    """
    kind = type(algorithm)
    name = next((name for name, known in ALGORITHMS.items() if known is kind), None)
    if name is None and own:
        name = _own_name(kind)
    if name is None:
        raise SpecError(f"{kind.__name__} is not in ALGORITHMS; a spec names it module:Class")
    table: Table = {"name": name}
    for entry in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        if entry.name in RESERVED:
            raise SpecError(f"a spec has no place for {entry.name} of {kind.__name__}; rename it")
        value = getattr(algorithm, entry.name)
        if _same(value, entry.default):
            continue
        table[entry.name] = (
            algorithm_table(value, own)
            if entry.name == "inner"
            else list(value)
            if isinstance(value, tuple)
            else dict(value)
            if isinstance(value, Mapping)
            else value
        )
    return table


def described(algorithm: Algorithm) -> Table:
    """Return the table of a method, as far as a spec can hold it.

    A method that no spec can rebuild, such as one from a notebook, is only named by its class.
    """
    if dataclasses.is_dataclass(algorithm):
        try:
            table = algorithm_table(algorithm, own=True)
        except SpecError:
            pass
        else:
            if _is_plain(table):
                return table
    return {"name": type(algorithm).__name__, **plain_fields(algorithm)}


def plain_fields(settings: object) -> Table:
    """Return the plain values among the fields of a dataclass; {} for anything else."""
    if not dataclasses.is_dataclass(settings):
        return {}
    found = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {
        name: value for name, value in found.items() if _is_plain(value) and name not in RESERVED
    }


def label_of(name: str) -> str:
    """Return the default name of a method in tables and folders.

    >>> label_of("qffl"), label_of("mypackage.methods:MyMethod")
    ('qffl', 'MyMethod')
    """
    return name.rpartition(":")[2]


def imported_module(name: str, what: str) -> ModuleType:
    """Import the module of a user's own method or metric, ``mypackage:name``.

    The module must be installed, or in the current directory. ``what``: "method" or "metric".
    """
    where = name.partition(":")[0]
    if os.getcwd() not in sys.path:
        sys.path.append(
            os.getcwd()
        )  # at the end, so that a file here cannot hide an installed package
    importlib.invalidate_caches()
    try:
        return importlib.import_module(where)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{where}.".startswith(f"{error.name}."):
            raise SpecError(
                f"there is no module {error.name!r} for the {what} {name!r}; start evenhand in the"
                " directory that contains it, or install it"
            ) from None
        raise SpecError(
            f"the module of the {what} {name!r} cannot be imported: {type(error).__name__}:"
            f" {first_line(error)}"
        ) from error


def imported(name: str) -> type[Algorithm]:
    """Import the class of a user's own method, ``mypackage:MyMethod``."""
    module, (where, _, kind) = imported_module(name, "method"), name.partition(":")
    found = getattr(module, kind, None)
    if isinstance(found, type) and issubclass(found, Algorithm):
        return found
    if found is not None:
        raise SpecError(
            f"{name!r} is not a method; name a class that derives from evenhand.Algorithm"
        )
    known = [
        known
        for known, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Algorithm) and value is not Algorithm
    ]
    raise SpecError(unknown(f"method of {getattr(module, '__file__', where)}:", kind, known))


def _own_name(kind: type[Algorithm]) -> str | None:
    """Return how to import a class; None for one from a notebook, a script or a function."""
    module = sys.modules.get(kind.__module__)
    found = kind.__module__ != "__main__" and getattr(module, kind.__qualname__, None) is kind
    return f"{kind.__module__}:{kind.__qualname__}" if found else None


def _same(value: object, default: object) -> bool:
    try:
        return bool(value == default)
    except (RuntimeError, ValueError):  # arrays compare entry by entry
        return False


def _is_plain(value: object) -> bool:
    """Whether a spec can hold a value."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
