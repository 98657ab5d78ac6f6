"""evenhand on Flower: the same methods in a real federation. Needs the extra ``flower``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

FLOWER = (
    "flwr>=1.41,<1.42"  # as in the extra; the apps that `evenhand flower new` writes need it too
)

if find_spec("flwr") is None:
    raise ImportError(
        f"evenhand.flower needs Flower, which is not installed: pip install '{FLOWER}'"
        " cryptography (extra: evenhand[flower])"
    )

if TYPE_CHECKING:
    from evenhand.flower.admission import Admission
    from evenhand.flower.client import client_app
    from evenhand.flower.codebook import Codebook
    from evenhand.flower.columns.wanted import Columns
    from evenhand.flower.policy import Policy
    from evenhand.flower.server import server_app
    from evenhand.flower.tryout.certificates import write_certificates
    from evenhand.flower.tryout.loopback import Loopback
    from evenhand.secure.settings import SecureSums

__all__ = [
    "Admission",
    "Codebook",
    "Columns",
    "Loopback",
    "Policy",
    "SecureSums",
    "client_app",
    "server_app",
    "write_certificates",
]

# A node starts anew for every message: it loads its own side and nothing else. Commands that start
# processes do without torch.
_HOME = {
    "Admission": "admission",
    "Codebook": "codebook",
    "Columns": "columns.wanted",
    "Policy": "policy",
    "SecureSums": "evenhand.secure.settings",
    "Loopback": "tryout.loopback",
    "client_app": "client",
    "server_app": "server",
    "write_certificates": "tryout.certificates",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    home = home if home.startswith("evenhand.") else f"{__name__}.{home}"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
