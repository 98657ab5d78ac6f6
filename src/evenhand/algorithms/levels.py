"""Levels of clients: one for all, one per client, or a table, possibly with random levels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.errors import require, require_number, require_whole, unknown

LOW, HIGH = 0.05, 1.0  # the default range of random levels
WORDS = ("others", "random", "low", "high", "some")  # keys of a table that are not clients


@dataclass(frozen=True, repr=False)
class LevelTable(Mapping[str, float]):
    """An immutable table of levels: {"others": 1.0, "5": 0.01}."""

    entries: tuple[tuple[str, float], ...]

    def __getitem__(self, key: str) -> float:
        return dict(self.entries)[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return repr(dict(self.entries))

    @property
    def clients(self) -> dict[int, float]:
        """The clients that have their own level."""
        return {int(key): level for key, level in self.entries if key not in WORDS}


Levels = float | tuple[float, ...] | LevelTable  # for all clients, one per client, by client number


def lowest(name: str, given: Any) -> float:
    """Return the smallest level that a client can have."""
    if not isinstance(given, LevelTable):
        return float(min(given)) if isinstance(given, tuple) else float(given)
    drawn = [given.get("low", LOW)] if "random" in given else []
    return min([given.get("others", 1.0), *given.clients.values(), *drawn])


def random_levels(
    clients: int,
    seed: int,
    low: float = LOW,
    high: float = HIGH,
    fixed: Mapping[int, float] | None = None,
    some: int | None = None,
    others: float = 1.0,
) -> tuple[float, ...]:
    """Draw a level for each client, uniform in [low, high].

    Args:
        clients: number of clients.
        seed: of the draw.
        low: the smallest level.
        high: the largest level.
        fixed: levels of some clients, by number from 0, that are not drawn.
        some: only this many clients, drawn from those that are not fixed, get a random level; it
            does not affect the levels themselves.
        others: the level of the remaining clients.

    >>> levels = random_levels(6, seed=123, low=0.1, fixed={5: 0.01}, some=2)
    >>> levels[5], sum(level == 1 for level in levels)
    (0.01, 3)
    """
    fixed = {} if fixed is None else fixed
    _require_clients("fixed", fixed, clients)
    free = np.array([client for client in range(clients) if client not in fixed], dtype=np.int64)
    require_whole("some", some, 1, optional=True)
    require(
        some is None or some <= len(free),
        "some is {}, but only {} clients have no level of their own; lower some",
        some,
        len(free),
    )
    generator = np.random.default_rng(seed)
    drawn = generator.uniform(low, high, clients)
    chosen = set(free.tolist() if some is None else generator.permutation(free)[:some].tolist())
    return tuple(
        float(fixed[client] if client in fixed else drawn[client] if client in chosen else others)
        for client in range(clients)
    )


def checked_levels(name: str, value: Any, interval: str, hint: str) -> Levels:
    """Check a number, several as a tuple, or a table; each level must be in an interval."""
    if isinstance(value, Mapping):
        return _checked_table(name, value, interval, hint)
    if isinstance(value, Iterable) and not isinstance(value, str):
        # hashable, and the same as from a spec
        value = tuple(value.tolist() if hasattr(value, "tolist") else value)
    for level in value if isinstance(value, tuple) else (value,):
        require_number(name, level, interval, hint)
    levels: Levels = value
    return levels


def by_client(name: str, value: Levels, clients: int, others: float = 1.0) -> Tensor:
    """Return (n,) the level of each client; ``others`` if a table has none."""
    if isinstance(value, LevelTable):
        _require_clients(name, value.clients, clients)
        others = value.get("others", others)
        levels = [value.clients.get(client, others) for client in range(clients)]
        if "random" in value:
            some = int(value["some"]) if "some" in value else None
            low, high = value.get("low", LOW), value.get("high", HIGH)
            seed = int(value["random"])
            levels = list(random_levels(clients, seed, low, high, value.clients, some, others))
        return torch.tensor(levels, dtype=torch.float64)
    if not isinstance(value, tuple):
        return torch.full((clients,), value, dtype=torch.float64)
    fits = len(value) == clients
    require(
        fits, "{} has {} entries for {} clients; pass one per client", name, len(value), clients
    )
    return torch.tensor(value, dtype=torch.float64)


def _checked_table(name: str, table: Mapping[Any, Any], interval: str, hint: str) -> LevelTable:
    entries = {str(key): value for key, value in table.items()}
    require(
        len(entries) == len(table) > 0, "{} must be a table with a level, got {!r}", name, table
    )
    for key, value in entries.items():
        if key in ("random", "some"):
            require_whole(f"{key} of {name}", value, 0 if key == "random" else 1)
            continue
        number = key.isdecimal() and key == str(int(key))
        require(
            key in WORDS or number,
            "{}; clients are numbers from 0",
            unknown(f"key of {name}:", key, WORDS),
        )
        require_number(
            f"{name} of client {key}" if number else f"{key} of {name}", value, interval, hint
        )
    drawn = "random" in entries
    for key in ("low", "high", "some"):
        require(
            drawn or key not in entries, "{} of {} needs random, the seed of the draw", key, name
        )
    low, high = entries.get("low", LOW), entries.get("high", HIGH)
    require(low <= high, "low of {} must be at most high, got {:g} and {:g}", name, low, high)
    require(
        not drawn or "others" not in entries or "some" in entries,
        "others of {} is for clients without a random level; add some, how many have one",
        name,
    )
    rank = {word: place for place, word in enumerate(WORDS)}

    def place(key: str) -> tuple[int, int]:
        return (rank[key], 0) if key in rank else (len(rank), int(key))

    whole = ("random", "some")
    return LevelTable(
        tuple(
            (key, int(entries[key]) if key in whole else float(entries[key]))
            for key in sorted(entries, key=place)
        )
    )


def _require_clients(name: str, levels: Mapping[int, float], clients: int) -> None:
    for client in levels:
        require(
            0 <= client < clients,
            "{} names client {}, but clients are numbered 0 to {}",
            name,
            client,
            clients - 1,
        )
