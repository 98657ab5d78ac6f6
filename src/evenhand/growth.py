"""Clients that join a run: extends the server's state to more clients.

New clients, groups and teams get the next numbers, so existing numbers stay valid.
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
    """Return the federation as it was with fewer clients."""
    return federation.first(extent)


def grown(state: Tree, before: Tree, after: Tree) -> Tree:
    """Extend ``state`` to more clients.

    ``before`` and ``after`` are the method's first states for fewer and for more clients. A leaf
    that has not changed since the start is a constant of the census (base weights, team codes): the
    new constant replaces it. A learned leaf is kept; if it has an entry per client, group or team,
    new ones get their initial entry.
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
    """Turn ``dual`` (m,) back into a distribution after clients have joined.

    New clients get their base weight; the others share the rest in their old proportions.
    ``before`` (n,) and ``after`` (m,) are the base weights; a new client had none. Duals equal to
    the base weights stay equal to them, and no existing client gains or loses against another.
    """
    known = F.pad(before, (0, len(after) - len(before))) > 0
    rest = torch.where(known, after, 0).sum() / torch.where(known, dual, 0).sum()
    return torch.where(known, dual * rest, after)
