"""The engine of a real federation: exchanges messages with clients through Flower's grid.

Replies are checked, then summed in the order of client numbers, in float64, as in the simulator:
the sums do not depend on who is fast. :mod:`evenhand.flower.asking` has the messages and who is
skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Array, Message
from torch import Tensor

from evenhand.algorithm import Algorithm
from evenhand.data.population import Population
from evenhand.engines.base import Engine, Exchange, Look
from evenhand.engines.work import Evaluate, Train, Work
from evenhand.flower import bundle
from evenhand.flower.asking import ABOUT, Asking, Failed
from evenhand.flower.checks import RollCall, check_reply
from evenhand.flower.claims import check_claims, entries_of
from evenhand.flower.evaluation_checks import check_evaluation
from evenhand.flower.link import Link
from evenhand.flower.membership import Membership
from evenhand.flower.packing import pack, packed_size
from evenhand.flower.proportion import BOUND, Medians
from evenhand.flower.request import Request, form_of
from evenhand.flower.spool import Spool
from evenhand.flower.sums import OrderedSum
from evenhand.flower.wire import describe_work
from evenhand.messages import Replies, Reply, Task
from evenhand.metrics.client_sums import CELLS
from evenhand.model import Model
from evenhand.tree import Tree

if TYPE_CHECKING:
    from evenhand.secure import SecureSums


@dataclass(frozen=True)
class Remote(Engine):
    """Clients behind Flower's grid.

    Args:
        method: the run's method.
        run: a name that a resumed run keeps; nodes store their clients' memory under it.
        loss: the name of the run's loss.
        by_client: whether the server sees the scores of single clients, not only sums.
        bound: largest multiple of the median for an update or a loss; None for no bound.
        folder: where faults are recorded and replies wait; None records none.
        secure: how sums are masked; None sums replies that the server can read.
        by_size: if clients hide their numbers of samples, the kinds of work in which they count by
            them, see :func:`evenhand.flower.masked.refusing.counted_by_size`.
    """

    link: Link
    membership: Membership
    method: Algorithm
    run: str
    loss: str
    by_client: bool = False
    bound: float | None = BOUND
    folder: Path | None = None
    secure: SecureSums | None = None
    by_size: tuple[str, ...] = ()

    def asking(self, model: Model, population: Population, seed: int) -> Asking:
        """What asks the clients."""
        run = (self.run, self.loss, self.folder)
        least = 1 if self.secure is None else self.secure.least
        return Asking(self.link, self.membership, model, population, seed, *run, least)

    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        asking = self.asking(model, population, seed)
        if self.secure is None:
            return GridExchange(self, asking)
        from evenhand.flower.masked.exchange import MaskedExchange

        text_of = partial(describe_work, method=self.method)
        return MaskedExchange(asking, text_of, self.secure, self.by_size)


class GridExchange:
    """Exchanges over a grid; see :class:`evenhand.engines.base.Exchange`."""

    here = False

    def __init__(self, engine: Remote, asking: Asking) -> None:
        self.by_client, self.cells = engine.by_client, CELLS
        self.engine, self.model, self.population = engine, asking.model, asking.population
        self.seed = asking.seed
        self.meanwhile: Callable[[int], tuple[Work, Tensor, int] | None] | None = None
        self._asking = asking
        self._forms: dict[str, Reply] = {}  # by work
        self._medians = Medians(engine.folder)

    @property
    def memories(self) -> dict[int, Tree]:
        """The round of each client's memory, for checkpoints; the memory stays on the node."""
        return self._asking.memories

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self._asking.memories = memories

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Send ``task`` to clients ``ids`` and sum their replies."""
        request = self._request(work, task, ids)
        return self._exchange([request], task, pack(task.shared), ids, round)[0]

    def exchange_with(
        self, look: Look, work: Work, task: Task, ids: Tensor, round: int
    ) -> tuple[Replies, Replies]:
        """The same, with an evaluation before the work in the same messages."""
        requests = [
            self._request(work, task, ids),
            self._request(look.work, look.task, look.ids),
        ]
        shared = pack(bundle.add_model(task.shared, look.task.shared["model"]))
        replies, evaluation = self._exchange(requests, task, shared, ids, round)
        return evaluation, replies

    def _request(self, work: Work, task: Task, ids: Tensor) -> Request:
        text = describe_work(work, self.engine.method)
        clients = ids.tolist()
        entries = {
            client: entries_of(work, task, place, self.population, client)
            for place, client in enumerate(clients)
        }
        sums = OrderedSum(sorted(clients), Spool(self.engine.folder))
        form = self._form(work, text, task)
        return Request(work, text, task, form, entries, sums)

    def _exchange(
        self, requests: list[Request], task: Task, shared: Array, ids: Tensor, round: int
    ) -> list[Replies]:
        """The clients' replies to the first request, and to the second where it was sent."""
        clients, work, asking = ids.tolist(), requests[0].work, self._asking
        client_of = asking.nodes(clients, work, round)
        place_of = {client: place for place, client in enumerate(clients)}
        contents = {}
        for node, client in client_of.items():
            about = asking.about(work.name, requests[0].text, client, round)
            for request in requests[1:]:
                if client in request.entries:
                    about["look"] = request.text
            contents[node] = asking.content(task, shared, place_of[client], about)
        size = sum(packed_size(part) for request in requests for part in request.form) + ABOUT

        def receive(client: int, message: Message, roll: RollCall) -> None:
            self._receive(client, message, roll, requests, round, size)

        asking.ask(contents, client_of, work, round, size, receive)
        replies = [
            request.summed(
                self.engine.bound,
                self._medians,
                round,
                lambda client, what: asking.note(
                    round, client, "bounded", f"is bounded in round {round + 1}: {what}"
                ),
            )
            for request in requests
        ]
        if isinstance(work, Train):
            asking.counted |= dict.fromkeys(replies[0].ids.tolist(), round)
        return replies

    def _receive(
        self,
        client: int,
        message: Message,
        roll: RollCall,
        requests: list[Request],
        round: int,
        size: int,
    ) -> None:
        """Keep the client's replies, or record why they cannot count."""
        asked = [request for request in requests if client in request.entries]
        note = self._asking.note
        try:
            reply, about = self._asking.read(client, message, size)
            replies = bundle.split_reply(reply) if len(asked) > 1 else (reply,)
        except Failed as error:
            roll.answer(client, {})
            note(round, client, error.kind, f"is skipped: {error}")
            return
        except ValueError as error:
            roll.answer(client, {})
            note(round, client, "refused", f"is skipped: {error}")
            return
        reasons = roll.answer(client, about)
        for request, each in zip(asked, replies, strict=True):
            reasons = reasons or self._faults_in(client, each, request)
        for reason in reasons:
            note(round, client, "refused", f"{reason}; skipped")
        for request, each in zip(asked, [] if reasons else replies, strict=False):
            request.keep(client, each, self.population, self.engine.loss)

    def _faults_in(self, client: int, reply: Reply, request: Request) -> list[str]:
        who = self._asking.label(client)
        found = check_reply(
            reply,
            request.form,
            who,
            must_be_finite=request.work.must_be_finite,
            known=self._known(request.work, client),
        )
        if found:
            return found
        if isinstance(request.work, Evaluate):
            return check_evaluation(reply, request.task, self.model, who)
        return check_claims(reply, request.entries[client], who, self.engine.loss)

    def _known(self, work: Work, client: int) -> dict[tuple[str, ...], Tensor]:
        """What a reply must contain: an evaluation, the sample counts that its node reported."""
        if not isinstance(work, Evaluate):
            return {}
        counts = self.population.counts(work.part)[client]
        return {("each" if work.by_client else "total", "count"): counts}

    def _form(self, work: Work, text: str, task: Task) -> Reply:
        if text not in self._forms:
            self._forms[text] = form_of(work, task, self.model, self.population, self.seed)
        return self._forms[text]
