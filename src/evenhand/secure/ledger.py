"""What a node has answered, in one file with its keys, written before a reply leaves the node."""

from __future__ import annotations

from pathlib import Path


class Ledger:
    """A node's memory of what it has answered; see the rules in ``evenhand.secure.refusals``.

    The file holds private keys: a node that loses one loses the other, and comes back as new.

    Args:
        path: of the file, readable by its owner only; None keeps everything in memory (simulation).
    """

    def __init__(self, path: Path | None = None) -> None:
        raise NotImplementedError
