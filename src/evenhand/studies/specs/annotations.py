"""What Python code says about the values that it takes, as pieces of a JSON Schema: types from
annotations, ranges and choices from checks in ``__post_init__``, descriptions from docstrings."""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import GenericAlias, UnionType
from typing import Any

Schema = dict[str, Any]

SCALARS = {
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "str": "string",
    "Path": "string",
}

# Types, as annotations have them


def typed(annotation: str, limits: Schema, of: Any) -> Schema | None:
    """The schema of a value with this annotation; None where no TOML value can be one.

    ``of``: the class or function that has the annotation; its module may have names for types.
    """
    scope = sys.modules[of.__module__].__dict__
    kinds = [
        known
        for node in _alternatives(ast.parse(annotation, mode="eval").body, scope)
        if (known := _kind(node, of)) is not None
    ]
    kinds = [_limited(kind, limits) for kind in kinds]
    if not kinds:
        return None
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _alternatives(node: ast.expr, scope: Mapping[str, Any]) -> Iterator[ast.expr]:
    alias = scope.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(alias, UnionType | GenericAlias):
        yield from _alternatives(ast.parse(str(alias), mode="eval").body, scope)
    elif isinstance(node, ast.BinOp):
        yield from _alternatives(node.left, scope)
        yield from _alternatives(node.right, scope)
    else:
        yield node


def _kind(node: ast.expr, of: Any) -> Schema | None:
    name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node).rpartition(".")[2]
    if name in SCALARS:
        return {"type": SCALARS[name]}
    if name == "Algorithm":
        return {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/method"}]}
    if name in ("Sequence", "tuple", "list"):
        assert isinstance(node, ast.Subscript)
        items = typed(ast.unparse(node.slice), {}, of) if name == "Sequence" else None
        return {"type": "array", **({"items": items} if items else {})}
    return {"type": "object"} if name in ("Mapping", "dict") else None


def _limited(kind: Schema, limits: Schema) -> Schema:
    """A kind with the limits that are about it: ranges of numbers, choices of texts."""
    numeric = kind.get("type") in ("integer", "number")
    fitting = {
        key: value
        for key, value in limits.items()
        if (numeric and key != "enum") or (kind.get("type") == "string" and key == "enum")
    }
    return {**kind, **fitting}


# Ranges and choices, as ``__post_init__`` checks them


def limits(kind: type[Any]) -> dict[str, Schema]:
    """What the fields of a dataclass may be, from calls of require_number and the like."""
    found: dict[str, Schema] = {}
    for base in reversed(kind.__mro__):
        if "__post_init__" in vars(base):
            found |= _limits(base)
    return found


def _limits(kind: type[Any]) -> dict[str, Schema]:
    """What the checks of one class say."""
    source = textwrap.dedent(inspect.getsource(vars(kind)["__post_init__"]))
    found: dict[str, Schema] = {}
    for node in ast.walk(ast.parse(source)):
        names: tuple[str, ...] = ()
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):
            names = tuple(
                str(item.value) for item in node.iter.elts if isinstance(item, ast.Constant)
            )
            calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
        else:
            calls = [node] if isinstance(node, ast.Call) else []
        for call in calls:
            limit = _limit(call, sys.modules[kind.__module__].__dict__)
            if limit is not None:
                found |= dict.fromkeys(_checked(call.args[1], names), limit)
    return found


def _checked(value: ast.expr, names: tuple[str, ...]) -> tuple[str, ...]:
    """The fields that a call checks: that of ``self.field``, or ``names`` in a loop over them."""
    if isinstance(value, ast.Attribute):
        return (value.attr,)
    return names if ast.unparse(value).startswith("getattr(self") else ()


def _limit(call: ast.Call, scope: dict[str, Any]) -> Schema | None:
    function = ast.unparse(call.func)
    if function not in ("require_number", "require_whole", "require_choice"):
        return None
    given = _value(call.args[2], scope)
    if function == "require_whole":
        return {"minimum": given}
    return {"enum": list(given)} if function == "require_choice" else interval(given)


def _value(node: ast.expr, scope: dict[str, Any]) -> Any:
    """A literal, a name of the module, or a tuple of either."""
    if isinstance(node, ast.Name):
        return scope[node.id]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "tuple":
        return tuple(_value(node.args[0], scope))
    return ast.literal_eval(node)


def interval(text: str) -> Schema:
    """The ends of an interval.

    >>> interval("(0, 1]"), interval("[0, inf)")
    ({'exclusiveMinimum': 0, 'maximum': 1}, {'minimum': 0})
    """
    low, high = (float(end) for end in text[1:-1].split(","))
    ends = {
        "minimum" if text[0] == "[" else "exclusiveMinimum": low,
        "maximum" if text[-1] == "]" else "exclusiveMaximum": high,
    }
    return {
        key: int(end) if end.is_integer() else end
        for key, end in ends.items()
        if math.isfinite(end)
    }


# Descriptions, as docstrings have them


def summary(of: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(of) or "").partition("\n\n")[0].split())


def told(of: Any) -> dict[str, str]:
    """What the section Args of a docstring says about each argument."""
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", inspect.getdoc(of) or "", re.MULTILINE)
    entries = re.split(r"^ {4}(?=\S)", section[1], flags=re.MULTILINE) if section else []
    found: dict[str, str] = {}
    for entry in entries:
        names, colon, text = entry.partition(":")
        if colon:
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()).replace("``", "`"))
    return found
