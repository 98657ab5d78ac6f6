"""What a node reports about its data when it registers: counts, shapes and names, but no samples.

The server needs the number of samples of each group in each split, their shape, and the names of
the client, its groups and its team. With masked sums the numbers can be hidden: they then come as a
sum over clients (:mod:`evenhand.flower.masked.counting`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.data.nested import Nested
from evenhand.data.population import Form
from evenhand.data.samples import PARTS
from evenhand.flower.sharing import SHARES
from evenhand.messages import Reply

if TYPE_CHECKING:
    from evenhand.secure import Announcement

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
}
MOST_SAMPLES = 1 << 28  # of one client in one split: more is a mistake
MOST_VALUES = 1 << 28  # of one sample


@dataclass(frozen=True)
class Registration:
    """A client as its node describes it."""

    name: str
    team: str  # empty if clients have no teams
    groups: tuple[str, ...]  # names of its samples' groups
    labels: tuple[str, ...]  # names of the classes, if they have names
    form: Form
    # (A,) samples of each of its groups in train, val and test; (1,) where there are no groups;
    # empty if they are hidden
    counts: Mapping[str, Tensor]
    share: str = "method"  # one of SHARES
    announced: Announcement | None = None  # its key for masked sums
    splits: tuple[str, ...] = ()  # with hidden counts: the splits that have samples
    sealed: str = ""  # with hidden counts: changes with them, and tells nothing about them

    @property
    def hides(self) -> bool:
        """Whether it hides its counts."""
        return bool(self.sealed)

    def is_same_client(self, other: Registration) -> bool:
        """Whether both describe the same client with the same data."""
        return all(
            getattr(self, field) == getattr(other, field)
            for field in ("name", "team", "labels", "form")
        ) and (
            self._has_same_sealed(other)
            if self.hides or other.hides
            else all(self._by_group(part) == other._by_group(part) for part in PARTS)
        )

    def _has_same_sealed(self, other: Registration) -> bool:
        """Whether hidden counts are the same, as far as can be known: seals depend on the key."""
        if (self.splits, set(self.groups)) != (other.splits, set(other.groups)):
            return False
        keys = [None if it.announced is None else it.announced.key for it in (self, other)]
        return keys[0] != keys[1] or self.sealed == other.sealed

    def _by_group(self, part: str) -> dict[str, int]:
        return {
            name: count
            for name, count in zip(self.groups or ("",), self.counts[part].tolist(), strict=True)
            if count
        }

    def to_plain(self) -> dict[str, Any]:
        """Everything except the counts, as plain values."""
        return {
            "name": self.name,
            "team": self.team,
            "groups": list(self.groups),
            "labels": list(self.labels),
            "share": self.share,
            "x_type": str(self.form.x_dtype).removeprefix("torch."),
            "y_type": str(self.form.y_dtype).removeprefix("torch."),
            "x_shape": list(self.form.x_shape),
            "y_shape": list(self.form.y_shape),
            "inputs": self.form.inputs,
            **({"sealed": self.sealed, "splits": list(self.splits)} if self.hides else {}),
        } | ({} if self.announced is None else {"announced": json.dumps(self.announced.plain())})


def report_data(
    federation: Federation,
    name: str,
    share: str = "method",
    announced: Announcement | None = None,
    seal: bytes = b"",
) -> tuple[Reply, dict[str, Any]]:
    """The report of a node with one client's data, as a message.

    ``seal``: a secret of the node, with which it hides its counts; empty tells them.
    """
    counts = {part: federation.counts(part)[0] for part in PARTS}
    splits = tuple(part for part in PARTS if seal and bool(counts[part].any()))
    registration = Registration(
        name=federation.names[0] if federation.names else name,
        team="" if federation.teams is None else federation.team_names[int(federation.teams[0])],
        groups=federation.group_names,
        labels=federation.label_names,
        form=federation.form,
        counts={} if seal else counts,
        share=share,
        announced=announced,
        splits=splits,
        sealed=_sealed(seal, federation.group_names, counts) if seal else "",
    )
    return Reply(each={} if seal else counts), registration.to_plain()


def _sealed(seal: bytes, groups: tuple[str, ...], counts: Mapping[str, Tensor]) -> str:
    """A text that changes with the counts; without the secret nobody can try counts on it."""
    plain = {
        part: dict(zip(groups or ("",), it.tolist(), strict=True)) for part, it in counts.items()
    }
    return hmac.new(seal, json.dumps(plain, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def read_report(reply: Reply, about: Mapping[str, Any]) -> Registration:
    """Read a node's report; raises a one-line ValueError if it is invalid."""
    try:
        form = Form(
            *(_shape(about["x_shape"]), DTYPES[about["x_type"]]),
            *(_shape(about["y_shape"]), DTYPES[about["y_type"]]),
            _inputs(about.get("inputs", "")),
        )
        groups, labels = (_names(about[field]) for field in ("groups", "labels"))
        if about["share"] not in SHARES:
            raise ValueError("unknown kind of sharing")
        name, team = _name(about["name"]), _name(about["team"])
        sealed, splits = _name(about.get("sealed", "")), _names(about.get("splits", ()))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            "node sent a data report that cannot be read; install the same version everywhere"
        ) from error
    if not name:
        raise ValueError("node has no name; give it one in its node config")
    announced = _announced(about.get("announced", ""))
    if sealed:
        if reply.each or not set(splits) <= set(PARTS):
            raise ValueError("node sent a data report that cannot be read")
        if "train" not in splits:
            raise ValueError("node has no training samples")
        held = tuple(part for part in PARTS if part in splits)
        share = about["share"]
        return Registration(name, team, groups, labels, form, {}, share, announced, held, sealed)
    counts, cells = dict(reply.each), (max(1, len(groups)),)
    if counts.keys() != set(PARTS) or not all(
        _countable(found, cells) for found in counts.values()
    ):
        raise ValueError(
            "node reported invalid sample counts; they must be whole numbers, one for each group,"
            f" {MOST_SAMPLES} at most"
        )
    if not int(counts["train"].sum()):
        raise ValueError("node has no training samples")
    return Registration(name, team, groups, labels, form, counts, about["share"], announced)


