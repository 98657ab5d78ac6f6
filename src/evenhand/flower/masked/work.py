"""A node's side of an exchange with masked sums: it checks the list, then masks what it replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import RecordDict

from evenhand import tree
from evenhand.data.federation import Federation
from evenhand.engines.totals import noise_of, question
from evenhand.engines.work import Evaluate, Named, Work
from evenhand.errors import first_line
from evenhand.flower import records
from evenhand.flower.answering import Declined
from evenhand.flower.checks import label
from evenhand.flower.claims import check_claims, entries_of
from evenhand.flower.evaluation_checks import check_evaluation
from evenhand.flower.masked import layout, told
from evenhand.flower.request import form_of
from evenhand.messages import Reply, Task
from evenhand.metrics.client_sums import COARSE
from evenhand.model import Model
from evenhand.secure import Refused

if TYPE_CHECKING:
    from evenhand.secure import Cohort, Node


class RefusedMasks(Declined):
    """The node does not mask what the server asks for."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"it refuses this masked sum: {first_line(error)}")


@dataclass(frozen=True)
class Masking:
    """One task with masked sums, as a node sees it.

    Args:
        about: the task's plain values.
        shared: digest of the tensors that all clients get.
        own: digest of the tensors of this client alone.
    """

    node: Node
    about: Mapping[str, Any]
    told: told.Told
    cohort: Cohort
    shared: bytes
    own: bytes

    @classmethod
    def begin(
        cls,
        node: Node,
        content: RecordDict,
        about: Mapping[str, Any],
        work: Named,
        task: Task,
        evaluation: Work | None,
        looks: bool,
    ) -> Masking:
        """Check what can be checked before anything is computed; raises :class:`RefusedMasks`.

        Args:
            looks: whether the node has data for the evaluation.
        """
        trees = content.array_records["trees"]
        shared, own = (told.digest_of(trees[name].data) for name in ("shared", "own"))
        found = cls(node, about, told.Told.read(about), told.cohort_in(about), shared, own)
        try:
            found._check(work, task, None if evaluation is None else looks)
        except Refused as error:
            raise RefusedMasks(error) from error
        return found

    def _check(self, work: Named, task: Task, looks: bool | None) -> None:
        number = records.whole(self.about, "client")
        self.cohort.check(self.node.key(), number, self.own, self.node.trust, self.told.settings)
        member = self.cohort.member(number)
        if (member.coefficient, member.scales) != layout.coefficients(work, task, 0, looks):
            raise Refused("same task", "the list gives this client other weights than its task")

    def reply(self, work: Named, reply: Reply, scores: Reply | None, limit: int) -> RecordDict:
        """The masked reply as a message."""
        found = layout.form(reply, scores)
        noise = noise_of(work, reply.total)
        numbers = layout.format_of(found, len(self.cohort.members), self.told.exponents, noise)
        weight = layout.own_weight(found)
        vector, _ = numbers.encode(found, weight, must_be_finite=False)
        number = records.whole(self.about, "client")
        context = told.context(
            self.about, question(work), self.shared, numbers.digest(), self.cohort
        )
        try:
            masked = self.node.mask(
                vector,
                number,
                self.cohort,
                context,
                self.told.settings,
                self.own,
                layout.in_vector(noise) or None,
                numbers,
            )
        except Refused as error:
            raise RefusedMasks(error) from error
        about: dict[str, Any] = {
            "client": number,
            "round": records.whole(self.about, "round"),
            "work": work.name,
            told.SENDERS: list(masked.boxes),
            told.BOXES: list(masked.boxes.values()),
            told.COMMITMENTS: masked.commitments,
        }
        packed = torch.from_numpy(masked.vector.view("int64"))
        return records.reply_content(Reply({"masked": packed}), about, limit)


def require_sums(work: Work, reply: Reply) -> None:
    """Raise unless a reply is only sums, and coarse ones."""
    if reply.each:
        names = ", ".join(reply.each)
        raise Declined(f"masked sums hide single clients, but {work.name} reveals: {names}")
    if isinstance(work, Evaluate) and work.cells > COARSE:
        raise Declined(
            f"a histogram of {work.cells} cells shows single clients; masked sums allow {COARSE}"
        )


def require_sound(
    work: Work, task: Task, reply: Reply, data: Federation, model: Model, client: int, loss: str
) -> None:
    """Raise unless the server would accept this reply if it could see it."""
    if isinstance(work, Evaluate):
        faults = check_evaluation(reply, task, model, label(client))
    else:
        faults = check_claims(reply, entries_of(work, task, 0, data, 0), label(client), loss)
    if faults:
        raise Declined(f"nothing is sent, because it cannot be right: {'; '.join(faults)}")


def nothing_to_evaluate(work: Evaluate, task: Task, model: Model, data: Federation) -> Reply:
    """The evaluation of a client without data for it: zeros."""
    found = form_of(work, task, model, data, 0)
    return Reply(*(tree.map(torch.zeros_like, part) for part in found))
