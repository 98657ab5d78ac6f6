"""Masked sums in a simulation: the server's side of a run sees what it would see in a federation.

Every client's total is computed alone, by another engine, written as integers and masked; the masks
cancel in the sum. Sums of integers do not depend on their order, so the result is the same to the
bit with ``masks=False``, which only rounds, and in a real federation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithms.sums_only import refusal
from evenhand.data.population import Population
from evenhand.engines.auto import ENGINES, choose
from evenhand.engines.base import Engine, Exchange
from evenhand.engines.masking import RUN, MaskedSum, Party
from evenhand.engines.totals import arrays, question, tensors
from evenhand.engines.work import Work
from evenhand.errors import require_kind, require_number, require_whole
from evenhand.messages import Replies, Task
from evenhand.metrics.client_sums import COARSE
from evenhand.model import Model
from evenhand.secure import SecureSums, Void
from evenhand.tree import Tree

if TYPE_CHECKING:
    from evenhand.secure import Node

log = logging.getLogger(__name__)

OWN = -1  # under this number the memories have what the exchange itself remembers
# "before" a reply or "after" it; which exchange of the run it is; the client
Drops = Callable[[str, int, int], bool]


@dataclass(frozen=True)
class DropOut:
    """Clients that drop out at random, for ``Masked(drops=...)``.

    Args:
        before: share of clients that drop out of an exchange before they reply.
        after: share that drop out after their reply, and do not help to open the sum.
        seed: of the draws.
    """

    before: float = 0.0
    after: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_number("before", self.before, "[0, 1]")
        require_number("after", self.after, "[0, 1]")
        require_whole("seed", self.seed, 0)

    def __call__(self, stage: str, exchange: int, client: int) -> bool:
        late = stage == "after"
        draw = np.random.default_rng([self.seed, late, exchange, client]).random()
        return bool(draw < (self.after if late else self.before))


@dataclass(frozen=True)
class Masked(Engine):
    """Clients whose totals are masked: the server learns sums, and evaluates by sums.

    Methods that read clients one by one are refused.

    Args:
        secure: the settings of masked sums.
        engine: computes the clients' work: "auto", "loop", "vmap" or an engine object.
        masks: False only rounds totals as masked sums do, which gives the same bits sooner.
        drops: says which clients drop out, to try it: ``DropOut(before=0.1)`` or a function of
            stage ("before" or "after" the reply), exchange and client.
    """

    secure: SecureSums = field(default_factory=SecureSums)
    engine: str | Engine = "auto"
    masks: bool = True
    drops: Drops | None = None

    def __post_init__(self) -> None:
        require_kind("secure", self.secure, SecureSums, "SecureSums(threshold=2/3)")
        require_kind("masks", self.masks, bool, "True")
        if not isinstance(self.engine, Engine) and self.engine not in ENGINES:
            raise ValueError(
                f'unknown engine {self.engine!r}; use "auto", "loop", "vmap" or an engine object'
            )
        if self.drops is not None and not callable(self.drops):
            raise TypeError(f"drops must be a function or DropOut(...), got {self.drops!r}")

    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        self.secure.check(population.clients)
        inner = choose(self.engine, model, population).attach(model, population, seed)
        return MaskedExchange(self, inner, model)


class MaskedExchange:
    """Exchanges with masked sums; see :class:`evenhand.engines.base.Exchange`."""

    here, by_client, masked, cells = True, False, True, COARSE

    def __init__(self, engine: Masked, inner: Exchange, model: Model) -> None:
        self.engine, self.inner, self.model = engine, inner, model
        self.meanwhile: Callable[[int], tuple[Work, Tensor, int] | None] | None = None
        self.effective: float | None = None  # clients in the last sum, by their own weights
        self._nodes: dict[int, Node] = {}
        self._exponents: dict[str, dict[str, int]] = {}  # by question, by path
        self._count = 0  # of exchanges
        self._warned = False
        self._party = Party(engine.secure, engine.masks, self._drops, self._node, self._again)

    @property
    def memories(self) -> dict[int, Tree]:
        """The clients' memories; under -1, the ranges of the next sums."""
        known = self.inner.memories
        if self._exponents:
            known[OWN] = tree.unflatten(
                {
                    name: torch.tensor(exponent)
                    for name, exponent in tree.flatten(self._exponents).items()
                }
            )
        return known

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        kept = memories.get(OWN, {})
        self._exponents = {
            name: {path: int(exponent) for path, exponent in known.items()}
            for name, known in kept.items()
        }
        self.inner.memories = {key: value for key, value in memories.items() if key != OWN}

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Let clients ``ids`` work on ``task``, and sum their totals under masks."""
        self.engine.secure.check(len(ids))
        self._count += 1
        before = self.inner.memories if work.local is not None else {}
        try:
            totals = self._totals(work, task, ids, round)
            asked = MaskedSum(self._party, work, task, ids, round, totals, self._known(work))
            chosen, found = asked.sum(self._count)
        except Void as error:
            log.warning("round %d: %s", round + 1, error)
            if before or (work.local is not None and self.inner.memories):
                self.inner.memories = before
            return Replies(ids[:0], {}, {})
        self._exponents[question(work)] = asked.format.next_exponents(found.total)
        self._tell_effective(found.effective, round)
        total = tensors(found.total, asked.form, self.model.device)
        return Replies(torch.tensor(chosen), total, {})

    def _totals(self, work: Work, task: Task, ids: Tensor, round: int) -> dict[int, dict[str, Any]]:
        """The totals of the clients that reply, each computed alone."""
        totals = {}
        for place, client in enumerate(ids.tolist()):
            if self._drops("before", client):
                log.info("round %d: client %d drops out", round + 1, client)
                continue
            own = tree.map(lambda leaf, place=place: leaf[place : place + 1], task.own)
            one = ids[place : place + 1]
            replies = self.inner.exchange(work, Task(task.shared, own), one, round)
            if not len(replies.ids):
                what = "round %d: client %d sends nothing, because its values are not finite"
                log.warning(what, round + 1, client)
                continue
            if replies.each:
                algorithm = getattr(work, "algorithm")  # noqa: B009 (not of every kind of work)
                raise ValueError(refusal(algorithm, tuple(replies.each)))
            totals[client] = arrays(replies.total)
        return totals

    def _drops(self, stage: str, client: int) -> bool:
        """Whether a client drops out of the present exchange."""
        return self.engine.drops is not None and self.engine.drops(stage, self._count, client)

    def _known(self, work: Work) -> dict[str, int]:
        """The ranges that are known for a kind of work."""
        return self._exponents.get(question(work), {})

    def _again(self) -> int:
        """The number of the next exchange, for the same question with wider ranges."""
        self._count += 1
        return self._count

    def _node(self, client: int) -> Node:
        """A client's node, with keys that live as long as the exchange."""
        from evenhand.secure import Ledger, Node, Trust

        if client not in self._nodes:
            self._nodes[client] = Node(Ledger(), f"client {client}", RUN, Trust())
        return self._nodes[client]

    def _tell_effective(self, effective: float | None, round: int) -> None:
        self.effective = effective
        if effective is not None and effective < self.engine.secure.least and not self._warned:
            self._warned = True
            log.warning(
                "round %d: by the weights that clients give themselves, the sum is that of %.1f"
                " clients, fewer than least = %d; it shows more of these than masked sums promise",
                *(round + 1, effective, self.engine.secure.least),
            )
