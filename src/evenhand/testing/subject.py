"""What the checks share: a method with something to try it on, eyes on its hooks, and comparisons
that say what differs."""

from __future__ import annotations

import copy
import dataclasses
import logging
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from evenhand import tree
from evenhand.algorithm import Algorithm, LocalWork, Question, Reporting, Weighting
from evenhand.cohort import Full, Uniform
from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.data.samples import Batch, Part
from evenhand.engines import Engine, Exchange, Loop
from evenhand.engines.work import Train, Work
from evenhand.errors import first_line
from evenhand.local import LocalSGD
from evenhand.losses import LossFunction
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.training.fit import fit
from evenhand.training.result import Result
from evenhand.training.settings import Settings
from evenhand.training.start import prepare
from evenhand.tree import Tree

SIZES = (1, 14, 6, 13, 12, 5)  # no client has more than 0.3 of the data
TEAMS = ("north", "south", "north", "south", "north", "east")
SEED = 3
BATCHES = LocalSGD(lr=0.05, epochs=1, batch_size=8, momentum=0.5, weight_decay=0.01, decay=0.9)
WHOLE = LocalSGD(lr=0.1, steps=2)  # whole local data: nothing depends on a client's number


def _public(interface: type) -> tuple[str, ...]:
    """The functions of an interface, by name."""
    return tuple(
        name
        for name, value in vars(interface).items()
        if callable(value) and not name.startswith("_")
    )


# what a method may have, by the accessor that gives it
OPTIONAL = {"question": Question, "weighting": Weighting, "reporting": Reporting}
ACCESSORS = (*OPTIONAL, "local_work")
# functions by name, and the accessor of the object that has them
HOOKS = {
    **{name: "" for name in _public(Algorithm) if name not in ACCESSORS},
    **{name: accessor for accessor, kind in OPTIONAL.items() for name in _public(kind)},
    "solver": "local_work",
}

Hook = Callable[..., Any]
# (name of the hook, the hook, its arguments) -> what the run gets
Watch = Callable[[str, Hook, tuple[Any, ...]], Any]


# ---- what to say


def expect(condition: bool, text: str) -> None:
    """Raise an AssertionError that says ``text`` unless ``condition`` holds."""
    if not condition:
        raise AssertionError(text)


def expect_alike(found: Any, wanted: Any, tolerance: float = 0.0, what: str = "") -> None:
    """Raise an AssertionError that says where two values differ, if they do."""
    text = difference(found, wanted, tolerance)
    expect(not text, f"{what}: {text}" if what else text)


def skip(reason: str) -> None:
    """Leave the running check, which does not apply. pytest understands this exception too."""
    raise unittest.SkipTest(reason)


def difference(a: Any, b: Any, tolerance: float = 0.0, path: str = "") -> str:
    """Where two nested values differ by more than ``tolerance``, in words; empty where they do not.
    NaN is like NaN."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _tensor_difference(a, b, tolerance, path)
    if isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            return f"{path or 'it'} has the keys {list(a)} against {list(b)}"
        return next(
            filter(
                None,
                (difference(a[key], b[key], tolerance, f"{path}/{key}".strip("/")) for key in a),
            ),
            "",
        )
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        if len(a) != len(b):
            return f"{path or 'it'} has {len(a)} entries against {len(b)}"
        names = getattr(a, "_fields", range(len(a)))
        parts = (
            difference(x, y, tolerance, f"{path}/{name}".strip("/"))
            for name, x, y in zip(names, a, b, strict=True)
        )
        return next(filter(None, parts), "")
    if isinstance(a, Batch) and isinstance(b, Batch):
        return difference(_columns(a), _columns(b), tolerance, path)
    alike = isinstance(a, Model) or a is b or repr(a) == repr(b) or bool(a == b)
    return "" if alike else f"{path or 'it'} is {a!r} against {b!r}"


def _tensor_difference(a: Tensor, b: Tensor, tolerance: float, path: str) -> str:
    kinds = [f"{value.dtype} {list(value.shape)}" for value in (a, b)]
    if kinds[0] != kinds[1]:
        return f"{path or 'it'} is {kinds[0]} against {kinds[1]}"
    x, y = a.detach().double(), b.detach().double()
    room = tolerance * max(1.0, float(x.abs().nan_to_num(posinf=0.0).max())) if x.numel() else 0.0
    if torch.allclose(x, y, rtol=0.0, atol=room, equal_nan=True):
        return ""
    return (
        f"{path or 'it'} differs by {float((x - y).abs().max()):.3g}, where {room:.3g} is allowed"
    )


def _columns(batch: Batch) -> Tree:
    return {"x": batch.x, "y": batch.y, "group": batch.group, "weight": batch.weight}


def form(values: Tree, rows: bool = False) -> dict[str, str]:
    """Keys, dtypes and shapes of a tree; with ``rows``, of one row of it."""
    return {
        "/".join(path): f"{leaf.dtype} {list(leaf.shape)[int(rows) :]}"
        for path, leaf in tree.items(values)
    }


def finite(values: Tree) -> bool:
    """Whether every number of a tree is finite."""
    return all(bool(leaf.isfinite().all()) for leaf in tree.leaves(values))


def everything(result: Result) -> Tree:
    """All numbers that a run leaves in models and state."""
    personal = {str(i): params for i, params in enumerate(result.personal or [])}
    return {
        "params": result.params,
        "state": result.state,
        "personal": personal,
        "certificate": result.certificate,
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Warnings and notices are for users; here odd federations are meant."""
    logger = logging.getLogger("evenhand")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# ---- eyes on a method


