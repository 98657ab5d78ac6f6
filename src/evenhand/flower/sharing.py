"""What a node's owner lets the server see of a client by itself."""

from __future__ import annotations

from evenhand.engines.work import Evaluate, Work
from evenhand.errors import EvenhandError
from evenhand.messages import Reply

# from the least on
SHARES = {"sums": "sums alone", "method": "what the method needs", "client": "its scores, too"}


class NotShared(EvenhandError):
    """The server asks for what the node's owner does not share."""


def require_permission(share: str, work: Work, reply: Reply) -> None:
    """Raise where a reply would show more of this client by itself than its owner shares."""
    if reply.each and (share == "sums" or (share == "method" and isinstance(work, Evaluate))):
        names = ", ".join(reply.each)
        raise NotShared(
            f'its owner shares {SHARES[share]} (share="{share}"), and {work.name} would show of'
            f" this client by itself: {names}"
        )
