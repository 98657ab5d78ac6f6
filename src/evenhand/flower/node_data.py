"""A node's data as a federation of one client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from evenhand.data.federation import Federation
from evenhand.data.samples import Part
from evenhand.errors import RunError

# one client's data: a federation of one, or arrays "x", "y" and optionally "group" and "test"
Data = Federation | Mapping[str, Any]


def as_federation(found: Data) -> Federation:
    """The result of ``load_data`` as a federation."""
    if isinstance(found, Federation):
        return found
    test = found.get("test")
    train = {key: value for key, value in found.items() if key != "test"}
    return Federation.from_arrays([train], test=None if test is None else [test])


def with_groups(federation: Federation, names: tuple[str, ...]) -> Federation:
    """The same data with the groups of the whole federation, even those without samples here."""
    if not names or federation.group_names == names:
        return federation
    unknown = set(federation.group_names) - set(names)
    if unknown or not federation.group_names:
        raise RunError(
            "this node's data have other groups than it reported at the start; start a new run"
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