def watched(algorithm: Algorithm, watch: Watch) -> Algorithm:
    """The same method, with every call of a hook handed to ``watch``."""

    def through(name: str) -> Hook:
        return lambda _, *arguments: watch(name, hook_of(algorithm, name), arguments)

    def local_work(_: Algorithm) -> LocalWork:
        work = algorithm.local_work()
        solver = lambda *arguments: watch("solver", hook_of(algorithm, "solver"), arguments)  # noqa: E731
        return dataclasses.replace(work, solver=solver)

    has = {"", *(accessor for accessor in OPTIONAL if getattr(algorithm, accessor)() is not None)}
    hooks = {name: through(name) for name, accessor in HOOKS.items() if accessor in has}
    kinds = (Algorithm, *(kind for accessor, kind in OPTIONAL.items() if accessor in has))
    twin: Algorithm = type(
        "Watched", kinds, {**hooks, "local_work": local_work, "personal": algorithm.personal}
    )()
    return twin


def hook_of(algorithm: Algorithm, name: str) -> Hook:
    """One of the functions that a method has."""
    owner = getattr(algorithm, HOOKS[name])() if HOOKS[name] else algorithm
    hook: Hook = getattr(owner, name)
    return hook


def rebuilt(algorithm: Any) -> Algorithm:
    """A new method with the same settings, and nothing else."""
    values = (
        (entry.name, getattr(algorithm, entry.name)) for entry in dataclasses.fields(algorithm)
    )
    twin: Algorithm = dataclasses.replace(
        algorithm,
        **{name: rebuilt(value) for name, value in values if isinstance(value, Algorithm)},
    )
    return twin


def duplicate(value: Any) -> Any:
    """A copy of what hooks take and give that shares no tensor with it."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: duplicate(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        entries = [duplicate(entry) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else tuple(entries)
    return copy.deepcopy(value) if isinstance(value, Batch) else value


class Call(NamedTuple):
    """One call of a hook."""

    arguments: tuple[Any, ...]
    answer: Any


class Witness:
    """Calls every hook twice on equal arguments; keeps what went in and out, and notes what should
    not have happened."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {name: [] for name in HOOKS}
        self.changed: dict[str, str] = {}  # hooks that changed an argument
        self.unsteady: dict[str, str] = {}  # hooks whose second answer differed

    def __call__(self, name: str, hook: Hook, arguments: tuple[Any, ...]) -> Any:
        kept = duplicate(arguments)
        answer = hook(*arguments)
        if text := difference(arguments, kept):
            self.changed.setdefault(name, f"{name} changes its argument {text}")
        if text := difference(answer, hook(*duplicate(kept))):
            self.unsteady.setdefault(name, f"{name}, called twice with the same arguments: {text}")
        self.calls[name].append(Call(kept, duplicate(answer)))
        return answer

    def answers(self, name: str) -> list[Any]:
        """What a hook gave, call by call."""
        return [call.answer for call in self.calls[name]]

    def states(self) -> list[Tree]:
        """The server's states, in the order in which they arose within each hook."""
        return [
            *self.answers("init"),
            *self.answers("learn"),
            *(state for state, _ in self.answers("server")),
        ]


