"""Who was left out of a round and why, on disk for ``evenhand flower status`` and the metrics."""

from __future__ import annotations

from pathlib import Path

from evenhand.flower import journal

FILE = "faults.jsonl"  # in the method's folder

# kinds of reasons, by words in them; a reason that has none of these is about the reply itself
KINDS = {
    "late": ("has not answered", "not answered in time", "is late"),
    "gone": ("node is gone", "no node any more"),
    "failed": ("node has failed", "log says more", "stopped responding"),
    "not shared": ("does not share", "not shared", "owner"),
}


def note_fault(folder: Path, round: int, client: int | None, name: str, what: str) -> None:
    """Note why a client was left out of ``round``, counted from 1; ``client`` is None for a node
    that is no client of the run."""
    record = {"round": round, "client": client, "name": name, "what": what}
    journal.append(folder / FILE, record)


def kind_of(what: str) -> str:
    """The kind of a reason, one of few, for numbers over many."""
    return next(
        (kind for kind, words in KINDS.items() if any(word in what for word in words)), "refused"
    )
