"""What can go wrong with a federation on loopback."""

from __future__ import annotations

from evenhand.errors import EvenhandError


class FederationError(EvenhandError):
    """A process of the federation did not start, ended, or refused a command."""
