"""The round loop, for one run or a stack of runs: ask, train, step, evaluate, note."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from evenhand.algorithm import normalised
from evenhand.cohort import Draw, Full, Uniform
from evenhand.data.population import Census, Population
from evenhand.engines.work import Ask, Train, Work
from evenhand.local import LocalSolver
from evenhand.messages import Survey
from evenhand.metrics.scores import Row
from evenhand.training.bounds import called, of_history, unmet
from evenhand.training.callbacks import Hooks
from evenhand.training.history import Columns, Notes, Rows, add_to_last, warn_of_missing
from evenhand.training.server import Answers, Cohorts, Server, SingleServer
from evenhand.training.settings import Settings
from evenhand.training.suiting import unsuited

log = logging.getLogger(__name__)

BETWEEN_CHECKPOINTS = 60.0  # seconds, if no number of rounds is given
SURVEY_STREAM = 1 << 62  # makes the draw of clients to ask independent of the draw of the cohort
NOBODY: Row = {"loss": float("nan")}  # scores of an evaluation without clients


class Rounds:
    """The rounds of the runs that one server trains.

    Args:
        server: the server's side of the runs.
        settings: how to train.
        census: what is known about the clients.
        every: rounds between checkpoints; None for once a minute.
        population: the clients, for their names and the sizes of their splits.
        after: called after each round with the number of rounds done.
        hooks: the callbacks of a single run.
    """

    def __init__(
        self, server: Server, settings: Settings, census: Census, every: int | None,
        population: Population, after: Callable[[int], None], hooks: Hooks | None = None,
    ) -> None:  # fmt: skip
        self.server, self.settings, self.census = server, settings, census
        self.population = population
        self.every, self.after, self.hooks = every, after, hooks
        self.notes = Notes(server.histories, population.name)
        self._asks: dict[tuple[str, str], Ask] = {}
        self._work: dict[LocalSolver, Train] = {}  # engines prepare a kind of work once
        self._foreseen: dict[int, list[Cohorts]] = {}  # by round
        self._waiting: int | None = None  # a round not reported yet
        self._saved = time.monotonic()

    def run(self) -> int:
        """Train until the last round, and the method's last local training, are done.

        Returns the round whose models the runs return: the last, unless a callback chose another.
        """
        self.train()
        return self.finish()

    def train(self) -> None:
        """Train until the last round, or until a callback stops the run."""
        server, rounds = self.server, self.settings.rounds
        if server.ending.stopped is not None:
            return
        if server.done < rounds and (text := unsuited(server.algorithm, server.local)):
            log.warning("%s %s", called(server.algorithm, server.runs > 1), text)
        for t in range(server.done, rounds):
            scores = self.round(t)
            if self.settings.is_evaluated(t):
                self._evaluate(t, scores)
            server.done = t + 1
            # while a GPU is still working, it is unknown who replied; the next round can begin
            # anyway
            busy = server.underway and not self.hooks
            if busy and not self.settings.is_evaluated(t) and not self._is_due(t + 1):
                self._waiting = t + 1
            else:
                self._report(t + 1)
            if server.ending.stopped is not None:
                log.info("%s %s", called(server.algorithm), server.ending.stopped)
                return

    def finish(self) -> int:
        """Do what a method does with the trained models; return the round that they are from."""
        server = self.server
        self.notes.settle(server.done)
        rounds = server.restore()
        self._final(rounds)
        for history in server.histories:
            warn_of_missing(history, server.here)
            if text := unmet(of_history(history)):
                log.warning("%s: %s", called(server.algorithm, server.runs > 1), text)
        last = server.algorithm.local_work().last
        if last is not None and server.client_at_last is not None:
            everyone = Full().draw(self.census, self.settings.seed, rounds)
            work = Train(server.client_at_last, last.local_work().solver(server.local, rounds))
            server.finish(work, everyone, rounds)
        return rounds

    def _final(self, rounds: int) -> None:
        """Ask the question about the trained models, and add the metrics to the last row."""
        server = self.server
        found = server.asking("end")
        if found is None:
            return
        asking, survey = found
        survey = survey._replace(shared={**survey.shared, "model": server.models(asking)})
        for rows, answers in self._answered(asking, survey, rounds, "end", None):
            for runs, numbers in server.final(rows, answers):
                add_to_last(server.histories, runs, numbers)

    # ---- one round

    def round(self, t: int) -> list[Columns]:
        """Ask, train and take the server's step; return scores if cohorts evaluate while they
        train."""
        server = self.server
        self._foreseen.pop(t - 1, None)
        self.notes.begin(t, server.rates(t))
        for moment in ("before", "second"):
            self._question(t, moment)
        looking = self.settings.is_evaluated(t) and self.settings.evaluate == "with training"
        scores: list[Columns] = []
        cohorts = server.reweighed(self._drawn(t, None))
        for rows, draw in cohorts:
            scores += self._train(rows, draw, t, looking)
        self._question(t, "review", cohorts)
        return scores

    def _train(self, rows: Rows, draw: Draw, t: int, looking: bool) -> list[Columns]:
        """Let cohorts train, and take the server's step."""
        server, ids = self.server, draw.ids
        if not ids.shape[-1]:
            self.notes.asked(rows, 0, dict, [], wait=False)
            return []
        task = server.sent(server.call("task", rows, ids), rows, draw, t)
        if server.client.local_work().snapshot:
            task.shared["moment"] = server.by_seed(partial(moment, round=t), rows)
        work = self._train_work(t)
        server.meanwhile(partial(self._foresee, t))
        if looking:
            scores, answers = server.look_and_train(work, task, ids, t, rows)
        else:
            scores, answers = [], server.exchange(work, task, ids, t, rows)
        self._catch_up()
        info = server.step(rows, answers)
        missing = partial(server.missing, rows, draw, answers)
        self.notes.asked(rows, server.shown(ids), missing, info, wait=server.underway)
        return scores

    def _question(self, t: int, moment: str, trained: list[Cohorts] | None = None) -> None:
        """Ask the method's question of a moment, and pass it the answers.

        ``trained`` are the cohorts of the round; without them, the question says whom to ask.
        """
        server = self.server
        found = server.asking(moment)
        if found is None:
            return
        for rows, answers in self._answered(*found, t, moment, trained):
            server.learn(rows, answers, moment)

    def _answered(
        self, asking: Rows, survey: Survey, t: int, moment: str, trained: list[Cohorts] | None
    ) -> Iterator[tuple[Rows, Answers]]:
        """Yield the answers to a question, cohort by cohort."""
        server, kind = self.server, (survey.part, moment)
        if kind not in self._asks:
            self._require(survey.part)
            self._asks[kind] = Ask(server.client, *kind)
        cohorts = self._asked(survey.who, t, asking) if trained is None else among(trained, asking)
        for rows, draw in cohorts:
            if not draw.ids.shape[-1]:
                continue
            task = server.sent(server.asked(survey, asking, rows, draw.ids), rows, draw, t)
            answers = server.exchange(self._asks[kind], task, draw.ids, t, rows)
            yield rows, answers
            self.notes.silent(server.missing(rows, draw, answers))

    def _require(self, part: str) -> None:
        """Raise unless every client has samples for a question."""
        empty = (self.population.sizes(part) == 0).nonzero().flatten().tolist()
        if empty:
            raise ValueError(
                f"{type(self.server.algorithm).__name__} asks clients about their {part} data, but"
                f" client {self.population.name(empty[0])} has none; give every client such a"
                ' split, or use part="train"'
            )

    # ---- who takes part

    def _asked(self, who: str | int, t: int, rows: Rows) -> list[Cohorts]:
        # draws depend on (seed, round), so the cohort asked is the one that will train
        if who == "cohort":
            return self._drawn(t, rows)
        return self.server.drawn(
            lambda seed, _: asked_apart(who, self.census, seed, t), rows, False
        )

    def _drawn(self, t: int, rows: Rows) -> list[Cohorts]:
        if t in self._foreseen:
            return self._foreseen[t]

        def draw(seed: int, weight: Tensor | None) -> Draw:
            census = self.census if weight is None else self.census._replace(weight=weight)
            return self.settings.cohort.draw(census, seed, t).ascending()

        return self.server.drawn(draw, rows, True)

    def _foresee(self, t: int, after: int) -> tuple[Work, Tensor, int] | None:
        """Return the training so many rounds ``after`` round t, if it is independent of these."""
        if self.server.algorithm.weighting() is not None or t + after >= self.settings.rounds:
            return None
        found = self._foreseen[t + after] = self._drawn(t + after, None)
        return self._train_work(t + after), found[0].draw.ids, t + after

    def _train_work(self, t: int) -> Train:
        local = self.server.solver(t)
        return self._work.setdefault(local, Train(self.server.client, local))

    # ---- after a round

    def _evaluate(self, t: int, scores: list[Columns]) -> None:
        """Note scores and the clients' weights."""
        server = self.server
        if self.settings.evaluate == "with training":
            self.notes.add(None, {"scores_after": t, **NOBODY})
        else:
            last = t + 1 == self.settings.rounds and server.algorithm.local_work().last is None
            scores = server.evaluated(t, last)
        for rows, numbers in scores:
            self.notes.add(rows, numbers)
        self._track(t)

    def _track(self, t: int) -> None:
        """Note the clients' weights if they are tracked."""
        server = self.server
        if self.settings.track_weights and server.algorithm.reporting() is not None:
            for row, judge, state in server.judges(t):
                if (certificate := judge.certificate(state, t)) is not None:
                    server.tracked[row][t + 1] = normalised(certificate.weights)

    def _is_due(self, done: int) -> bool:
        """Whether it is time for a checkpoint."""
        if all(store is None for store in self.server.stores):
            return False
        if self.every is None:
            late = time.monotonic() - self._saved > BETWEEN_CHECKPOINTS
            return late or done == self.settings.rounds
        return done % self.every == 0 or done == self.settings.rounds

    def _report(self, done: int) -> None:
        ended = self._call_back(done)
        if self._is_due(done) or ended:
            self.notes.settle(done)
            self.server.save()
            self._saved = time.monotonic()
        if self.hooks and self.hooks.failure is not None:
            raise self.hooks.failure
        self.after(done)

    def _call_back(self, done: int) -> bool:
        """Call the callbacks; whether the run ends here, because one stops it or has failed."""
        server, hooks = self.server, self.hooks
        if not hooks:
            return False
        assert isinstance(server, SingleServer)
        self.notes.settle(done)
        hooks.round_end(done, server)
        failed, settings = hooks.failure is not None, self.settings
        if server.ending.stopped is None and not (failed and server.stores == [None]):
            return failed
        if not settings.is_evaluated(done - 1):  # as the last round always is
            if settings.evaluate == "after training":
                for runs, numbers in server.evaluated(done - 1, False):
                    add_to_last(server.histories, runs, numbers)
            self._track(done - 1)
        return True

    def _catch_up(self) -> None:
        """Report the previous round, if that had to wait."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._report(waiting)


def asked_apart(who: str | int, census: Census, seed: int, round: int) -> Draw:
    """Return the clients for a question that is not for the cohort: everyone, or a number of
    clients."""
    if who == "everyone":
        return Full().draw(census, seed, round)
    return Uniform(int(who)).draw(census, seed + SURVEY_STREAM, round).ascending()


def among(cohorts: list[Cohorts], asking: Rows) -> list[Cohorts]:
    """Return the cohorts of the runs that ask."""
    if asking is None:
        return cohorts
    found = []
    for rows, draw in cohorts:
        runs = torch.arange(len(draw.ids)) if rows is None else rows
        some = torch.isin(runs, asking).nonzero().flatten()
        if len(some):
            found.append(Cohorts(runs[some], Draw(*(values[some] for values in draw))))
    return found


def moment(seed: int, round: int) -> float:
    """Return the point of local training, as a share of it, at which methods take a snapshot."""
    return float(np.random.default_rng([seed, round, 1]).random())
