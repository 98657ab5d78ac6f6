"""Parse methods, data sets and models from the command line into tables of a spec."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from evenhand.algorithms import ALGORITHMS
from evenhand.algorithms.naming import Table
from evenhand.errors import SpecError

OWN_METHOD = re.compile(r"\s*([^\W\d]\w*(?:\.\w+)*:[^\W\d]\w*)\s*(?::(.*))?")


def parse_method(text: str) -> Table:
    """A method from a command line: NAME or NAME:key=value,key=value.

    local.lr=0.1 changes the local solver, inner=NAME and inner.key=value the inner method of a
    wrapper. A user's own method has the name MODULE:CLASS.

    >>> parse_method("fafl:alpha=0.3,local.lr=0.05")
    {'name': 'fafl', 'alpha': 0.3, 'local': {'lr': 0.05}}
    >>> parse_method("fedprox:mu=0.1,inner=qffl,inner.q=2")
    {'name': 'fedprox', 'mu': 0.1, 'inner': {'name': 'qffl', 'q': 2}}
    >>> parse_method("mypackage:MyMethod:rate=0.3")
    {'name': 'mypackage:MyMethod', 'rate': 0.3}
    """
    name, _, rest = text.partition(":")
    if (own := OWN_METHOD.fullmatch(text)) and name.strip() not in ALGORITHMS:
        name, rest = own.groups(default="")
    entry: Table = {"name": name.strip()}
    for path, parsed in _pairs(rest, text):
        put(entry, path, parsed, text)
    return entry


def put(entry: Table, path: str, value: Any, text: str) -> None:
    """Set a hyper-parameter in a method's table: q, local.lr, inner.q; errors name ``text``."""
    *tables, key = path.split(".")
    if key == "inner":
        tables, key = [*tables, "inner"], "name"
    elif key in ("name", "local"):
        raise SpecError(f"unknown keyword {key!r} in {text!r}")
    target = entry
    for step in tables:
        if step not in ("local", "inner"):
            raise SpecError(
                f"unknown keyword {path!r} in {text!r}; only local. and inner. have parts"
            )
        target = target.setdefault(step, {})
    if key in target:
        raise SpecError(f"{path!r} is given twice in {text!r}")
    target[key] = value


def parse_table(text: str) -> Table:
    """A data set, partition or model from a command line: NAME, NAME:key=value,key=value or
    key=value,key=value.

    >>> parse_table("dirichlet:clients=10,alpha=0.5")
    {'name': 'dirichlet', 'clients': 10, 'alpha': 0.5}
    >>> parse_table("val=0.1,test=0.2")
    {'val': 0.1, 'test': 0.2}
    """
    name, colon, rest = text.partition(":")
    if not colon and "=" in name:
        return dict(_pairs(text, text))
    return {"name": name.strip(), **dict(_pairs(rest, text))}


def _pairs(pairs: str, text: str) -> list[tuple[str, Any]]:
    """Keys and values of key=value,key=value; a value that is not TOML is text. Errors name
    ``text``."""
    found = []
    for pair in split_commas(pairs):
        key, equals, value = pair.partition("=")
        if not equals:
            raise SpecError(f"cannot read {pair!r} in {text!r}; write NAME:key=value,key=value")
        found.append((key.strip(), parse_value(value)))
    return found


def parse_value(text: str) -> Any:
    """A value from a command line: TOML if it parses, else text."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def split_commas(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "[{(") - (character in ")}]")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [part for part in (*parts, current) if part.strip()]


def parse_metric(text: str) -> tuple[str, str]:
    """Name and place of a metric in ``top5=mypackage:top5``."""
    name, sign, where = text.partition("=")
    if not (name and sign and where):
        raise SpecError(f"--metric takes NAME=MODULE:FUNCTION, got {text!r}")
    return name, where
