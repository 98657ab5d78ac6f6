"""The server's side of the runs that one loop trains: a single run here, a stack in ``stacks``.

The loop (``rounds.py``) is written once, in terms of this interface. Tensors of a stack have an
extra first dimension, a row per run. ``rows`` says which runs of a stack are meant; None means all,
and is always used for a single run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, State
from evenhand.cohort import Draw
from evenhand.engines import Exchange
from evenhand.engines.base import exchange_with
from evenhand.engines.work import Train, Work
from evenhand.local import LocalSolver
from evenhand.messages import Replies, Survey, Task
from evenhand.metrics.scores import Row
from evenhand.privacy.protection import never_empty
from evenhand.training.checkpoints import Checkpoints, Start
from evenhand.training.ending import Ending
from evenhand.training.evaluation import Judge
from evenhand.training.history import Columns, Missing, Rows
from evenhand.training.result import Result
from evenhand.training.settings import Settings
from evenhand.training.start import to_server
from evenhand.training.steps import as_pair, with_round
from evenhand.tree import Tree


class Cohorts(NamedTuple):
    """The cohorts of a round, for runs whose cohorts have the same size."""

    rows: Rows
    draw: Draw  # (K,) of a single run, (R', K) of a stack


class Answers(NamedTuple):
    """The clients' replies and, in a stack, which of them count."""

    replies: Replies
    good: Tensor | None = None  # (R', K) False for replies that are not finite and not summed


class Server(ABC):
    """States of runs, the method's server functions, and exchanges with clients."""

    algorithm: Algorithm  # in a stack, with the hyper-parameters of the first run
    client: Algorithm  # the method as clients see it
    client_at_last: Algorithm | None  # the same for local training after the last round
    local: LocalSolver
    runs: int
    done: int  # rounds done
    histories: list[list[Row]]
    stores: Sequence[Checkpoints | None]
    tracked: list[dict[int, Tensor]]
    here: bool  # whether clients are simulated in this process
    ending = Ending()  # what callbacks have asked for
    underway = False  # whether it is still unknown which clients replied in this round

    @abstractmethod
    def call(self, name: str, rows: Rows, *arguments: Any) -> Any:
        """Call one of the method's server functions with the states of some runs."""

    @abstractmethod
    def asking(self, moment: str) -> tuple[Rows, Survey] | None:
        """Return the runs whose method asks a question at this moment, and the question."""

    @abstractmethod
    def asked(self, survey: Survey, asking: Rows, rows: Rows, ids: Tensor) -> Task:
        """Return the question as clients ``ids`` receive it, in some of the runs that ask."""

    @abstractmethod
    def learn(self, rows: Rows, answers: Answers, moment: str) -> None:
        """Pass the method the answers to its question."""

    @abstractmethod
    def models(self, rows: Rows) -> Tree:
        """Return the trained models."""

    @abstractmethod
    def final(self, rows: Rows, answers: Answers) -> list[Columns]:
        """Return the method's metrics of the trained models, from answers about them."""

    @abstractmethod
    def step(self, rows: Rows, answers: Answers) -> list[Columns]:
        """Take the server's step with the replies; return the method's metrics."""

    @abstractmethod
    def missing(self, rows: Rows, draw: Draw, answers: Answers) -> Missing:
        """Return clients without a valid reply, by run; runs without any may be omitted."""

    def shown(self, ids: Tensor) -> float:
        """Return how many clients take part, as far as the history may say it."""
        return ids.shape[-1]

    @abstractmethod
    def drawn(
        self, draw: Callable[[int, Tensor | None], Draw], rows: Rows, own: bool
    ) -> list[Cohorts]:
        """Draw cohorts with a function of a run's seed and, with ``own``, of its own sampling
        weights."""

    @abstractmethod
    def reweighed(self, cohorts: list[Cohorts]) -> list[Cohorts]:
        """Return the cohorts that train, with the method's coefficients."""

    @abstractmethod
    def rates(self, round: int) -> Any:
        """Return the step size of each run."""

    @abstractmethod
    def solver(self, round: int) -> LocalSolver:
        """Return the local solver of a round."""

    @abstractmethod
    def sent(self, task: Task, rows: Rows, draw: Draw, round: int) -> Task:
        """Add what every method needs to a task: the step size and the cohort's coefficients."""

    @abstractmethod
    def by_seed(self, value: Callable[[int], float], rows: Rows) -> Tensor:
        """Return a number for each run that depends on its seed."""

    @abstractmethod
    def exchange(self, work: Work, task: Task, ids: Tensor, round: int, rows: Rows) -> Answers:
        """Send a task to the clients and collect their replies."""

    def meanwhile(self, upcoming: Callable[[int], tuple[Work, Tensor, int] | None]) -> None:  # noqa: B027
        """Let the engine prepare later exchanges: ``upcoming`` returns the work, ids and round that
        come so many rounds after this one, if they are known."""

    @abstractmethod
    def look_and_train(
        self, work: Train, task: Task, ids: Tensor, round: int, rows: Rows
    ) -> tuple[list[Columns], Answers]:
        """Let cohorts evaluate the models they start from, then train."""

    @abstractmethod
    def evaluated(self, round: int, last: bool) -> list[Columns]:
        """Return metrics over clients of the present models; ``last`` says that these are the
        final models."""

    @abstractmethod
    def judges(self, round: int) -> Iterator[tuple[int, Judge, State]]:
        """Yield each run with its evaluation and its state."""

    def restore(self) -> int:
        """Return to the model that the run is to return, and say after which round it was."""
        return self.done

    @abstractmethod
    def finish(self, work: Train, everyone: Draw, round: int) -> None:
        """Let all clients do the method's last local training, with the trained models."""

    @abstractmethod
    def save(self) -> None:
        """Write the checkpoint of every run that has a directory."""

    def results(self, round: int) -> Iterator[tuple[int, Result]]:
        """Yield the result of each run."""
        for row, judge, state in self.judges(round):
            result = judge.result(state, round, self.histories[row], self.tracked[row])
            restored = None if round == self.done else round
            yield row, replace(result, stopped=self.ending.stopped, restored=restored)


