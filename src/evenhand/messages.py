"""The two messages that server and clients share, and what reaches the server after an exchange."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from evenhand.tree import Tree


class Task(NamedTuple):
    """Server to clients.

    The round loop adds what every method needs: ``shared["lr"]``, the round's step size;
    ``own["weight"]``, the client's coefficient a_i in the sum over the cohort; ``own["share"]``,
    its part of the normaliser. The two differ only for the unbiased uniform scheme, whose
    coefficients do not sum to one (see :mod:`evenhand.cohort`).
    """

    shared: Tree  # the same for everyone: the model, a dual variable, a level
    # row k belongs to the k-th client: its weight, its scale factor
    own: Tree = {}  # noqa: RUF012 (never changed)


class Reply(NamedTuple):
    """Client to server. Prefer ``total``: a method with an empty ``each`` can run under secure
    aggregation."""

    total: Tree = {}  # only ever seen summed over clients  # noqa: RUF012 (never changed)
    each: Tree = {}  # seen client by client  # noqa: RUF012 (never changed)


class Asked(NamedTuple):
    """What the server knows of one client before its reply comes."""

    task: Task  # as the client has got it: its row of ``own``
    groups: Tensor | None = None  # (A,) how its training samples divide among groups
    # local steps, each counted with what momentum makes of it: a constant gradient g moves a
    # variable by lr * steps * g
    steps: float = 0.0


@dataclass(frozen=True)
class Entry:
    """What an entry of a reply can be. A server that cannot trust its clients refuses what is
    impossible, and scales down what is out of proportion to the replies of the others.

    Args:
        known: what it is equal to, within rounding.
        low, high: the least and the largest value.
        kind: "update" has a length that is compared with those of the others, "loss" a value.
        per: what an update or a loss is multiplied by, to be divided by before it is compared: a
            number, the name of another entry of the compartment (an update is scaled down with it),
            or a function of the compartment.
        least: where ``per`` is below it, nothing is left to compare.
        slack: how much longer than the others' an honest update can be by the method's own doing.
        to_loss, from_loss: the loss that an entry is a function of, and the inverse; by default a
            product with ``per``.
    """

    known: Tensor | None = None
    low: Tensor | float = -math.inf
    high: Tensor | float = math.inf
    kind: str = ""
    per: Tensor | float | str | Callable[[Tree], Tensor] = 1.0
    least: Tensor | float = 0.0
    slack: float = 1.0
    to_loss: Callable[[Tensor], Tensor] | None = None
    from_loss: Callable[[Tensor], Tensor] | None = None


Entries = dict[str, Entry]  # by their names at the top of a compartment


def stepped(asked: Asked) -> Entries:
    """What :func:`evenhand.algorithm.weighted` gives."""
    own = asked.task.own
    return {"delta": Entry(kind="update", per=own["weight"]), "weight": Entry(known=own["share"])}


def undeclared(asked: Asked) -> Entries:
    """Of a method that does not say: a step is probably a_i times something, and a weight never
    negative."""
    return {**stepped(asked), "weight": Entry(low=0.0)}


class Replies(NamedTuple):
    """What reaches the server after an exchange."""

    ids: Tensor  # (k,) clients that answered, ascending
    total: Tree  # already summed, in float64
    each: Tree  # stacked, row i is from ids[i]

    @property
    def sums(self) -> Tree:
        """``total``, with numbers still where they were summed: to look at it never waits for a
        GPU."""
        return self.total

    @property
    def underway(self) -> bool:
        """Whether to look at anything but ``sums`` may have to wait for clients that are still at
        work."""
        return False

    def unless_void(self, before: Tree, after: Tree) -> Tree:
        """The state ``after`` these replies, or the one ``before`` if there is none among them that
        counts."""
        return after if len(self.ids) else before
