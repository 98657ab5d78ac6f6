"""Notes about each round, converted to rows of the history when they are read.

Until then, values may be tensors on a GPU, and it may be unknown which clients have replied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor

from evenhand.metrics.scores import Row

log = logging.getLogger(__name__)

Rows = Tensor | None  # (R',) which runs of a stack; None means all
Columns = tuple[list[int] | None, Row]  # which runs (None means all), and their values by name
Missing = dict[int, set[int]]  # clients without a valid reply, by run


class Notes:
    """Notes about the rounds of some runs.

    Args:
        histories: a row per round, for each run.
        name: returns the name of a client.
    """

    def __init__(self, histories: list[list[Row]], name: Callable[[int], str]) -> None:
        self.histories, self.name = histories, name
        self._open: list[list[Columns | Callable[[], Iterable[Columns]]]] = []  # by round
        self._silent: Missing = {}  # to the question of this round

    def begin(self, round: int, lr: float | list[float]) -> None:
        """Begin a round (the first is 0)."""
        row: Row = {"round": round + 1, "lr": lr, "asked": 0, "answered": 0}
        self._open.append([(None, row | {"left_out": "", "void": False})])
        self._silent = {}

    def add(self, runs: list[int] | None, columns: Row) -> None:
        """Note columns of this round: one value for all runs, or a list with one per run, which is
        None for a run without the column."""
        self._open[-1].append((runs, columns))

    def silent(self, missing: Missing) -> None:
        """Note which clients did not answer the question before the round."""
        for run, clients in missing.items():
            self._silent.setdefault(run, set()).update(clients)

    def asked(
        self,
        rows: Rows,
        count: float,
        missing: Callable[[], Missing],
        info: list[Columns],
        wait: bool,
    ) -> None:
        """Note that ``count`` clients were asked to train in some runs.

        Args:
            rows: the runs.
            count: the number of clients; of a private run, the expected number.
            missing: returns the clients that did not reply.
            info: the method's metrics of its step.
            wait: do not call ``missing`` before the notes are read.
        """
        runs = None if rows is None else rows.tolist()
        later = partial(self._answered, runs, count, self._silent, missing, info)
        self._open[-1].append(later if wait else partial(iter, list(later())))

    def _answered(
        self,
        runs: list[int] | None,
        count: float,
        silent: Missing,
        missing: Callable[[], Missing],
        info: list[Columns],
    ) -> Iterable[Columns]:
        yield runs, {"asked": count, "answered": count, "void": not count}
        lost = missing() if count else {}
        void = {run for run, clients in lost.items() if len(clients) == count}
        for run, clients in lost.items():
            yield [run], {"answered": count - len(clients), "void": run in void}
        for run in lost.keys() | silent.keys():
            if runs is None or run in runs:
                absent = lost.get(run, set()) | silent.get(run, set())
                yield [run], {"left_out": ", ".join(map(self.name, sorted(absent)))}
        for some, columns in info:
            if not void or not void.issuperset(some or range(len(self.histories))):
                yield some, columns

    def settle(self, done: int) -> None:
        """Make the rows of the first ``done`` rounds that do not exist yet."""
        for _ in range(done - len(self.histories[0])):
            record = self._open.pop(0)
            rows: list[Row] = [{} for _ in self.histories]
            for note in record:
                for runs, columns in note() if callable(note) else [note]:
                    _put(rows if runs is None else [rows[run] for run in runs], columns)
            for history, row in zip(self.histories, rows, strict=True):
                history.append(row)


def columns_of(rows: Rows, info: Row | list[Row], runs: int) -> list[Columns]:
    """Return a method's metrics of some runs of a stack: stacked, or in a list."""
    if not isinstance(info, list):
        return [(None if rows is None else rows.tolist(), dict(info))]
    listed = range(runs) if rows is None else rows.tolist()
    return [([run], dict(one)) for run, one in zip(listed, info, strict=True)]


def add_to_last(histories: list[list[Row]], runs: list[int] | None, columns: Row) -> None:
    """Add metrics of the trained models to the last rows; see ``Notes.add``."""
    chosen = histories if runs is None else [histories[run] for run in runs]
    _put([history[-1] for history in chosen if history], columns)


def warn_of_missing(history: list[Row], here: bool = True) -> None:
    """Warn about rounds without some clients; ``here`` means that they can only have diverged."""
    rounds = [row for row in history if row["left_out"]]
    if rounds:
        void = sum(row["void"] for row in rounds)
        why = "because their updates were not finite" if here else "for the reasons logged above"
        text = "in %d of %d rounds clients were skipped %s; %d rounds are void.%s"
        hint = " Try a smaller lr." if here else ""
        log.warning(text, len(rounds), len(history), why, void, hint)


def _put(rows: list[Row], columns: Row) -> None:
    for name, values in columns.items():
        values = values.tolist() if isinstance(values, Tensor) else values
        if not isinstance(values, list):
            values = [values] * len(rows)
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[name] = value
