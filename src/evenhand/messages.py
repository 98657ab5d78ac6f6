"""The two messages that server and clients share, and what reaches the server after an exchange."""

from __future__ import annotations

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
