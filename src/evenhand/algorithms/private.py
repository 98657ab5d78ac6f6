"""Differential privacy for each client, for any method that needs only sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, LocalWork, Memory, Question, State
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.privately import (
    assumptions,
    capped,
    checked_shares,
    finite_or,
    public,
    refuse,
)
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import RunError, require, require_choice, require_number, require_whole
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task
from evenhand.model import Model
from evenhand.privacy.accounting import EVERYONE, epsilon_of, noise_for
from evenhand.privacy.bounds import Block, Contribution, Limits, with_noise
from evenhand.privacy.protection import Facts, Protection
from evenhand.privacy.record import EXACT, OWN, Privacy
from evenhand.privacy.secret import Secret
from evenhand.tree import Tree

KEY = "private"  # of the state and the task
INSIDE = "inside"  # of the total: whether a client's step was within the bound
UNSENT = ("round", "noise")  # what of the state tasks do not contain
STEP = 0.2  # of adaptive clipping


@dataclass(frozen=True)
class Private(Wrapper, Protection):
    """Bound what a trained model tells about any one client: differential privacy.

        client:  u_i = its whole total, entries divided by public bounds, scaled to length <= 1
        server:  sum of u_i + N(0, noise^2), in the entries' units again; the inner method's step

    The unit is a client with all its data, in all rounds. Normalisers are public numbers where the
    method allows it, not sums over those who came. A client whose values are not finite sends
    zeros. Noise and cohorts come from a secret of the run that no message, history or result
    contains. ``result.privacy`` has epsilon, what it covers and what must hold; it is computed by
    dp-accounting.

    Any one client can move the model by ``clip`` over the expected cohort at most. That is also the
    most that a client whom the model serves badly can do about it. The inner method must need only
    sums and say how large they can be; others are refused.

    Args:
        inner: the method.
        clip: the largest length of a client's step that counts in full.
        noise: standard deviation of the noise over one client's bound; None means 1, or what
            epsilon needs. 0 only clips.
        epsilon: choose the noise for this epsilon after all rounds.
        delta: the probability with which epsilon may fail; less than one over the clients.
        loss_cap: the largest loss that counts, for methods whose clients send losses.
        adaptive: let ``clip`` follow this quantile of the lengths of clients' steps (Andrew et al.,
            2021); 0.5 is usual. Costs a little more noise. A low quantile clips minorities most.
        floor: the smallest ``clip`` that adaptive clipping may reach; None for a tenth of ``clip``.
        group_shares: public shares of the groups, for methods that use them; None takes equal
            shares. They are never counted from the data.
        noise_by: "server", or "clients": each adds a part before it masks its total, which needs
            masked sums.
        secret: a number to repeat a simulation with; epsilon is then marked as one of a simulation.
    """

    inner: Algorithm = FedAvg()
    clip: float = 1.0
    noise: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    loss_cap: float | None = None
    adaptive: float | None = None
    floor: float | None = None
    group_shares: Sequence[float] | None = None
    noise_by: str = "server"
    secret: int | None = None

    _facts: ClassVar[Facts | None] = None
    _secret: ClassVar[Secret | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("clip", self.clip, "(0, inf)")
        require_number("delta", self.delta, "(0, 1)", "well below one over the number of clients")
        require_choice("noise_by", self.noise_by, ("server", "clients"))
        require_whole("secret", self.secret, 0, optional=True)
        if self.noise is not None:
            require_number("noise", self.noise, "[0, inf)", "0 only clips")
        if self.epsilon is not None:
            require_number("epsilon", self.epsilon, "(0, inf)", "smaller is more private")
        if self.loss_cap is not None:
            require_number("loss_cap", self.loss_cap, "(0, inf)", "the first model's loss is usual")
        if self.adaptive is not None:
            require_number("adaptive", self.adaptive, "(0, 1)", "0.5 is the median")
        if self.floor is not None:
            require_number("floor", self.floor, "(0, inf)", "None takes a tenth of clip")
        both = self.noise is not None and self.epsilon is not None
        require(not both, "pass noise or epsilon, not both (got {}, {})", self.noise, self.epsilon)
        require(
            not isinstance(self.inner, Private), "a method is made private once; remove one Private"
        )
        if self.group_shares is not None:
            object.__setattr__(self, "group_shares", checked_shares(self.group_shares))
        if self.secret is not None:
            object.__setattr__(self, "_secret", Secret.of(self.secret))

    # ---- one run

    def for_run(self, facts: Facts) -> Private:
        """Return the method for one run, with a secret of its own; raise if it cannot be
        private."""
        # a server that epsilon is to protect from knows who takes part
        scheme = replace(facts.scheme, secret=self.noise_by == "server")
        facts = facts._replace(scheme=scheme)
        require(
            facts.weights == "uniform",
            'Private needs weights="uniform": with weights="{}" a client\'s weight depends on how'
            " much data the others have",
            facts.weights,
        )
        require(
            self.delta < 1 / scheme.clients,
            "delta must be below one over the number of clients, got {:g} for {}; it is the"
            " probability of telling everything about a client",
            self.delta,
            scheme.clients,
        )
        noise = self.noise
        if noise is None and self.epsilon is not None:
            noise = noise_for(scheme, self.epsilon, facts.rounds, self.delta)
        elif noise is None or noise > 0:  # find out now whether the accountant is there
            epsilon_of(scheme, 1.0, 0, self.delta)
        found = replace(self, noise=1.0 if noise is None else noise, epsilon=None)
        object.__setattr__(found, "_facts", facts)
        object.__setattr__(found, "_secret", self._secret or Secret.new())
        return found

    @property
    def source(self) -> Secret:
        """What noise and cohorts are drawn from."""
        require(
            self._secret is not None,
            "Private has no secret before a run begins; train with evenhand.fit, or set secret for"
            " a simulation",
        )
        assert self._secret is not None
        return self._secret

    def protection(self) -> Protection:
        return self

    @property
    def needs_secret_cohorts(self) -> bool:
        """Whether sampling makes epsilon smaller."""
        assert self._facts is not None, "a run calls for_run first"
        scheme = self._facts.scheme
        return scheme.secret and scheme.kind != EVERYONE and scheme.rate < 1

    @property
    def expected(self) -> float:
        """How many clients take part on average."""
        assert self._facts is not None, "a run calls for_run first"
        return self._facts.scheme.per_round

    def record(self, releases: int, size: int, looked: tuple[str, ...]) -> Privacy:
        """Return what the run may claim; see ``Protection``."""
        assert self._facts is not None, "a run calls for_run first"
        scheme, noise = self._facts.scheme, self._multiplier
        why_not = (*(("noise is 0, which protects nobody",) if noise == 0 else ()), *looked)
        share = float(self._bounds(self._first(scheme.clients))[0].blocks[0].share)
        return Privacy(
            epsilon=None if why_not else epsilon_of(scheme, noise, releases, self.delta),
            delta=self.delta,
            noise=noise,
            clip=self.clip,
            releases=releases,
            scheme=scheme,
            ratio=noise * math.sqrt(size / share) / scheme.per_round,
            noise_by=self.noise_by,
            simulated=self.source.simulated,
            why_not=why_not,
            uncovered=(EXACT, *((OWN,) if self.personal else ())),
            assumptions=assumptions(scheme, self.noise_by),
        )

    # ---- bounds

    @property
    def _multiplier(self) -> float:
        require(
            self.noise is not None or self.epsilon is None,
            "the noise for epsilon {} is known only in a run; train with evenhand.fit",
            self.epsilon,
        )
        return 1.0 if self.noise is None else float(self.noise)

    def _first(self, clients: int) -> Tree:
        """Return the public numbers of the first round: what the state keeps and tasks contain."""
        facts = self._facts
        expected = clients if facts is None else facts.scheme.per_round
        known = {"clip": self.clip, "weight": 1 / expected}
        if facts is not None and facts.local_steps is not None:
            known["steps"] = facts.local_steps
        if self.adaptive is not None:
            # the bit's noise on the count is a twentieth of the expected cohort (Andrew et al.), or
            # 2.5 times that of the rest
            known["bit"] = min(0.2, 10 * (self._multiplier or 1.0) / expected) ** 2
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in known.items()}

    def check_resumed(self, state: State) -> None:
        """Raise unless the rounds before the checkpoint had the noise that this run has."""
        before, now = float(state[KEY]["noise"]), self._multiplier
        if before != now:
            raise RunError(
                f"this run was started with noise {before:g}, and epsilon would now need {now:g} in"
                " all rounds; resume it with as many rounds as before, or start a new one"
            )

    def _bounds(self, known: Tree) -> tuple[Contribution, Contribution | None]:
        """Return the bounds of the inner method's total and, if clipping adapts, of its bit."""
        limits = Limits(known["weight"], known["clip"], self.loss_cap, known.get("steps"))
        found = self.inner.contribution(limits)
        assert found is not None, "init refuses such methods"
        if "bit" not in known:
            return found, None
        share = known["bit"]
        blocks = tuple(block._replace(share=block.share * (1 - share)) for block in found.blocks)
        return replace(found, blocks=blocks), Contribution((Block({INSIDE: 0.5}, share),), {})

    # ---- the server

    def init(self, params: Tree, census: Census) -> State:
        refuse(self.inner, census, Limits(1.0, self.clip, self.loss_cap or 1.0, 1.0))
        known = self._first(census.clients)
        state = self.inner.init(params, public(census, self.group_shares))
        self._bounds(known)  # raises if a limit is missing
        # not sent: how often noise was added, and how much
        own = {"round": torch.tensor(0), "noise": torch.tensor(self._multiplier).double()}
        return {**state, KEY: {**known, **own}}

    def task(self, state: State, ids: Tensor) -> Task:
        task = self.inner.task(state, ids)
        known = {name: value for name, value in state[KEY].items() if name not in UNSENT}
        return task._replace(shared={**task.shared, KEY: known})

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        known = state[KEY]
        bound, bit = self._bounds(known)
        sent, std = replies.total, self._multiplier
        if std > 0 and self.noise_by == "server":
            sent = with_noise(sent, std, self.source.key, f"round {int(known['round'])}")
        # nothing may depend on who took part
        expected = 1 / float(known["weight"])
        ids = torch.arange(max(1, round(expected)))
        after, info = self.inner.server(state, Replies(ids, bound.sums(sent), {}))
        kept = {**known, "round": known["round"] + 1}
        if bit is not None:
            inside = bit.sums(sent)[INSIDE].cpu() / expected + 0.5
            moved = known["clip"] * torch.exp(-STEP * (inside - self.adaptive))
            floor = self.clip / 10 if self.floor is None else self.floor
            kept["clip"] = moved.clamp(min=floor)
            info = {**info, "clip": kept["clip"]}
        return {**after, KEY: kept}, info

    def join(self, state: State, before: State, after: State) -> State:
        raise ValueError(
            "clients cannot join a private run, whose accounting is for a fixed number of them;"
            " start a new run"
        )

    def question(self, moment: str = "before") -> Question | None:
        return None  # init refuses methods that need their question

    def weighting(self) -> None:
        return None

    # ---- one client

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        reply, kept = self.inner.reply(capped(model, self.loss_cap), start, end, data, task, memory)
        require(not reply.each, "{} sends more than sums", type(self.inner).__name__)
        bound, bit = self._bounds(task.shared[KEY])
        sent, length = bound.clipped(reply.total)
        if bit is not None:
            inside = (length <= 1).to(length.dtype) - 0.5
            inside = torch.where(length.isfinite(), inside, 0)
            sent = {**sent, **bit.clipped({INSIDE: inside})[0]}
        here = task.own["weight"] > 0  # not a stand-in for an empty cohort
        return Reply(tree.map(lambda leaf: torch.where(here, leaf, 0), sent)), finite_or(
            kept, memory
        )

    def entries(self, asked: Asked) -> Entries:
        bound, bit = self._bounds(asked.task.shared[KEY])
        names = (*bound.names, *(() if bit is None else bit.names))
        small = Entry(low=-1.0, high=1.0)
        return {name: Entry(kind="update") if name == "delta" else small for name in names}

    def local_work(self) -> LocalWork:
        work = self.inner.local_work()
        if self.noise_by == "server":
            return work
        std = self._multiplier  # of every entry, because entries are divided by their bounds
        return replace(work, noise=lambda form: tree.map(lambda x: torch.full_like(x, std), form))
