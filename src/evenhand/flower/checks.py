"""Checks a client's reply before it counts, and before the client sends it.

Flower's own averaging accepts anything: one NaN, and the model is NaN from then on. Here the server
compares a reply with what it expects (names and their order, shapes, types) and checks that its
values are possible. A client with a faulty reply is skipped for that round. Reasons name the
client, entries the server knows, and what it expected; never a value, or a name that only the
client knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from evenhand import tree
from evenhand.flower.answering import Declined
from evenhand.messages import Reply
from evenhand.metrics.tallies import COUNTS
from evenhand.tree import Tree

# Far above what a useful model sends; the sum of 10^8 such values still fits into a float32 (up to
# 3.4e38).
LARGEST = 1e30
SPOILT = 1e12  # no useful model has such a value
MOST = 2**53  # whole numbers up to here are added exactly in float64

Path = tuple[str, ...]  # of an entry: ("total", "delta", "weight")


class NotFinite(Declined):
    """A client's training ended in infinity or NaN, and nothing is sent."""

    refuses = False


class RollCall:
    """Who has answered in one exchange. Refuses a reply to another task before reading its tensors.

    Args:
        clients: those that were asked.
        round, work: what they were asked; messages count rounds from 1.
        name: gives a client's name; None means its number.
    """

    def __init__(
        self,
        clients: Collection[int],
        round: int,
        work: str,
        name: Callable[[int], str] | None = None,
    ) -> None:
        self._missing, self._replied = set(clients), set[int]()
        self.round, self._work, self._name = round, work, name

    @property
    def missing(self) -> list[int]:
        """Clients that have not replied yet, ascending."""
        return sorted(self._missing)

    def answer(self, client: int, about: Mapping[str, Any]) -> list[str]:
        """What is wrong with a reply to the task of ``client``, judging by its client, round and
        work.

        The first reply is the client's only one, whatever is wrong with it.
        """
        who = label(client, self._name)
        if client in self._replied:
            return [f"{who} has replied already; its second reply is ignored"]
        if client not in self._missing:
            return [f"{who} replied without being asked"]
        self._missing.remove(client)
        self._replied.add(client)
        reasons = []
        if about.get("client") != client:
            reasons.append(f"{who} replies under another client's number")
        if about.get("round") != self.round:
            reasons.append(
                f"{who} replies to another round than {self.round + 1}; the reply is late"
            )
        if about.get("work") != self._work:
            reasons.append(f"{who} replies to a task other than {self._work}")
        return reasons


def label(client: int, name: Callable[[int], str] | None = None) -> str:
    """A client in words: its number, and its name if that differs."""
    called = str(client) if name is None else name(client)
    return f"client {client}" if called == str(client) else f"client {client} ({called})"


def check_reply(
    reply: Reply,
    expected: Reply,
    who: str,
    *,
    must_be_finite: bool = True,
    largest: float = LARGEST,
    known: Mapping[Path, Tensor] | None = None,
) -> list[str]:
    """What is wrong with a reply, one line for each kind of fault; empty if it can count.

    Args:
        expected: a reply of the right names, shapes and types; its values do not matter.
        who: the client, see :func:`label`.
        must_be_finite: whether infinity, NaN and values beyond ``largest`` are faults. Losses of a
            diverged model may be any of these in an evaluation; counts never.
        known: what entries must equal: the sample counts reported at the start.
    """
    found, wanted = _entries(reply), _entries(expected)
    faults = _structure(found, wanted)
    if not faults:
        tensors = {path: leaf for path, leaf in found.items() if leaf is not None}
        for path, leaf in tensors.items():
            name = path[1] if len(path) == 2 else ""
            limit = largest if leaf.is_floating_point() and name not in COUNTS else MOST
            # tensors of a model lie deeper and may be called what they like
            fault = _value_fault(leaf, name in COUNTS, must_be_finite, limit)
            if fault:
                faults.setdefault(fault, []).append(path)
        for path, value in (known or {}).items():
            if path not in tensors or not _equal(tensors[path], value):
                faults.setdefault("not what the node reported at the start", []).append(path)
    return [
        f"{who}: {fault}" + (f": {_listed(paths)}" if paths else "")
        for fault, paths in faults.items()
    ]


