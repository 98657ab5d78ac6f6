"""What can go wrong with masked sums, as exceptions.

Refused         a node does not do what a server asks; names the rule
Void            the round has no sum: too few clients or holders answered; the state stays
NotCancelled    masks are left over in a sum
Overflow        values of some clients were beyond the range; ask the same clients with a wider
NotFinite       a client's values are not finite, so it must not send them
"""

from __future__ import annotations

from evenhand.errors import EvenhandError

# the rules of a node, by the name that a refusal has
RULES = {
    "one input": "a context masks one input; another one would give the server the difference",
    "newer exchanges only": "an exchange that is over is not repeated",
    "one set": "a question is summed over one set of clients; two sums would give a difference",
    "threshold": "too few clients would be in the sum, or too few holders could open it",
    "enough others": "the sum would be one client, or nearly",
    "in the list": "a node works only with a list that has itself, as it is, and each client once",
    "signed keys": "a key must be signed by its owner",
    "trusted keys": "a key must be signed by an owner this node trusts",
    "pinned keys": "an owner's signature or key must not change to an older one or another's",
    "same task": "the weights in the list must be those that the node was told",
    "known mode": "the node's owner sets the mode and the least number of clients",
}


class Refused(EvenhandError):
    """A node refuses what a server asks; ``rule`` is one of ``RULES``."""

    def __init__(self, rule: str, what: str) -> None:
        assert rule in RULES, rule
        super().__init__(f"{what} (rule: {rule})")
        self.rule = rule


class Void(EvenhandError):
    """An exchange without a sum; nothing about a client has been opened."""


class NotCancelled(EvenhandError):
    """Masks are left over in a sum, so it means nothing."""


class Overflow(EvenhandError):
    """Values of ``clients`` clients were beyond the range, so the sum must not be used."""

    def __init__(self, clients: int) -> None:
        super().__init__(
            f"the values of {clients} clients are beyond the range of the masked sum; ask the same"
            " clients again with larger exponents"
        )
        self.clients = clients


class NotFinite(EvenhandError):
    """A client's values are NaN or infinite, so it sends nothing."""
