"""A look at a model in company with other work: one message in place of two.

The task's ``shared`` holds the model to look at under a name of its own, unless it is the one that
the work is about anyway. The reply holds both replies, each under its name.
"""

from __future__ import annotations

import torch

from evenhand import tree
from evenhand.messages import Reply, Task
from evenhand.tree import Tree

LOOKED_AT = "looked at"
WORK, LOOK = "work", "look"


def with_model(shared: Tree, model: Tree) -> Tree:
    """What goes to all clients, with the model to look at."""
    sent = tree.flatten({"model": shared.get("model", {})})
    wanted = tree.flatten({"model": model})
    same = sent.keys() == wanted.keys() and all(
        torch.equal(sent[key], leaf) for key, leaf in wanted.items()
    )
    return shared if same else {**shared, LOOKED_AT: model}


def apart(task: Task) -> tuple[Task, Task]:
    """The task of the work, and that of the look."""
    shared = dict(task.shared)
    model = shared.pop(LOOKED_AT, shared.get("model", {}))
    return Task(shared, task.own), Task({"model": model})


def joined(reply: Reply, seen: Reply) -> Reply:
    """One reply for both."""
    return Reply({WORK: reply.total, LOOK: seen.total}, {WORK: reply.each, LOOK: seen.each})


def parted(reply: Reply) -> tuple[Reply, Reply]:
    """The replies that :func:`joined` has put together; raises a ValueError where they are not
    two."""
    for part in reply:
        if list(part) != [WORK, LOOK] or not all(
            isinstance(value, dict) for value in part.values()
        ):
            raise ValueError(
                "it has not replied to both, the work and the look at the model; install the same"
                " evenhand on all sides"
            )
    return Reply(reply.total[WORK], reply.each[WORK]), Reply(reply.total[LOOK], reply.each[LOOK])
