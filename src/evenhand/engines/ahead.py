"""Which samples clients visit, chosen before the exchange begins.

On a GPU, the samples of the next exchange are chosen while it works. On a CPU, those of several
exchanges are chosen together: where clients have little to do, most of this time goes into calls.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evenhand.engines.visits import Members, Visits
from evenhand.engines.work import Work
from evenhand.local import LocalSolver
from evenhand.local.order import Batches, batches_of

Upcoming = tuple[Work, Tensor, int]  # a work, the clients, and the round
MOST_ROUNDS, MOST_SAMPLES = 16, 1 << 16  # that are chosen together


class Ahead:
    """Samples chosen ahead.

    Args:
        members: returns clients and what their work depends on, and whether one chunk can hold them
            all.
        visits: returns the samples that clients visit in a round, given their batches or None.
    """

    def __init__(
        self,
        members: Callable[[Work, Tensor], tuple[Members, bool]],
        visits: Callable[[Work, Members, int, Batches | None], Visits],
    ) -> None:
        self._members, self._visits = members, visits
        self._chosen: dict[int, tuple[Upcoming, Visits]] = {}  # by round

    def take(self, work: Work, ids: Tensor, round: int) -> Visits | None:
        """The samples of an exchange, if they were chosen."""
        found = self._chosen.pop(round, None)
        if found is None or found[0][0] is not work or not torch.equal(found[0][1], ids):
            return None
        return found[1]

    def choose(self, upcoming: list[Upcoming]) -> None:
        """Choose the samples of exchanges that are of the same work."""
        work, everyone = upcoming[0][0], torch.cat([ids for _, ids, _ in upcoming])
        members, alike = self._members(work, everyone)
        if not alike or work.local is None:
            return
        lengths = [len(ids) for _, ids, _ in upcoming]
        each = zip(*(torch.split(values, lengths) for values in members), strict=True)
        batches: list[Batches | None] = [None]
        if len(upcoming) > 1:
            rounds = torch.tensor([round for *_, round in upcoming])
            found = batches_of(
                members.numbers,
                members.sizes,
                int(members.widths.max()),
                rounds.repeat_interleave(torch.tensor(lengths)),
                members.seed,
                batch_size=work.local.batch_size,
                epochs=work.local.epochs,
                steps=work.local.steps,
            )
            batches = [
                Batches(*values)
                for values in zip(*(torch.split(values, lengths) for values in found), strict=True)
            ]
        self._chosen = {
            exchange[2]: (exchange, self._visits(work, Members(*clients), exchange[2], some))
            for exchange, clients, some in zip(upcoming, each, batches, strict=True)
        }

    def choose_many(self, now: Upcoming, later: Callable[[int], Upcoming | None]) -> None:
        """Choose the samples of an exchange and of those after it, unless that is done already.

        ``later`` returns the exchange that comes so many rounds after this one, if it is known.
        """
        work, ids, round = now
        local = work.local
        if round in self._chosen or local is None:
            return
        if local.dp is not None or type(local).batches is not LocalSolver.batches:
            return  # batches that are drawn otherwise, one round at a time
        upcoming = [now]
        members, _ = self._members(work, ids)
        passes = local.steps or local.epochs or 1
        most = MOST_SAMPLES // max(1, passes * int(members.widths.sum()))
        while len(upcoming) < min(MOST_ROUNDS, most):
            found = later(len(upcoming))
            if found is None or found[0] is not work:
                break
            upcoming.append(found)
        if len(upcoming) > 1:
            self.choose(upcoming)
