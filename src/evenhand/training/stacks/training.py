"""The round loop of a stack: what :func:`evenhand.fit` does for one run, for several at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from evenhand import tree
from evenhand.algorithm import Algorithm, normalised
from evenhand.cohort import Draw, Full
from evenhand.engines.work import Ask, Evaluate, Train, Work
from evenhand.local import LocalSGD
from evenhand.messages import Replies, Task
from evenhand.metrics.calibration import BINS
from evenhand.metrics.scores import Row
from evenhand.metrics.tallies import MOST_CELLS
from evenhand.training.checkpoints import first_samples
from evenhand.training.evaluation import Judge, over_clients
from evenhand.training.result import Result
from evenhand.training.rounds import asked_apart, moment, tell_of_left_out, to_server, with_round
from evenhand.training.stacks.cohorts import Party, merged, parties_of, places
from evenhand.training.stacks.hyperparameters import Seen, changes, with_numbers
from evenhand.training.stacks.server import Rows, Server, joined, some_rows
from evenhand.tree import Tree

if TYPE_CHECKING:
    from evenhand.training.stacks.plan import Plan, Stack

BETWEEN_CHECKPOINTS = 60.0  # seconds: a stack has a checkpoint for each of its runs

# columns of a round's history, each with the runs that they are of (None: all)
Notes = list[tuple[list[int] | None, Row]]


class Training:
    """A stack at work."""

    def __init__(self, plan: Plan, stack: Stack, exchange: Any) -> None:
        self.entries, self.exchange = stack.entries, exchange
        self.federation, self.census, self.cohort = plan.federation, plan.census, plan.cohort
        self.rounds = plan.rounds
        self.eval_every = plan.eval_every or max(1, plan.rounds // 20)
        self.track_weights = plan.track_weights
        self.checkpoint_every, self.progress = plan.checkpoint_every, plan.progress
        self.numbers = [entry.number for entry in stack.entries]
        self.runs = len(stack.entries)
        first = stack.entries[0]
        self.form, self.local, self.model = first.run.algorithm, first.local, first.model
        self.device = first.model.device
        algorithms = [entry.run.algorithm for entry in stack.entries]
        self.server = Server(
            algorithms, [entry.state for entry in stack.entries], stack.knobs, self.device
        )
        self.seeds = torch.tensor([entry.run.seed for entry in stack.entries])
        distinct, self.seed_of = torch.unique(self.seeds, return_inverse=True)
        self.distinct_seeds: list[int] = distinct.tolist()
        self.at = len(first.history)
        self.histories = [list(entry.history) for entry in stack.entries]
        self.records: list[Notes] = []  # of rounds that are not in the histories yet
        self.tracked = [dict(entry.tracked) for entry in stack.entries]
        self.seen = Seen(self.form)
        self.ask = Ask(self.seen)
        self.works: dict[LocalSGD, Train] = {}  # engines prepare a kind of work once
        self.evaluations: dict[tuple[bool, str, bool], Evaluate] = {}
        self.models: Tree | None = None  # handed out after this round, where they were asked for
        # what was found of them, from which run on
        self.judged: dict[tuple[bool, str, bool], tuple[int, Replies]] = {}
        self._remember()

    def _remember(self) -> None:
        """Give the engine what clients remember, also before their first round where that depends
        on the run's initial parameters."""
        memories = [dict(entry.memories) for entry in self.entries]
        if len({id(entry.model) for entry in self.entries}) > 1 and self.form.memory(
            self.model.init()
        ):
            for entry, known in zip(self.entries, memories, strict=True):
                first = entry.run.algorithm.memory(tree.to(entry.model.init(), "cpu"))
                for client in range(self.federation.clients):
                    known.setdefault(client, first)
        if any(memories):
            self.exchange.remember_runs(memories)

    def results(self) -> Iterator[tuple[int, Result]]:
        """Train, and give what each run leaves."""
        saved = time.monotonic()
        self._tell()
        with torch.no_grad():
            for t in range(self.at, self.rounds):
                self.round(t)
                if (t + 1) % self.eval_every == 0 or t + 1 == self.rounds:
                    self.evaluate(t)
                self.at = t + 1
                due = time.monotonic() - saved > BETWEEN_CHECKPOINTS
                if self.checkpoint_every:
                    due = (t + 1) % self.checkpoint_every == 0
                if due or t + 1 == self.rounds:
                    self.save()
                    saved = time.monotonic()
                self._tell()
            self._settle()
            for history in self.histories:
                tell_of_left_out(history)
            self.finish()
        states = self.server.states()
        for row, entry in enumerate(self.entries):
            judge = Judge(
                entry.run.algorithm, entry.model, self.federation, self.census, OneOf(self, row)
            )
            state = to_server(states[row], self.device)
            yield (
                entry.number,
                judge.result(state, self.rounds, self.histories[row], self.tracked[row]),
            )

    def _tell(self) -> None:
        if self.progress:
            self.progress(self.numbers, self.at)

    # ---- one round

    def round(self, t: int) -> None:
        """One round of all runs."""
        self.models = None
        self.judged.clear()
        rates = [entry.local.lr * entry.local.decay**t for entry in self.entries]
        silent = self._question(t, rates)
        parties = self._reweighed(self._drawn(t))
        base: Row = {
            "round": t + 1,
            "lr": rates,
            "asked": 0,
            "answered": 0,
            "left_out": "",
            "void": False,
        }
        record: Notes = [(None, base)]
        if len(parties) == 1 and parties[0].rows is None:
            base["asked"] = base["answered"] = parties[0].draw.ids.shape[1]
        local = with_numbers(self.form, self.server.knobs).local_solver(self.local, t)
        for rows, draw in parties:
            record += self._trained(rows, draw, local, rates, t, silent)
        for row, missing in silent.items():
            record.append(([row], {"left_out": self._names(missing)}))
        self.records.append(record)

    def _trained(
        self,
        rows: Rows,
        draw: Draw,
        local: LocalSGD,
        rates: list[float],
        t: int,
        silent: dict[int, set[int]],
    ) -> Notes:
        """Let the cohorts of some runs train, take the server's steps, and say what the history has
        of it."""
        asked = draw.ids.shape[1]
        listed = None if rows is None else rows.tolist()
        if not asked:
            return [(listed, {"asked": 0, "answered": 0, "void": True})]
        task = self.server.call("task", rows, draw.ids)
        task = task if isinstance(task, Task) else joined(task, self.device)
        lr = torch.tensor(rates, dtype=torch.float64)
        task = self._sent(task, rows, draw, lr if rows is None else lr[rows])
        if self.seen.snapshot:
            moments = torch.tensor(
                [moment(seed, t) for seed in self.distinct_seeds], dtype=torch.float64
            )[self.seed_of]
            task.shared["moment"] = moments if rows is None else moments[rows]
        work = self.works.setdefault(local, Train(self.seen, local))
        replies, good = self._exchange(work, task, draw.ids, t, rows)
        found: Notes = []
        if rows is not None:
            found.append((listed, {"asked": asked, "answered": asked}))
        for some, answer in self.server.received("server", rows, replies, good):
            if answer is not None:
                found += self._moved(some, answer)
        if not bool(good.all()):
            for place in (~good.all(1)).nonzero().flatten().tolist():
                row, heard = place if listed is None else listed[place], int(good[place].sum())
                silent.setdefault(row, set()).update(draw.ids[place][~good[place]].tolist())
                found.append(([row], {"answered": heard, "void": heard == 0}))
        return found

    def _moved(self, rows: Rows, answer: Any) -> Notes:
        """Take the states that the server functions gave; what they tell for the history."""
        if isinstance(answer, list):  # they could not be stacked
            states, told = zip(*answer, strict=True)
            self.server.put(rows, list(states))
            listed = range(self.runs) if rows is None else rows.tolist()
            return [([row], dict(info)) for row, info in zip(listed, told, strict=True)]
        state, info = answer
        self.server.put(rows, state)
        return [(None if rows is None else rows.tolist(), dict(info))] if info else []

    def _question(self, t: int, rates: list[float]) -> dict[int, set[int]]:
        """Ask what the method asks before training; who gave no answer that is finite, by run."""
        silent: dict[int, set[int]] = {}
        if not changes(self.form, "survey"):
            return silent
        surveys = self.server.call("survey", None)
        if surveys is None:
            return silent
        if isinstance(surveys, list):
            rows = [
                row for row, survey in enumerate(surveys) if survey is not None and survey.needed
            ]
            if not rows:
                return silent
            survey = joined([surveys[row]._replace(needed=True) for row in rows], self.device)
            chosen: Rows = torch.tensor(rows)
        else:
            survey, chosen = surveys, None
            if isinstance(survey.needed, Tensor):
                needed = survey.needed.cpu()
                if not bool(needed.all()):
                    chosen = needed.nonzero().flatten()
                    survey = tree_map(
                        lambda leaf: (
                            leaf[chosen.to(leaf.device)] if isinstance(leaf, Tensor) else leaf
                        ),
                        survey,
                    )
            elif not survey.needed:
                return silent
        if chosen is not None and not len(chosen):
            return silent
        lr = torch.tensor(rates, dtype=torch.float64)
        for party in self._asked(survey.who, t, chosen):
            own_rows = slice(None) if party.rows is None else places(chosen, party.rows)
            shared, own = (
                tree.map(lambda leaf, some=own_rows: leaf[some], message)
                for message in (survey.shared, survey.own)
            )
            ids = party.draw.ids.to(self.device)
            own = tree.map(
                lambda leaf, ids=ids: leaf[torch.arange(len(ids), device=ids.device)[:, None], ids],
                own,
            )
            task = self._sent(
                Task(shared, own),
                party.rows,
                party.draw,
                lr if party.rows is None else lr[party.rows],
            )
            replies, good = self._exchange(self.ask, task, party.draw.ids, t, party.rows)
            for some, state in self.server.received("learn", party.rows, replies, good):
                self.server.put(some, state)
            if not bool(good.all()):
                for place in (~good.all(1)).nonzero().flatten().tolist():
                    row = place if party.rows is None else int(party.rows[place])
                    silent[row] = set(party.draw.ids[place][~good[place]].tolist())
        return silent

    # ---- who

    def _drawn(self, t: int, rows: Rows = None) -> list[Party]:
        """The cohorts of a round. They depend on the seed alone, unless the method has a say in
        it."""
        if (
            changes(self.form, "chances")
            and (chances := self.server.call("chances", None)) is not None
        ):
            chances = [None if one is None else one.cpu() for one in chances]
            chosen = range(self.runs) if rows is None else rows.tolist()
            censuses = [
                self.census if chances[row] is None else self.census._replace(weight=chances[row])
                for row in chosen
            ]
            draws = [
                self.cohort.draw(census, int(self.seeds[row]), t).ascending()
                for row, census in zip(chosen, censuses, strict=True)
            ]
            return parties_of(draws, None if rows is None else rows)
        return self._by_seed(lambda seed: self.cohort.draw(self.census, seed, t).ascending(), rows)

    def _asked(self, who: str | int, t: int, rows: Rows) -> list[Party]:
        """Whom a survey is for."""
        if who == "cohort":
            return self._drawn(t, rows)
        return self._by_seed(lambda seed: asked_apart(who, self.census, seed, t), rows)

    def _by_seed(self, draw: Callable[[int], Draw], rows: Rows) -> list[Party]:
        """Cohorts that are drawn once for each seed."""
        draws = [draw(seed) for seed in self.distinct_seeds]
        which = self.seed_of if rows is None else self.seed_of[rows]
        if len({len(one.ids) for one in draws}) == 1:
            together = Draw(*(torch.stack(values) for values in zip(*draws, strict=True)))
            return [Party(rows, Draw(*(values[which] for values in together)))]
        return parties_of([draws[place] for place in which.tolist()], rows)

    def _reweighed(self, parties: list[Party]) -> list[Party]:
        """The cohorts that train, with the method's coefficients."""
        if not changes(self.form, "reweigh"):
            return parties
        found: list[Party] = []
        for rows, draw in parties:
            answer = self.server.call("reweigh", rows, draw)
            if isinstance(answer, Draw):
                found.append(Party(rows, Draw(*(values.cpu() for values in answer))))
            else:
                found += parties_of(answer, rows)
        return merged(found)

    # ---- messages

    def _sent(self, task: Task, rows: Rows, draw: Draw, lr: Tensor) -> Task:
        """A stacked task with what every method needs, and the settings that are tensors."""
        task = with_round(task, draw, lr)
        if self.server.knobs:
            task.shared["knobs"] = some_rows(rows, self.server.knobs)
        return task

    def _exchange(
        self, work: Work, task: Task, ids: Tensor, t: int, rows: Rows
    ) -> tuple[Replies, Tensor]:
        seeds = self.seeds if rows is None else self.seeds[rows]
        which = () if rows is None else (rows,)
        found: tuple[Replies, Tensor] = self.exchange.exchange_runs(
            work, task, ids, t, seeds, *which
        )
        return found

    # ---- after a round

    def evaluate(self, t: int) -> None:
        """Add the numbers over clients to the history, and keep the clients' weights where they are
        tracked."""
        part = "train" if self.federation.judged is self.federation.train else "test"
        for first in range(0, self.runs, self.block(False)):
            numbers = over_clients(
                self.judge(False, part, False, first, t).each, self.model.classifies
            )
            columns = {name: values.tolist() for name, values in numbers.items()}
            self.records[-1].append((list(range(first, first + len(columns["loss"]))), columns))
        if self.track_weights and changes(self.form, "certificate"):
            state = self.server.plain()
            for row, entry in enumerate(self.entries):
                judge = Judge(
                    entry.run.algorithm, entry.model, self.federation, self.census, OneOf(self, row)
                )
                certificate = judge.certificate(state(row), t)
                if certificate is not None:
                    self.tracked[row][t + 1] = normalised(certificate.weights)

    def judge(self, plain: bool, part: str, full: bool, row: int, round: int) -> Replies:
        """Tallies on a part of the data of the models of as many runs from ``row`` on as are judged
        together, (R', K, A, ...).

        ``plain``: of the models handed out, not those that clients would use.
        """
        key = (plain, part, full)
        first = row - row % self.block(full)
        if key not in self.judged or self.judged[key][0] != first:
            rows = torch.arange(first, min(first + self.block(full), self.runs))
            chosen: Rows = None if len(rows) == self.runs else rows
            work = self._evaluation(key)
            shared = {"model": self._results(chosen)}
            if self.server.knobs:
                shared["knobs"] = some_rows(chosen, self.server.knobs)
            # clients with something to judge on
            ids = getattr(self.federation, part).sizes.nonzero().flatten()
            found, _ = self._exchange(work, Task(shared), ids.expand(len(rows), -1), round, chosen)
            self.judged[key] = (first, found)
        return self.judged[key][1]

    def _results(self, rows: Rows) -> Tree:
        """The models handed out."""
        if self.models is None:
            models = self.server.call("result", None)
            self.models = tree.to(
                models if isinstance(models, dict) else tree.stack(models), self.device
            )
        return some_rows(rows, self.models)

    def _evaluation(self, key: tuple[bool, str, bool]) -> Evaluate:
        if key not in self.evaluations:
            plain, part, full = key
            method, clients = Algorithm() if plain else self.seen, self.federation.clients
            self.evaluations[key] = Evaluate(
                method, self.federation.groups, part, full, clients if full else 1
            )
        return self.evaluations[key]

    def block(self, full: bool) -> int:
        """Runs whose tallies are taken at once. On a CPU one by one: that takes little longer, and
        has the bits of a single run."""
        if self.device.type == "cpu":
            return 1
        return max(1, min(self.runs, MOST_CELLS // self._cells)) if full else self.runs

    @cached_property
    def _cells(self) -> int:
        """Numbers in the full tallies of one run."""
        output = self.model.output(
            self.model.init(), first_samples(self.model, self.federation, 1).x[:]
        )
        classes = output.shape[-1] if self.model.classifies else 1
        return (
            ((classes + 1) * (classes + 2) + 4 * BINS)
            * self.federation.clients
            * max(1, self.federation.groups)
        )

    def finish(self) -> None:
        """Everyone's last local work, where the method has one."""
        last = self.form.finish()
        if last is None:
            return
        ones = Full().draw(self.census, 0, self.rounds)
        everyone = Draw(*(values.expand(self.runs, -1) for values in ones))
        lr = torch.tensor(
            [entry.local.rate(self.rounds) for entry in self.entries], dtype=torch.float64
        )
        task = self._sent(Task({"model": self._results(None)}), None, everyone, lr)
        work = Train(Seen(self.form, last=True), last.local_solver(self.local, self.rounds))
        self._exchange(work, task, everyone.ids, self.rounds, None)
        self.judged.clear()

    def save(self) -> None:
        """Write the checkpoint of every run that has a directory."""
        if all(entry.store is None for entry in self.entries):
            return
        self._settle()
        for row, state in enumerate(self.server.states()):
            store = self.entries[row].store
            if store is not None:
                store.save(
                    state, self.exchange.memories_of(row), self.histories[row], self.tracked[row]
                )

    def _settle(self) -> None:
        """Make rows of the rounds that were noted since the last time."""
        for record in self.records:
            rows: list[Row] = [{} for _ in range(self.runs)]
            for listed, columns in record:
                chosen = rows if listed is None else [rows[row] for row in listed]
                for name, values in columns.items():
                    values = values.tolist() if isinstance(values, Tensor) else values
                    if isinstance(values, list):
                        for row, value in zip(chosen, values, strict=True):
                            row[name] = value
                    else:
                        for row in chosen:
                            row[name] = values
            for history, row in zip(self.histories, rows, strict=True):
                history.append(row)
        self.records.clear()

    def _names(self, clients: set[int]) -> str:
        return ", ".join(self.federation.name(client) for client in sorted(clients))


class OneOf:
    """One run of a stack, for its judge: what it asks for is found for all runs at once."""

    here, by_client = True, True

    def __init__(self, training: Training, row: int) -> None:
        self.training, self.row = training, row
        self.meanwhile: Callable[[], tuple[Work, Tensor, int] | None] | None = None

    @property
    def memories(self) -> dict[int, Tree]:
        found: dict[int, Tree] = self.training.exchange.memories_of(self.row)
        return found

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        raise TypeError("the memories of a run in a stack are the engine's")

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        assert isinstance(work, Evaluate)
        plain = type(work.algorithm) is Algorithm
        found = self.training.judge(plain, work.part, work.full, self.row, round)
        place = self.row % self.training.block(work.full)
        total, each = (
            tree.to(tree.row(values, place), "cpu") for values in (found.total, found.each)
        )
        return Replies(ids, total, each)
