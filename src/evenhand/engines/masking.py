"""One exchange with masked sums in a simulation: all nodes and the server in one process."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenhand import tree
from evenhand.engines.totals import (
    coefficients,
    digest_of,
    noise_of,
    own_weight,
    question,
    tensors,
)
from evenhand.engines.work import Work
from evenhand.errors import RunError
from evenhand.messages import Task
from evenhand.secure import Context, Decoded, Format, Overflow, Refused, SecureSums, Void
from evenhand.secure.numbers import Vector

if TYPE_CHECKING:
    from evenhand.secure import Cohort, Collection, Node

log = logging.getLogger(__name__)

TRIES = 3  # of an exchange, each with a wider range
RUN = "simulation"


class Party(NamedTuple):
    """Who takes part.

    Args:
        settings: of masked sums.
        masks: whether totals are masked, or only rounded.
        drops: whether a client drops out of the exchange "before" or "after" its reply.
        node: a client's node.
        again: the number of a further exchange.
    """

    settings: SecureSums
    masks: bool
    drops: Callable[[str, int], bool]
    node: Callable[[int], Node]
    again: Callable[[], int]


class MaskedSum:
    """One question, the totals of the clients that answered, and how these are summed.

    Raises ``Void`` if there are none.
    """

    def __init__(
        self,
        party: Party,
        work: Work,
        task: Task,
        ids: Tensor,
        round: int,
        totals: Mapping[int, dict[str, Any]],
        exponents: Mapping[str, int],
    ) -> None:
        self.party, self.settings = party, party.settings
        self.work, self.task, self.round = work, task, round
        self.places = {client: place for place, client in enumerate(ids.tolist())}
        if not totals:
            raise Void(f"none of {len(ids)} clients has answered; the round has no sum")
        self.totals, self.form = totals, next(iter(totals.values()))
        self.noise = noise_of(work, tensors(self.form, self.form, torch.device("cpu")))
        # a private run releases nothing without noise
        weights = own_weight(self.form) is not None and not self.noise
        self.format = Format.of(self.form, len(ids), exponents, weights, self.noise)

    def sum(self, number: int) -> tuple[list[int], Decoded]:
        """The clients in the sum, and the sum; raises ``Void``.

        After an overflow exactly the same clients are asked again, with a wider range.
        """
        cohort, sending = list(self.places), list(self.totals)
        for attempt in range(TRIES):
            if attempt:
                number, cohort = self.party.again(), sending
                if any(self.party.drops("before", client) for client in sending):
                    raise Void("a client of an overflowed sum is gone; the round has no sum")
            holding = [client for client in cohort if not self.party.drops("after", client)]
            total = self._masked if self.party.masks else self._rounded
            try:
                return sending, total(number, cohort, sending, holding)
            except Overflow as error:
                log.warning("round %d: %s", self.round + 1, error)
                self.format = replace(self.format.wider(), clients=len(sending))
        raise RunError(
            f"in round {self.round + 1}, totals are beyond the range of masked sums after {TRIES}"
            " tries; the run has probably diverged: try a smaller lr"
        )

    def _vector(self, client: int) -> Vector:
        total = self.totals[client]
        return self.format.encode(total, own_weight(total), self.work.must_be_finite)[0]

    def _rounded(
        self, number: int, cohort: list[int], sending: list[int], holding: list[int]
    ) -> Decoded:
        """The sum of the clients' integers, without masks."""
        required = self.settings.required(len(cohort))
        opening = len(cohort) if self.settings.mode == "strict" else len(holding)
        for count, did in ((len(sending), "have answered"), (opening, "open the sum")):
            if count < required:
                raise Void(f"{count} of {len(cohort)} clients {did}, and {required} must")
        found = np.zeros(self.format.size, dtype=np.uint64)
        for client in sending:
            found += self._noisy(self._vector(client), required - self.settings.colluding)
        return self.format.decode(found, len(sending))

    def _noisy(self, vector: Vector, shares: int) -> Vector:
        if not self.noise:
            return vector
        from evenhand.secure.noise import add_noise

        return add_noise(vector, self.format, self.noise, shares, secrets.token_bytes(32))

    def _masked(
        self, number: int, cohort: list[int], sending: list[int], holding: list[int]
    ) -> Decoded:
        """The sum by the protocol: every client masks, holders open."""
        from evenhand.secure import Collection

        members, own = self._list(cohort)
        context = self._context(number, members)
        server = Collection(members, context, self.format, self.settings)
        for client in sending:
            masked = self.party.node(client).mask(
                self._vector(client),
                client,
                members,
                context,
                self.settings,
                own[client],
                self.noise,
                self.format,
            )
            server.keep(client, masked)
        server.choose()
        self._open(server, holding, own)
        return server.result()

    def _open(self, server: Collection, holding: list[int], own: Mapping[int, bytes]) -> None:
        """Let holders open the sum, until there are enough."""
        requests = server.requests()
        for holder in holding:
            if server.enough():
                return
            node = self.party.node(holder)
            try:
                opened = node.open_boxes(
                    server.answered,
                    requests[holder],
                    holder,
                    server.cohort,
                    server.context,
                    self.settings,
                    own[holder],
                )
            except Refused as error:
                log.warning("round %d: client %d refuses: %s", self.round + 1, holder, error)
                continue
            server.learn(holder, opened)

    def _list(self, cohort: list[int]) -> tuple[Cohort, dict[int, bytes]]:
        """The list of clients, and the digest of what each alone is told."""
        from evenhand.secure import Cohort, Member

        own = {client: digest_of(tree.row(self.task.own, self.places[client])) for client in cohort}
        members = (
            Member(
                client,
                self.party.node(client).announced(),
                *coefficients(self.work, self.task.own, self.places[client]),
                own[client],
            )
            for client in cohort
        )
        return Cohort(tuple(members)), own

    def _context(self, number: int, members: Cohort) -> Context:
        return Context(
            run=RUN,
            session=1,
            exchange=number,
            round=self.round,
            work=question(self.work),
            how="",
            shared=digest_of(self.task.shared),
            cohort=members.digest(),
            numbers=self.format.digest(),
            settings=self.settings.described(),
        )
