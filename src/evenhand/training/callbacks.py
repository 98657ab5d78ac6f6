"""Callbacks: a user's code during training, which can watch a run, stop it and choose its model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real

from torch import Tensor

from evenhand.algorithm import Algorithm
from evenhand.algorithms.naming import described, label_of
from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.engines import processes
from evenhand.errors import CallbackError, first_line, require_kind
from evenhand.metrics.scores import Row
from evenhand.model import Model
from evenhand.training.ending import Kept, Stopped
from evenhand.training.result import Result
from evenhand.training.server import SingleServer
from evenhand.training.settings import Settings


@dataclass(frozen=True)
class RunInfo:
    """A run, as callbacks see it before its first round.

    Args:
        algorithm: the method.
        federation: the clients.
        settings: how the run is trained.
        classifies: whether the model predicts classes, labels or levels, which have an accuracy.
        label: the method's name; in a comparison, its label there.
        folder: where the run belongs among others, such as "seed-0/qffl"; "" if it is alone.
        history: the rows of the rounds done earlier, if the run is resumed.
        better: of the run's other metrics by name, whether "higher" or "lower" is better.
        keeps: whether ``Moment.keep`` can keep all that the model needs; clients of a real
            federation do not send their memories.
        classes: the number of classes, if the model predicts one class per sample; else 0.
    """

    algorithm: Algorithm
    federation: Population
    settings: Settings
    classifies: bool
    label: str
    folder: str = ""
    history: Sequence[Row] = ()
    better: Mapping[str, str] = field(default_factory=dict)
    keeps: bool = True
    classes: int = 0

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.settings.seed


class Moment:
    """A run after a round.

    Attributes:
        run: what is known about the run.
        round: the number of rounds done.
        rounds: the number of rounds asked for.
        evaluated: whether the history has scores of this round.
    """

    def __init__(self, run: RunInfo, round: int, server: SingleServer) -> None:
        self.run, self.round, self.rounds = run, round, run.settings.rounds
        self.evaluated = run.settings.is_evaluated(round - 1)
        self._server, self._scores = server, dict[str, Row]()
        self._fixed = frozenset(server.histories[0][-1])

    @property
    def row(self) -> Row:
        """The history's row of this round."""
        return dict(self._server.histories[0][-1])

    @property
    def history(self) -> list[Row]:
        """The history up to this round, a row per round."""
        return [dict(row) for row in self._server.histories[0]]

    def params(self) -> dict[str, Tensor]:
        """Return the present shared model, with the keys of ``module.state_dict()``."""
        judge = self._server.judge
        found = judge.model.state_dict(self.run.algorithm.result(self._server.state))
        return {name: value.detach().cpu().clone() for name, value in found.items()}

    def scores(self, part: str = "test") -> Row:
        """Evaluate the present models on "train", "val" or "test" data of all clients.

        Returns the numbers of the history: loss, mean, worst10 ... With several processes, all of
        them must call this.
        """
        if part not in self._scores:
            self._scores[part] = self._server.scores(part, self.round - 1)
        return dict(self._scores[part])

    def record(self, **numbers: float) -> None:
        """Add columns to the history's row of this round."""
        for name, value in numbers.items():
            if name in self._fixed:
                raise ValueError(f"the history has a column {name!r} already; use another name")
            if not isinstance(value, Real):
                raise TypeError(f"{name} must be a number, got {type(value).__name__}")
            self._server.histories[0][-1][name] = float(value)

    def stop(self, reason: str) -> None:
        """End training after this round; the first reason given counts."""
        require_kind("reason", reason, str, '"the loss is low enough"')
        if self._server.ending.stopped is None:
            stopped = Stopped(self.round, self.rounds, " ".join(reason.split()))
            self._server.ending = self._server.ending._replace(stopped=stopped)

    def keep(self) -> None:
        """Let the run return the present model, unless a later one is kept.

        This also keeps the server's state and the clients' memories, on the CPU.
        """
        if not self.run.keeps:
            raise ValueError(
                f"{self.run.label} cannot return an earlier model, because clients keep a part of"
                " it and do not send it; do not call keep()"
            )
        kept = Kept(self.round, *self._server.snapshot())
        self._server.ending = self._server.ending._replace(kept=kept)


