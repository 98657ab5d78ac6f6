"""A node's data with the groups of the whole federation."""

from __future__ import annotations

from dataclasses import replace

import torch

from evenhand.data.federation import Federation
from evenhand.data.samples import Part
from evenhand.engines.client import SingleClient
from evenhand.errors import RunError

Node = SingleClient


def with_groups(federation: Federation, names: tuple[str, ...]) -> Federation:
    """The same data with the groups of the whole federation; some may have no sample here."""
    if not names or federation.group_names == names:
        return federation
    unknown = set(federation.group_names) - set(names)
    if unknown or not federation.group_names:
        raise RunError(
            "the data of this node have other groups than it told at the start; start the run anew"
        )
    codes = torch.tensor([names.index(name) for name in federation.group_names])

    def part(old: Part | None) -> Part | None:
        return (
            old
            if old is None or old.group is None
            else Part(old.x, old.y, old.offsets, codes[old.group])
        )

    train = part(federation.train)
    assert train is not None
    return replace(
        federation,
        train=train,
        val=part(federation.val),
        test=part(federation.test),
        group_names=names,
    )
