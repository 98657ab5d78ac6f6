"""Building a federation from arrays, one mapping per client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.data.contents import Contents
from evenhand.data.nested import Nested, inputs_of, is_nested, joined, shapes
from evenhand.data.samples import Part
from evenhand.data.views import View
from evenhand.errors import brief, first_line

ALLOWED = {"x", "y", "group", "team", "name"}

# types that torch hardly supports, and the types they are stored as
STORED = {
    torch.bool: torch.uint8,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}


def from_arrays(
    clients: Sequence[Mapping[str, Any]],
    test: Sequence[Mapping[str, Any] | None] | None = None,
    val: Sequence[Mapping[str, Any] | None] | None = None,
) -> Contents:
    """See ``evenhand.Federation.from_arrays``."""
    if not isinstance(clients, Sequence):
        raise TypeError(
            f"clients must be a list with a mapping for each client, got {type(clients).__name__}"
        )
    if not clients:
        raise ValueError("a federation needs at least one client")
    for index, client in enumerate(clients):
        if not isinstance(client, Mapping):
            raise TypeError(
                f'client {index} must be a mapping such as {{"x": ..., "y": ...}}, got'
                f" {type(client).__name__}"
            )
    names = [_name(client.get("name", index), index) for index, client in enumerate(clients)]
    raw: dict[str, list[dict[str, Any]]] = {}
    for part, rows in (("train", clients), ("val", val), ("test", test)):
        if rows is None:
            continue
        if len(rows) != len(clients):
            raise ValueError(
                f"{part} has {len(rows)} entries for {len(clients)} clients; give one per client"
                " (None for no data)"
            )
        raw[part] = [_arrays(part, name, row) for name, row in zip(names, rows, strict=True)]

    for name, client in zip(names, raw["train"], strict=True):
        if client["x"] is None or len(client["x"]) == 0:
            raise ValueError(
                f"client {name} has no training samples; leave it out of the federation"
            )
    group_names, codes = _code_groups(raw, names)
    reference = raw["train"][0]
    flat = {part: _join(part, names, rows, codes[part], reference) for part, rows in raw.items()}

    teams: Tensor | None = None
    team_names: tuple[str, ...] = ()
    if any("team" in client for client in clients):
        missing = [
            name for name, client in zip(names, clients, strict=True) if "team" not in client
        ]
        if missing:
            raise ValueError(
                f"client {missing[0]} has no team but others do; give all clients a team, or none"
            )
        teams, team_names = _encode([client["team"] for client in clients])
    return Contents(
        train=flat["train"],
        test=flat.get("test"),
        val=flat.get("val"),
        teams=teams,
        team_names=team_names,
        group_names=group_names,
        names=tuple(names) if any("name" in client for client in clients) else None,
    )


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        array = np.ascontiguousarray(values)
        # torch warns about read-only arrays
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    found = tensor.to(STORED.get(tensor.dtype, tensor.dtype))
    if tensor.dtype == torch.uint64 and bool((found < 0).any()):
        raise ValueError("integers of 2**63 or more cannot be used; scale them down")
    return found


def _features(value: Any, rows: int) -> Tensor | View | Nested:
    """Return a client's features: one array, or several inputs with a row per sample each."""
    if isinstance(value, tuple) and is_nested(value):
        # a tuple with an array for every sample is one array
        lengths = {len(entry) for entry in value if hasattr(entry, "__len__")}
        if len(value) == rows or lengths != {rows}:
            return _tensor(value)
    if not isinstance(value, Mapping | tuple) or not is_nested(value):
        return _tensor(value)
    inputs = {name: _features(entry, rows) for name, entry in inputs_of(value).items()}
    if not inputs:
        raise _Unequal("x has no inputs")
    for name, entry in inputs.items():
        if len(entry) != rows:
            raise _Unequal(f"input {name!r} has {len(entry)} rows for {rows} labels")
    return Nested(inputs, isinstance(value, Mapping))


class _Unequal(ValueError):
    """Inputs are arrays, but not one row of each per label."""


def _name(value: object, index: int) -> str:
    if not isinstance(value, str | Real | np.generic):
        raise TypeError(
            f"the name of client {index} must be a text or a number, got {type(value).__name__}"
            f" {brief(value)}"
        )
    return " ".join(str(value).split())


