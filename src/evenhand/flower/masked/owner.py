"""Keys and rules of a node, from its owner's settings alone: node config and policy file.

Nothing here loads torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.errors import RunError, SpecError, first_line
from evenhand.flower.policy import Policy

if TYPE_CHECKING:
    from evenhand.secure import Identity, Node, Trust

log = logging.getLogger(__name__)

LEDGER = "masks.json"  # in the node's state-dir: its private keys, and what it has answered


def node_of(config: Mapping[str, Any], policy: Policy, folder: Path, name: str, run: str) -> Node:
    """The node's side of masked sums in a run; raises a SpecError if a setting cannot be used."""
    try:
        from evenhand.secure import Ledger, Node
    except ImportError as error:
        raise RunError(f"on the node, {first_line(error)}") from error
    folder.mkdir(parents=True, exist_ok=True)
    return Node(
        Ledger(folder / LEDGER),
        name,
        run,
        _trust(_path(config, "trusted-keys", policy.trusted_keys)),
        _identity(_path(config, "identity-key", policy.identity_key)),
        least=max(_least(config), policy.least),
    )


def tell_fingerprints(node: Node, trusts: bool) -> None:
    """Print and log the node's fingerprint, which its owner compares with other owners'."""
    from evenhand.secure import fingerprint

    shown = fingerprint(node.announced().signer)
    line = f"masked sums: this node's key has the fingerprint {shown}"
    if not trusts:
        line += (
            "; without trusted-keys in its node config it recognises the other nodes' first keys"
            " again, and does not notice a server that lies from the start"
        )
    log.info("%s", line)
    print(line, flush=True)


def trusts(config: Mapping[str, Any], policy: Policy) -> bool:
    """Whether the owner has named trusted keys."""
    return _path(config, "trusted-keys", policy.trusted_keys) is not None


def _path(config: Mapping[str, Any], key: str, otherwise: str) -> Path | None:
    found = str(config.get(key, otherwise))
    return Path(found) if found else None


def _least(config: Mapping[str, Any]) -> int:
    found = config.get("least", 3)
    if type(found) is not int or found < 3:
        raise SpecError("least in its node config must be a whole number of 3 or more")
    return found


def _identity(path: Path | None) -> Identity | None:
    from evenhand.secure import Identity

    try:
        return None if path is None else Identity.load(path)
    except (OSError, ValueError) as error:
        raise SpecError(f"its identity-key cannot be used: {_reason(error)}") from error


def _trust(path: Path | None) -> Trust:
    from evenhand.secure import Trust

    try:
        return Trust() if path is None else Trust.load(path)
    except (OSError, ValueError) as error:
        raise SpecError(f"its trusted-keys cannot be used: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Why, without a path of the node."""
    shown = error.strerror if isinstance(error, OSError) else first_line(error)
    return shown or type(error).__name__
