"""Masked sums: a server learns the sum over clients, and not what a single client sent.

Not audited. This package needs NumPy, ``cryptography`` and pycryptodome, and no other part of
evenhand but ``errors``, so that it can be read alone. docs/explanation/masked-sums.md has the
protocol and the threats. Importing it loads no cryptography; names are loaded when they are used.

| module       | what it has                                                           |
|--------------|-----------------------------------------------------------------------|
| settings     | ``SecureSums``                                                        |
| numbers      | trees of numbers as vectors of integers modulo 2^64                   |
| limbs        | floats as integers whose sums are exact                               |
| context      | what all clients of an exchange must have been told alike             |
| primitives   | all cryptography: key agreement, masks, boxes, shares, commitments    |
| keys         | X25519 keys, identities that sign them, whom to trust                 |
| cohort       | the list of clients, and when a node refuses it                       |
| ledger       | what a node has answered, on disk                                     |
| node         | the client's side                                                     |
| server       | the server's side                                                     |
| noise        | integer noise from the system's generator                             |
| refusals     | the rules by name, and the exceptions                                 |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from evenhand.secure.context import Context, digest
from evenhand.secure.numbers import Decoded, Format
from evenhand.secure.refusals import NotCancelled, NotFinite, Overflow, Refused, Void
from evenhand.secure.settings import SecureSums

if TYPE_CHECKING:
    from evenhand.secure.cohort import Cohort, Member, effective
    from evenhand.secure.keys import Announcement, Identity, NodeKey, Trust, fingerprint
    from evenhand.secure.ledger import Ledger
    from evenhand.secure.node import Masked, Node
    from evenhand.secure.server import Collection

_HOME = {
    "cohort": ("Cohort", "Member", "effective"),
    "keys": ("Announcement", "Identity", "NodeKey", "Trust", "fingerprint"),
    "ledger": ("Ledger",),
    "node": ("Masked", "Node"),
    "server": ("Collection",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Announcement",
    "Cohort",
    "Collection",
    "Context",
    "Decoded",
    "Format",
    "Identity",
    "Ledger",
    "Masked",
    "Member",
    "Node",
    "NodeKey",
    "NotCancelled",
    "NotFinite",
    "Overflow",
    "Refused",
    "SecureSums",
    "Trust",
    "Void",
    "digest",
    "effective",
    "fingerprint",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs cryptography."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
