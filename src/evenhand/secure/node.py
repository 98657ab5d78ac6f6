"""The client's side: masks one vector for one exchange, and opens others' masks as a holder."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evenhand.secure import primitives
from evenhand.secure.cohort import Cohort
from evenhand.secure.context import Context, digest
from evenhand.secure.keys import Announcement, Identity, NodeKey, Trust
from evenhand.secure.ledger import Answer, Ledger
from evenhand.secure.noise import add_noise
from evenhand.secure.numbers import Format, Vector
from evenhand.secure.primitives import SEED
from evenhand.secure.refusals import Refused
from evenhand.secure.settings import MODES, SecureSums

OWN, PAIR, SEAL = "own mask", "pair mask", "seal"  # roles of secrets


class Masked(NamedTuple):
    """What a client sends: its vector, and for each holder a sealed box with shares.

    In strict mode there are no boxes and no commitments.
    """

    vector: Vector
    boxes: Mapping[int, bytes]  # by the holder's number
    commitments: bytes  # to the shared secrets, 32 bytes each, in the list's order


@dataclass(frozen=True)
class Node:
    """A client's node in one run: it has keys and memory, and enforces the rules.

    Args:
        ledger: what it has answered, with its key.
        name: of the client.
        run: of the run.
        trust: whose keys it accepts.
        identity: signs its key; by default a key of its own in the ledger, which others can pin.
        least: the owner's least number of clients; the server's ``least`` may be higher.
        modes: which modes the owner allows.
    """

    ledger: Ledger
    name: str
    run: str
    trust: Trust
    identity: Identity | None = None
    least: int = 3
    modes: tuple[str, ...] = MODES

    def key(self) -> NodeKey:
        """The node's key for this run; made and written when it is first needed."""
        return self.ledger.key(self.run, self.name)

    def announced(self) -> Announcement:
        """What the node tells with the census."""
        return self.key().announced(self.identity or self.ledger.identity())

    def mask(
        self,
        vector: Vector,
        number: int,
        cohort: Cohort,
        context: Context,
        settings: SecureSums,
        own: bytes = b"",
        noise: Mapping[str, Any] | None = None,
        format: Format | None = None,
    ) -> Masked:
        """Mask a vector for one exchange; raises ``Refused``.

        The same vector again gives the same bytes. Noise is drawn here, once per context.

        Args:
            vector: from ``Format.encode``.
            number: the node's client number.
            cohort: the list as it was sent; its digest must be in the context.
            context: built by the node from what it was sent.
            settings: of the exchange, as sent.
            own: digest of what this client alone was sent.
            noise: by path, the standard deviation that the *sum* must carry (a number or an array);
                needs ``format``.
            format: the format of the vector, for noise.
        """
        key = self._checked(number, cohort, context, settings, own)
        c, required = context.digest(), settings.required(len(cohort.members))
        if settings.mode == "strict":  # nothing else has to be opened for the sum over the list
            self.ledger.allow(context, self.name, _set_digest(cohort.numbers, cohort))
        seeds = self._pair_seeds(key, number, cohort, c)
        given = hashlib.sha256(np.ascontiguousarray(vector).data).digest()

        def draw() -> Answer:
            mask, noise_seed = secrets.token_bytes(SEED), secrets.token_bytes(32)
            if settings.mode == "strict":
                return Answer(mask, noise_seed, {}, b"")
            return Answer(
                mask, noise_seed, *_packages(key, number, cohort, c, required, mask, seeds)
            )

        answer = self.ledger.answer(context, self.name, given, draw)
        if noise:
            assert format is not None, "noise needs the vector's format"
            shares = required - settings.colluding
            masked = add_noise(vector, format, noise, shares, answer.noise)
        else:
            masked = vector.copy()
        if settings.mode == "recover":
            primitives.add_mask(masked, answer.mask, OWN, c, minus=False)
        for other, seed in seeds.items():
            primitives.add_mask(masked, seed, PAIR, c, minus=other < number)
        return Masked(masked, answer.boxes, answer.commitments)

    def open_boxes(
        self,
        answered: Sequence[int],
        boxes: Mapping[int, bytes],
        number: int,
        cohort: Cohort,
        context: Context,
        settings: SecureSums,
        own: bytes = b"",
    ) -> dict[int, bytes]:
        """As a holder, open the boxes of the clients that answered; raises ``Refused``.

        Returns, by sender, its share of the sender's own mask and of the masks it has with clients
        that did not answer. A box that cannot be opened is left out.

        Args:
            answered: the numbers of the clients in the sum.
            boxes: by sender.
        """
        key = self._checked(number, cohort, context, settings, own)
        chosen, required = sorted(set(answered)), settings.required(len(cohort.members))
        if settings.mode == "strict":
            raise Refused("known mode", "in strict mode there is nothing to open")
        if not set(chosen) <= set(cohort.numbers) or len(chosen) < len(answered):
            raise Refused("in the list", "the sum has clients that are not in the list, or twice")
        if len(chosen) < required:
            raise Refused(
                "threshold",
                f"the sum would have {len(chosen)} clients, at least {required} must be",
            )
        if not set(boxes) <= set(chosen):
            raise Refused("one set", "boxes of clients that are not in the sum stay closed")
        c = context.digest()
        opened = {}
        for sender in sorted(boxes):
            found = self._opened(key, number, sender, cohort, c, boxes[sender])
            if found is not None:
                places = (cohort.place(it) for it in shown(sender, chosen, cohort))
                opened[sender] = b"".join(found[SEED * it : SEED * (it + 1)] for it in places)
        self.ledger.allow(context, self.name, _set_digest(chosen, cohort))
        return opened

    def _checked(
        self, number: int, cohort: Cohort, context: Context, settings: SecureSums, own: bytes
    ) -> NodeKey:
        """The node's key, if what it is asked keeps the rules."""
        if settings.mode not in self.modes:
            raise Refused(
                "known mode",
                f'the owner does not allow the mode "{settings.mode}", only {self.modes}',
            )
        if settings.least < self.least:
            raise Refused(
                "known mode",
                f"the owner wants at least {self.least} clients, the server {settings.least}",
            )
        if context.run != self.run or context.cohort != cohort.digest():
            raise Refused("in the list", "the context has another run or list")
        if context.settings != settings.described():
            raise Refused("known mode", "the context has other settings")
        key = self.key()
        cohort.check(key, number, own, self.trust, settings)
        self.ledger.pin(self.run, (member.announced for member in cohort.members))
        return key

    def _pair_seeds(self, key: NodeKey, number: int, cohort: Cohort, c: bytes) -> dict[int, bytes]:
        """The seed that it shares with each other client, by number."""
        return {
            member.number: key.secret(member.announced, PAIR, c, SEED)
            for member in cohort.members
            if member.number != number
        }

    def _opened(
        self, key: NodeKey, number: int, sender: int, cohort: Cohort, c: bytes, box: bytes
    ) -> bytes | None:
        sealing = key.secret(cohort.member(sender).announced, SEAL, c, 32)
        found = primitives.unsealed(sealing, c, sender, number, box)
        return found if found is not None and len(found) == SEED * len(cohort.members) else None


