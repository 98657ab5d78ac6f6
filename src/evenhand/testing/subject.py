"""A method, and what it is tested on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.cohort import Full, Uniform
from evenhand.data.federation import Federation
from evenhand.data.samples import Part
from evenhand.engines import Engine, Loop
from evenhand.engines.work import Train
from evenhand.errors import first_line
from evenhand.local import LocalSGD
from evenhand.losses import LossFunction
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.testing.compare import skip
from evenhand.testing.watch import ASKED, Observed, Recorder, Sent, Witness, watched
from evenhand.training.fit import fit
from evenhand.training.result import Result
from evenhand.training.settings import Settings
from evenhand.training.start import prepare
from evenhand.tree import Tree

SIZES = (1, 14, 6, 13, 12, 5)  # no client has more than 30 % of the data
TEAMS = ("north", "south", "north", "south", "north", "east")
SEED = 3
BATCHES = LocalSGD(lr=0.05, epochs=1, batch_size=8, momentum=0.5, weight_decay=0.01, decay=0.9)
WHOLE = LocalSGD(lr=0.1, steps=2)  # all local data: nothing depends on a client's number


def small_federation() -> Federation:
    """Return six clients with 1 to 14 samples, each shifted, in three teams and three groups."""
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
    """Return a network with two layers, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def rearranged(
    federation: Federation,
    clients: Iterable[Sequence[int]],
    order: Callable[[Tensor], Tensor] = Tensor.clone,
) -> Federation:
    """Return a federation whose clients each have the data of some old clients, rows in
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


def all_alike(federation: Federation) -> Federation:
    """Return a federation of the same size in which every client has all data.

    Each client is its own team, because means over larger teams would break ties by rounding.
    """
    everyone = range(federation.clients)
    teams = None if federation.teams is None else torch.arange(federation.clients)
    return dataclasses.replace(
        rearranged(federation, [everyone] * federation.clients),
        teams=teams,
        team_names=() if teams is None else tuple(map(str, everyone)),
    )


class Subject:
    """A method, and what it is tested on; runs that several checks use are made once."""

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
        """Make a short run."""
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
        """Make a short run that records calls and messages."""
        witness, sent = Witness(), list[Sent]()
        result = self.fit(watched(self.algorithm, witness), engine=Recorder(sent), **changes)
        of = {name: [s for s in sent if s.work.name == name] for name in ("train", "survey")}
        finishing = self.algorithm.local_work().last is not None
        return Observed(
            result, witness, of["train"][:-1] if finishing else of["train"], of["survey"]
        )

    @cached_property
    def usual(self) -> Result:
        """All clients, in batches."""
        return self.fit()

    @cached_property
    def whole(self) -> Result:
        """All clients, on all local data."""
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
        """All clients, on all local data, recorded."""
        return self.observe(local=WHOLE)

    @cached_property
    def observed32(self) -> Observed:
        """The same in float32, which reveals a wrong dtype, and in batches."""
        return self.observe(dtype=torch.float32)

    @cached_property
    def teamless(self) -> Federation:
        """The federation without teams."""
        return dataclasses.replace(self.federation, teams=None, team_names=())

    @cached_property
    def observed_teamless(self) -> Observed:
        """A recorded run in which every client is its own team."""
        return self.observe(federation=self.teamless)

    @cached_property
    def largest_round(self) -> tuple[Sent, Tree]:
        """The training exchange with the most clients, and the server's state when it returned."""
        states = [call.arguments[0] for call in self.observed.witness.calls["server"]]
        return max(
            zip(self.observed.training, states, strict=True), key=lambda pair: len(pair[0].ids)
        )

    def model(self) -> Model:
        """Return the module in float64."""
        return Model(copy.deepcopy(self.module).double(), self.loss)

    def refusal(self, federation: Federation) -> str:
        """Say why the method refuses a federation before training; "" if it does not."""
        try:
            settings = Settings(loss=self.loss, local=WHOLE)
            prepare(copy.deepcopy(self.module).double(), federation, self.algorithm, settings)
        except ValueError as error:
            return f"the method refuses: {first_line(error)}"
        return ""

    def skip_if_refused(self, federation: Federation) -> None:
        """Skip the check if the method refuses a federation."""
        if reason := self.refusal(federation):
            skip(reason)

    def skip_if_clients_differ(self) -> None:
        """Skip the check if the method itself distinguishes clients: by a setting, or by random
        questions."""
        fields = dataclasses.fields(self.algorithm)  # type: ignore[arg-type]
        values = [getattr(self.algorithm, entry.name) for entry in fields]
        if any(
            isinstance(value, Mapping) or (isinstance(value, tuple) and len(value) == self.clients)
            for value in values
        ):
            skip("a setting has one value per client")
        if any(
            survey is not None and isinstance(survey.who, int)
            for moment in ASKED
            for survey in self.observed.witness.answers(f"{moment}ask")
        ):
            skip("the method asks a random sample of clients")

    def replay(
        self,
        sent: Sent,
        rows: Tensor | None = None,
        engine: Engine | None = None,
        federation: Federation | None = None,
    ) -> tuple[Replies, dict[int, Tree]]:
        """Repeat a training exchange, with some ``rows`` of its cohort or on another engine.

        Returns the replies and the clients' memories.
        """
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
