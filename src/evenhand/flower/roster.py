"""Who takes part: what each node tells of its data at the start, and the federation as the server
sees it, without a sample.

The server needs to know how many samples of each group every client has in each part, how they are
shaped, and what clients, groups and teams are called: what :class:`evenhand.data.Census` holds.
From that it makes a :class:`evenhand.data.Federation` whose samples are all the same zero, so that
methods, scores and reports work with it as they do in the simulator; nothing but counts is true of
it.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.data.samples import PARTS, Part, View
from evenhand.messages import Reply

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
}
# A node's word is taken for its counts, and the server keeps a number for each sample's group: more
# than this is a mistake.
MOST_SAMPLES = 1 << 28
MOST_VALUES = 1 << 28  # of one sample
# what an owner lets the server see of a client by itself, from the least on
SHARES = {"sums": "sums alone", "method": "what the method needs", "client": "its scores, too"}


@dataclass(frozen=True)
class Entry:
    """What one node tells of itself."""

    name: str
    team: str  # empty where clients have no teams
    groups: tuple[str, ...]  # names of its samples' groups
    labels: tuple[str, ...]  # names of the classes, where they have names
    form: tuple[Any, ...]  # shape and type of x, shape and type of y
    # (A,) samples of each of its groups in train, val and test; (1,) where there are none
    counts: Mapping[str, Tensor]
    share: str = "method"  # one of SHARES

    def is_again(self, other: Entry) -> bool:
        """Whether two nodes tell of the same client with the same data."""
        return all(
            getattr(self, field) == getattr(other, field)
            for field in ("name", "team", "labels", "form")
        ) and all(self._by_group(part) == other._by_group(part) for part in PARTS)

    def _by_group(self, part: str) -> dict[str, int]:
        return {
            name: count
            for name, count in zip(self.groups or ("",), self.counts[part].tolist(), strict=True)
            if count
        }

    def described(self) -> dict[str, Any]:
        """All but the counts, in plain values."""
        x_shape, x_type, y_shape, y_type = self.form
        about = {
            "name": self.name,
            "team": self.team,
            "groups": list(self.groups),
            "labels": list(self.labels),
            "share": self.share,
        }
        types = {
            f"{field}_type": str(kind).removeprefix("torch.")
            for field, kind in (("x", x_type), ("y", y_type))
        }
        return about | types | {"x_shape": list(x_shape), "y_shape": list(y_shape)}


def told(federation: Federation, name: str, share: str = "method") -> tuple[Reply, dict[str, Any]]:
    """What a node with the data of one client tells at the start, as a message."""
    cells = max(1, federation.groups)
    counts = {}
    for kind in PARTS:
        part = getattr(federation, kind)
        codes = torch.zeros(0, dtype=torch.int64) if part is None else _codes(part)
        counts[kind] = torch.bincount(codes, minlength=cells)
    x, y = federation.train.x, federation.train.y
    name = federation.names[0] if federation.names else name
    team = federation.team_names[int(federation.teams[0])] if federation.teams is not None else ""
    form = (x.shape[1:], x.dtype, y.shape[1:], y.dtype)
    return (
        Reply(each=counts),
        Entry(
            name, team, federation.group_names, federation.label_names, form, counts, share
        ).described(),
    )


def heard(reply: Reply, about: Mapping[str, Any]) -> Entry:
    """What a node has told; raises a ValueError of one line where that cannot be."""
    try:
        form = tuple(
            told
            for field in ("x", "y")
            for told in (_shape(about[f"{field}_shape"]), DTYPES[about[f"{field}_type"]])
        )
        groups, labels = (_names(about[field]) for field in ("groups", "labels"))
        if about["share"] not in SHARES:
            raise ValueError("no kind of sharing")
        entry = Entry(
            _name(about["name"]),
            _name(about["team"]),
            groups,
            labels,
            form,
            dict(reply.each),
            about["share"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            "a node tells of its data in a form that cannot be read; install the same evenhand on"
            " all sides"
        ) from error
    if not entry.name:
        raise ValueError("a node has no name; give it one in its node config")
    cells = (max(1, len(groups)),)
    if entry.counts.keys() != set(PARTS) or not all(
        _countable(counts, cells) for counts in entry.counts.values()
    ):
        raise ValueError(
            "a node tells counts of samples that cannot be; they are whole numbers for each group,"
            f" {MOST_SAMPLES} at most"
        )
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
    if (
        not all(type(length) is int and length >= 0 for length in shape)
        or math.prod(shape) > MOST_VALUES
    ):
        raise ValueError("no shape")
    return shape


def _countable(counts: Any, cells: tuple[int, ...]) -> bool:
    if not isinstance(counts, Tensor) or counts.shape != cells or counts.dtype != torch.int64:
        return False
    return (
        all(0 <= count <= MOST_SAMPLES for count in counts.tolist())
        and int(counts.sum()) <= MOST_SAMPLES
    )


def in_order(names: Sequence[str]) -> list[str]:
    """Names as people sort them: site 2 before site 10."""

    def key(name: str) -> tuple[list[tuple[int, int, str]], str]:
        pieces = re.split(r"([0-9]{1,18})", name)
        # "1" is not "01"
        return [
            (0, int(piece), "") if place % 2 else (1, 0, piece)
            for place, piece in enumerate(pieces)
        ], name

    return sorted(names, key=key)


def merged(orders: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """All names in an order that agrees with every one of ``orders``: that of the same groups in
    one table, where nodes made it likewise.

    Names that no node has together are in the order of :meth:`evenhand.Federation.from_arrays`; so
    are all, where nodes contradict.
    """
    later: dict[str, set[str]] = {name: set() for order in orders for name in order}
    for order in orders:
        for first, second in pairwise(order):
            later[first].add(second)
    before = {name: sum(name in names for names in later.values()) for name in later}
    ready = [(_rank(name), name) for name, count in before.items() if not count]
    heapq.heapify(ready)
    found: list[str] = []
    while ready:
        found.append(heapq.heappop(ready)[1])
        for name in later[found[-1]]:
            before[name] -= 1
            if not before[name]:
                heapq.heappush(ready, (_rank(name), name))
    return tuple(found if len(found) == len(later) else sorted(later, key=_rank))


def _rank(name: str) -> tuple[bool, float, str]:
    """Numbers by their value, then texts, as :mod:`evenhand.data.arrays` has them; a node sends a
    number as text."""
    try:
        value = float(name)
    except ValueError:
        value = math.nan
    return (False, value, name) if math.isfinite(value) else (True, 0.0, name)


@dataclass(frozen=True)
class Roster:
    """The clients in the order of their numbers, and the names of all their groups and teams; who
    joins later has the next numbers."""

    entries: tuple[Entry, ...]
    groups: tuple[str, ...]
    teams: tuple[str, ...]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Roster:
        """The first clients of a run; raises a ValueError where they do not fit together."""
        return cls(tuple(entries[:1]), (), ()).joined(entries[1:], entries)

    def joined(self, newcomers: Sequence[Entry], named: Sequence[Entry] | None = None) -> Roster:
        """With more clients; raises a ValueError where one does not fit. ``named``: whose groups
        and teams are new."""
        for entry in newcomers:
            _check_fits(self.entries[0], entry)
        named = newcomers if named is None else named
        groups = merged([entry.groups for entry in named])
        teams = merged([(entry.team,) for entry in named if entry.team])
        return Roster(
            (*self.entries, *newcomers), _with(self.groups, groups), _with(self.teams, teams)
        )

    def again(self, number: int, entry: Entry) -> Roster:
        """Where a client that is known tells once more of the same data: its owner may share more
        or less than before."""
        known = replace(self.entries[number], share=entry.share)
        return replace(self, entries=(*self.entries[:number], known, *self.entries[number + 1 :]))

    def sharing_less(self, than: str) -> list[int]:
        """Clients whose owners let the server see less of them by themselves."""
        rank = tuple(SHARES).index
        return [
            number for number, entry in enumerate(self.entries) if rank(entry.share) < rank(than)
        ]

    def number(self, name: str) -> int | None:
        """The client with this name."""
        return next(
            (number for number, entry in enumerate(self.entries) if entry.name == name), None
        )

    @cached_property
    def federation(self) -> Federation:
        """The federation as the server sees it."""
        parts = {kind: _part(kind, self.entries, self.groups) for kind in PARTS}
        train = parts["train"]
        assert train is not None
        return Federation(
            train=train,
            test=parts["test"],
            val=parts["val"],
            teams=(
                torch.tensor([self.teams.index(entry.team) for entry in self.entries])
                if self.teams
                else None
            ),
            team_names=self.teams,
            group_names=self.groups,
            names=tuple(entry.name for entry in self.entries),
            label_names=self.entries[0].labels,
        )

    def to_plain(self) -> dict[str, Any]:
        """In values that JSON has, for :meth:`from_plain`."""
        clients = [
            entry.described() | {kind: entry.counts[kind].tolist() for kind in PARTS}
            for entry in self.entries
        ]
        return {"groups": list(self.groups), "teams": list(self.teams), "clients": clients}

    @classmethod
    def from_plain(cls, kept: Mapping[str, Any]) -> Roster:
        entries = [
            heard(Reply(each={kind: torch.tensor(about[kind]) for kind in PARTS}), about)
            for about in kept["clients"]
        ]
        return cls(tuple(entries), tuple(kept["groups"]), tuple(kept["teams"]))


def federation_of(entries: Sequence[Entry]) -> Federation:
    """The federation as the server sees it, clients in the order of ``entries``."""
    return Roster.of(entries).federation


def _with(known: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    return known + tuple(name for name in names if name not in known)


def _check_fits(first: Entry, entry: Entry) -> None:
    if entry.form != first.form:
        raise ValueError(
            f"nodes {first.name} and {entry.name} have samples of different shapes or types;"
            " prepare both in the same way"
        )
    if (
        bool(entry.groups) != bool(first.groups)
        or bool(entry.team) != bool(first.team)
        or entry.labels != first.labels
    ):
        raise ValueError(
            f"nodes {first.name} and {entry.name} differ in having groups or teams, or in their"
            " classes"
        )


def _part(kind: str, entries: Sequence[Entry], groups: tuple[str, ...]) -> Part | None:
    """One part of the data, every sample a zero."""
    sizes = torch.tensor([int(entry.counts[kind].sum()) for entry in entries])
    total = int(sizes.sum())
    if not total and kind != "train":
        return None
    x_shape, x_type, y_shape, y_type = entries[0].form
    x = View(
        torch.zeros(1, *x_shape, dtype=x_type), torch.zeros((), dtype=torch.int64).expand(total)
    )
    y = torch.zeros((), dtype=y_type).expand(total, *y_shape)
    codes = None
    if groups:
        codes = torch.cat(
            [
                torch.repeat_interleave(
                    torch.tensor([groups.index(name) for name in entry.groups]), entry.counts[kind]
                )
                for entry in entries
            ]
        )
    return Part(x, y, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]), codes)


def _codes(part: Part) -> Tensor:
    return torch.zeros(len(part.x), dtype=torch.int64) if part.group is None else part.group
