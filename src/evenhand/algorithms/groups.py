"""Common parts of methods for demographic groups: losses summed by group, and group risks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evenhand.algorithm import State
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.messages import Asked, Entries, Entry, Replies, Task
from evenhand.model import Model
from evenhand.privacy.bounds import Block, Limits
from evenhand.tree import Tree


def group_shares(method: str, census: Census) -> Tensor:
    """Return (A,) the share of each group in the training data, with clients weighted.

    Raises if there are no groups.
    """
    counts = group_counts(method, census)
    if census.group_share is not None:
        return census.group_share
    return (census.weight[:, None] * counts / census.sizes[:, None]).sum(0)


def group_counts(method: str, census: Census) -> Tensor:
    """Return (n, A) the training samples of each group on each client; raises without groups."""
    if census.group_counts is None:
        raise ValueError(
            f"{method} needs a group for every training sample; name a column with --group on the"
            ' command line, or pass "group" to Federation.from_arrays'
        )
    return census.group_counts


def group_totals(model: Model, params: Tree, data: Batch, task: Task, groups: int) -> Tree:
    """Return one client's part of every group's summed loss and share, (A,) each."""
    codes = torch.arange(groups, device=data.group.device)
    member = (data.group[:, None] == codes) & (data.weight > 0)[:, None]  # (B, A)
    losses = model.losses(params, data)[:, None]
    per_sample = task.own["weight"] / data.weight.sum()
    loss = torch.where(member, losses, torch.zeros_like(losses)).sum(0)
    return {
        "group_loss": per_sample * loss,
        "group_share": per_sample * member.to(losses.dtype).sum(0),
    }


def group_share(asked: Asked) -> Tensor:
    """Return (A,) a client's part of every group's share."""
    assert asked.groups is not None, "methods for groups refuse a federation without groups"
    weight: Tensor = asked.task.own["weight"]
    return weight * asked.groups


def group_entries(asked: Asked) -> Entries:
    """Declare what ``group_totals`` returns; the census has the number of samples in each group."""
    share = group_share(asked)
    return {"group_loss": Entry(kind="loss", per=share), "group_share": Entry(known=share)}


def group_blocks(limits: Limits) -> tuple[Block, Block]:
    """Bound what ``group_totals`` returns: a client's shares sum to its weight, whatever the number
    of groups, and a loss is at most ``limits.loss`` per sample."""
    loss = Block({"group_loss": limits.weight * limits.loss}, 0.05)
    return loss, Block({"group_share": limits.weight}, 0.05)


def mended(limits: Limits, least: float = -torch.inf) -> Callable[[Tree], Tree]:
    """Return a function that brings noisy sums back to possible values: risks between zero and the
    largest loss, and a normaliser of at least ``least``."""

    def mend(total: Tree) -> Tree:
        share = total["group_share"].clamp(min=0)
        loss = torch.minimum(total["group_loss"].clamp(min=0), limits.loss * share)
        weight = total["weight"].clamp(min=least)
        return {**total, "group_share": share, "group_loss": loss, "weight": weight}

    return mend


def group_risks(state: State, replies: Replies) -> State:
    """Return (A,) each group's mean loss over the cohort, and whether it was ever seen.

    A group that is absent from the cohort counts with its last known risk; one never seen, with the
    mean of the others'.
    """
    share = replies.total["group_share"]
    seen = torch.where(share > 0, 1.0, state["seen"])
    risk = torch.where(
        share > 0, replies.total["group_loss"] / share.clamp(min=1e-300), state["risk"]
    )
    return {
        "risk": torch.where(seen > 0, risk, (risk * seen).sum() / seen.sum().clamp(min=1)),
        "seen": seen,
    }
