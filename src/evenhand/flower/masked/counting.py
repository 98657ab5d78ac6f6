"""The server asks clients that hide their counts for the sum of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from evenhand.data.samples import PARTS
from evenhand.errors import RunError, first_line
from evenhand.flower.asking import Asking
from evenhand.flower.masked.asked import Asked, Question
from evenhand.flower.masked.count import MORE, Count, zeros
from evenhand.flower.masked.exchange import MaskedExchange
from evenhand.flower.masked.totals import Counted
from evenhand.flower.packing import pack
from evenhand.flower.registration import MOST_SAMPLES
from evenhand.messages import Entries, Replies, Task
from evenhand.secure import SecureSums

log = logging.getLogger(__name__)

TRIES = 3
ROUNDING = 1e-9  # relative


def count(asking: Asking, secure: SecureSums, weights: str) -> None:
    """Ask for the sum over clients that are in none yet, if they are enough for one, and keep it in
    the roster; raises a RunError if there is no sum at all.

    Args:
        weights: of the run.
    """
    membership = asking.membership
    clients, first = membership.roster.uncounted, not membership.roster.counted
    if first:
        try:
            secure.check(len(clients))
        except ValueError as error:
            raise RunError(first_line(error)) from error
    if first or len(clients) >= secure.least:
        question = _question(asking, clients, MORE[weights])
        exchange = MaskedExchange(asking, str, secure)
        for _ in range(TRIES if first else 1):
            found = _read(exchange.summed(question)[0], asking.population.group_names or ("",))
            if found is not None:
                membership.roster = membership.roster.with_counted(found)
                membership.save()
                exchange.forget(question)  # a later one is about other clients
                break
    if not membership.roster.counted:
        raise RunError(
            "the clients' samples could not be counted as a masked sum, for the reasons logged"
            ' above; start again, or let nodes tell their counts: SecureSums(counts="visible")'
        )
    if clients := membership.roster.uncounted:
        log.warning(
            "the samples of %s are not counted: that takes a sum of at least %d new clients; each"
            " is taken to have as many as the others on average",
            ", ".join(map(membership.roster.population.name, clients)),
            secure.least,
        )


def _question(asking: Asking, clients: list[int], more: str) -> Question:
    task = Task({}, {"weight": torch.ones(len(clients), dtype=torch.float64)})
    form = zeros(asking.population.groups, more)
    entries: dict[int, Entries] = {client: {} for client in clients}
    asked = Asked(Count(), more, task, form, entries)
    return Question([asked], pack({}), clients, 0)


def _read(replies: Replies, groups: Sequence[str]) -> Counted | None:
    """What a sum says; None if there is none, or it cannot be right."""
    clients, total = tuple(replies.ids.tolist()), replies.total
    if not clients:
        return None
    samples = {
        part: dict(zip(groups, map(int, total[part].tolist()), strict=True)) for part in PARTS
    }
    size, squares = sum(samples["train"].values()), float(total.get("squares", 0.0))
    shares = dict(zip(groups, total["shares"].tolist(), strict=True)) if "shares" in total else {}
    counts = [found for part in samples.values() for found in part.values()]
    if (
        size < len(clients)
        or not all(0 <= found <= MOST_SAMPLES * len(clients) for found in counts)
        or (squares and not size**2 / len(clients) <= squares * (1 + ROUNDING))
        or (shares and abs(sum(shares.values()) - len(clients)) > ROUNDING * len(clients))
    ):
        log.warning("the sum of the clients' counts cannot be right")
        return None
    return Counted(clients, samples, squares, shares)
