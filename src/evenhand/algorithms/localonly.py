"""Local-only training."""

from __future__ import annotations

from dataclasses import dataclass

from evenhand.algorithm import Algorithm, Info, Memory, State
from evenhand.data.samples import Batch
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """Every client trains alone: what joining a federation has to beat.

        client i:  minimise over v  f_i(v)

    A client continues with its own model in every round it takes part in, and sends nothing. The
    server model does not change.
    """

    personal = True

    def start(self, task: Task, memory: Memory) -> Tree:
        return {"model": memory["personal"]}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        return Reply(), {"personal": end["model"]}

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        return state, {}

    def memory(self, params: Tree) -> Memory:
        return {"personal": params}

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        personal: Tree = memory["personal"]
        return personal
