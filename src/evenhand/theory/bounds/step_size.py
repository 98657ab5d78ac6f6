"""The largest step size under the conditions of a theorem."""

from __future__ import annotations

from typing import NamedTuple

from evenhand.errors import require


class StepSize(NamedTuple):
    """The largest step size that a theorem allows."""

    value: float
    binding: str  # the condition that forbids a larger one
    smoothness: float  # the constant in it: L of FAFL, L-tilde of PropFair


def tightest(limits: dict[str, float], smoothness: float) -> StepSize:
    """Return the smallest of the limits."""
    binding = min(limits, key=limits.__getitem__)
    return StepSize(float(limits[binding]), binding, float(smoothness))


def refuse_beyond(limits: dict[str, float], step_size: float) -> None:
    """Raise if a step size violates a condition."""
    for condition, limit in limits.items():
        require(
            step_size <= limit,
            "step_size {:g} violates {}; the bound holds up to {:g}",
            step_size,
            condition,
            limit,
        )