class SingleServer(Server):
    """The server of one run, with any engine."""

    runs = 1

    def __init__(
        self,
        algorithm: Algorithm,
        settings: Settings,
        exchange: Exchange,
        judge: Judge,
        start: Start,
        store: Checkpoints | None,
    ) -> None:
        self.algorithm = self.client = algorithm
        self.client_at_last = algorithm.local_work().last
        self.local, self.seed, self.judge = settings.local, settings.seed, judge
        self.protection = algorithm.protection()
        # masked clients can drop out, too
        self.link, self.here = exchange, exchange.here and not getattr(exchange, "masked", False)
        self.state, memories, history, tracked, self.ending = start
        if memories:
            self.link.memories = memories
        self.done, self.histories, self.tracked = len(history), [history], [tracked]
        self.stores = [store]

    def call(self, name: str, rows: Rows, *arguments: Any) -> Any:
        return getattr(self.algorithm, name)(self.state, *arguments)

    def asking(self, moment: str) -> tuple[Rows, Survey] | None:
        question = self.algorithm.question(moment)
        survey = None if question is None else question.ask(self.state)
        return None if survey is None or not survey.needed else (None, survey)

    def asked(self, survey: Survey, asking: Rows, rows: Rows, ids: Tensor) -> Task:
        return Task(survey.shared, tree.map(lambda leaf: leaf[ids], survey.own))

    def learn(self, rows: Rows, answers: Answers, moment: str) -> None:
        question = self.algorithm.question(moment)
        assert question is not None
        self.state = question.learn(self.state, answers.replies)

    def models(self, rows: Rows) -> Tree:
        return self.algorithm.result(self.state)

    def final(self, rows: Rows, answers: Answers) -> list[Columns]:
        question = self.algorithm.question("end")
        if question is None or not len(answers.replies.ids):
            return []
        return [(None, question.final(self.state, answers.replies))]

    def step(self, rows: Rows, answers: Answers) -> list[Columns]:
        replies = answers.replies
        self.underway = replies.underway
        if not self.underway and not len(replies.ids):
            return []
        after, info = as_pair(self.algorithm, self.algorithm.server(self.state, replies))
        self.state = replies.unless_void(self.state, after)
        return [(None, info)]

    def missing(self, rows: Rows, draw: Draw, answers: Answers) -> Missing:
        if self.protection is not None:
            return {}  # it would tell who was drawn
        return {0: set(draw.ids.tolist()) - set(answers.replies.ids.tolist())}

    def shown(self, ids: Tensor) -> float:
        return ids.shape[-1] if self.protection is None else self.protection.expected

    def drawn(
        self, draw: Callable[[int, Tensor | None], Draw], rows: Rows, own: bool
    ) -> list[Cohorts]:
        weighting = self.algorithm.weighting() if own else None
        weight = None if weighting is None else weighting.chances(self.state)
        if self.protection is None:
            return [Cohorts(None, draw(self.seed, weight))]
        return [Cohorts(None, never_empty(draw(self.protection.source.cohorts, weight)))]

    def reweighed(self, cohorts: list[Cohorts]) -> list[Cohorts]:
        weighting = self.algorithm.weighting()
        if weighting is None:
            return cohorts
        return [Cohorts(None, weighting.reweigh(self.state, cohorts[0].draw))]

    def rates(self, round: int) -> float:
        return self.local.rate(round)

    def solver(self, round: int) -> LocalSolver:
        return self.algorithm.local_work().solver(self.local, round)

    def sent(self, task: Task, rows: Rows, draw: Draw, round: int) -> Task:
        return with_round(task, draw, self.rates(round))

    def by_seed(self, value: Callable[[int], float], rows: Rows) -> Tensor:
        return torch.tensor(value(self.seed), dtype=torch.float64)

    def meanwhile(self, upcoming: Callable[[int], tuple[Work, Tensor, int] | None]) -> None:
        self.link.meanwhile = upcoming

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int, rows: Rows) -> Answers:
        return Answers(self.link.exchange(work, task, ids, round))

    def look_and_train(
        self, work: Train, task: Task, ids: Tensor, round: int, rows: Rows
    ) -> tuple[list[Columns], Answers]:
        look = self.judge.look(self.state, ids)
        if look is None:
            return [], self.exchange(work, task, ids, round, rows)
        seen, replies = exchange_with(self.link, look, work, task, ids, round)
        return [(None, self.judge.read(seen))], Answers(replies)

    def evaluated(self, round: int, last: bool) -> list[Columns]:
        return [(None, self.judge.numbers(self.state, round, last))]

    def judges(self, round: int) -> Iterator[tuple[int, Judge, State]]:
        yield 0, self.judge, self.state

    def finish(self, work: Train, everyone: Draw, round: int) -> None:
        task = Task({"model": self.algorithm.result(self.state)})
        self.exchange(work, self.sent(task, None, everyone, round), everyone.ids, round, None)

    def save(self) -> None:
        store = self.stores[0]
        if store is not None:
            now = (self.state, self.link.memories, self.histories[0], self.tracked[0])
            store.save(Start(*now, self.ending))

    def snapshot(self) -> tuple[State, dict[int, Tree]]:
        """Return copies of the state and the clients' memories, on the CPU."""
        return tree.to(self.state, "cpu"), self.link.memories

    def restore(self) -> int:
        kept = self.ending.kept
        if kept is None or kept.round == self.done:
            return self.done
        device = tree.leaves(self.state["model"])[0].device
        self.state, self.link.memories = to_server(kept.state, device), kept.memories
        return kept.round

    def scores(self, part: str, round: int) -> Row:
        """Return metrics over clients of the present models, on one part of their data."""
        return self.judge.numbers_on(part, self.state, round)
