"""Records a server's progress for observers: a line per round on disk, and values for the metrics.

Training never reads what it writes.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from evenhand.data.population import Population
from evenhand.engines.base import Engine, Exchange, Look
from evenhand.engines.work import Train, Work
from evenhand.flower import journal
from evenhand.flower.faults import FILE as FAULTS
from evenhand.flower.link import Limits
from evenhand.flower.status import CHECKPOINT, rounds_in
from evenhand.messages import Replies, Task
from evenhand.metrics.round_gaps import GAPS
from evenhand.model import Model
from evenhand.tree import Tree

# of the history's columns
SCORES = ("loss", "mean", "worst10", "worst", "worst_group", *GAPS)


@dataclass(frozen=True)
class Now:
    """The progress of a run."""

    rounds: int
    done: int = 0
    registered: int = 0
    asked: int = 0  # in the last round, as are the next three
    answered: int = 0
    gone: int = 0  # clients that had no node then
    seconds: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)  # of the last evaluation
    moved: float = 0.0  # when something last went on, by the monotonic clock
    begun: bool = False  # all nodes are there, and rounds have begun
    finished: bool = False


class Watch:
    """Records the progress of the run in ``out``; ``folder`` is its method's."""

    def __init__(self, out: Path, folder: Path, rounds: int, limits: Limits) -> None:
        self.limits, self._folder, self._path = limits, folder, out / journal.PROGRESS
        self._now, self._lock = Now(rounds, moved=time.monotonic()), threading.Lock()
        self._round_began, self._answered = time.monotonic(), list[int]()
        # of faults, as far as they were read; and who had no node, by round
        self._counts, self._read, self._gone = Counter[str](), 0, dict[Any, set[Any]]()

    @property
    def now(self) -> Now:
        """The progress; any thread may ask."""
        with self._lock:
            return self._now

    def starts(self) -> None:
        """The server has started, and waits for nodes."""
        limits = {"deadline": self.limits.deadline, "patience": self.limits.patience}
        who = {"pid": os.getpid(), "host": platform.node()}
        self._note({"event": "start", "rounds": self.now.rounds, **who, **limits})
        self._move()

    def begins(self, registered: int) -> None:
        """The clients, or additional clients, are there: rounds start or continue."""
        self._note({"event": "rounds", "clients": registered})
        self._round_began = time.monotonic()
        # there is none before the first round; one that is damaged is told of when it is read
        with suppress(OSError, ValueError, KeyError, TypeError):
            self._move(done=rounds_in(self._folder / CHECKPOINT))
        self._move(registered=registered, begun=True)

    def round(self, done: int, row: Mapping[str, Any]) -> None:
        """A round is done, and on disk."""
        now = time.monotonic()
        seconds, self._round_began = round(now - self._round_began, 3), now
        self._note(
            {
                "event": "round",
                "round": done,
                "seconds": seconds,
                "asked": row["asked"],
                "answered": row["answered"],
                "clients": self._answered,
            }
        )
        scores = {name: float(row[name]) for name in SCORES if name in row}
        asked, answered = int(row["asked"]), int(row["answered"])
        self._move(
            done=done, asked=asked, answered=answered, seconds=seconds, gone=self._gone_in(done)
        )
        if scores:
            self._move(scores=scores)

    def ends(self) -> None:
        """Model and scores are written."""
        self._note({"event": "end", "round": self.now.rounds})
        self._move(done=self.now.rounds, finished=True)

    def heard(self, work: Work, replies: Replies) -> None:
        """An exchange is over."""
        if isinstance(work, Train):
            self._answered = replies.ids.tolist()
        self._move()

    def left_out(self) -> dict[str, int]:
        """How often clients were skipped so far, by kind of reason."""
        with self._lock:
            self._take_in()
            return dict(self._counts)

    def _take_in(self) -> None:
        """Count the faults recorded since the last time."""
        found, self._read = journal.read_from(self._folder / FAULTS, self._read)
        for fault in found:
            kind = str(fault.get("kind"))
            self._counts[kind] += 1
            if kind == "gone":
                self._gone.setdefault(fault.get("round"), set()).add(fault.get("client"))

    def _gone_in(self, round: int) -> int:
        """How many clients had no node in a finished round."""
        with self._lock:
            self._take_in()
            gone, self._gone = self._gone, {}
            return len(gone.get(round, ()))

    def over(self, engine: Engine) -> Engine:
        """The same engine, observed."""
        return _Heard(engine, self)

    def _move(self, **changes: Any) -> None:
        with self._lock:
            self._now = replace(self._now, moved=time.monotonic(), **changes)

    def _note(self, record: Mapping[str, Any]) -> None:
        journal.append(self._path, {"time": journal.utc(), **record})


@dataclass(frozen=True)
class _Heard(Engine):
    engine: Engine
    watch: Watch

    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        return _HeardExchange(self.engine.attach(model, population, seed), self.watch)


class _HeardExchange:
    """An exchange that tells a watch when it is over."""

    def __init__(self, exchange: Any, watch: Watch) -> None:
        self._exchange, self._watch = exchange, watch
        self.here: bool = exchange.here
        self.by_client: bool = exchange.by_client
        self.cells: int = exchange.cells
        self.masked: bool = getattr(exchange, "masked", False)

    @property
    def memories(self) -> dict[int, Tree]:
        found: dict[int, Tree] = self._exchange.memories
        return found

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self._exchange.memories = memories

    @property
    def meanwhile(self) -> Callable[[int], tuple[Work, Tensor, int] | None] | None:
        found: Callable[[int], tuple[Work, Tensor, int] | None] | None = self._exchange.meanwhile
        return found

    @meanwhile.setter
    def meanwhile(self, ask: Callable[[int], tuple[Work, Tensor, int] | None] | None) -> None:
        self._exchange.meanwhile = ask

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        replies: Replies = self._exchange.exchange(work, task, ids, round)
        self._watch.heard(work, replies)
        return replies

    def exchange_with(
        self, look: Look, work: Work, task: Task, ids: Tensor, round: int
    ) -> tuple[Replies, Replies]:
        looked, replies = self._exchange.exchange_with(look, work, task, ids, round)
        self._watch.heard(work, replies)
        return looked, replies
