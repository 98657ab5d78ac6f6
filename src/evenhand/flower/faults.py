"""What went wrong with a client, in words and in a file."""

from __future__ import annotations

import json
from pathlib import Path

FILE = "faults.jsonl"  # in the method's folder

EXPIRED = 3
# of the errors with which Flower itself replies, by code
ERRORS = {
    1: "its app cannot be loaded, see its log",
    2: "its node has failed, see its log",
    EXPIRED: "it has not answered in time",
    4: "its reply was lost on the way",
    5: "its node is gone",
    6: "its app refuses the message, see its log",
    7: "it cannot use the app that was sent, see its log",
    8: "its app was killed or has crashed, see its log",
}


def in_words(code: int) -> str:
    """An error with which Flower itself replies."""
    return f"{ERRORS.get(code, ERRORS[2])} (Flower's error {code})"


def note_fault(folder: Path | None, round: int, client: int, name: str, what: str) -> None:
    """Add a line to the file of faults; rounds are counted from 1, as people do."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"round": round, "client": client, "name": name, "what": what})
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
