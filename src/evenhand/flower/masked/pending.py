"""Sums that wait to be opened, and exponents, on the server's disk.

A question (a kind of work about one model in one round) may be summed over one set of clients
only: nodes refuse another one. So the server writes the set, the masked sum and the sealed boxes
before it asks anybody to open them, and after a restart it goes on with the same set. Nothing of a
single client can be read in these files.
"""

from __future__ import annotations

import logging
from pathlib import Path

from evenhand.errors import first_line
from evenhand.files import write_atomic
from evenhand.flower import journal
from evenhand.secure import Collection

log = logging.getLogger(__name__)

FOLDER = "masked-sums"  # in the method's folder
EXPONENTS = "exponents.jsonl"


class Pending:
    """Sums by round and question.

    Args:
        folder: the method's folder; None keeps nothing, so a restart begins the round anew.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / FOLDER

    def find(self, round: int, question: bytes) -> Collection | None:
        """The sum of an earlier start of the server, if there is one."""
        path = self._path(round, question)
        if path is None or not path.exists():
            return None
        try:
            return Collection.load(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError) as error:
            # without it nodes refuse other sets, so the round has no sum
            log.warning("%s cannot be used: %s", path, first_line(error))
            return None

    def keep(self, round: int, question: bytes, collection: Collection) -> None:
        """Write a sum, before anybody is asked to open it; older rounds are over."""
        path = self._path(round, question)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, collection.save())
        for other in path.parent.glob("round-*.sum"):
            if int(other.name.split("-")[1]) < round:
                other.unlink(missing_ok=True)

    def drop(self, round: int, question: bytes) -> None:
        """Forget a sum."""
        path = self._path(round, question)
        if path is not None:
            path.unlink(missing_ok=True)

    def _path(self, round: int, question: bytes) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"round-{round}-{question.hex()[:32]}.sum"


class Exponents:
    """How large the numbers of past sums were, by question: the next ones are laid out for that.

    They are saved with their round, so that a resumed run continues as if it had not been
    interrupted.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FOLDER / EXPONENTS
        self._known: dict[str, dict[int, dict[str, int]]] = {}
        for row in [] if self._path is None else journal.read(self._path).records:
            self._known.setdefault(str(row["question"]), {})[int(row["round"])] = row["exponents"]

    def before(self, question: str, round: int) -> dict[str, int]:
        """Those that follow from the last sum before ``round``; none if there was no sum."""
        rounds = self._known.get(question, {})
        last = max((known for known in rounds if known < round), default=None)
        return {} if last is None else rounds[last]

    def note(self, question: str, round: int, exponents: dict[str, int]) -> None:
        """Record what follows from the sum of a round."""
        known = self._known.setdefault(question, {})
        if known.get(round) == exponents:
            return
        known[round] = exponents
        if self._path is not None:
            row = {"question": question, "round": round, "exponents": exponents}
            journal.append(self._path, row)
