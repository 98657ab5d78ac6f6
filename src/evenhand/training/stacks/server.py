"""The server's side of a stack of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import State
from evenhand.cohort import Draw
from evenhand.data.federation import Federation
from evenhand.data.population import Census
from evenhand.engines.work import Train, Work
from evenhand.local import LocalSolver
from evenhand.messages import Replies, Survey, Task
from evenhand.torch_private import tree_map
from evenhand.training.checkpoints import Start
from evenhand.training.evaluation import Judge
from evenhand.training.history import Columns, Missing, Rows, columns_of
from evenhand.training.server import Answers, Cohorts, Server
from evenhand.training.stacks.cohorts import grouped, merged, places
from evenhand.training.stacks.evaluation import Evaluations, OneRun
from evenhand.training.stacks.hyperparameters import ClientView, with_numbers
from evenhand.training.stacks.plan import Stack
from evenhand.training.stacks.states import States, joined, plain_to_cpu, some_rows
from evenhand.training.start import to_server
from evenhand.training.steps import as_pair, with_round
from evenhand.tree import Tree


class StackServer(Server):
    """The server of several runs of one method, which calls each function for all runs at once.

    Args:
        stack: the runs.
        federation: the clients' data.
        census: what is known about the clients.
        exchange: of an engine that can stack runs.
    """

    here = True

    def __init__(self, stack: Stack, federation: Federation, census: Census, exchange: Any) -> None:
        self.entries, self.link = stack.entries, exchange
        self.federation, self.census = federation, census
        first = stack.entries[0]
        self.runs = len(stack.entries)
        self.algorithm, self.model = first.run.algorithm, first.model
        self.local, self.device = first.settings.local, first.model.device
        self.client = ClientView(self.algorithm)
        last = self.algorithm.local_work().last
        self.client_at_last = None if last is None else ClientView(self.algorithm, last=True)
        self.states = States(
            [entry.run.algorithm for entry in stack.entries],
            [entry.start.state for entry in stack.entries],
            stack.varying,
            self.device,
        )
        weighting = self.algorithm.weighting()
        self._has_chances = (
            weighting is not None and weighting.chances(stack.entries[0].start.state) is not None
        )
        self.seeds = torch.tensor([entry.run.seed for entry in stack.entries])
        distinct, self.seed_of = torch.unique(self.seeds, return_inverse=True)
        self.distinct_seeds: list[int] = distinct.tolist()
        self.done = len(first.start.history)
        self.histories = [list(entry.start.history) for entry in stack.entries]
        self.tracked = [dict(entry.start.tracked) for entry in stack.entries]
        self.stores = [entry.store for entry in stack.entries]
        self.evaluations = Evaluations(
            self.client, self.model, federation, self.states, self._replies
        )
        self._remember()

    def _remember(self) -> None:
        """Pass the clients' memories to the engine.

        This includes initial memories, if they depend on a run's initial parameters.
        """
        memories = [dict(entry.start.memories) for entry in self.entries]
        several = len({id(entry.model) for entry in self.entries}) > 1
        if several and self.algorithm.memory(self.model.init()):
            for entry, known in zip(self.entries, memories, strict=True):
                first = entry.run.algorithm.memory(tree.to(entry.model.init(), "cpu"))
                for client in range(self.federation.clients):
                    known.setdefault(client, first)
        if any(memories):
            self.link.remember_runs(memories)

    @torch.no_grad()
    def call(self, name: str, rows: Rows, *arguments: Any) -> Any:
        return self.states.call(name, rows, *arguments)

    # ---- the question before a round

    def asking(self, moment: str) -> tuple[Rows, Survey] | None:
        if self.algorithm.question(moment) is None:
            return None
        surveys = self.call(f"question:{moment}.ask", None)
        if surveys is None:
            return None
        if isinstance(surveys, list):  # not stacked: some runs do not ask
            rows = [
                row for row, survey in enumerate(surveys) if survey is not None and survey.needed
            ]
            if not rows:
                return None
            some = [surveys[row]._replace(needed=True) for row in rows]
            return torch.tensor(rows), joined(some, self.device)
        if not isinstance(surveys.needed, Tensor):
            return (None, surveys) if surveys.needed else None
        needed = surveys.needed.cpu()
        if bool(needed.all()):
            return None, surveys
        chosen = needed.nonzero().flatten()
        return (chosen, _some(surveys, chosen)) if len(chosen) else None

    def asked(self, survey: Survey, asking: Rows, rows: Rows, ids: Tensor) -> Task:
        own_rows = slice(None) if rows is None else places(asking, rows)
        shared, own = (
            tree.map(lambda leaf: leaf[own_rows], message)
            for message in (survey.shared, survey.own)
        )
        ids = ids.to(self.device)
        run = torch.arange(len(ids), device=self.device)[:, None]
        return Task(shared, tree.map(lambda leaf: leaf[run, ids], own))

    def learn(self, rows: Rows, answers: Answers, moment: str) -> None:
        for some, state in self._received(f"question:{moment}.learn", rows, answers):
            self.states.put(some, state)
        self.evaluations.forget()

    def models(self, rows: Rows) -> Tree:
        return self.evaluations.models(rows)

    def final(self, rows: Rows, answers: Answers) -> list[Columns]:
        found: list[Columns] = []
        for some, info in self._received("question:end.final", rows, answers):
            found += columns_of(some, info, self.runs)
        return found

    # ---- training

    def step(self, rows: Rows, answers: Answers) -> list[Columns]:
        found: list[Columns] = []
        for some, answer in self._received("server", rows, answers):
            if isinstance(answer, list):  # not stacked
                pairs = [as_pair(self.algorithm, one) for one in answer]
                states, infos = zip(*pairs, strict=True)
                self.states.put(some, list(states))
                found += columns_of(some, list(infos), self.runs)
            else:
                state, info = as_pair(self.algorithm, answer)
                self.states.put(some, state)
                found += columns_of(some, info, self.runs)
        self.evaluations.forget()
        return found

    @torch.no_grad()
    def _received(self, name: str, rows: Rows, answers: Answers) -> Iterator[tuple[Rows, Any]]:
        """Pass the replies to a server function: complete runs together, the others one by one."""
        replies, good = answers
        assert good is not None
        if bool(good.all()):
            yield rows, self.states.call(name, rows, replies)
            return
        whole = good.all(1)
        if bool(whole.any()):
            some = whole.nonzero().flatten()
            which = some if rows is None else rows[some]
            yield which, self.states.call(name, which, _some(replies, some))
        for place in (~whole).nonzero().flatten().tolist():
            row, kept = place if rows is None else int(rows[place]), good[place]
            one = Replies(replies.ids[place][kept], {}, {})
            if len(one.ids):
                total, each = (
                    plain_to_cpu(tree.row(values, place))
                    for values in (replies.total, replies.each)
                )
                each = tree.map(lambda leaf, kept=kept: leaf[kept.to(leaf.device)], each)
                one = Replies(one.ids, total, each)
            elif name == "server":
                continue  # the round is void
            yield torch.tensor([row]), [self.states.one(name, row, one)]

    def missing(self, rows: Rows, draw: Draw, answers: Answers) -> Missing:
        assert answers.good is not None
        if bool(answers.good.all()):
            return {}
        return {
            place if rows is None else int(rows[place]): set(draw.ids[place][~good].tolist())
            for place, good in enumerate(answers.good)
            if not bool(good.all())
        }

    # ---- who takes part

    def drawn(
        self, draw: Callable[[int, Tensor | None], Draw], rows: Rows, own: bool
    ) -> list[Cohorts]:
        if own and self._has_chances:
            chances = self.call("weighting.chances", None)
            runs = range(self.runs) if rows is None else rows.tolist()
            draws = [draw(int(self.seeds[run]), chances[run].cpu()) for run in runs]
            return grouped(draws, rows)
        draws = [draw(seed, None) for seed in self.distinct_seeds]  # one per seed
        which = self.seed_of if rows is None else self.seed_of[rows]
        if len({len(one.ids) for one in draws}) == 1:
            together = Draw(*(torch.stack(values) for values in zip(*draws, strict=True)))
            return [Cohorts(rows, Draw(*(values[which] for values in together)))]
        return grouped([draws[place] for place in which.tolist()], rows)

    def reweighed(self, cohorts: list[Cohorts]) -> list[Cohorts]:
        if self.algorithm.weighting() is None:
            return cohorts
        found: list[Cohorts] = []
        for rows, draw in cohorts:
            answer = self.call("weighting.reweigh", rows, draw)
            if isinstance(answer, Draw):
                found.append(Cohorts(rows, Draw(*(values.cpu() for values in answer))))
            else:
                found += grouped(answer, rows)
        return merged(found)

    # ---- messages

    def rates(self, round: int) -> list[float]:
        return [entry.settings.local.rate(round) for entry in self.entries]

    def solver(self, round: int) -> LocalSolver:
        method = with_numbers(self.algorithm, self.states.varying)
        return method.local_work().solver(self.local, round)

    def sent(self, task: Task, rows: Rows, draw: Draw, round: int) -> Task:
        lr = torch.tensor(self.rates(round), dtype=torch.float64)
        task = with_round(task, draw, lr if rows is None else lr[rows])
        if self.states.varying:
            task.shared["varying"] = some_rows(rows, self.states.varying)
        return task

    def by_seed(self, value: Callable[[int], float], rows: Rows) -> Tensor:
        values = torch.tensor([value(seed) for seed in self.distinct_seeds], dtype=torch.float64)
        return values[self.seed_of if rows is None else self.seed_of[rows]]

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int, rows: Rows) -> Answers:
        seeds = self.seeds if rows is None else self.seeds[rows]
        which = () if rows is None else (rows,)
        return Answers(*self.link.exchange_runs(work, task, ids, round, seeds, *which))

    def _replies(self, work: Work, task: Task, ids: Tensor, round: int, rows: Rows) -> Replies:
        return self.exchange(work, task, ids, round, rows).replies

    def look_and_train(
        self, work: Train, task: Task, ids: Tensor, round: int, rows: Rows
    ) -> tuple[list[Columns], Answers]:
        scores: list[Columns] = []
        evaluations = self.evaluations
        sizes = self.federation.sizes(evaluations.part)
        looking = [one[sizes[one] > 0] for one in ids]  # clients with data to evaluate on
        for some, draw in grouped([Draw(one, one, one) for one in looking], rows):
            if draw.ids.shape[1]:
                look = evaluations.work((False, evaluations.part, False))
                seen = self._replies(look, evaluations.task(some), draw.ids, round, some)
                scores.append(evaluations.columns(seen, some))
        return scores, self.exchange(work, task, ids, round, rows)

    # ---- after rounds

    def evaluated(self, round: int, last: bool) -> list[Columns]:
        return self.evaluations.numbers(round)

    def judges(self, round: int) -> Iterator[tuple[int, Judge, State]]:
        states = self.states.states()
        for row, entry in enumerate(self.entries):
            exchange = OneRun(self.evaluations, row, self.link.memories_of)
            judge = Judge(entry.run.algorithm, entry.model, self.federation, self.census, exchange)
            yield row, judge, to_server(states[row], self.device)

    def finish(self, work: Train, everyone: Draw, round: int) -> None:
        everyone = Draw(*(values.expand(self.runs, -1) for values in everyone))
        task = Task({"model": self.evaluations.models(None)})
        self.exchange(work, self.sent(task, None, everyone, round), everyone.ids, round, None)
        self.evaluations.forget_tallies()

    def save(self) -> None:
        for row, state in enumerate(self.states.states()):
            store = self.stores[row]
            if store is not None:
                memories = self.link.memories_of(row)
                store.save(Start(state, memories, self.histories[row], self.tracked[row]))


def _some(stacked: Any, rows: Tensor) -> Any:
    """Return some rows of all tensors in a value."""
    return tree_map(
        lambda leaf: leaf[rows.to(leaf.device)] if isinstance(leaf, Tensor) else leaf, stacked
    )
