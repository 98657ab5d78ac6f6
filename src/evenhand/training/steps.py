"""What every server does with a method's task and with the answer of its step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenhand.algorithm import Algorithm, Info, State
from evenhand.cohort import Draw
from evenhand.messages import Task


def as_pair(algorithm: Algorithm, answer: Any) -> tuple[State, Info]:
    """Return the answer of a method's ``server``; raise a TypeError unless it is two dicts."""
    if isinstance(answer, tuple) and len(answer) == 2:
        state, info = answer
        if isinstance(state, dict) and isinstance(info, dict):
            return state, info
        got = f"({type(state).__name__}, {type(info).__name__})"
    else:
        got = type(answer).__name__
    raise TypeError(
        f"{type(algorithm).__name__}.server must return (state, info), two dicts, got {got}"
    )


def with_round(task: Task, draw: Draw, lr: float | Tensor) -> Task:
    """Add what every method needs to a task: the step size and the cohort's coefficients."""
    shared = {**task.shared, "lr": torch.as_tensor(lr, dtype=torch.float64)}
    return Task(shared, {**task.own, "weight": draw.weight, "share": draw.share})
