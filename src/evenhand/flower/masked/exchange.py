"""Exchanges of a real federation with masked sums; see :mod:`evenhand.secure` for the protocol.

Message 1 is the task, with the list of clients: nodes reply with masked vectors, which are added as
they arrive. Then the set of clients is fixed and written to disk, and in message 2 ("query.unmask")
holders open what hides the sum. In strict mode there is no message 2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from evenhand.engines.base import Look
from evenhand.engines.totals import noise_of
from evenhand.engines.work import Ask, Named, Train, Work
from evenhand.errors import RunError, first_line
from evenhand.flower import bundle, records
from evenhand.flower.asking import ABOUT, Asking, Failed
from evenhand.flower.checks import RollCall
from evenhand.flower.faults import note_fault
from evenhand.flower.masked import layout, told
from evenhand.flower.masked.asked import Asked, Question
from evenhand.flower.masked.count import per_sample
from evenhand.flower.masked.opening import open_sum
from evenhand.flower.masked.pending import Exponents, Pending
from evenhand.flower.masked.sums import faults_in, known_entries
from evenhand.flower.masked.totals import HiddenPopulation
from evenhand.flower.packing import pack
from evenhand.flower.request import form_of
from evenhand.messages import Replies, Reply, Task
from evenhand.metrics.client_sums import COARSE
from evenhand.secure import (
    Collection,
    Format,
    Masked,
    NotCancelled,
    Overflow,
    SecureSums,
    Void,
)
from evenhand.tree import Tree

log = logging.getLogger(__name__)

OTHER_KEY = "(rule: in the list)"  # a node that has lost its keys refuses a list with old ones
WIDER = 2  # times that clients are asked again after an overflow


class MaskedExchange:
    """Exchanges with masked sums; see :class:`evenhand.engines.base.Exchange`."""

    here, by_client, masked, cells = False, False, True, COARSE

    def __init__(
        self,
        asking: Asking,
        text_of: Callable[[Work], str],
        secure: SecureSums,
        by_size: tuple[str, ...] = (),
    ) -> None:
        self.meanwhile: Callable[[int], tuple[Work, Tensor, int] | None] | None = None
        self._asking, self._text_of, self._secure = asking, text_of, secure
        self._by_size = by_size
        self._forms: dict[str, Reply] = {}  # by work
        self._pending, self._exponents = Pending(asking.folder), Exponents(asking.folder)

    @property
    def memories(self) -> dict[int, Tree]:
        """The round of each client's memory, for checkpoints; the memory stays on the node."""
        return self._asking.memories

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self._asking.memories = memories

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Send ``task`` to clients ``ids`` and take the sum of their replies."""
        asked = [self._asked(work, task, ids)]
        return self.summed(Question(asked, pack(task.shared), ids.tolist(), round))[0]

    def forget(self, asked: Question) -> None:
        """Forget the sum about a question, which the caller has kept."""
        self._pending.drop(asked.round, asked.digest(self._asking.run))

    def exchange_with(
        self, look: Look, work: Work, task: Task, ids: Tensor, round: int
    ) -> tuple[Replies, Replies]:
        """The same, with an evaluation before the work in the same masked vector."""
        if len(look.ids) < self._secure.least:
            return Replies(ids[:0], {}, {}), self.exchange(work, task, ids, round)
        asked = [self._asked(work, task, ids), self._asked(look.work, look.task, look.ids)]
        shared = pack(bundle.add_model(task.shared, look.task.shared["model"]))
        replies, evaluation = self.summed(Question(asked, shared, ids.tolist(), round))
        return evaluation, replies

    def _asked(self, work: Work, task: Task, ids: Tensor) -> Asked:
        asking, text = self._asking, self._text_of(work)
        if text not in self._forms:
            self._forms[text] = form_of(work, task, asking.model, asking.population, asking.seed)
        form = self._forms[text]
        if form.each:
            raise RunError(
                f"masked sums hide single clients, but {work.name} needs of each client:"
                f" {', '.join(form.each)}; use a method that needs only sums"
            )
        entries = {
            client: known_entries(work, task, place, asking.population, client)
            for place, client in enumerate(ids.tolist())
        }
        if self._counts_by_size(work):
            census = asking.population.census()
            task = per_sample(task, census.weight[ids], int(census.sizes.sum()))
            if not all(
                torch.allclose(it, it[:1]) for it in (task.own["weight"], task.own["share"])
            ):
                entries = {client: {} for client in entries}  # their sum depends on whose is whose
        return Asked(work, text, task, form, entries)

    def summed(self, asked: Question) -> list[Replies]:
        """The sums of the work and of the evaluation, over the clients that answered."""
        nobody = [Replies(torch.zeros(0, dtype=torch.int64), {}, {}) for _ in asked.asked]
        try:
            collection, total = self._opened(asked)
            answered = list(collection.answered)
            found = []
            for part, one in zip((layout.WORK, layout.LOOK), asked.asked, strict=False):
                clients = [client for client in answered if client in one.entries]
                sums = layout.tensors(total.get(part, {}), one.form.total)
                population = self._asking.population
                entries = one.entries if self._knows(one, clients) else {it: {} for it in clients}
                if faults := faults_in(one.work, sums, clients, entries, population):
                    raise Void(f"the sum of {one.work.name} cannot be right: {'; '.join(faults)}")
                found.append(Replies(torch.tensor(clients), sums, {}))
        except (Void, NotCancelled) as error:
            self._note_void(asked, first_line(error))
            return nobody
        if isinstance(asked.asked[0].work, Train):
            self._asking.counted |= dict.fromkeys(answered, asked.round)
        return found

    def _counts_by_size(self, work: Named) -> bool:
        """Whether clients multiply their coefficients by their hidden sizes."""
        if isinstance(work, Ask) and work.moment == "review":  # those who have trained are asked
            return Train.name in self._by_size
        return work.name in self._by_size

    def _knows(self, asked: Asked, clients: list[int]) -> bool:
        """Whether the server knows the sum of these clients' coefficients."""
        population = self._asking.population
        if not self._counts_by_size(asked.work) or not isinstance(population, HiddenPopulation):
            return True
        return population.knows("train", clients)

    def _opened(self, asked: Question) -> tuple[Collection, dict[str, Tree]]:
        """A sum, asked for again with more room if it was beyond the range of some clients."""
        key = asked.digest(self._asking.run)
        collection = self._pending.find(asked.round, key)
        if collection is None:
            collection = self._collected(asked, None)
            self._pending.keep(asked.round, key, collection)
        for tries_left in reversed(range(WIDER + 1)):
            try:
                decoded = open_sum(collection, self._asking, asked.round)
            except Overflow as error:
                if not tries_left:
                    raise RunError(
                        f"{first_line(error)}; they were asked {WIDER + 1} times. Has the run"
                        " diverged? A smaller learning rate helps"
                    ) from error
                log.warning("round %d: %s", asked.round + 1, first_line(error))
                collection = self._collected(asked, collection)
                self._pending.keep(asked.round, key, collection)
            else:
                break
        next_ones = collection.format.next_exponents(decoded.total)
        self._exponents.note(asked.name, asked.round, next_ones)
        self._tell_effective(asked, decoded.effective)
        return collection, decoded.total

    def _collected(self, asked: Question, before: Collection | None) -> Collection:
        """Ask for masked vectors; after an overflow ``before``, of exactly the same clients."""
        asking, secure = self._asking, self._secure
        clients = asked.clients if before is None else list(before.answered)
        client_of = asking.nodes(clients, asked.asked[0].work, asked.round)
        present = sorted(client_of.values())
        if before is not None and present != clients:
            raise Void("a client of a sum that was beyond the range does not answer any more")
        try:
            secure.check(len(present))
        except ValueError as error:
            raise Void(first_line(error)) from error
        cohort = asked.cohort(asking.membership.roster.clients, present)
        arrays = layout.form(*(one.form for one in asked.asked))
        format = self._format(asked, arrays, len(present), before)
        content, context = asked.messages(asking, secure, cohort, format, client_of)
        collection = Collection(cohort, context, format, secure)
        size = 8 * format.size + ABOUT + 64 * len(present) ** 2

        def receive(client: int, message: Message, roll: RollCall) -> None:
            self._receive(collection, client, message, roll, asked.round, size)

        work = asked.asked[0].work
        asking.ask(content, client_of, work, asked.round, size, receive)
        if before is not None and collection.answered != before.answered:
            raise Void("a client of a sum that was beyond the range has not answered again")
        collection.choose()
        return collection

    def _format(
        self, asked: Question, arrays: dict[str, Tree], clients: int, before: Collection | None
    ) -> Format:
        if before is not None:
            return replace(before.format.wider(), clients=clients)
        known = self._exponents.before(asked.name, asked.round)
        noise = noise_of(asked.asked[0].work, asked.asked[0].form.total)
        return layout.format_of(arrays, clients, known, noise)

    def _receive(
        self,
        collection: Collection,
        client: int,
        message: Message,
        roll: RollCall,
        round: int,
        size: int,
    ) -> None:
        """Add a client's masked vector, or record why it cannot count."""
        note = self._asking.note
        try:
            reply, about = self._asking.read(client, message, size)
        except Failed as error:
            roll.answer(client, {})
            if OTHER_KEY in str(error):
                self._asking.membership.ask_again(client)
            note(round, client, error.kind, f"is skipped: {error}")
            return
        except ValueError as error:
            roll.answer(client, {})
            note(round, client, "refused", f"is skipped: {error}")
            return
        reasons = roll.answer(client, about)
        try:
            masked = None if reasons else _masked(reply, about)
            if masked is not None:
                collection.keep(client, masked)
        except (ValueError, TypeError) as error:
            reasons = [first_line(error)]
        for reason in reasons:
            note(round, client, "refused", f"{reason}; skipped")

    def _note_void(self, asked: Question, reason: str) -> None:
        log.warning("round %d, %s: %s", asked.round + 1, asked.name, reason)
        note_fault(self._asking.folder, asked.round + 1, None, "", "void", reason)

    def _tell_effective(self, asked: Question, effective: float | None) -> None:
        """Warn if few clients make up a sum, by the weights that they give themselves."""
        if effective is not None and effective < self._secure.least:
            log.warning(
                "round %d: by the weights that the method gives clients, the sum is that of %.3g"
                " clients, fewer than least = %d; it may show the worst client's update",
                *(asked.round + 1, effective, self._secure.least),
            )


def _masked(reply: Reply, about: records.About) -> Masked:
    """A client's masked vector, from its reply; raises a ValueError."""
    vector = reply.total.get("masked")
    if reply.each or list(reply.total) != ["masked"] or not isinstance(vector, Tensor):
        raise ValueError("its reply is not a masked vector")
    if vector.dtype != torch.int64:
        raise ValueError("its masked vector has another type")
    commitments = about.get(told.COMMITMENTS)
    if not isinstance(commitments, bytes):
        raise ValueError("its commitments cannot be read")
    boxes = told.by_number(about, told.SENDERS, told.BOXES)
    return Masked(vector.numpy().view(np.uint64), boxes, commitments)
