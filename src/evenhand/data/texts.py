"""Texts that follow a rule, made when they are asked for: a million strings take 60 MB."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import eq
from typing import overload


class Texts(Sequence[str]):
    """Sequences one after another, as texts; it equals a list or tuple of the same texts.

    >>> names = Texts(range(3), ("old", "young"))
    >>> names[1], names[-1], list(names)
    ('1', 'young', ['0', '1', '2', 'old', 'young'])
    """

    def __init__(self, *parts: Sequence[object]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts), initial=0))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, key: int) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> list[str]: ...
    def __getitem__(self, key: int | slice) -> str | list[str]:
        place = range(len(self))[key]
        if isinstance(place, range):
            return [self[one] for one in place]
        part = bisect_right(self._ends, place) - 1
        return str(self._parts[part][place - self._ends[part]])

    def __iter__(self) -> Iterator[str]:
        return map(str, chain.from_iterable(self._parts))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Texts | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(frozen=True)
class Repeated(Sequence[str]):
    """The same text, so many times."""

    text: str
    times: int

    def __len__(self) -> int:
        return self.times

    @overload
    def __getitem__(self, key: int) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> list[str]: ...
    def __getitem__(self, key: int | slice) -> str | list[str]:
        place = range(self.times)[key]  # raises past the end
        return [self.text] * len(place) if isinstance(place, range) else self.text

    def __iter__(self) -> Iterator[str]:
        return repeat(self.text, self.times)
