"""Projects written by earlier versions of ``evenhand flower new`` import both sides from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenhand.flower.client import client_app
    from evenhand.flower.server import server_app

__all__ = ["client_app", "server_app"]


# a node starts anew for every message, and does without the server's side
def __getattr__(name: str) -> Any:
    if name == "client_app":
        from evenhand.flower.client import client_app

        return client_app
    if name == "server_app":
        from evenhand.flower.server import server_app

        return server_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