class Callback:
    """Code that is called during training; override what you need.

    Set ``only_watches = True`` if it neither stops a run nor chooses its model. A private run with
    any other callback has no epsilon, because scores are exact.
    """

    only_watches = False

    def check(self, run: RunInfo) -> None:
        """Raise a ValueError if the callback cannot work with a run; nothing was written yet."""

    def on_run_start(self, run: RunInfo) -> None:
        """Called before the first round, also of a resumed run."""

    def on_round_end(self, moment: Moment) -> None:
        """Called after every round."""

    def on_run_end(self, result: Result) -> None:
        """Called with the result."""


@dataclass
class Hooks:
    """The callbacks of one run, called in their order."""

    callbacks: Sequence[Callback]
    label: str | None = None
    folder: str = ""
    run: RunInfo | None = field(default=None, init=False)
    failure: CallbackError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        require_callbacks(self.callbacks)

    def __bool__(self) -> bool:
        return bool(self.callbacks)

    def check(
        self, model: Model, population: Population, algorithm: Algorithm, settings: Settings
    ) -> None:
        """Raise if a callback cannot work with this run."""
        if not self.callbacks:
            return
        label = self.label or label_of(described(algorithm)["name"])
        here = isinstance(population, Federation)
        apart = settings.normalisation == "local" or algorithm.personal
        keeps = here or not (apart or algorithm.memory(model.init()))
        about = (settings, model.target.kind != "number", label, self.folder)
        better = {name: way for way, _, name in (one.key.partition(":") for one in model.metrics)}
        self.run = RunInfo(
            algorithm, population, *about, better=better, keeps=keeps, classes=model.classes
        )
        for callback in self.callbacks:
            callback.check(self.run)

    def start(self, history: Sequence[Row]) -> None:
        """Call on_run_start; errors of it are wrong arguments of the run."""
        if self.run is not None:
            self.run = replace(self.run, history=[dict(row) for row in history])
        for callback in self.callbacks:
            assert self.run is not None
            callback.on_run_start(self.run)

    def round_end(self, done: int, server: SingleServer) -> None:
        """Call on_round_end of all callbacks; note the first failure.

        The others are called in spite of it, so that the run can be resumed with the next round.
        """
        assert self.run is not None
        moment = Moment(self.run, done, server)
        for callback in self.callbacks:
            where = f"{type(callback).__name__} failed in on_round_end after round {done}"
            self._call(lambda callback=callback: callback.on_round_end(moment), where)  # type: ignore[misc]
        # clocks and files may differ between processes: the first decides
        stopped = processes.from_first(lambda: server.ending.stopped, "whether to stop")
        server.ending = server.ending._replace(stopped=stopped)

    def end(self, result: Result) -> None:
        """Call on_run_end of all callbacks; raise the first failure, with the result."""
        for callback in self.callbacks:
            where = f"{type(callback).__name__} failed in on_run_end after the last round"
            self._call(lambda callback=callback: callback.on_run_end(result), where)  # type: ignore[misc]
        if self.failure is not None:
            self.failure.result = result
            raise self.failure

    def _call(self, hook: Callable[[], None], where: str) -> None:
        try:
            hook()
        except processes.ProcessError:
            raise
        except Exception as error:
            if self.failure is None:
                cause = f"{type(error).__name__}: {first_line(error)}"
                self.failure = CallbackError(f"{where}: {cause}")
                self.failure.__cause__ = error


def require_callbacks(callbacks: object) -> None:
    """Raise a TypeError unless these are callbacks in a list."""
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence):
        raise TypeError(
            f"callbacks must be a list, such as [EarlyStopping()], got {type(callbacks).__name__}"
        )
    for callback in callbacks:
        require_kind("each of callbacks", callback, Callback, "EarlyStopping()")


def own_copies(callbacks: Sequence[Callback]) -> list[Callback]:
    """Return copies for one of several runs, so that what they remember belongs to that run."""
    found = []
    for callback in callbacks:
        try:
            found.append(copy.deepcopy(callback))
        except Exception as error:
            raise TypeError(
                f"{type(callback).__name__} cannot be copied for each run"
                f" ({first_line(error)}); open files and connections in on_run_start"
            ) from error
    return found
