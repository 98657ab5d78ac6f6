"""Puts evaluation and training into one message instead of two.

The task's ``shared`` has the model to evaluate under a separate name, unless it is the one to
train. The reply has both replies, each under its name.
"""

from __future__ import annotations

import torch

from evenhand import tree
from evenhand.messages import Reply, Task
from evenhand.tree import Tree

# names in messages
EVALUATED_MODEL = "looked at"
WORK, EVALUATION = "work", "look"


def add_model(shared: Tree, model: Tree) -> Tree:
    """What goes to all clients, with the model to evaluate."""
    sent = tree.flatten({"model": shared.get("model", {})})
    wanted = tree.flatten({"model": model})
    same = sent.keys() == wanted.keys() and all(
        torch.equal(sent[key], leaf) for key, leaf in wanted.items()
    )
    return shared if same else {**shared, EVALUATED_MODEL: model}


def split_task(task: Task) -> tuple[Task, Task]:
    """The task of the work, and that of the evaluation."""
    shared = dict(task.shared)
    model = shared.pop(EVALUATED_MODEL, shared.get("model", {}))
    return Task(shared, task.own), Task({"model": model})


def join_replies(reply: Reply, evaluation: Reply) -> Reply:
    """One reply for both."""
    return Reply(
        *({WORK: mine, EVALUATION: other} for mine, other in zip(reply, evaluation, strict=True))
    )


def split_reply(reply: Reply) -> tuple[Reply, Reply]:
    """Undo :func:`join_replies`; raises a ValueError if there are not two replies."""
    for part in reply:
        if list(part) != [WORK, EVALUATION] or not all(
            isinstance(value, dict) for value in part.values()
        ):
            raise ValueError(
                "its reply lacks the work or the evaluation; install the same version everywhere"
            )
    work, evaluation = (Reply(*(part[name] for part in reply)) for name in (WORK, EVALUATION))
    return work, evaluation
