"""The messages between server and clients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from evenhand.tree import Tree


class Task(NamedTuple):
    """What the server sends to clients.

    The round loop adds what every method needs: ``shared["lr"]``, the round's step size;
    ``own["weight"]``, the client's coefficient a_i in the sum over the cohort; and
    ``own["share"]``, its part of the normaliser. The two differ only for ``Uniform(k,
    unbiased=True)``, whose coefficients do not sum to one.

    Attributes:
        shared: the same for every client: the model, a dual variable, a level.
        own: row k is for the k-th client: its weight, its scale factor.
    """

    shared: Tree
    own: Tree = {}  # noqa: RUF012 (never changed)


class Survey(NamedTuple):
    """A question to clients: what is sent, and to whom.

    Attributes:
        shared: sent to everyone.
        own: row i goes to client i, counted over all clients.
        who: "cohort", "everyone", or a number of clients to draw uniformly; a review asks those who
            trained.
        needed: whether to ask in this round; a tensor if that depends on the state.
        part: the split that clients answer from: "train" or "val".
    """

    shared: Tree
    own: Tree = {}  # noqa: RUF012 (never changed)
    who: str | int = "cohort"
    needed: Tensor | bool = True
    part: str = "train"


class Reply(NamedTuple):
    """What a client sends to the server.

    Prefer ``total``: a method with an empty ``each`` works with masked sums.

    Attributes:
        total: the server only sees its sum over clients.
        each: the server sees it client by client.
    """

    total: Tree = {}  # noqa: RUF012 (never changed)
    each: Tree = {}  # noqa: RUF012 (never changed)


class Asked(NamedTuple):
    """What the server knows about a client before its reply arrives."""

    task: Task  # as the client received it: its row of ``own``
    groups: Tensor | None = None  # (A,) its number of training samples in each group
    # local steps, including the effect of momentum: a constant gradient g moves a variable by
    # lr * steps * g
    steps: float = 0.0


@dataclass(frozen=True)
class Entry:
    """Which values an entry of a reply may have.

    A server that cannot trust its clients refuses impossible values, and scales down values that
    are out of proportion to the other clients' replies.

    Args:
        known: the exact value, up to rounding.
        low: the smallest allowed value.
        high: the largest allowed value.
        kind: "update" compares lengths between clients, "loss" compares values.
        per: the factor an update or a loss was multiplied by, divided out before comparing: a
            number, the name of another entry (an update is scaled down together with it), or a
            function of all entries.
        least: if ``per`` is smaller than this, the entry is not compared.
        slack: how much longer than the other clients' an honest update may be, because of the
            method.
        to_loss: converts the entry to a loss; by default it divides by ``per``.
        from_loss: the inverse of ``to_loss``.
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


Entries = dict[str, Entry]  # by the top-level names in ``total`` or ``each``


def stepped(asked: Asked) -> Entries:
    """Declare the entries that ``evenhand.algorithm.weighted`` returns."""
    own = asked.task.own
    return {"delta": Entry(kind="update", per=own["weight"]), "weight": Entry(known=own["share"])}


def undeclared(asked: Asked) -> Entries:
    """Declare the entries of a method that does not declare its own: probably a_i times a step, and
    a weight that is not negative."""
    return {**stepped(asked), "weight": Entry(low=0.0)}


class Replies(NamedTuple):
    """The clients' replies as the server receives them.

    Attributes:
        ids: (k,) the clients that replied, in ascending order.
        total: the sum over clients, in float64.
        each: stacked; row i is from client ``ids[i]``.
    """

    ids: Tensor
    total: Tree
    each: Tree

    @property
    def sums(self) -> Tree:
        """``total`` on the device where it was summed; reading it never waits for a GPU."""
        return self.total

    @property
    def underway(self) -> bool:
        """Whether reading anything but ``sums`` may wait for clients that are still working."""
        return False

    def unless_void(self, before: Tree, after: Tree) -> Tree:
        """Return ``after``, or ``before`` if no client's reply counts."""
        return after if len(self.ids) else before