def _arrays(part: str, name: str, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check one client's arrays and convert them to tensors; x is None if the client has no such
    data."""
    if row is None:
        return {"x": None}
    if not isinstance(row, Mapping):
        raise TypeError(
            f'client {name}: {part} data must be a mapping such as {{"x": ..., "y": ...}}, got'
            f" {type(row).__name__}"
        )
    unknown = next((key for key in row if key not in ALLOWED), None)
    if unknown is not None:
        raise ValueError(
            f"client {name} has an unknown key {brief(unknown)}; allowed:"
            f" {', '.join(sorted(ALLOWED))}"
        )
    for key in ("x", "y"):
        if key not in row:
            raise ValueError(f"client {name} has no {key!r} in its {part} data")
    try:
        y = _tensor(row["y"])
        x = _features(row["x"], len(y) if y.ndim else 0)
    except _Unequal as error:
        raise ValueError(f"client {name}: in its {part} data, {error}") from error
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"client {name}: {part} x and y must be arrays of numbers ({first_line(error)})"
        ) from error
    if not x.shape or y.ndim < 1 or len(x) != len(y):
        raise ValueError(
            f"client {name}: {part} x has shape {list(x.shape)} and y {list(y.shape)}; they must"
            " have the same number of rows"
        )
    if not y.is_floating_point():
        # a column of labels: one per sample
        y = y.long().squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y.long()
    arrays: dict[str, Any] = {"x": x, "y": y}
    if row.get("group") is not None:
        group = row["group"].tolist() if hasattr(row["group"], "tolist") else row["group"]
        if not isinstance(group, Iterable) or isinstance(group, str):
            raise TypeError(
                f"client {name}: {part} group must have a label for every sample, got"
                f" {brief(group)}"
            )
        group = list(group)
        if len(group) != len(x):
            raise ValueError(
                f"client {name}: {part} group has {len(group)} entries for {len(x)} samples"
            )
        arrays["group"] = group
    return arrays


def _encode(labels: list[Any]) -> tuple[Tensor, tuple[str, ...]]:
    """Return codes and names of labels, names in sorted order (numbers by value)."""
    strange = next((one for one in labels if not isinstance(one, str | Real | None)), None)
    if strange is not None:
        raise TypeError(
            f"a group or team label must be a text or a number, got {type(strange).__name__}"
            f" {brief(strange)}"
        )
    if any(label is None or label != label for label in labels):
        raise ValueError(
            "a group or team label is missing (None or NaN); give it a name, such as 'unknown'"
        )
    distinct = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    position = {label: code for code, label in enumerate(distinct)}
    return torch.tensor([position[label] for label in labels]), tuple(
        str(label) for label in distinct
    )


def _code_groups(
    raw: dict[str, list[dict[str, Any]]], names: list[str]
) -> tuple[tuple[str, ...], dict[str, Tensor | None]]:
    """Return the names of all groups in all splits, and each split's codes (None without
    groups)."""
    labels: list[Any] = []
    spans: dict[str, tuple[int, int] | None] = {}
    for part, rows in raw.items():
        filled = [
            (name, row)
            for name, row in zip(names, rows, strict=True)
            if row["x"] is not None and len(row["x"])
        ]
        having = [row for _, row in filled if "group" in row]
        if not having:
            spans[part] = None
            continue
        if len(having) < len(filled):
            name = next(name for name, row in filled if "group" not in row)
            raise ValueError(
                f"client {name} has no group in its {part} data but others do; give all samples a"
                " group, or none"
            )
        spans[part] = (len(labels), len(labels) + sum(len(row["group"]) for row in having))
        labels.extend(label for row in having for label in row["group"])
    if not labels:
        return (), dict.fromkeys(raw)
    codes, group_names = _encode(labels)
    return group_names, {
        part: None if span is None else codes[slice(*span)] for part, span in spans.items()
    }


def _join(
    part: str,
    names: list[str],
    rows: list[dict[str, Any]],
    group: Tensor | None,
    reference: dict[str, Any],
) -> Part:
    """Concatenate clients after checking that their samples look like the first client's."""
    kept_x, kept_y = [], []
    sizes = [0 if row["x"] is None else len(row["x"]) for row in rows]
    for name, row, size in zip(names, rows, sizes, strict=True):
        if not size:
            continue
        x, y = row["x"], row["y"]
        for field, values, first in (("x", x, reference["x"]), ("y", y, reference["y"])):
            if shapes(values) != shapes(first):
                raise ValueError(
                    f"client {name}: {part} {field} has samples of shape {shapes(values)}, "
                    f"client {names[0]} of shape {shapes(first)}; all clients need the same"
                )
            if values.is_floating_point() != first.is_floating_point():
                raise ValueError(
                    f"client {name}: {part} {field} is {values.dtype}, client {names[0]} has"
                    f" {first.dtype}; use one type"
                )
        kept_x.append(x)
        kept_y.append(y)
    offsets = torch.tensor([0, *np.cumsum(sizes).tolist()])
    nothing = reference["x"].first(0) if isinstance(reference["x"], Nested) else reference["x"][:0]
    x = joined(kept_x) if kept_x else nothing
    y = torch.cat(kept_y) if kept_y else reference["y"][:0]
    # rows are counted within a client's own arrays
    places = torch.cat([torch.arange(size) for size in sizes])
    return Part(x=x, y=y, offsets=offsets, group=group if kept_x else None, rows=places)
