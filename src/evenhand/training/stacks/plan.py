"""Which runs are stacked, and what is done with those that are not."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from evenhand import tree
from evenhand.algorithm import Algorithm, State
from evenhand.cohort import Cohort, Draw, Full
from evenhand.data.federation import Federation
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.engines import Engine, choose, processes
from evenhand.engines.memory import SHARE, free_memory
from evenhand.errors import ClientError, first_line, require_kind
from evenhand.growth import Extent
from evenhand.local import LocalSGD
from evenhand.losses import LossFunction
from evenhand.messages import Task
from evenhand.metrics.scores import Row
from evenhand.model import Model
from evenhand.training.checkpoints import Checkpoints, first_samples, identify
from evenhand.training.result import Origin, Result
from evenhand.training.rounds import EVALUATE, check_arguments, prepare, train, with_round
from evenhand.training.settings import Settings
from evenhand.training.stacks.hyperparameters import form_of, numbers_of, with_numbers
from evenhand.training.stacks.training import Training
from evenhand.tree import Tree

log = logging.getLogger(__name__)

DEFAULT = LocalSGD(lr=0.1, epochs=1, batch_size=32)

# called with the numbers of runs and the rounds that they have done
Together = Callable[[Sequence[int], int], None]


@dataclass(frozen=True)
class Run:
    """One of several runs that are trained together; see :func:`fit_many`.

    Args:
        algorithm, seed, local, out: as for :func:`evenhand.fit`.
        module: where its initial parameters differ from the common module's.
    """

    algorithm: Algorithm
    seed: int = 0
    local: LocalSGD | None = None
    module: nn.Module | None = None
    out: str | Path | None = None

    def origin(self, module: nn.Module, federation: Federation, settings: Settings) -> Origin:
        """What the run is made of, with a common module and common settings."""
        own = dataclasses.replace(settings, seed=self.seed, local=self.local or settings.local)
        return Origin(self.module or module, federation, own)


class Entry(NamedTuple):
    """A run that is about to be trained, from the start or from a checkpoint."""

    number: int  # among the runs that were given
    run: Run
    local: LocalSGD
    model: Model
    build: int  # of its module: the same for modules of one architecture and equal constants
    state: State
    store: Checkpoints | None
    memories: dict[int, Tree]
    history: list[Row]
    tracked: dict[int, Tensor]

    @property
    def kind(self) -> tuple[str, str]:
        return kind_of(self.run.algorithm, self.local)


class Stack(NamedTuple):
    entries: list[Entry]
    knobs: list[str]  # settings that are tensors


def kind_of(algorithm: Algorithm, local: LocalSGD) -> tuple[str, str]:
    """What runs must have in common to be stacked, but for data and architecture."""
    return form_of(algorithm), repr(dataclasses.replace(local, lr=1.0, decay=1.0))


class Plan:
    """Runs, made ready to be trained, and how they are put together."""

    def __init__(
        self,
        module: nn.Module,
        federation: Federation,
        runs: list[Run],
        beside: list[Run],
        progress: Together | None,
        *,
        loss: str | LossFunction = "cross_entropy",
        rounds: int = 100,
        cohort: Cohort | None = None,
        engine: str | Engine = "auto",
        weights: str = "data",
        device: str | torch.device | None = None,
        eval_every: int | None = None,
        checkpoint_every: int | None = None,
        resume: bool = False,
        track_weights: bool = False,
        precision: str = "fp32",
    ) -> None:
        for run in runs:
            require_kind("each of runs", run, Run, "Run(FedAvg(), seed=1)")
            check_arguments(rounds, run.seed, eval_every, checkpoint_every, progress)
            if run.out is None and (resume or checkpoint_every):
                raise ValueError(
                    "resume and checkpoint_every need out, the directory for checkpoints, in"
                    " every run"
                )
        self.module, self.federation, self.runs, self.beside = module, federation, runs, beside
        self.progress = progress
        self.rounds, self.cohort, self.weights = rounds, cohort or Full(), weights
        self.resume = resume
        self.eval_every, self.checkpoint_every = eval_every, checkpoint_every
        self.track_weights = track_weights
        self.loss, self.device, self.engine, self.precision = loss, device, engine, precision
        # of each module that was met, with the number of its architecture
        self._models: list[tuple[nn.Module, Model, int]] = []
        self._census: Census | None = None
        self._data: str | None = None
        self._kinds: list[tuple[tuple[str, str], dict[str, float]]] = []

    def stacks(self) -> Iterator[Stack]:
        """What is trained together, in the order of the first of each."""
        if not self.runs:
            return
        entries = [self._entry(number, run) for number, run in enumerate(self.runs)]
        self.engine = choose(self.engine, entries[0].model, self.federation)
        waiting: dict[object, list[Entry]] = {}
        for entry in entries:
            waiting.setdefault((entry.kind, entry.build, len(entry.history)), []).append(entry)
        for alike in waiting.values():
            knobs = self._differing(alike[0].kind)
            apart = self._looked_at(alike, knobs)
            pieces: dict[object, list[Entry]] = {}
            for entry in alike:
                pieces.setdefault(
                    tuple(numbers_of(entry.run.algorithm)[name] for name in apart), []
                ).append(entry)
            for piece in pieces.values():
                size = most_runs(piece[0], self.federation)
                for first in range(0, len(piece), size):
                    yield Stack(
                        piece[first : first + size], [name for name in knobs if name not in apart]
                    )

    def carry_out(self, stack: Stack) -> Iterator[tuple[int, Result]]:
        """Train a stack."""
        exchange = None
        if (
            (len(stack.entries) > 1 or stack.knobs)
            and not stack.entries[0].model.stochastic
            and not processes.several()
        ):
            assert isinstance(self.engine, Engine)
            exchange = self.engine.attach(
                stack.entries[0].model, self.federation, stack.entries[0].run.seed
            )
        if exchange is None or not hasattr(exchange, "exchange_runs"):
            if len(stack.entries) > 1:
                log.info(
                    "%d runs are trained one after another: this engine, module or number of"
                    " processes cannot stack them",
                    len(stack[0]),
                )
            yield from self._one_after_another(stack.entries)
            return
        try:
            yield from Training(self, stack, exchange).results()
        except ClientError as error:
            log.info(
                "training %d runs one after another, since together it fails: %s",
                len(stack.entries),
                first_line(error),
            )
            yield from self._one_after_another(stack.entries)

    def _one_after_another(self, entries: list[Entry]) -> Iterator[tuple[int, Result]]:
        for number, run, local, *_, store, _memories, history, _tracked in entries:
            if self.progress:
                self.progress([number], len(history))

            def after(done: int, row: Row, number: int = number) -> None:
                if self.progress:
                    self.progress([number], done)

            yield (
                number,
                train(
                    run.module or self.module,
                    self.federation,
                    run.algorithm,
                    Settings(
                        loss=self.loss,
                        rounds=self.rounds,
                        local=local,
                        cohort=self.cohort,
                        seed=run.seed,
                        engine=self.engine,
                        weights=self.weights,
                        device=self.device,
                        eval_every=self.eval_every,
                        checkpoint_every=self.checkpoint_every,
                        track_weights=self.track_weights,
                        precision=self.precision,
                    ),
                    out=run.out,
                    resume=store is not None,
                    progress=after,
                ),
            )

    @property
    def census(self) -> Census:
        if self._census is None:
            self._census = self.federation.census(self.weights)
        return self._census

    def _entry(self, number: int, run: Run) -> Entry:
        local = run.local or DEFAULT
        require_kind("algorithm", run.algorithm, Algorithm, "FedAvg()")
        require_kind("local", local, LocalSGD, "LocalSGD(lr=0.1)")
        model, build = self._model(run, local)
        state = run.algorithm.init(tree.to(model.init(), "cpu"), self.census)
        entry = Entry(number, run, local, model, build, state, None, {}, [], {})
        if run.out is None:
            return entry
        self._data = self._data or self.federation.fingerprint()
        settings = (
            run.algorithm,
            self.rounds,
            local,
            self.cohort,
            run.seed,
            self.weights,
            self.eval_every,
            self.track_weights,
        )
        identity = identify(
            model, self.federation, self._data, *settings, self.precision, EVALUATE[0]
        )
        store = Checkpoints(
            Path(run.out), identity, self.checkpoint_every or 0, Extent.of(self.federation)
        )
        if store.has_one_to_resume(self.resume):
            state, memories, history, tracked = store.load()
            entry = entry._replace(state=state, memories=memories, history=history, tracked=tracked)
        return entry._replace(store=store)

    def _model(self, run: Run, local: LocalSGD) -> tuple[Model, int]:
        """The checked model of a run, and the number of its architecture."""
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
        arguments = (
            run.algorithm,
            self.loss,
            local,
            self.cohort,
            self.weights,
            self.device,
            self.precision,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the method's first state, which is made once more
            model = prepare(module, self.federation, *arguments).model
        self._models.append((module, model, len(self._models)))
        return model, len(self._models) - 1

    def _differing(self, kind: tuple[str, str]) -> list[str]:
        """The numbers in which the runs of a kind differ."""
        if not self._kinds:
            self._kinds = [
                (kind_of(run.algorithm, run.local or DEFAULT), numbers_of(run.algorithm))
                for run in (*self.runs, *self.beside)
            ]
        every = [numbers for other, numbers in self._kinds if other == kind]
        return [name for name in every[0] if len({numbers[name] for numbers in every}) > 1]

    def _looked_at(self, alike: list[Entry], knobs: list[str]) -> list[str]:
        """Those of the settings that a method's client functions look at, so that they cannot be
        tensors."""
        if not knobs or (error := self._failure(alike[0], knobs)) is None:
            return []
        apart = [name for name in knobs if self._failure(alike[0], [name]) is not None]
        if self._failure(alike[0], [name for name in knobs if name not in apart]) is not None:
            apart = knobs
        text = "runs with different %s are not stacked: %s cannot be batched over it (%s)"
        log.info(text, ", ".join(apart), type(alike[0].run.algorithm).__name__, first_line(error))
        return apart

    def _failure(self, entry: Entry, knobs: list[str]) -> Exception | None:
        """What goes wrong where a client's functions meet tensors in the place of these
        settings."""
        if not knobs:
            return None
        algorithm, model = entry.run.algorithm, entry.model
        samples = first_samples(model, self.federation, 2)
        few = torch.arange(len(samples.y), device=model.device)
        ones = torch.ones(len(few), dtype=model.dtype, device=model.device)
        whole = Batch(samples, few, ones)
        ids, weight = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)

        def sent(task: Task) -> Task:
            task = with_round(task, Draw(ids, weight, weight), 0.1)
            task.shared["moment"] = torch.tensor(0.5)
            shared, own = (tree.floating(message, model.dtype, model.device) for message in task)
            return Task(shared, tree.row(own, 0))

        def client(numbers: dict[str, Tensor]) -> tuple[Tensor, ...]:
            one = with_numbers(algorithm, numbers)
            memory = tree.to(algorithm.memory(model.init()), model.device)
            start = one.start(task, memory)
            batch = Batch(samples, few, ones, whole)
            slope = (
                grad(lambda variables: one.objective(model, variables, batch, task))(start)
                if start
                else {}
            )
            end = tree.map(lambda value, change: value - change, start, slope)
            reply, kept = one.reply(
                model, start, {**end, "snapshot": end} if one.snapshot else end, whole, task, memory
            )
            found = [
                *one.rates(task).values(),
                *tree.leaves(reply.total),
                *tree.leaves(reply.each),
                *tree.leaves(kept),
            ]
            if question is not None:
                answer = one.answer(model, whole, question, memory)
                found += [*tree.leaves(answer.total), *tree.leaves(answer.each)]
            return (*found, torch.zeros((), device=model.device))

        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # training will say it again
                state = algorithm.init(tree.to(model.init(), "cpu"), self.census)
                task, survey = sent(algorithm.task(state, ids)), algorithm.survey(state)
                question = (
                    None
                    if survey is None
                    else sent(Task(survey.shared, tree.map(lambda leaf: leaf[ids], survey.own)))
                )
                values = numbers_of(algorithm)
                vmap(client)(
                    {
                        name: torch.full((2,), values[name], dtype=model.dtype, device=model.device)
                        for name in knobs
                    }
                )
        except Exception as error:
            return error
        return None


def same_function(one: Model, other: Model, federation: Federation) -> bool:
    """Whether two models with the same layers give the same output for the same parameters; what a
    module does need not show in them."""
    x = first_samples(one, federation, 2).x
    with torch.no_grad():
        return torch.equal(one.output(other.init(), x[:]), other.output(other.init(), x[:]))


def most_runs(entry: Entry, federation: Federation) -> int:
    """How many runs like this one fit into a quarter of the memory that is free."""
    # state, task, replies and evaluation hold a few copies of a model, some in float64
    state = 12 * sum(leaf.numel() for leaf in tree.leaves(entry.state)) * 8
    memory = entry.run.algorithm.memory(entry.model.init())
    memories = federation.clients * sum(
        leaf.numel() * leaf.element_size() for leaf in tree.leaves(memory)
    )
    room = min(
        free_memory(entry.model.device) / max(state, 1),
        free_memory(torch.device("cpu")) / max(memories, 1),
    )
    return max(1, int(SHARE * room))
