"""Deciding which runs are stacked."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.data.federation import Federation
from evenhand.data.population import Census
from evenhand.engines import choose
from evenhand.engines.memory import SHARE, free_memory
from evenhand.errors import require_kind
from evenhand.local import LocalSolver
from evenhand.model import Model
from evenhand.training.checkpoints import Checkpoints, Start
from evenhand.training.directory import Origin
from evenhand.training.protecting import protected
from evenhand.training.settings import Settings
from evenhand.training.stacks.hyperparameters import form_of, numbers_of
from evenhand.training.stacks.trial import same_function, unstackable
from evenhand.training.start import Prepared, open_store, prepare, require_out

Kind = tuple[str, LocalSolver]  # a method without its numbers, and a solver without its step sizes


@dataclass(frozen=True)
class Run:
    """One of the runs of ``evenhand.fit_many``.

    Args:
        algorithm: the method.
        seed: of cohorts, batch orders and dropout.
        local: the local solver, if it differs from the common one.
        module: the module, if its initial parameters differ from the common module's.
        out: a run directory, as in ``evenhand.fit``.
    """

    algorithm: Algorithm
    seed: int = 0
    local: LocalSolver | None = None
    module: nn.Module | None = None
    out: str | Path | None = None

    def settings(self, common: Settings) -> Settings:
        """Return this run's settings, given the common ones."""
        return dataclasses.replace(common, seed=self.seed, local=self.local or common.local)

    def origin(self, module: nn.Module, federation: Federation, common: Settings) -> Origin:
        """Return what the run is made of, given the common module and settings."""
        return Origin(self.module or module, federation, self.settings(common))


class Entry(NamedTuple):
    """A run that is about to be trained, from the start or from a checkpoint."""

    number: int  # position in the list of runs
    run: Run
    settings: Settings
    model: Model
    build: int  # equal for modules with the same architecture and constants
    start: Start
    store: Checkpoints | None

    @property
    def kind(self) -> Kind:
        """What the run must have in common with others to be stacked."""
        return kind_of(self.run.algorithm, self.settings.local)


class Stack(NamedTuple):
    """Runs that are trained together."""

    entries: list[Entry]
    varying: list[str]  # hyper-parameters that become tensors


def kind_of(algorithm: Algorithm, local: LocalSolver) -> Kind:
    """Return what runs must have in common to be stacked, besides data and architecture."""
    # each run has its own step size in a round
    return form_of(algorithm), dataclasses.replace(local, lr=1.0, decay=1.0, schedule=None)


class Plan:
    """Runs, ready to be trained, and how they are stacked.

    Args:
        module: the common module.
        federation: the clients' data.
        runs: the runs.
        beside: runs that are not trained now, but also decide which hyper-parameters become
            tensors.
        settings: common to all runs.
        resume: whether to resume from checkpoints.
    """

    def __init__(
        self,
        module: nn.Module,
        federation: Federation,
        runs: Sequence[Run],
        beside: Sequence[Run],
        settings: Settings,
        resume: bool,
    ) -> None:
        for run in runs:
            require_kind("each of runs", run, Run, "Run(FedAvg(), seed=1)")
            require_out(run.out, resume, settings)
        self.module, self.federation, self.settings = module, federation, settings
        self.runs, self.beside, self.resume = runs, beside, resume
        # each known module with its model and the number of its architecture
        self._models: list[tuple[nn.Module, Model, int]] = []
        self._kinds: list[tuple[Kind, dict[str, float]]] = []

    @cached_property
    def census(self) -> Census:
        """What is known about the clients."""
        return self.federation.census(self.settings.weights)

    @cached_property
    def _data(self) -> str:
        return self.federation.fingerprint()

    def stacks(self) -> Iterator[Stack]:
        """Yield the stacks, in the order of their first runs."""
        if not self.runs:
            return
        entries = [self._entry(number, run) for number, run in enumerate(self.runs)]
        self.engine = choose(self.settings.engine, entries[0].model, self.federation)
        waiting: dict[object, list[Entry]] = {}
        for entry in entries:
            waiting.setdefault((entry.kind, entry.build, len(entry.start.history)), []).append(
                entry
            )
        for alike in waiting.values():
            one = alike[0]
            if one.run.algorithm.protection() is not None:  # each has a secret of its own
                yield from (Stack([entry], []) for entry in alike)
                continue
            varying = self._differing(one.kind)
            apart = unstackable(one.run.algorithm, one.model, self.federation, self.census, varying)
            pieces: dict[object, list[Entry]] = {}
            for entry in alike:
                pieces.setdefault(
                    tuple(numbers_of(entry.run.algorithm)[name] for name in apart), []
                ).append(entry)
            for piece in pieces.values():
                size = most_runs(piece[0], self.federation)
                for first in range(0, len(piece), size):
                    yield Stack(
                        piece[first : first + size], [name for name in varying if name not in apart]
                    )

    def _entry(self, number: int, run: Run) -> Entry:
        require_kind("algorithm", run.algorithm, Algorithm, "FedAvg()")
        settings = run.settings(self.settings)
        model, build = self._model(run, settings)
        method = protected(run.algorithm, settings, self.federation.clients)
        state = method.init(tree.to(model.init(), "cpu"), self.census)
        store, start = None, Start(state, {}, [], {})
        if run.out is not None:
            prepared = Prepared(model, self.census, state, run.algorithm)
            store, start = open_store(
                run.out, prepared, self.federation, run.algorithm, settings, self.resume, self._data
            )
        return Entry(number, run, settings, model, build, start, store)

    def _model(self, run: Run, settings: Settings) -> tuple[Model, int]:
        """Return the checked model of a run, and the number of its architecture."""
        module = run.module or self.module
        for known, model, build in self._models:
            if known is module:
                return model, build
        # one of each architecture
        for _, first, build in {
            build: kept for kept in reversed(self._models) for build in kept[2:]
        }.values():
            twin = first.with_parameters_of(module)
            if twin is not None and same_function(first, twin, self.federation):
                self._models.append((module, twin, build))
                return twin, build
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the first state, which is created again later
            model = prepare(module, self.federation, run.algorithm, settings).model
        self._models.append((module, model, len(self._models)))
        return model, len(self._models) - 1

    def _differing(self, kind: Kind) -> list[str]:
        """Return the numbers in which the runs of a kind differ."""
        if not self._kinds:
            self._kinds = [
                (
                    kind_of(run.algorithm, run.local or self.settings.local),
                    numbers_of(run.algorithm),
                )
                for run in (*self.runs, *self.beside)
            ]
        every = [numbers for other, numbers in self._kinds if other == kind]
        return [name for name in every[0] if len({numbers[name] for numbers in every}) > 1]


def most_runs(entry: Entry, federation: Federation) -> int:
    """Return how many runs like this one fit into a quarter of the free memory."""
    # state, task, replies and evaluation need a few copies of a model, some in float64
    state = 12 * sum(leaf.numel() for leaf in tree.leaves(entry.start.state)) * 8
    memory = entry.run.algorithm.memory(entry.model.init())
    memories = federation.clients * sum(
        leaf.numel() * leaf.element_size() for leaf in tree.leaves(memory)
    )
    room = min(
        free_memory(entry.model.device) / max(state, 1),
        free_memory(torch.device("cpu")) / max(memories, 1),
    )
    return max(1, int(SHARE * room))
