"""Bounds on the server: no reply counts out of proportion to the others.

The length of an update is measured without the factor of its method. An update more than ``bound``
times as long as the round's median is scaled down to that; a client with more local steps than the
median may go proportionally further. A loss more than ``bound`` times the largest median so far
counts as the round's median. So a false report gains nothing, and a client that is really badly off
late in training still counts.

A median needs at least three comparable replies. With fewer, updates are compared with the last
round that had three, and losses are not bounded. Medians are saved in ``medians.jsonl``, so a
resumed run continues as if it had not been interrupted.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from evenhand import tree
from evenhand.flower import journal
from evenhand.flower.claims import declared, divisor, losses_in
from evenhand.losses import LOSSES, SUMMED
from evenhand.messages import Entries, Reply
from evenhand.tree import Tree

BOUND = 3.0
ENOUGH = 3  # replies for a meaningful median
MEDIANS = "medians.jsonl"


@dataclass(frozen=True)
class Measured:
    """One client's updates and losses in comparable form."""

    entries: Entries
    steps: float
    lengths: dict[str, float]
    comparable: dict[str, bool]
    losses: dict[str, Tensor]


@dataclass(frozen=True)
class Change:
    """What happens to a client's reply, and why."""

    factors: dict[str, float]  # of updates
    losses: dict[str, Tensor]  # replacing those reported; NaN where they stay
    entries: Entries
    words: list[str]


def measure(reply: Reply, entries: Entries, steps: float, loss: str) -> Measured:
    """Measure what is compared with other replies."""
    lengths, comparable, losses = {}, {}, {}
    compares_losses = loss not in LOSSES or LOSSES[loss] not in SUMMED
    for path, value, entry, part in declared(reply, entries):
        if entry.kind == "update":
            found = divisor(entry, part)
            per = max(float(found), float(entry.least))
            length = _length(value)
            lengths[path] = length / per if per > 0 else (torch.inf if length else 0.0)
            comparable[path] = 0 < lengths[path] < torch.inf and float(found) >= float(entry.least)
        elif entry.kind == "loss" and compares_losses and isinstance(value, Tensor):
            losses[path] = losses_in(value, entry, part)
    return Measured(entries, steps, lengths, comparable, losses)


def _length(value: Tensor | Tree) -> float:
    leaves = tree.leaves({"": value})
    norms = [torch.linalg.vector_norm(leaf, dtype=torch.float64) for leaf in leaves]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


class Medians:
    """The medians of past rounds, by work and entry.

    Args:
        folder: where to save them; None keeps them in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / MEDIANS
        self._found: dict[str, dict[int, float]] = defaultdict(dict)
        for row in [] if self._path is None else journal.read(self._path).records:
            with suppress(ValueError, TypeError, KeyError):  # a damaged line says nothing
                self._found[row["entry"]][int(row["round"])] = float(row["median"])

    def note(self, entry: str, round: int, median: float) -> None:
        """Record the median of a round."""
        self._found[entry][round] = median
        if self._path is not None:
            journal.append(self._path, {"round": round, "entry": entry, "median": median})

    def last(self, entry: str, round: int) -> float | None:
        """The median of the latest round up to this one."""
        known = [past for past in self._found[entry] if past <= round]
        return self._found[entry][max(known)] if known else None

    def largest(self, entry: str, round: int) -> float | None:
        """The largest median of the rounds up to this one."""
        known = [median for past, median in self._found[entry].items() if past <= round]
        return max(known, default=None)


def judge(
    found: dict[int, Measured], bound: float, medians: Medians, work: str, round: int
) -> dict[int, Change]:
    """What is out of proportion, by client; other clients' replies count unchanged."""
    changes = {client: Change({}, {}, one.entries, []) for client, one in found.items()}
    steps = _median([one.steps for one in found.values()]) or 1.0
    paths = {path for one in found.values() for path in one.lengths}
    for path in sorted(paths):
        known = [one.lengths[path] for one in found.values() if one.comparable.get(path)]
        if len(known) >= ENOUGH:
            medians.note(f"{work}/{path}", round, _median(known))
        reference = medians.last(f"{work}/{path}", round)
        if reference is None:
            continue
        for client, one in found.items():
            slack = one.entries[path.partition("/")[2]].slack
            limit = bound * slack * reference * max(1.0, one.steps / steps)
            if one.lengths.get(path, 0.0) > limit:
                changes[client].factors[path] = limit / one.lengths[path]
                changes[client].words.append(
                    f"{path} is {one.lengths[path] / reference:.3g} times as long as the median;"
                    f" it counts as {limit / reference:.3g} times"
                )
    for path in sorted({path for one in found.values() for path in one.losses}):
        _judge_losses(path, found, bound, medians, f"{work}/{path}", round, changes)
    return {client: change for client, change in changes.items() if change.words}


def _judge_losses(
    path: str,
    found: dict[int, Measured],
    bound: float,
    medians: Medians,
    name: str,
    round: int,
    changes: dict[int, Change],
) -> None:
    told = {client: one.losses[path] for client, one in found.items() if path in one.losses}
    heard = [losses[~losses.isnan()] for losses in told.values()]
    if sum(bool(len(losses)) for losses in heard) < ENOUGH:
        return
    median = _median(torch.cat(heard).tolist())
    if not median > 0:
        return
    medians.note(name, round, median)
    limit = bound * (medians.largest(name, round) or median)
    for client, losses in told.items():
        over = losses > limit
        if bool(over.any()):
            changes[client].losses[path] = torch.where(over, median, torch.nan)
            changes[client].words.append(
                f"{path} reports a loss {float(losses[over].max()) / median:.3g} times the median;"
                " it counts as the median"
            )


def _median(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5)) if values else 0.0


def changed(reply: Reply, change: Change) -> Reply:
    """The reply as it counts."""
    return Reply(
        *(
            {name: _changed(f"{part}/{name}", name, values, part, change) for name in values}
            for part, values in (("total", reply.total), ("each", reply.each))
        )
    )


def _changed(path: str, name: str, values: Tree, part: str, change: Change) -> Tensor | Tree:
    value = values[name]
    if path in change.losses:
        return _retold(path, name, values, change).to(value.dtype)
    factor = change.factors.get(path, 1.0)
    entry = change.entries.get(name)
    if entry is not None and isinstance(entry.per, str) and f"{part}/{entry.per}" in change.losses:
        told = values[entry.per].double()
        now = _retold(f"{part}/{entry.per}", entry.per, values, change)
        factor *= float(now / told)
    if factor == 1.0:
        found: Tensor | Tree = value
        return found
    return tree.scale({"": value}, factor)[""]  # type: ignore[no-any-return]


def _retold(path: str, name: str, values: Tree, change: Change) -> Tensor:
    entry, value, instead = change.entries[name], values[name].double(), change.losses[path]
    if entry.from_loss is not None:
        new = entry.from_loss(instead)
    else:
        new = instead * divisor(entry, values)
    return torch.where(instead.isnan(), value, new)
