"""evenhand on Flower: the same methods in a real federation. Needs the extra ``flower``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("flwr") is None:
    raise ImportError(
        "evenhand.flower needs Flower, which is not installed: pip install 'evenhand[flower]'"
    )

if TYPE_CHECKING:
    from evenhand.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]


# apps bring torch along, which the commands that start processes do not need
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evenhand.flower import apps

    return getattr(apps, name)