def require_finite(reply: Reply, memory: Tree | None = None, received: Tree | None = None) -> None:
    """On a client: raise :class:`NotFinite` unless everything it is about to send and remember is
    finite; ``received`` is what the server sent."""
    bad = [
        path
        for path, leaf in _entries(reply, memory or {}).items()
        if leaf is not None and not all(map(math.isfinite, _ends(leaf)))
    ]
    if not bad:
        return
    sent = [abs(end) for leaf in tree.leaves(received or {}) for end in _ends(leaf)]
    spoilt = not all(end < SPOILT for end in sent)  # NaN is not below it either
    why = (
        f"the model that the server sent has diverged: it has values beyond {SPOILT:g}; start a"
        " new run, or resume from an earlier checkpoint"
        if spoilt
        else "is the learning rate too large?"
    )
    raise NotFinite(f"nothing is sent, because it is not finite: {_listed(bad)}; {why}")


def _entries(reply: Reply, memory: Tree | None = None) -> dict[Path, Tensor | None]:
    """Tensors by path, in their order; None for a branch with nothing in it."""
    return {
        path: leaf
        for name, part in (("total", reply.total), ("each", reply.each), ("memory", memory or {}))
        for path, leaf in _walk(part, (name,))
    }


def _walk(branch: Tree, prefix: Path) -> Iterator[tuple[Path, Tensor | None]]:
    if not branch and len(prefix) > 1:
        yield prefix, None
    for key, value in branch.items():
        if isinstance(value, dict):
            yield from _walk(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _structure(
    found: dict[Path, Tensor | None], wanted: dict[Path, Tensor | None]
) -> dict[str, list[Path]]:
    """Faults in names, order, shapes and types."""
    faults: dict[str, list[Path]] = {}
    lacking = [path for path in wanted if path not in found]
    more = sum(path not in wanted for path in found)
    if lacking:
        faults["missing"] = lacking
    if more:
        faults[f"{more} unexpected {'entry' if more == 1 else 'entries'}"] = []
    if not faults and list(found) != list(wanted):
        faults["entries in an unexpected order"] = []  # sums go by the order
    shapes, types = [], []
    for path, expected in wanted.items():
        given = found.get(path)
        if given is None or expected is None:
            if path in found and given is not expected:
                faults.setdefault("a tensor on one side, an empty branch on the other", []).append(
                    path
                )
        elif given.shape != expected.shape:
            shapes.append(path)
        elif given.dtype != expected.dtype:
            types.append(path)
    for wrong, say in ((shapes, _shape), (types, _type)):
        if wrong:
            faults[f"{say(found[wrong[0]])}, expected {say(wanted[wrong[0]])}"] = wrong
    return faults


def _value_fault(leaf: Tensor, counts: bool, must_be_finite: bool, limit: float) -> str:
    """What is wrong with the values of an entry; nothing where they can be right."""
    low, high = _ends(leaf)
    if (must_be_finite or counts) and not (math.isfinite(low) and math.isfinite(high)):
        return "not finite"
    if counts and low < 0:
        return "negative"
    if (must_be_finite or counts) and max(-low, high) > limit:
        return f"values beyond {limit:g}"
    return ""


def _ends(leaf: Tensor) -> tuple[float, float]:
    """The smallest and the largest value, NaN if any is NaN; in one pass, without a copy."""
    if not leaf.numel():
        return 0.0, 0.0
    low, high = leaf.aminmax()
    return low.item(), high.item()


def _equal(found: Tensor, value: Tensor) -> bool:
    return found.shape == value.shape and torch.equal(found.double(), value.double())


def _type(leaf: Tensor | None) -> str:
    return "nothing" if leaf is None else f"type {str(leaf.dtype).removeprefix('torch.')}"


def _shape(leaf: Tensor | None) -> str:
    if leaf is None:
        return "nothing"
    return f"shape {tuple(leaf.shape)}" if leaf.ndim < 10 else f"a shape of {leaf.ndim} dimensions"


def _listed(paths: list[Path]) -> str:
    first = "/".join(paths[0])
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"
