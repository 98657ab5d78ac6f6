"""Who was left out of a round or bounded in it, and why: a line in the log, and one in
``faults.jsonl`` in the method's folder for those who look later."""

from __future__ import annotations

import json
import logging
from pathlib import Path

log = logging.getLogger(__name__)

FAULTS = "faults.jsonl"


class Faults:
    """Notes faults as they are found.

    Args:
        folder: where the file lies; None writes none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FAULTS

    def note(self, round: int, client: int, name: str, kind: str, what: str, said: str) -> None:
        """Note a fault.

        Args:
            round: people count rounds from 1, here they are counted from 0.
            kind: "refused", "failed", "late", "gone" or "bounded".
            what: the reason, without the client's name.
            said: the line for the log.
        """
        log.warning("%s", said)
        if self._path is None:
            return
        row = {"round": round + 1, "client": client, "name": name, "kind": kind, "what": what}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
