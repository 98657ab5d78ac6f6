"""What an engine is: attached to a model and a federation, it carries out exchanges."""

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
    """An engine at work: it owns batches, padding, devices, client memories, sums and stacks."""

    here: bool  # whether clients' samples and memories are in this process
    by_client: bool  # whether the server may see how single clients fare
    # what clients remember, by id; a client not in it has its first memory
    memories: dict[int, Tree]
    # may be asked, while clients work, for the next work, ids and round
    meanwhile: Callable[[], tuple[Work, Tensor, int] | None] | None

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Send ``task`` to clients ``ids`` and collect their replies.

        ``ids`` are ascending; row k of task.own is for ids[k].
        """


class Look(NamedTuple):
    """What some clients are asked about models before other work, in the same message."""

    work: Work
    task: Task
    ids: Tensor


@runtime_checkable
class Messenger(Protocol):
    """An exchange that sends messages, which cost something: a look and other work go in one."""

    def exchange_with(
        self, look: Look, work: Work, task: Task, ids: Tensor, round: int
    ) -> tuple[Replies, Replies]:
        """Replies to the look and to the work. Clients of ``look`` are among ``ids``."""


def exchange_with(
    exchange: Exchange, look: Look, work: Work, task: Task, ids: Tensor, round: int
) -> tuple[Replies, Replies]:
    """Replies to a look at models, and to the work that follows it."""
    if isinstance(exchange, Messenger):
        return exchange.exchange_with(look, work, task, ids, round)
    looked = exchange.exchange(look.work, look.task, look.ids, round)
    return looked, exchange.exchange(work, task, ids, round)


def with_samples(population: Population) -> Federation:
    """The population as a federation; raises where its samples are elsewhere."""
    if not isinstance(population, Federation):
        raise TypeError(
            "simulated clients need samples, and a Population has none; pass a Federation"
        )
    return population


class Engine(ABC):
    """A way to carry out exchanges: plain settings; the work starts when it is attached."""

    @abstractmethod
    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        """Get ready to do exchanges with these clients."""