class Sent(NamedTuple):
    """One exchange."""

    work: Work
    task: Task
    ids: Tensor
    round: int
    memories: dict[int, Tree]  # before it
    replies: Replies


@dataclass(frozen=True)
class Recorder(Engine):
    """The loop engine, which also keeps every exchange of training and surveys."""

    sent: list[Sent]

    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        return _Recording(Loop(workers=1).attach(model, population, seed), self.sent)


class _Recording:
    here, by_client = True, True

    def __init__(self, inner: Exchange, sent: list[Sent]) -> None:
        self.inner, self.sent = inner, sent
        self.meanwhile: Callable[[], tuple[Work, Tensor, int] | None] | None = None

    @property
    def memories(self) -> dict[int, Tree]:
        return self.inner.memories

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self.inner.memories = memories

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        before = dict(self.memories)
        replies = self.inner.exchange(work, task, ids, round)
        if work.name != "evaluate":
            self.sent.append(Sent(work, task, ids, round, before, replies))
        return replies


class Observed(NamedTuple):
    """A run, what its hooks took and gave, and its exchanges."""

    result: Result
    witness: Witness
    training: list[Sent]
    surveys: list[Sent]


# ---- something to try it on


def small_federation() -> Federation:
    """Six clients with 1 to 14 samples, each with its own shift, in three teams and three groups; a
    little test data."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 4))

    def client(index: int, size: int) -> dict[str, Any]:
        y = rng.integers(0, 3, size)
        x = centres[y] + rng.normal(size=(size, 4)) + 0.3 * index
        return {"x": x, "y": y, "group": rng.choice(["a", "b", "c"], size)}

    train = [
        {**client(index, size), "team": team}
        for index, (size, team) in enumerate(zip(SIZES, TEAMS, strict=True))
    ]
    return Federation.from_arrays(train, test=[client(index, 3) for index in range(len(SIZES))])


def small_module() -> nn.Module:
    """A network with two layers, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def rearranged(
    federation: Federation,
    clients: Iterable[Sequence[int]],
    order: Callable[[Tensor], Tensor] = Tensor.clone,
) -> Federation:
    """A federation of clients that each have the data of some of the old ones, the rows of each in
    ``order``."""
    sources = list(clients)

    def part(old: Part) -> Part:
        held = [
            order(torch.arange(int(old.offsets[i]), int(old.offsets[i + 1])))
            for i in range(federation.clients)
        ]
        rows = [torch.cat([held[i] for i in source]) for source in sources]
        offsets, every = torch.tensor([0, *(len(r) for r in rows)]).cumsum(0), torch.cat(rows)
        return Part(
            old.x[every], old.y[every], offsets, None if old.group is None else old.group[every]
        )

    test = None if federation.test is None else part(federation.test)
    teams = (
        None if federation.teams is None else federation.teams[[source[0] for source in sources]]
    )
    return Federation(
        part(federation.train), test, None, teams, federation.team_names, federation.group_names
    )