def _announced(told: Any) -> Announcement | None:
    """The key for masked sums that a report has, if it has one; it must be signed."""
    if told == "":
        return None
    from evenhand.secure import Announcement, Refused

    try:
        found = Announcement.read(json.loads(told))
        found.verify()
    except Refused as error:
        raise ValueError(f"node's key for masked sums cannot be used: {error}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            "node sent a key for masked sums that cannot be read; install the same version"
            " everywhere"
        ) from error
    return found


def _name(value: Any) -> str:
    """A name that fits on one line of a log or a table."""
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise ValueError("not a name")
    return value


def _names(values: Any) -> tuple[str, ...]:
    names = tuple(_name(value) for value in values)
    if len(set(names)) != len(names):
        raise ValueError("the same name twice")
    return names


def _shape(lengths: Any) -> tuple[int, ...]:
    shape = tuple(lengths)
    if (
        not all(type(length) is int and length >= 0 for length in shape)
        or math.prod(shape) > MOST_VALUES
    ):
        raise ValueError("not a shape")
    return shape


def _inputs(form: Any) -> str:
    """The form of samples with several inputs, as the node would write it; "" for one input."""
    if form == "":
        return ""
    if not isinstance(form, str) or len(form) > 10_000:
        raise ValueError("not the form of samples")
    made = Nested.zeros(form, 0)
    for array in made.arrays().values():
        _shape(array.shape[1:])
    if made.form != form or not {a.dtype for a in made.arrays().values()} <= set(DTYPES.values()):
        raise ValueError("not the form of samples")
    return form


def _countable(counts: Any, cells: tuple[int, ...]) -> bool:
    if not isinstance(counts, Tensor) or counts.shape != cells or counts.dtype != torch.int64:
        return False
    return (
        all(0 <= count <= MOST_SAMPLES for count in counts.tolist())
        and int(counts.sum()) <= MOST_SAMPLES
    )
