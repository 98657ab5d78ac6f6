"""What a node's owner lets the server see about a single client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenhand.flower.answering import Declined

if TYPE_CHECKING:
    from evenhand.engines.work import Work
    from evenhand.messages import Reply

# from least to most
SHARES = {
    "masked": "only masked sums",
    "sums": "only sums",
    "method": "what the method needs",
    "client": "also its scores",
}


class NotShared(Declined):
    """The server asks for something that the node's owner does not share."""


def require_permission(share: str, work: Work, reply: Reply) -> None:
    """Raise if a reply would reveal more about this client than its owner shares."""
    if reply.each and (
        share in ("masked", "sums") or (share == "method" and work.name == "evaluate")
    ):
        names = ", ".join(reply.each)
        raise NotShared(
            f'its owner shares {SHARES[share]} (share="{share}"), but {work.name} would reveal'
            f" about this client: {names}"
        )
