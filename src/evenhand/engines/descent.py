"""The local steps of a chunk of clients."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand import tree
from evenhand.engines.batching import Batching
from evenhand.engines.prepared import Prepared
from evenhand.engines.visits import Visits
from evenhand.tree import Tree


def descend(
    prepared: Prepared,
    batching: Batching,
    visits: Visits,
    shared: Tree,
    own: Tree,
    begin: Tree,
    whole: Tree,
    device: torch.device,
) -> Tree:
    """The clients' variables after their local steps, and at the snapshot if one is asked for.

    Args:
        visits: the samples of each step.
        begin: "variables" and "rates" at the start, a row for each client.
        whole: {"whole": all data of each client} if the objective needs it, else {}.
    """
    work, count = prepared.work, len(visits.steps)
    if visits.order is not None:
        order = visits.order.to(device)
        shared, own, begin, whole = (
            tree.map(lambda leaf: leaf if leaf.shape[0] != count else leaf[order], t)
            for t in (shared, own, begin, whole)
        )
        shared = batching.fixed(shared, "shared in order")
        own = batching.fixed(own, "own in order")
    variables = batching.copy(begin["variables"], "variables")
    state = {} if work.local is None else work.local.state(variables)
    inputs = batching.fixed({"state": state, "rates": begin["rates"], **whole}, "inputs")
    inputs |= {"own": own, "variables": variables}
    snapshot = Snapshot(variables, shared["moment"], visits.steps) if work.snapshot else None
    part = {"shared": shared, "inputs": inputs}  # of the clients in the stack, at first all of them
    for number, (batches, stacked, taking_part) in enumerate(
        visits.in_turn(one_by_one=snapshot is not None), 1
    ):
        if stacked != part["inputs"]["own"]["weight"].shape[0]:
            part = tree.map(
                lambda leaf, stacked=stacked: leaf if leaf.shape[0] != count else leaf[:stacked],
                {"shared": shared, "inputs": inputs},
            )
        if visits.noise is not None:
            noise = visits.noise.of(number - 1, stacked, taking_part, part["inputs"]["variables"])
            batches["noise"] = tree.map(lambda leaf: leaf[None], noise)
        if stacked == taking_part:
            batching.repeat(prepared.step, part["shared"], part["inputs"], batches)
        else:
            active = (torch.arange(stacked) < taking_part).to(device)
            batching.repeat(
                prepared.step, part["shared"], {**part["inputs"], "active": active}, batches
            )
        if snapshot is not None:
            snapshot.take(variables, number)
    end = variables if snapshot is None else {**variables, "snapshot": snapshot.values}
    if visits.back is None:
        return end
    back = visits.back.to(device)
    return tree.map(lambda leaf: leaf[back], end)


class Snapshot:
    """Clients' variables at one moment of their local work.

    Args:
        share: (1,) or (k,) the moment as a share of a client's steps, at least one step in.
        steps: (k,) of each client.
    """

    def __init__(self, variables: Tree, share: Tensor, steps: Tensor) -> None:
        self.values = tree.map(torch.clone, variables)
        self._moments: list[int] = (
            (1 + (share.to(steps.device) * steps).floor().clamp(max=steps - 1)).long().tolist()
        )

    def take(self, variables: Tree, step: int) -> None:
        """Keep the variables of the clients whose moment comes after this step."""
        if step in self._moments:
            for kept, value in zip(tree.leaves(self.values), tree.leaves(variables), strict=True):
                now = torch.tensor(
                    [row for row, moment in enumerate(self._moments) if moment == step],
                    device=value.device,
                )
                kept[now] = value[now]
