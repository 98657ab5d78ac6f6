"""Factors of the step size, over the rounds of a run or over a client's steps in a round.

A local solver multiplies its step size with ``schedule`` in every round and with ``step_schedule``
in every local step. Rounds and steps count from 0.

>>> from evenhand import LocalSGD, schedules
>>> solver = LocalSGD(lr=0.1, schedule=schedules.Cosine(100, warmup=4))
>>> [round(solver.rate(r), 3) for r in (0, 1, 4, 52, 99)]
[0.02, 0.04, 0.1, 0.05, 0.0]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, fields
from typing import Any, ClassVar

from evenhand.errors import brief, first_line, require, require_known, require_number, require_whole


class Schedule(ABC):
    """Base class of the named schedules, which are frozen dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @abstractmethod
    def factor(self, place: int, total: int | None = None) -> float:
        """Return the factor in a round or step, of ``total`` if that is known."""


@dataclass(frozen=True)
class Cosine(Schedule):
    """Fall from 1 to ``floor`` along half a cosine.

        floor + (1 - floor) (1 + cos(pi (r - warmup) / (length - warmup))) / 2

    Args:
        length: rounds or steps until the floor. None takes all local steps of a client; a schedule
            over rounds needs a number.
        warmup: rounds or steps of linear warm-up before it: (r + 1) / (warmup + 1).
        floor: the factor at the end and after it.
    """

    length: int | None = None
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        require_whole("length", self.length, 1, optional=True)
        require_whole("warmup", self.warmup, 0)
        require_number("floor", self.floor, "[0, 1]", "0 stops at the end")
        require(
            self.length is None or self.warmup < self.length,
            "warmup must be below length, which counts it, got warmup={} and length={}",
            self.warmup,
            self.length,
        )

    def factor(self, place: int, total: int | None = None) -> float:
        """Return the factor in a round or step."""
        length = self.length or total
        if length is None:
            raise ValueError("Cosine() over rounds needs a length, such as Cosine(100)")
        if place < self.warmup:
            return (place + 1) / (self.warmup + 1)
        if place >= length:
            return self.floor
        angle = math.pi * (place - self.warmup) / (length - self.warmup)
        return self.floor + (1 - self.floor) * (1 + math.cos(angle)) / 2


@dataclass(frozen=True)
class Step(Schedule):
    """Multiply the step size with a number, again and again: by ** (r // every).

    Args:
        every: rounds or steps between two changes.
        by: what the step size is multiplied with.
    """

    every: int
    by: float = 0.1

    def __post_init__(self) -> None:
        require_whole("every", self.every, 1)
        require_number("by", self.by, "(0, inf)", "1 keeps the step size")

    def factor(self, place: int, total: int | None = None) -> float:
        """Return the factor in a round or step."""
        return float(self.by ** (place // self.every))


@dataclass(frozen=True)
class Warmup(Schedule):
    """Rise linearly to 1, and stay there: min(1, (r + 1) / (length + 1)).

    Args:
        length: rounds or steps below 1.
    """

    length: int

    def __post_init__(self) -> None:
        require_whole("length", self.length, 1)

    def factor(self, place: int, total: int | None = None) -> float:
        """Return the factor in a round or step."""
        return min(1.0, (place + 1) / (self.length + 1))


@dataclass(frozen=True, repr=False)
class Custom(Schedule):
    """Any function of the round or step, such as ``lambda r: 1 / (1 + r)``.

    A solver makes one of the function it is given. Specs and messages hold named schedules only.

    Args:
        function: returns the factor.
    """

    function: Callable[[int], float]

    def factor(self, place: int, total: int | None = None) -> float:
        """Return the factor in a round or step."""
        try:
            value = self.function(place)
        except Exception as error:
            raise ValueError(
                f"{self!r} fails at {place} with {type(error).__name__}: {first_line(error)}"
            ) from error
        require_number(f"the value of {self!r} at {place}", value, "[0, inf)")
        return float(value)

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


SCHEDULES: dict[str, type[Schedule]] = {"cosine": Cosine, "step": Step, "warmup": Warmup}


def as_schedule(name: str, value: object) -> Schedule | None:
    """Return the schedule that a setting ``name`` was given: one of ours, a function, or None."""
    if value is None or isinstance(value, Schedule):
        return value
    if isinstance(value, type) or not callable(value):
        raise TypeError(
            f"{name} must be a schedule such as eh.schedules.Cosine(100), or a function of the"
            f" {'step' if 'step' in name else 'round'}, got {brief(value)}"
        )
    return Custom(value)


def schedule_table(name: str, schedule: Schedule) -> dict[str, Any]:
    """Return the table of a named schedule in a spec, without default values."""
    known = next((key for key, kind in SCHEDULES.items() if kind is type(schedule)), None)
    if known is None:
        raise ValueError(
            f"{name}={schedule!r} is a function, which a spec or message cannot hold; use one of"
            " eh.schedules, such as Cosine(100)"
        )
    defaults = {field.name: field.default for field in fields(schedule)}
    own = {key: value for key, value in asdict(schedule).items() if value != defaults[key]}
    return {"name": known, **own}


def built_schedule(name: str, table: object) -> Schedule:
    """Return the schedule of a spec's table, such as { name = "cosine", length = 100 }."""
    if callable(table):
        schedule_table(name, Custom(table))  # says what to use instead
    if not isinstance(table, Mapping) or "name" not in table:
        raise ValueError(
            f'{name} must be a table such as {{ name = "cosine", length = 100 }}, got'
            f" {brief(table)}"
        )
    require_known("schedule", table["name"], SCHEDULES)
    kind = SCHEDULES[table["name"]]
    settings = {key: value for key, value in table.items() if key != "name"}
    for key in settings:
        require_known(f"keyword of {name}:", key, kind.__dataclass_fields__)
    try:
        return kind(**settings)
    except TypeError as error:  # a setting is missing
        raise ValueError(f"{name}: {error}") from error
