"""The interface of an engine: attached to a model and a federation, it runs exchanges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.engines.work import Work
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.tree import Tree


class Exchange(Protocol):
    """An attached engine; it owns batches, padding, devices, client memories, sums and stacks."""

    here: bool  # whether clients' samples and memories are in this process
    by_client: bool  # whether the server may see the scores of single clients
    # what clients remember, by id; a client not in it has its first memory
    memories: dict[int, Tree]
    # called with a number, to get the work, ids and round that come so many rounds after this one
    meanwhile: Callable[[int], tuple[Work, Tensor, int] | None] | None

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Send ``task`` to clients ``ids`` and collect their replies.

        ``ids`` are ascending; row k of task.own is for ids[k]. The caller may change the replies.
        """


class Look(NamedTuple):
    """An evaluation that some clients do before other work, in the same message."""

    work: Work
    task: Task
    ids: Tensor


@runtime_checkable
class Messenger(Protocol):
    """An exchange over a network: to save messages, an evaluation and other work go in one."""

    def exchange_with(
        self, look: Look, work: Work, task: Task, ids: Tensor, round: int
    ) -> tuple[Replies, Replies]:
        """Replies to the evaluation and to the work. The clients of ``look`` are among ``ids``."""


def exchange_with(
    exchange: Exchange, look: Look, work: Work, task: Task, ids: Tensor, round: int
) -> tuple[Replies, Replies]:
    """Replies to an evaluation, and to the work that follows it."""
    if isinstance(exchange, Messenger):
        return exchange.exchange_with(look, work, task, ids, round)
    looked = exchange.exchange(look.work, look.task, look.ids, round)
    return looked, exchange.exchange(work, task, ids, round)


def with_samples(population: Population) -> Federation:
    """The population as a federation; raises an error if it has no samples."""
    if not isinstance(population, Federation):
        raise TypeError(
            "simulated clients need samples, and a Population has none; pass a Federation"
        )
    return population


class Engine(ABC):
    """The settings of an engine; attaching it makes it ready to work."""

    @abstractmethod
    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        """Get ready for exchanges with these clients."""
