"""Clients that join a run: the server's state for more clients, from the one for fewer.

Clients, groups and teams that come later have the next numbers, so every old one keeps its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.data.population import Extent
from evenhand.tree import Tree

__all__ = ["Extent", "first_clients", "grown", "resettled"]


def first_clients(federation: Federation, extent: Extent) -> Federation:
    """The federation as it was with fewer clients."""
    return federation.first(extent)


def grown(state: Tree, before: Tree, after: Tree) -> Tree:
    """``state`` for more clients, given a method's first states for fewer (``before``) and for more
    (``after``).

    Leaf by leaf: what is still as it was at first is a constant of the census (base weights, codes
    of teams), and the new one is taken. What was learned is kept; where it has an entry for each
    client, group or team, those who join have the entry they would start with.
    """
    return {
        key: (
            grown(value, before[key], after[key])
            if isinstance(value, dict)
            else _leaf(key, value, before[key], after[key])
        )
        for key, value in state.items()
    }


def _leaf(key: str, now: Tensor, before: Tensor, after: Tensor) -> Tensor:
    if torch.equal(now, before):
        return after
    if before.shape == after.shape:
        return now
    if now.shape != before.shape:
        raise ValueError(f"cannot extend state {key!r} to new clients; implement join()")
    larger = after.clone()
    larger[tuple(slice(0, length) for length in now.shape)] = now
    return larger


def resettled(dual: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """``dual`` (m,) as a distribution again: newcomers get their base weight, the others share the
    rest as they did.

    ``before`` (n,) and ``after`` (m,) are the base weights; newcomers are those that had none.
    Duals that are equal to the base weights stay so, and no old client gains or loses against
    another.
    """
    known = F.pad(before, (0, len(after) - len(before))) > 0
    rest = torch.where(known, after, 0).sum() / torch.where(known, dual, 0).sum()
    return torch.where(known, dual * rest, after)
