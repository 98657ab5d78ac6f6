"""Normalisation that stays with each client, for any method."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, LocalWork, Memory, Question, State
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.samples import Batch
from evenhand.local import STATISTICS
from evenhand.messages import Asked, Entries, Replies, Reply, Survey, Task
from evenhand.model import Model
from evenhand.norms import NormTable
from evenhand.tree import Tree

OWN = "normalisation"  # of the client's model, in its memory


@dataclass(frozen=True)
class LocalNorms(Wrapper):
    """Keep BatchNorm's parameters and statistics on each client: FedBN.

        (Li, Jiang, Zhang, Kamp, Dou, ICLR 2021)

    ``normalisation="local"`` puts this around the run's method, which sees trees without BatchNorm:
    it sends, averages and measures only the other parameters. Every model that a client trains has
    its own normalisation. Its affine parameters are optimised with that model; its running
    statistics are a variable whose gradient is what they would move by, at step size 1.

    Args:
        inner: the method.
        model: the model with local normalisation.
        shared_only: use the shared model with the client's own normalisation, whatever the method
            would use.
    """

    inner: Algorithm
    model: Model = field(compare=False, repr=False)
    shared_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "personal", True)

    # ---- a client's training

    def start(self, task: Task, memory: Memory) -> Tree:
        known, table = self._recalled(memory)
        variables, statistics = {}, {}
        for name, value in self.inner.start(task, known).items():
            if not self._is(value, self.model.shared):
                variables[name] = value
                continue
            norms = table.of(value).values
            variables[name] = {**value, **{key: norms[key] for key in self.model.affine}}
            statistics[name] = {key: norms[key] for key in self.model.statistics}
        return {**variables, STATISTICS: statistics}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        table = NormTable(self._norms(variables))
        seen = self._apart(variables, table)
        with model.normalising(table, batch.weight):
            value = self.inner.objective(model, seen, batch, task)
        for name, statistics in variables[STATISTICS].items():
            after = table.of(seen[name]).after or {}
            for key in after:
                # its gradient is the difference, so a step of size 1 leads to the new value
                value = value + (statistics[key] * (statistics[key] - after[key]).detach()).sum()
        return value

    def rates(self, task: Task) -> dict[str, Tensor]:
        return {**self.inner.rates(task), STATISTICS: torch.ones_like(task.shared["lr"])}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        known, table = self._recalled(memory)
        begun, ended = self._apart(start, table), self._apart(end, table)
        with model.normalising(table, None):
            reply, kept = self.inner.reply(model, begun, ended, data, task, known)
        now = self._norms(end) or memory[OWN]
        finite = torch.stack([leaf.isfinite().all() for leaf in tree.leaves(now)]).all()
        now = tree.where(finite, now, memory[OWN])
        before = {name: value for name, value in memory.items() if name != OWN}
        return reply, {**self._kept(kept, table, before), OWN: now}

    def local_work(self) -> LocalWork:
        work = self.inner.local_work()
        return work if work.last is None else replace(work, last=replace(self, inner=work.last))

    # ---- a client's model

    def memory(self, params: Tree) -> Memory:
        first = tree.to(self.model.norms(), tree.leaves(params)[0].device)
        table = NormTable(first)
        table.add(params, first)
        return {**self._kept(self.inner.memory(params), table, {}), OWN: first}

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        known, table = self._recalled(memory)
        params: Tree = shared["model"] if self.shared_only else self.inner.deployed(shared, known)
        return {**params, **table.of(params).values}

    def question(self, moment: str = "before") -> Question | None:
        question = self.inner.question(moment)
        return None if question is None else _Question(question, self)

    # ---- trees with and without normalisation

    def _is(self, value: object, names: list[str]) -> bool:
        return isinstance(value, dict) and value.keys() == set(names)

    def _norms(self, variables: Tree) -> Tree:
        """Return the normalisation of the client's model among its variables, if it is there."""
        statistics = variables[STATISTICS]
        if not statistics:
            return {}
        name = "model" if "model" in statistics else next(iter(statistics))
        return {**{key: variables[name][key] for key in self.model.affine}, **statistics[name]}

    def _apart(self, variables: Tree, table: NormTable) -> Tree:
        """Return the variables as the method sees them; the table gets their normalisation."""
        found = {name: value for name, value in variables.items() if name != STATISTICS}
        for name, statistics in variables[STATISTICS].items():
            affine = {key: found[name][key] for key in self.model.affine}
            found[name] = {key: found[name][key] for key in self.model.shared}
            table.add(found[name], affine | statistics)
        if "snapshot" in found:
            found["snapshot"] = self._apart(found["snapshot"], table)
        return found

    def _recalled(self, memory: Memory) -> tuple[Memory, NormTable]:
        """Return a memory as the method sees it, and the normalisation of the models in it."""
        table = NormTable(memory[OWN])
        whole = [*self.model.shared, *self.model.affine, *self.model.statistics]

        def seen(found: Tree) -> Tree:
            if not self._is(found, whole):
                return {
                    name: seen(value) if isinstance(value, dict) else value
                    for name, value in found.items()
                }
            shared = {key: found[key] for key in self.model.shared}
            table.add(shared, {key: found[key] for key in whole if key not in shared})
            return shared

        return seen({name: kept for name, kept in memory.items() if name != OWN}), table

    def _kept(self, found: Tree, table: NormTable, before: Tree) -> Tree:
        """Return a method's memory, in which models have their normalisation.

        Those of ``before`` say which have one; without it, those in the table have.
        """
        if not self._is(found, self.model.shared):
            return {
                name: self._kept(value, table, before.get(name, {}))
                if isinstance(value, dict)
                else value
                for name, value in found.items()
            }
        known = bool(before.keys() - found.keys()) if before else table.knows(found)
        return {**found, **table.of(found).values} if known else found


@dataclass(frozen=True)
class _Question(Question):
    """A method's question, answered with the client's own normalisation."""

    inner: Question
    norms: LocalNorms

    def ask(self, state: State) -> Survey | None:
        return self.inner.ask(state)

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        known, table = self.norms._recalled(memory)
        with model.normalising(table, None):
            return self.inner.answer(model, data, task, known)

    def learn(self, state: State, replies: Replies) -> State:
        return self.inner.learn(state, replies)

    def final(self, state: State, replies: Replies) -> Info:
        return self.inner.final(state, replies)

    def answer_entries(self, asked: Asked) -> Entries:
        return self.inner.answer_entries(asked)


def unwrapped(algorithm: Algorithm) -> Algorithm:
    """Return the method that a user gave."""
    return algorithm.inner if isinstance(algorithm, LocalNorms) else algorithm


def is_of_shared_model(algorithm: Algorithm) -> bool:
    """Whether the method stands for the use of the shared model; see ``of_shared_model``."""
    return isinstance(algorithm, LocalNorms) and algorithm.shared_only


def of_shared_model(algorithm: Algorithm) -> Algorithm:
    """Return a method whose clients use the shared model, for its evaluation."""
    if isinstance(algorithm, LocalNorms):
        return replace(algorithm, shared_only=True)
    return Algorithm()
