"""What a message says about masks: the list of clients, the exchange and the exponents.

Nothing here loads torch, because a node that only opens masks does without, and nothing loads what
masks need, because other nodes may not have it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from evenhand.flower.answering import text, whole
from evenhand.secure import Context, SecureSums

if TYPE_CHECKING:
    from evenhand.secure import Cohort

# keys among a message's plain values
MASKS, COHORT = "masks", "cohort"
SENDERS, BOXES, COMMITMENTS, ANSWERED, OPENED = (
    "senders", "boxes", "commitments", "answered", "opened",
)  # fmt: skip
UNMASK = "query.unmask"  # the type of the second message
# what is the same for all clients, and must be in the context of every mask
ALIKE = ("how", "look", "seed", "groups", "loss", "normalisation")


@dataclass(frozen=True)
class Told:
    """What a task says about masks.

    Args:
        exchange: rises with every exchange of a session.
        settings: of the run.
        exponents: by path, of the fixed-point leaves.
    """

    exchange: int
    settings: SecureSums
    exponents: Mapping[str, int]

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(
            {
                "exchange": self.exchange,
                "settings": asdict(self.settings),
                "exponents": dict(self.exponents),
            }
        )

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> Told:
        """Undo ``to_text``, from a message's plain values; raises a ValueError."""
        try:
            found = json.loads(text(about, MASKS))
            exponents = {str(path): found["exponents"][path] for path in found["exponents"]}
            numbers = [found["exchange"], *exponents.values()]
            if any(type(number) is not int for number in numbers):
                raise TypeError("not a whole number")
            return cls(found["exchange"], SecureSums(**found["settings"]), exponents)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(
                "a message has invalid settings of masked sums; install the same version everywhere"
            ) from error


def cohort_in(about: Mapping[str, Any]) -> Cohort:
    """The list of clients in a message."""
    from evenhand.secure import Cohort

    content = about.get(COHORT)
    if not isinstance(content, bytes):
        raise ValueError("a message has no list of clients")
    return Cohort.unpacked(content)


def alike(about: Mapping[str, Any]) -> str:
    """Everything that all clients must have been told alike, beside tensors, as text."""
    return json.dumps({name: about[name] for name in ALIKE if name in about}, sort_keys=True)


def context(
    about: Mapping[str, Any], work: str, shared: bytes, numbers: bytes, cohort: Cohort
) -> Context:
    """The context of an exchange, from a task as it was sent or received.

    Args:
        work: its kind and the part of the data that it reads.
        shared: digest of the packed tensors that all clients get.
        numbers: digest of the format.
    """
    told = Told.read(about)
    return Context(
        text(about, "run"),
        whole(about, "session"),
        told.exchange,
        whole(about, "round"),
        work,
        alike(about),
        shared,
        cohort.digest(),
        numbers,
        told.settings.described(),
    )


def digest_of(packed: bytes) -> bytes:
    """The digest of packed tensors."""
    return hashlib.sha256(packed).digest()


def packed_context(context: Context) -> str:
    """A context as JSON, for holders."""
    found = asdict(context)
    return json.dumps(
        {name: value.hex() if isinstance(value, bytes) else value for name, value in found.items()}
    )


def unpacked_context(content: str) -> Context:
    """Undo :func:`packed_context`; raises a ValueError."""
    try:
        found = json.loads(content)
        for name in ("shared", "cohort", "numbers"):
            found[name] = bytes.fromhex(found[name])
        made = Context(**found)
        kinds = {"session": int, "exchange": int, "round": int}
        for name, value in asdict(made).items():
            known = kinds.get(name, bytes if name in ("shared", "cohort", "numbers") else str)
            if type(value) is not known:
                raise TypeError(name)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            "a message has no readable context; install the same version everywhere"
        ) from error
    return made


def by_number(about: Mapping[str, Any], numbers: str, values: str) -> dict[int, bytes]:
    """Bytes by client number, from two lists of a message; raises a ValueError."""
    found, contents = (about.get(name) or [] for name in (numbers, values))
    if (
        not isinstance(found, list)
        or not isinstance(contents, list)
        or len(set(found)) != len(contents)
        or not all(type(number) is int for number in found)
        or not all(isinstance(content, bytes) for content in contents)
    ):
        raise ValueError("a message has lists of masks that cannot be read")
    return dict(zip(found, contents, strict=True))