def shown(sender: int, chosen: Iterable[int], cohort: Cohort) -> list[int]:
    """Whose shares a holder shows from a sender's box: of the sender's own mask, and of the masks
    that it has with clients that are not in the sum."""
    inside = set(chosen)
    return [sender, *(number for number in cohort.numbers if number not in inside)]


def box_size(cohort: Cohort) -> int:
    """Bytes of a box: a share of each secret of its sender."""
    return SEED * len(cohort.members) + primitives.TAG


def _packages(
    key: NodeKey,
    number: int,
    cohort: Cohort,
    c: bytes,
    required: int,
    mask: bytes,
    seeds: Mapping[int, bytes],
) -> tuple[dict[int, bytes], bytes]:
    """For each holder the shares of a client's secrets, sealed, and commitments to the secrets."""
    holders = len(cohort.members)
    table, commitments = [], []  # a row per secret, in the list's order
    for other in cohort.numbers:
        secret, role = (mask, OWN) if other == number else (seeds[other], PAIR)
        table.append(primitives.shares_of(secret, required, holders))
        commitments.append(committed(secret, role, c, number, other))
    boxes = {}
    for place, member in enumerate(cohort.members):
        sealing = key.secret(member.announced, SEAL, c, 32)
        content = b"".join(row[place] for row in table)
        boxes[member.number] = primitives.sealed(sealing, c, number, member.number, content)
    return boxes, b"".join(commitments)


def committed(secret: bytes, role: str, c: bytes, one: int, other: int) -> bytes:
    """The commitment to a client's own seed, or to that of a pair: both clients have the same."""
    return primitives.commitment(secret, role, c, min(one, other), max(one, other))


def _set_digest(chosen: Iterable[int], cohort: Cohort) -> bytes:
    """Which clients are in a sum, by name and owner: numbers could be given to others."""
    parts: list[str] = []
    for number in chosen:
        announced = cohort.member(number).announced
        parts += [announced.name, announced.signer]
    return digest("set", *parts)
