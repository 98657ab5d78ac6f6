"""A client's numbers as integers modulo 2^64, which masks can hide and whose sums are exact.

| leaf                                     | form                                   | sum              |
|------------------------------------------|----------------------------------------|------------------|
| float, top level, at most 1000 entries   | limbs of 32 bits, 67 slots an entry    | exact            |
| other float (models, large tables)       | fixed point: rint(x 2^s)               | n 2^-(s+1)       |
| integer, boolean                         | as it is                               | exact            |

The scale s of a fixed-point leaf follows from its exponent e, |x| <= 2^e, and the number of clients
n: s = 62 - ceil(log2 n) - e. Before the leaves there are slots for a check of the sum, for the
number of clients, for values beyond the range, and for the weights that clients give themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.uint64]
Form = Mapping[str, Any]  # nested; a leaf is anything with shape and dtype, such as an array

EXACT = 1000  # most entries of a leaf that is summed exactly
FIRST = 20  # exponent of a leaf of which nothing is known
GROWTH = 20  # a leaf may grow by this power of two from one sum to the next


class Leaf(NamedTuple):
    """A leaf of the form: its path joined by "/", its shape, its kind and its exponent."""

    path: str
    shape: tuple[int, ...]
    kind: str  # "limbs", "fixed" or "integer"
    exponent: int = 0


class Decoded(NamedTuple):
    """A sum over clients."""

    total: dict[str, Any]  # nested: float64 and int64 arrays
    effective: float | None  # (sum w)^2 / sum w^2 of the weights that clients gave themselves


@dataclass(frozen=True)
class Format:
    """How numbers of one form are laid out in a vector.

    Args:
        leaves: in order.
        clients: most clients that are summed.
        weights: whether there are slots for the clients' own weights.
    """

    leaves: tuple[Leaf, ...]
    clients: int
    weights: bool = False

    @classmethod
    def of(
        cls,
        form: Form,
        clients: int,
        exponents: Mapping[str, int] | None = None,
        weights: bool = False,
        noised: Collection[str] = (),
    ) -> Format:
        """Lay out a form.

        Args:
            form: nested dict of arrays, or of anything with a shape and a dtype.
            clients: in the list.
            exponents: by path ("delta/layer.weight"), of fixed-point leaves; others get ``FIRST``.
            weights: whether clients send weights of their own.
            noised: paths of leaves that get noise; they are fixed point whatever their size.
        """
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Number of slots."""
        raise NotImplementedError

    def digest(self) -> bytes:
        """Digest of the layout and the exponents."""
        raise NotImplementedError

    def encode(
        self, total: Mapping[str, Any], weight: float | None = None, must_be_finite: bool = True
    ) -> tuple[Vector, bool]:
        """One client's numbers (size,), and whether some are beyond the range.

        These count as the largest number allowed, and the client adds one to the count of such
        clients, so that the sum is discarded.

        Args:
            total: nested dict of arrays of the form.
            weight: the client's own weight, if the format has slots for it.
            must_be_finite: raise ``NotFinite`` for NaN and infinities; otherwise an exact entry, or
                a whole fixed-point leaf, becomes NaN in the sum.
        """
        raise NotImplementedError

    def decode(self, vector: Vector, count: int) -> Decoded:
        """The sum over ``count`` clients from the sum of their vectors.

        Raises ``NotCancelled`` if masks are left over and ``Overflow`` if a client's values were
        beyond the range.
        """
        raise NotImplementedError

    def next_exponents(self, total: Mapping[str, Any]) -> dict[str, int]:
        """The exponents for the next exchange, from the decoded sum of this one."""
        raise NotImplementedError

    def wider(self) -> Format:
        """The same with larger exponents, to ask again after an overflow."""
        raise NotImplementedError

    def exponents(self) -> dict[str, int]:
        """The exponents by path, of the fixed-point leaves."""
        raise NotImplementedError