class Subject:
    """A method, and what it is tried on. Runs that several checks look at are made once."""

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation | None = None,
        module: nn.Module | None = None,
        loss: str | LossFunction = "cross_entropy",
    ) -> None:
        self.algorithm, self.loss = algorithm, loss
        self.federation = small_federation() if federation is None else federation
        self.module = small_module() if module is None else module
        self.clients = self.federation.clients
        self.some = Uniform(max(1, self.clients // 2))  # a partial cohort

    def fit(
        self, algorithm: Algorithm | None = None, dtype: torch.dtype = torch.float64, **changes: Any
    ) -> Result:
        """A short run."""
        chosen: dict[str, Any] = {
            "module": self.module,
            "federation": self.federation,
            "loss": self.loss,
            "engine": "loop",
        }
        chosen |= {
            "rounds": 2,
            "local": BATCHES,
            "cohort": Full(),
            "seed": SEED,
            "eval_every": 1000,
            **changes,
        }
        chosen["module"] = copy.deepcopy(chosen["module"]).to(dtype)
        return fit(algorithm=algorithm or self.algorithm, **chosen)

    def observe(self, **changes: Any) -> Observed:
        """A short run with eyes on it."""
        witness, sent = Witness(), list[Sent]()
        result = self.fit(watched(self.algorithm, witness), engine=Recorder(sent), **changes)
        of = {name: [s for s in sent if s.work.name == name] for name in ("train", "survey")}
        finishing = self.algorithm.local_work().last is not None
        return Observed(
            result, witness, of["train"][:-1] if finishing else of["train"], of["survey"]
        )

    @cached_property
    def usual(self) -> Result:
        """Everyone, in batches."""
        return self.fit()

    @cached_property
    def whole(self) -> Result:
        """Everyone, on whole local data."""
        return self.fit(local=WHOLE)

    @cached_property
    def partial(self) -> Result:
        """Half of the clients, in batches."""
        return self.fit(cohort=self.some)

    @cached_property
    def stacked(self) -> Result:
        """The usual run on the other engine."""
        return self.fit(engine="vmap")

    @cached_property
    def observed(self) -> Observed:
        """Everyone, on whole local data, with eyes on it."""
        return self.observe(local=WHOLE)

    @cached_property
    def observed32(self) -> Observed:
        """The same in float32, where a wrong dtype shows, and in batches."""
        return self.observe(dtype=torch.float32)

    @cached_property
    def teamless(self) -> Federation:
        """The federation without teams."""
        return dataclasses.replace(self.federation, teams=None, team_names=())

    @cached_property
    def observed_teamless(self) -> Observed:
        """A run in which every client is its own team, with eyes on it."""
        return self.observe(federation=self.teamless)

    @cached_property
    def largest_round(self) -> tuple[Sent, Tree]:
        """The observed training exchange with the most clients, and the state that the server had
        when it came back."""
        states = [call.arguments[0] for call in self.observed.witness.calls["server"]]
        return max(
            zip(self.observed.training, states, strict=True), key=lambda pair: len(pair[0].ids)
        )

    def model(self) -> Model:
        """The module in float64."""
        return Model(copy.deepcopy(self.module).double(), self.loss)

    def refusal(self, federation: Federation) -> str:
        """Why the method does not take a federation: it may refuse one before training, with words.
        Empty where it does."""
        try:
            settings = Settings(loss=self.loss, local=WHOLE)
            prepare(copy.deepcopy(self.module).double(), federation, self.algorithm, settings)
        except ValueError as error:
            return f"the method refuses: {first_line(error)}"
        return ""

    def skip_if_refused(self, federation: Federation) -> None:
        """Skip the check where the method refuses a federation."""
        if reason := self.refusal(federation):
            skip(reason)

    def skip_if_clients_differ(self) -> None:
        """Skip the check where the method itself tells clients apart: by a setting, or by asking a
        few at random."""
        fields = dataclasses.fields(self.algorithm)  # type: ignore[arg-type]
        values = [getattr(self.algorithm, entry.name) for entry in fields]
        if any(isinstance(value, tuple) and len(value) == self.clients for value in values):
            skip("a setting has one value for each client")
        if any(
            survey is not None and isinstance(survey.who, int)
            for survey in self.observed.witness.answers("ask")
        ):
            skip("the method asks a random sample of clients")

    def replay(
        self,
        sent: Sent,
        rows: Tensor | None = None,
        engine: Engine | None = None,
        federation: Federation | None = None,
    ) -> tuple[Replies, dict[int, Tree]]:
        """A training exchange once more, with some ``rows`` of its cohort or on another engine;
        also what clients then remember."""
        exchange = (engine or Loop(workers=1)).attach(
            self.model(), federation or self.federation, SEED
        )
        exchange.memories = sent.memories
        rows = torch.arange(len(sent.ids)) if rows is None else rows
        task = Task(sent.task.shared, tree.map(lambda leaf: leaf[rows], sent.task.own))
        replies = exchange.exchange(
            Train(self.algorithm, sent.work.local or WHOLE), task, sent.ids[rows], sent.round
        )
        return replies, exchange.memories
