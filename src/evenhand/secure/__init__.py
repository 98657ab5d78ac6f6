"""Masked sums: a server learns the sum over clients, and not what a single client sent.

Not audited. This package needs NumPy, ``cryptography`` and pycryptodome, and no other part of
evenhand, so that it can be read alone. docs/explanation/masked-sums.md has protocol and threats.

| module    | what it has                                                              |
|-----------|--------------------------------------------------------------------------|
| settings  | ``SecureSums``                                                           |
| numbers   | trees of numbers as vectors of integers modulo 2^64                      |
| context   | what all clients of an exchange must have been told alike                |
| keys      | X25519 keys, identities that sign them, whom to trust                    |
| cohort    | the list of clients, and when a node refuses it                          |
| masks     | secrets expanded to masks; shares of secrets; sealed boxes               |
| ledger    | what a node has answered, on disk                                        |
| node      | the client's side                                                        |
| server    | the server's side                                                        |
| noise     | integer noise from the system's generator                                |
| refusals  | the rules by name, and the exceptions                                    |
"""

from evenhand.secure.cohort import Cohort, Member, effective
from evenhand.secure.context import Context, digest
from evenhand.secure.keys import Announcement, Identity, NodeKey, Trust, fingerprint
from evenhand.secure.ledger import Ledger
from evenhand.secure.node import Masked, Node
from evenhand.secure.numbers import Decoded, Format
from evenhand.secure.refusals import NotCancelled, NotFinite, Overflow, Refused, Void
from evenhand.secure.server import Collection
from evenhand.secure.settings import SecureSums

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
