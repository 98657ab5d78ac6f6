"""Who takes part: what each node tells of its data at the start, and the federation as the server sees it, without a sample.

The server needs to know how many samples of each group every client has in each part, how they are shaped, and what clients, groups and
teams are called: what :class:`evenhand.data.Census` holds. From that it makes a :class:`evenhand.data.Federation` whose samples are all
the same zero, so that methods, scores and reports work with it as they do in the simulator; nothing but counts is true of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenhand.data import PARTS, Federation, Part, View
from evenhand.messages import Reply

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
}
# A node's word is taken for its counts, and the server keeps a number for each sample's group: more than this is a mistake.
MOST_SAMPLES = 1 << 28
MOST_VALUES = 1 << 28  # of one sample


@dataclass(frozen=True)
class Entry:
    """What one node tells of itself."""

    name: str
    team: str  # empty where clients have no teams
    groups: tuple[str, ...]  # names of its samples' groups
    labels: tuple[str, ...]  # names of the classes, where they have names
    form: tuple[Any, ...]  # shape and type of x, shape and type of y
    counts: Mapping[str, Tensor]  # (A,) samples of each of its groups in train, val and test; (1,) where there are none


def told(federation: Federation, name: str) -> tuple[Reply, dict[str, Any]]:
    """What a node with the data of one client tells at the start, as a message."""
    cells = max(1, federation.groups)
    counts = {}
    for kind in PARTS:
        part = getattr(federation, kind)
        codes = torch.zeros(0, dtype=torch.int64) if part is None else _codes(part)
        counts[kind] = torch.bincount(codes, minlength=cells)
    x, y = federation.train.x, federation.train.y
    types = {"x": str(x.dtype).removeprefix("torch."), "y": str(y.dtype).removeprefix("torch.")}
    about: dict[str, Any] = {"name": federation.names[0] if federation.names else name, "x_type": types["x"], "y_type": types["y"]}
    about |= {"x_shape": list(x.shape[1:]), "y_shape": list(y.shape[1:])}
    about |= {"team": federation.team_names[int(federation.teams[0])] if federation.teams is not None else ""}
    return Reply(each=counts), about | {"groups": list(federation.group_names), "labels": list(federation.label_names)}


def heard(reply: Reply, about: Mapping[str, Any]) -> Entry:
    """What a node has told; raises a ValueError of one line where that cannot be."""
    try:
        form = tuple(told for field in ("x", "y") for told in (_shape(about[f"{field}_shape"]), DTYPES[about[f"{field}_type"]]))
        groups, labels = (_names(about[field]) for field in ("groups", "labels"))
        entry = Entry(_name(about["name"]), _name(about["team"]), groups, labels, form, dict(reply.each))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("a node tells of its data in a form that cannot be read; install the same evenhand on all sides") from error
    if not entry.name:
        raise ValueError("a node has no name; give it one in its node config")
    cells = (max(1, len(groups)),)
    if entry.counts.keys() != set(PARTS) or not all(_countable(counts, cells) for counts in entry.counts.values()):
        raise ValueError(f"a node tells counts of samples that cannot be; they are whole numbers for each group, {MOST_SAMPLES} at most")
    if not int(entry.counts["train"].sum()):
        raise ValueError("a node has no training samples; it is left out")
    return entry


def _name(value: Any) -> str:
    """A name that fits into one line of a log or a table."""
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise ValueError("no name")
    return value


def _names(values: Any) -> tuple[str, ...]:
    names = tuple(_name(value) for value in values)
    if len(set(names)) != len(names):
        raise ValueError("a name twice")
    return names


def _shape(lengths: Any) -> tuple[int, ...]:
    shape = tuple(lengths)
    if not all(type(length) is int and length >= 0 for length in shape) or math.prod(shape) > MOST_VALUES:
        raise ValueError("no shape")
    return shape


def _countable(counts: Any, cells: tuple[int, ...]) -> bool:
    if not isinstance(counts, Tensor) or counts.shape != cells or counts.dtype != torch.int64:
        return False
    return all(0 <= count <= MOST_SAMPLES for count in counts.tolist()) and int(counts.sum()) <= MOST_SAMPLES


def in_order(names: Sequence[str]) -> list[str]:
    """Names as people sort them: site 2 before site 10."""

    def key(name: str) -> tuple[list[tuple[int, int, str]], str]:
        pieces = re.split(r"([0-9]{1,18})", name)
        return [(0, int(piece), "") if place % 2 else (1, 0, piece) for place, piece in enumerate(pieces)], name  # "1" is not "01"

    return sorted(names, key=key)


def federation_of(entries: Sequence[Entry]) -> Federation:
    """The federation as the server sees it, clients in the order of ``entries``."""
    first = entries[0]
    for entry in entries[1:]:
        if entry.form != first.form:
            raise ValueError(f"nodes {first.name} and {entry.name} have samples of different shapes or types; prepare both in the same way")
        if bool(entry.groups) != bool(first.groups) or bool(entry.team) != bool(first.team) or entry.labels != first.labels:
            raise ValueError(f"nodes {first.name} and {entry.name} differ in having groups or teams, or in their classes")
    groups = tuple(in_order(list({name for entry in entries for name in entry.groups})))
    teams = tuple(in_order(list({entry.team for entry in entries if entry.team})))
    parts = {kind: _part(kind, entries, groups) for kind in PARTS}
    train = parts["train"]
    assert train is not None
    return Federation(
        train=train,
        test=parts["test"],
        val=parts["val"],
        teams=torch.tensor([teams.index(entry.team) for entry in entries]) if teams else None,
        team_names=teams,
        group_names=groups,
        names=tuple(entry.name for entry in entries),
        label_names=first.labels,
    )


def _part(kind: str, entries: Sequence[Entry], groups: tuple[str, ...]) -> Part | None:
    """One part of the data, every sample a zero."""
    sizes = torch.tensor([int(entry.counts[kind].sum()) for entry in entries])
    total = int(sizes.sum())
    if not total and kind != "train":
        return None
    x_shape, x_type, y_shape, y_type = entries[0].form
    x = View(torch.zeros(1, *x_shape, dtype=x_type), torch.zeros((), dtype=torch.int64).expand(total))
    y = torch.zeros((), dtype=y_type).expand(total, *y_shape)
    codes = None
    if groups:
        codes = torch.cat(
            [torch.repeat_interleave(torch.tensor([groups.index(name) for name in entry.groups]), entry.counts[kind]) for entry in entries]
        )
    return Part(x, y, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]), codes)


def _codes(part: Part) -> Tensor:
    return torch.zeros(len(part.x), dtype=torch.int64) if part.group is None else part.group
