"""The server's side: collects masked vectors, lets holders open masks, and decodes the sum."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations, islice
from typing import Any

import numpy as np

from evenhand.secure import primitives
from evenhand.secure.cohort import Cohort
from evenhand.secure.context import Context
from evenhand.secure.node import OWN, PAIR, Masked, box_size, committed, shown
from evenhand.secure.numbers import Decoded, Format, Leaf, Vector
from evenhand.secure.primitives import COMMITMENT, SEED
from evenhand.secure.refusals import Void
from evenhand.secure.settings import SecureSums

TRIES = 200  # sets of holders that are tried if shares are wrong


class Collection:
    """One exchange at the server: the sum so far, the boxes, the set of clients, the shares.

    ``keep`` what arrives, ``choose`` the set, save, ask each holder for ``requests()``, ``learn``
    what they open until ``enough()``, then take the ``result()``. In strict mode choose and take
    the result. If shares are wrong the result is ``Void``; learn more and try again.
    """

    def __init__(
        self, cohort: Cohort, context: Context, format: Format, settings: SecureSums
    ) -> None:
        self.cohort, self.context, self.format, self.settings = cohort, context, format, settings
        self.chosen: tuple[int, ...] | None = None
        self._sum: Vector = np.zeros(format.size, dtype=np.uint64)
        self._boxes: dict[int, dict[int, bytes]] = {}  # by sender, by holder
        self._commitments: dict[int, bytes] = {}
        self._opened: dict[int, dict[int, bytes]] = {}  # by holder, by sender

    @property
    def required(self) -> int:
        """How many clients must answer, and how many holders open."""
        return self.settings.required(len(self.cohort.members))

    @property
    def answered(self) -> tuple[int, ...]:
        """The clients in the sum (so far)."""
        return tuple(sorted(self._boxes)) if self.chosen is None else self.chosen

    def keep(self, number: int, masked: Masked) -> None:
        """Add a client's vector; raises a ValueError if it does not fit or comes too late."""
        if self.chosen is not None:
            raise ValueError(f"client {number} comes too late: others are being summed")
        if number not in self.cohort.numbers or number in self._boxes:
            raise ValueError(f"client {number} was not asked, or has answered")
        vector = masked.vector
        if vector.dtype != np.uint64 or vector.shape != self._sum.shape:
            raise ValueError(
                f"client {number} must send {self._sum.size} integers of 64 bits, got"
                f" {vector.shape} of {vector.dtype}"
            )
        holders = self.cohort.numbers if self.settings.mode == "recover" else ()
        sizes = {holder: len(box) for holder, box in masked.boxes.items()}
        if sizes != dict.fromkeys(holders, box_size(self.cohort)):
            raise ValueError(f"client {number} must send a box of shares for every holder")
        if len(masked.commitments) != COMMITMENT * len(holders):
            raise ValueError(f"client {number} must send a commitment for every secret")
        self._sum += vector
        self._boxes[number] = dict(masked.boxes)
        self._commitments[number] = masked.commitments

    def choose(self) -> tuple[int, ...]:
        """Fix the set of clients that are summed; raises ``Void`` if there are too few."""
        if self.chosen is None:
            if len(self._boxes) < self.required:
                raise Void(
                    f"{len(self._boxes)} of {len(self.cohort.members)} clients have answered, and"
                    f" {self.required} must; the round has no sum"
                )
            self.chosen = self.answered
        return self.chosen

    def requests(self) -> dict[int, dict[int, bytes]]:
        """The boxes for each holder that has not opened them, by sender; empty in strict mode."""
        if self.settings.mode == "strict":
            return {}
        senders = self.choose()
        return {
            holder: {sender: self._boxes[sender][holder] for sender in senders}
            for holder in self.cohort.numbers
            if holder not in self._opened
        }

    def learn(self, holder: int, opened: Mapping[int, bytes]) -> None:
        """Keep what a holder has opened; raises a ValueError if it does not fit."""
        senders = self.choose()
        if holder not in self.cohort.numbers or self.settings.mode == "strict":
            raise ValueError(f"client {holder} is not a holder")
        length = SEED * (1 + len(self.cohort.members) - len(senders))
        if not set(opened) <= set(senders) or any(len(it) != length for it in opened.values()):
            raise ValueError(f"client {holder} has opened other boxes than it was asked to")
        self._opened[holder] = dict(opened)

    def enough(self) -> bool:
        """Whether enough holders have answered."""
        return self.settings.mode == "strict" or len(self._opened) >= self.required

    def result(self) -> Decoded:
        """The sum; raises ``Void``, ``NotCancelled`` or ``Overflow``."""
        chosen, c = self.choose(), self.context.digest()
        if not self.enough():
            raise Void(
                f"{len(self._opened)} holders have opened masks, and {self.required} must; the"
                " round has no sum"
            )
        found = self._sum.copy()
        if self.settings.mode == "recover":
            good: list[tuple[int, ...]] = []  # sets of holders that have given right secrets
            for sender in chosen:
                for index, other in enumerate(shown(sender, chosen, self.cohort)):
                    seed = self._recovered(sender, other, index, c, good)
                    if other == sender:
                        primitives.add_mask(found, seed, OWN, c, minus=True)
                    else:  # undo what the sender did
                        primitives.add_mask(found, seed, PAIR, c, minus=sender < other)
        return self.format.decode(found, len(chosen))

    def _recovered(
        self, sender: int, other: int, index: int, c: bytes, good: list[tuple[int, ...]]
    ) -> bytes:
        """A secret of a client, from any holders whose shares fit the commitment to it."""
        place = self.cohort.place(other)
        role = OWN if other == sender else PAIR
        wanted = self._commitments[sender][COMMITMENT * place : COMMITMENT * (place + 1)]
        shares = {
            self.cohort.place(holder): opened[sender][SEED * index : SEED * (index + 1)]
            for holder, opened in sorted(self._opened.items())
            if sender in opened
        }
        for holders in islice(_attempts(shares, self.required, good), TRIES):
            seed = primitives.combined([(it, shares[it]) for it in holders])
            if committed(seed, role, c, sender, other) == wanted:
                if holders not in good:
                    good.insert(0, holders)
                return seed
        raise Void(
            f"{len(shares)} holders have opened a mask of client {sender}, but no"
            f" {self.required} of their shares fit; the round has no sum"
        )

    # ---- on disk

    def save(self) -> bytes:
        """Everything as bytes. Write them before asking holders: only this set can be opened."""
        head = {
            "cohort": _plain(self.cohort.packed()),
            "context": _plain(asdict(self.context)),
            "leaves": [list(leaf) for leaf in self.format.leaves],
            "format": [self.format.clients, self.format.weights],
            "settings": asdict(self.settings),
            "chosen": self.chosen,
            "boxes": _plain(self._boxes),
            "commitments": _plain(self._commitments),
            "opened": _plain(self._opened),
        }
        content = json.dumps(head).encode()
        return len(content).to_bytes(8, "big") + content + self._sum.astype("<u8").tobytes()

    @classmethod
    def load(cls, content: bytes) -> Collection:
        """Undo ``save``."""
        end = 8 + int.from_bytes(content[:8], "big")
        head = json.loads(content[8:end])
        leaves = tuple(
            Leaf(path, tuple(shape), kind, exponent)
            for path, shape, kind, exponent in head["leaves"]
        )
        clients, weights = head["format"]
        found = cls(
            Cohort.unpacked(_read(head["cohort"])),
            Context(**_read(head["context"])),
            Format(leaves, clients, weights),
            SecureSums(**head["settings"]),
        )
        found.chosen = None if head["chosen"] is None else tuple(head["chosen"])
        found._sum = np.frombuffer(content, dtype="<u8", offset=end).astype(np.uint64)
        found._boxes = _by_number(_read(head["boxes"]), nested=True)
        found._commitments = _by_number(_read(head["commitments"]))
        found._opened = _by_number(_read(head["opened"]), nested=True)
        return found


def _attempts(
    holders: Mapping[int, Any] | Sequence[int], required: int, good: Sequence[tuple[int, ...]]
) -> Iterator[tuple[int, ...]]:
    """Sets of holders to try: first those that were right before."""
    known = set(holders)
    yield from (it for it in good if known.issuperset(it))
    yield from combinations(holders, required)


def _plain(value: Any) -> Any:
    """For JSON: bytes become {"b": text in base 64}."""
    if isinstance(value, bytes):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): _plain(it) for key, it in value.items()}
    return value


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"b"}:
            return base64.b64decode(value["b"])
        return {key: _read(it) for key, it in value.items()}
    return value


def _by_number(values: Mapping[str, Any], nested: bool = False) -> dict[int, Any]:
    return {int(key): _by_number(it) if nested else it for key, it in values.items()}
