"""A client's numbers as integers modulo 2^64, which masks can hide and whose sums are exact.

| leaf                                    | form                                | error          |
|-----------------------------------------|-------------------------------------|----------------|
| float, top level, at most 1000 entries  | limbs of 32 bits, 67 slots an entry | rounded once   |
| other float (models, large tables)      | fixed point: rint(x 2^s)            | n 2^-(s+1)     |
| integer, boolean                        | as it is                            | none           |

The scale s of a fixed-point leaf follows from its exponent e, |x| <= 2^e, and the number of clients
n: s = 62 - ceil(log2 n) - e. Before the leaves there are slots for a check of the sum, for the
number of clients, for values beyond the range, and for the weights that clients give themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import frexp, isfinite, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require_whole
from evenhand.secure.context import digest
from evenhand.secure.limbs import SLOTS, from_limbs, to_limbs
from evenhand.secure.refusals import NotCancelled, NotFinite, Overflow

Vector = NDArray[np.uint64]
Form = Mapping[str, Any]  # nested; a leaf is anything with shape and dtype, such as an array

EXACT = 1000  # most entries of a leaf that is summed exactly
FIRST = 20  # exponent of a leaf of which nothing is known
GROWTH = 20  # a leaf may grow by this power of two from one sum to the next
LARGEST = 900  # exponents are between -900 and 900, so that 2^s is a float
ROOM = 62  # bits of a sum, without its sign and one to spare
# the first slots
CHECK, ONE, BEYOND, HEADER = 0, 1, 2, 3


class Leaf(NamedTuple):
    """A leaf of the form: its path joined by "/", its shape, its kind and its exponent."""

    path: str
    shape: tuple[int, ...]
    kind: str  # "limbs", "fixed" or "integer"
    exponent: int = 0

    @property
    def entries(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def slots(self) -> int:
        """How many slots it takes; a fixed-point leaf has one for values that are not finite."""
        return (
            self.entries * SLOTS if self.kind == "limbs" else self.entries + (self.kind == "fixed")
        )


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

    def __post_init__(self) -> None:
        require_whole("the number of clients", self.clients, 1)
        if self.clients > 1 << 24:
            raise ValueError(f"at most {1 << 24} clients can be summed, got {self.clients}")
        for leaf in self.leaves:
            if abs(leaf.exponent) > LARGEST:
                raise ValueError(
                    f'the exponent of "{leaf.path}" must be between -{LARGEST} and {LARGEST}, got'
                    f" {leaf.exponent}"
                )

    @classmethod
    def of(
        cls,
        form: Form,
        clients: int,
        exponents: Mapping[str, int] | None = None,
        weights: bool = False,
        noised: Collection[str] = (),
        depth: int = 1,
    ) -> Format:
        """Lay out a form.

        Args:
            form: nested dict of arrays, or of anything with a shape and a dtype.
            clients: in the list.
            exponents: by path ("delta/layer.weight"), of fixed-point leaves; others get ``FIRST``.
            weights: whether clients send weights of their own.
            noised: paths of leaves that get noise; they are fixed point whatever their size.
            depth: leaves at most so deep can be summed exactly: 2 if the form holds two replies.
        """
        leaves = []
        for path, leaf in items(form):
            shape, kind = tuple(int(size) for size in leaf.shape), "fixed"
            name = "/".join(path)
            if np.dtype(leaf.dtype).kind in "iub":
                kind = "integer"
            elif len(path) <= depth and prod(shape) <= EXACT and name not in noised:
                kind = "limbs"
            exponent = (exponents or {}).get(name, FIRST) if kind == "fixed" else 0
            leaves.append(Leaf(name, shape, kind, exponent))
        return cls(tuple(leaves), clients, weights)

    @property
    def size(self) -> int:
        """Number of slots."""
        return self._begin + sum(leaf.slots for leaf in self.leaves)

    def digest(self) -> bytes:
        """Digest of the layout and the exponents."""
        parts: list[bytes | str | int] = [self.clients, self.weights, len(self.leaves)]
        for leaf in self.leaves:
            parts += [leaf.path, leaf.kind, leaf.exponent, len(leaf.shape), *leaf.shape]
        return digest(*parts)

    def scale(self, leaf: Leaf) -> int:
        """The scale s of a fixed-point leaf: one is 2^s."""
        return self._headroom - leaf.exponent

    def places(self) -> Iterator[tuple[Leaf, slice]]:
        """The leaves and their slots."""
        begin = self._begin
        for leaf in self.leaves:
            yield leaf, slice(begin, begin + leaf.slots)
            begin += leaf.slots

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
        values = {"/".join(path): np.asarray(leaf) for path, leaf in items(total)}
        found = {name: value.shape for name, value in values.items()}
        if found != {leaf.path: leaf.shape for leaf in self.leaves}:
            raise ValueError(f"numbers do not fit the format: {found}")
        vector, beyond = np.zeros(self.size, dtype=np.int64), False
        if self.weights:
            own = np.float64(0.0 if weight is None else weight)
            _require_finite(np.array([own]), "its weight", must_be_finite)
            vector[HEADER : self._begin] = to_limbs(np.array([own, own * own])).ravel()
        for leaf, place in self.places():
            value = values[leaf.path].ravel()
            if leaf.kind == "integer":
                beyond |= self._put_integers(value, vector[place])
                continue
            if leaf.kind == "limbs":
                exact = value.astype(np.float64)
                _require_finite(exact, leaf.path, must_be_finite)
                vector[place] = to_limbs(exact).ravel()
            else:
                beyond |= self._put_fixed(leaf, value, vector[place], must_be_finite)
        vector[ONE], vector[BEYOND] = 1, beyond
        return checked(vector.view(np.uint64)), beyond

    def decode(self, vector: Vector, count: int) -> Decoded:
        """The sum over ``count`` clients from the sum of their vectors.

        Raises ``NotCancelled`` if masks are left over and ``Overflow`` if a client's values were
        beyond the range.
        """
        if vector.shape != (self.size,) or vector.dtype != np.uint64:
            raise ValueError(f"the sum must have {self.size} slots, got {vector.shape}")
        sums = vector.view(np.int64)
        if sums[ONE] != count or checksum(vector) != vector[CHECK]:
            raise NotCancelled(
                f"the sum over {count} clients is noise: masks are left over, because clients were"
                " told different things, or somebody has changed a message"
            )
        if sums[BEYOND]:
            raise Overflow(int(sums[BEYOND]))
        total: dict[str, Any] = {}
        for leaf, place in self.places():
            names = leaf.path.split("/")
            *parents, last = (name.replace("~1", "/").replace("~0", "~") for name in names)
            branch = total
            for parent in parents:
                branch = branch.setdefault(parent, {})
            branch[last] = self._read(leaf, sums[place])
        return Decoded(total, self._effective(sums))

    def next_exponents(self, total: Mapping[str, Any]) -> dict[str, int]:
        """The exponents for the next exchange, from the decoded sum of this one."""
        values, found = {"/".join(path): leaf for path, leaf in items(total)}, {}
        for leaf in self.leaves:
            if leaf.kind == "fixed":
                most = float(np.abs(values[leaf.path]).max(initial=0.0))
                known = most > 0 and isfinite(most)
                found[leaf.path] = _inside(frexp(most)[1] + GROWTH) if known else leaf.exponent
        return found

    def wider(self) -> Format:
        """The same with larger exponents, to ask again after an overflow."""
        return replace(
            self,
            leaves=tuple(
                leaf._replace(exponent=_inside(leaf.exponent + GROWTH))
                if leaf.kind == "fixed"
                else leaf
                for leaf in self.leaves
            ),
        )

    def exponents(self) -> dict[str, int]:
        """The exponents by path, of the fixed-point leaves."""
        return {leaf.path: leaf.exponent for leaf in self.leaves if leaf.kind == "fixed"}

    @property
    def _begin(self) -> int:
        return HEADER + 2 * SLOTS * self.weights

    @cached_property
    def _headroom(self) -> int:
        """Bits of one client's number: all clients' together have ``ROOM``."""
        return ROOM - (self.clients - 1).bit_length()

    def _put_integers(self, value: NDArray[Any], slots: NDArray[np.int64]) -> bool:
        """Write integers; whether some are too large."""
        most = 1 << self._headroom
        slots[:] = (
            np.clip(value, -most, most) if value.dtype.kind == "i" else np.minimum(value, most)
        )
        return bool((slots != value).any())

    def _put_fixed(
        self, leaf: Leaf, value: NDArray[Any], slots: NDArray[np.int64], must_be_finite: bool
    ) -> bool:
        """Write a leaf in fixed point; whether some numbers are beyond its range."""
        numbers, most = value.astype(np.float64), 2.0**leaf.exponent
        top = float(np.abs(numbers).max(initial=0.0))  # NaN if there is one
        if not isfinite(top):
            _require_finite(numbers, leaf.path, must_be_finite)
            slots[-1] = 1
            return False
        if top > most:
            np.clip(numbers, -most, most, out=numbers)
        numbers *= 2.0 ** self.scale(leaf)
        slots[:-1] = np.rint(numbers, out=numbers)
        return top > most

    def _read(self, leaf: Leaf, slots: NDArray[np.int64]) -> NDArray[Any]:
        if leaf.kind == "integer":
            return slots.reshape(leaf.shape).copy()
        if leaf.kind == "limbs":
            return from_limbs(slots.reshape(-1, SLOTS)).reshape(leaf.shape)
        found = slots[:-1].astype(np.float64)
        found *= 2.0 ** -self.scale(leaf)
        if slots[-1]:
            found[:] = np.nan
        return found.reshape(leaf.shape)

    def _effective(self, sums: NDArray[np.int64]) -> float | None:
        if not self.weights:
            return None
        first, second = from_limbs(sums[HEADER : self._begin].reshape(2, SLOTS)).tolist()
        return first * first / second if second else 0.0


def checksum(vector: Vector) -> np.uint64:
    """The sum of all slots but the first, modulo 2^64."""
    return np.uint64(np.add.reduce(vector[CHECK + 1 :]))


def checked(vector: Vector) -> Vector:
    """Write a vector's checksum into its first slot."""
    vector[CHECK] = checksum(vector)
    return vector


def items(form: Form, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and leaf, in the order of the keys; "~" and "/" in a key become "~0" and "~1"."""
    for key, value in form.items():
        name = (*prefix, key.replace("~", "~0").replace("/", "~1"))
        if isinstance(value, Mapping):
            yield from items(value, name)
        else:
            yield name, value


def _require_finite(values: NDArray[np.float64], what: str, required: bool) -> None:
    if required and not np.isfinite(values).all():
        raise NotFinite(f"{what} is not finite, so this client sends nothing")


def _inside(exponent: int) -> int:
    return max(-LARGEST, min(LARGEST, exponent))
