"""Clients that send false updates, for experiments and tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import evenhand as eh
from evenhand import tree
from evenhand.messages import Asked, Entries
from evenhand.tree import Tree

FEDAVG = eh.FedAvg()


@dataclass(frozen=True)
class Attacked(eh.Wrapper):
    """Some clients replace their local model by received + factor (local - received).

    Losses and weights that they report are true, so this attacks the step alone.

    Args:
        attackers: the clients' numbers.
        factor: -10 sends ten times the opposite of what was learned.
        inner: the method that all clients run.
    """

    attackers: tuple[int, ...] = ()
    factor: float = -10.0
    inner: eh.Algorithm = FEDAVG

    def task(self, state: Tree, ids: Tensor) -> eh.Task:
        task = self.inner.task(state, ids)
        attacks = torch.isin(ids, torch.tensor(self.attackers, dtype=ids.dtype))
        factor = torch.where(attacks, self.factor, 1.0).double()
        return task._replace(own={**task.own, "attack": factor})

    def reply(
        self,
        model: eh.Model,
        start: Tree,
        end: Tree,
        data: eh.Batch,
        task: eh.Task,
        memory: Tree,
    ) -> tuple[eh.Reply, Tree]:
        factor = task.own["attack"]
        false = tree.add(start["model"], tree.scale(tree.sub(end["model"], start["model"]), factor))
        # the others' models stay as they are, to the bit
        end = {**end, "model": tree.where(factor == 1, end["model"], false)}
        return self.inner.reply(model, start, end, data, task, memory)

    def entries(self, asked: Asked) -> Entries:
        return self.inner.entries(asked)
