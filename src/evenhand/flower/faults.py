"""Describes what went wrong with a client, and records it in a file in the method's folder for
``evenhand flower status`` and the metrics."""

from __future__ import annotations

from pathlib import Path

from evenhand.flower import journal

FILE = "faults.jsonl"  # in the method's folder

FORMAT = 1  # of messages; another one is refused
LIMIT = 1 << 30  # bytes of a message: 256 million float32 values, half of what Flower can carry
EXPIRED, GONE = 3, 5
# Flower's own errors, by code
ERRORS = {
    1: "its app cannot be loaded, see its log",
    2: "its node has failed, see its log",
    EXPIRED: "it has not answered in time",
    4: "its reply was lost on the way",
    GONE: "its node is gone",
    6: "its app refuses the message, see its log",
    7: "it cannot use the app that was sent, see its log",
    8: "its app was killed or has crashed, see its log",
}


def in_words(code: int) -> str:
    """Describe an error with which Flower itself replies."""
    return f"{ERRORS.get(code, ERRORS[2])} (Flower's error {code})"


def note_fault(
    folder: Path | None, round: int, client: int | None, name: str, kind: str, what: str
) -> None:
    """Append a line to the file of faults.

    Args:
        folder: the method's folder; None records nothing.
        round: counted from 1.
        client: None for a node that is not a client of the run.
        kind: "refused", "failed", "late", "gone" or "bounded".
        what: the reason, without the client's name.
    """
    if folder is not None:
        row = {"round": round, "client": client, "name": name, "kind": kind, "what": what}
        journal.append(folder / FILE, row)
