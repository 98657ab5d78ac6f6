"""A question to clients whose replies are masked, and the messages that ask it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, RecordDict

from evenhand import tree
from evenhand.engines.totals import question
from evenhand.engines.work import Named
from evenhand.flower.asking import Asking
from evenhand.flower.masked import layout, told
from evenhand.flower.packing import pack
from evenhand.flower.registration import Registration
from evenhand.messages import Entries, Reply, Task
from evenhand.secure import Cohort, Context, Format, Member, SecureSums


@dataclass(frozen=True)
class Asked:
    """Work that is masked together with other work.

    Args:
        text: the work as it travels.
        form: a reply of the right names, shapes and types.
        entries: what the reply of each client can contain.
    """

    work: Named
    text: str
    task: Task
    form: Reply
    entries: dict[int, Entries]


@dataclass(frozen=True)
class Question:
    """One question to clients, and what is the same for all of them.

    Args:
        asked: the work, and the evaluation in the same messages, if there is one.
        shared: the packed tensors that all clients get.
    """

    asked: list[Asked]
    shared: Array
    clients: list[int]
    round: int

    @property
    def name(self) -> str:
        """What is asked, in the context of masks."""
        return question(self.asked[0].work)

    @property
    def looks(self) -> set[int] | None:
        """Clients that evaluate in the same message; None without an evaluation."""
        return set(self.asked[1].entries) if len(self.asked) > 1 else None

    def digest(self, run: str) -> bytes:
        """The digest of the question, whoever is asked."""
        shared = told.digest_of(self.shared.data)
        return Context(run, 0, 0, self.round, self.name, "", shared, b"", b"", "").question()

    def cohort(self, clients: Sequence[Registration], present: list[int]) -> Cohort:
        """The list of those that are asked, as all of them get it."""
        work, task, members = self.asked[0].work, self.asked[0].task, list[Member]()
        for client in present:
            announced, place = clients[client].announced, self.clients.index(client)
            assert announced is not None  # nodes without a key are not admitted
            looks = None if self.looks is None else client in self.looks
            own = tree.map(lambda leaf, place=place: leaf[place : place + 1], task.own)
            coefficient, scales = layout.coefficients(work, task, place, looks)
            digest = told.digest_of(pack(own).data)
            members.append(Member(client, announced, coefficient, scales, digest))
        return Cohort(tuple(members))

    def messages(
        self,
        asking: Asking,
        secure: SecureSums,
        cohort: Cohort,
        format: Format,
        client_of: Mapping[int, int],
    ) -> tuple[dict[int, RecordDict], Context]:
        """The message to each node, and the context that they have in common."""
        exchange, task = next(asking.membership.exchanges), self.asked[0].task
        more: dict[str, Any] = {
            told.MASKS: told.Told(exchange, secure, format.exponents()).to_text(),
            told.COHORT: cohort.packed(),
        }
        if len(self.asked) > 1:
            more["look"] = self.asked[1].text
        contents, about = {}, dict[str, Any]()
        for node, client in client_of.items():
            work = self.asked[0]
            about = asking.about(work.work.name, work.text, client, self.round) | more
            place = self.clients.index(client)
            contents[node] = asking.content(task, self.shared, place, about)
        shared = told.digest_of(self.shared.data)
        return contents, told.context(about, self.name, shared, format.digest(), cohort)
