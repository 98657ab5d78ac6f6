"""How many samples clients have, as a masked sum: the work, and a node's side of it.

A run asks each node once. As the question is the same for everyone and in every round, the rule
"one set" binds it: a node that is in one sum of counts opens no other, so that a client that joins
later cannot be found as the difference of two sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from flwr.app import RecordDict
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.data.samples import PARTS
from evenhand.flower import records
from evenhand.flower.masked import told
from evenhand.flower.masked.work import Masking, RefusedMasks
from evenhand.flower.packing import pack
from evenhand.messages import Reply, Task
from evenhand.secure import Refused
from evenhand.tree import Tree

if TYPE_CHECKING:
    from evenhand.secure import Node

# a row of a task's own part: all training samples; a client then multiplies its coefficients by its
# share of them
SAMPLES = "samples"
# what else is counted, by what the clients' base weights are
MORE = {"data": "squares", "uniform": "shares"}


@dataclass(frozen=True)
class Count:
    """Count samples by split and group."""

    name: ClassVar[str] = "count"
    part: ClassVar[str] = ""
    local: ClassVar[None] = None
    must_be_finite: ClassVar[bool] = True

    def scales(self, own: Tree) -> dict[str, Tensor]:
        return {}


def counts_of(rows: Mapping[str, Tensor], more: str) -> Reply:
    """The reply of a client with (A,) counts by split.

    Args:
        more: "squares" adds its squared number of training samples, from which follows how many
            clients count by their sizes; "shares" adds the groups' shares of its training samples,
            which methods for groups need if all clients have the same weight.
    """
    train = rows["train"].double()
    if more == "squares":
        added = train.sum() ** 2
    elif more == "shares":
        added = train / train.sum().clamp(min=1)
    else:
        raise ValueError("the server asks for unknown counts; install the same version everywhere")
    return Reply({**{part: rows[part] for part in PARTS}, more: added})


def masked_counts(
    node: Node,
    content: RecordDict,
    about: Mapping[str, Any],
    task: Task,
    data: Federation,
    limit: int,
) -> RecordDict:
    """The node's counts, masked; raises ``RefusedMasks``."""
    masking = Masking.begin(node, content, about, Count(), task, None, False)
    # with another round or content it would be another question, and could be asked again
    if records.whole(about, "round") != 0 or masking.shared != told.digest_of(pack({}).data):
        what = "counts are asked about nothing else, and in no round"
        raise RefusedMasks(Refused("one set", what))
    rows = {part: data.counts(part)[0] for part in PARTS}
    return masking.reply(Count(), counts_of(rows, records.text(about, "how")), None, limit)


def by_size(task: Task, data: Federation, least: int) -> Task:
    """The task with the coefficients that follow from the client's number of samples, which the
    server does not know; raises ``RefusedMasks`` if it would be most of the sum."""
    if SAMPLES not in task.own:
        return task
    own = {name: value for name, value in task.own.items() if name != SAMPLES}
    share = data.sizes("train").double() / task.own[SAMPLES]
    for name in ("weight", "share"):
        own[name] = own[name] * share
    # the others' shares are not known here, but all of them are 1 together
    if not float(own["share"].sum()) <= least**-0.5:
        what = f"this client has too many of all samples for a sum that hides {least}"
        raise RefusedMasks(Refused("enough others", what))
    return Task(task.shared, own)


def per_sample(task: Task, base: Tensor, samples: int) -> Task:
    """The server's side of :func:`by_size`: coefficients relative to the clients' base weights.

    Args:
        base: of the clients that are asked.
        samples: of all clients.
    """
    own = {name: task.own[name] / base for name in ("weight", "share")}
    return Task(task.shared, {**task.own, **own, SAMPLES: torch.full_like(base, samples)})


def zeros(groups: int, more: str) -> Reply:
    """The form of a reply."""
    return counts_of(dict.fromkeys(PARTS, torch.zeros(max(1, groups), dtype=torch.int64)), more)
