"""Which clients the operator of a federation approves, and how much each may count.

Nodes report their own sample counts, so a false count must not buy weight. By default a client
counts for at most five times the median number of samples; the operator can approve more.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from evenhand.errors import require_number, require_whole
from evenhand.flower.registration import Registration

LEAST = 3  # fewest clients with a meaningful median


@dataclass(frozen=True)
class Admission:
    """What the operator of a federation approves.

    Args:
        cap: a client counts for at most this many times the median number of samples, in training
            and in sums over samples; None for no cap.
        samples: how many samples a client may count for, whatever the median: one number for all
            clients, or numbers by name for some.
        names: clients that may take part; None for any.
        groups: groups that samples may have; None for those of the first clients.
        teams: teams that clients may be in; None for any.
        nodes: the node that a name belongs to: Flower's node id, or the registered public key (a
            path or its text). Other names belong to the first node that uses them.
        most_groups: limit on groups in the whole federation; more groups cost memory on the server.
    """

    cap: float | None = 5.0
    samples: int | Mapping[str, int] | None = None
    names: Collection[str] | None = None
    groups: Collection[str] | None = None
    teams: Collection[str] | None = None
    nodes: Mapping[str, int | str | Path] | None = None
    most_groups: int = 50

    def __post_init__(self) -> None:
        if self.cap is not None:
            require_number("cap", self.cap, "[1, inf)", "it is a multiple of the median")
        approved = self.samples if isinstance(self.samples, Mapping) else {"samples": self.samples}
        for name, count in approved.items():
            require_whole(f"approved samples of {name}", count, 1, optional=count is self.samples)
        for field in ("names", "groups", "teams"):
            if isinstance(getattr(self, field), str):
                raise TypeError(f'{field} must be a list of names, such as ("a", "b")')
        require_whole("most_groups", self.most_groups, 1)
        _ = self._keys  # unreadable keys fail now

    @property
    def needs_keys(self) -> bool:
        """Whether the public keys of nodes decide who may take part."""
        return bool(self._keys)

    @cached_property
    def _keys(self) -> dict[str, bytes]:
        nodes = (self.nodes or {}).items()
        return {name: _key(known) for name, known in nodes if not isinstance(known, int)}

    def reason_against(self, report: Registration, node: int, key: bytes = b"") -> str:
        """Why this node, with its public ``key``, is not approved; empty if it is."""
        unknown = [name for name in report.groups if not _allows(self.groups, name)]
        if not _allows(self.names, report.name):
            return f"{report.name} is not among the approved names"
        if report.team and not _allows(self.teams, report.team):
            return f"its team {report.team} is not among the approved teams"
        if unknown:
            return f"its group {unknown[0]} is not among the approved groups"
        if len(report.groups) > self.most_groups:
            return (
                f"it reports {len(report.groups)} groups, and {self.most_groups} are allowed"
                " (Admission(most_groups=...))"
            )
        if report.name in self._keys and self._keys[report.name] != _same_key(key):
            return f"the name {report.name} belongs to another node key"
        owner = (self.nodes or {}).get(report.name)
        if isinstance(owner, int) and owner != node:
            return f"the name {report.name} belongs to node {owner}"
        return ""

    def weighed(self, names: Iterable[str], sizes: Tensor) -> Tensor:
        """(n,) the number of samples each client counts for."""
        known = [size for size in sizes.tolist() if size]
        most = int(sizes.max()) if known else 0
        if self.cap is not None and len(known) >= LEAST:
            most = int(self.cap * statistics.median(known))
        if isinstance(self.samples, int):
            most = self.samples
        by_name = self.samples if isinstance(self.samples, Mapping) else {}
        limits = torch.tensor([by_name.get(name, most) for name in names], dtype=torch.int64)
        return torch.minimum(sizes, limits)


# believe whatever nodes report
ANYONE = Admission(cap=None, most_groups=1 << 20)


def _allows(allowed: Collection[str] | None, name: str) -> bool:
    return allowed is None or name in allowed


def _key(known: str | Path) -> bytes:
    """A public key from a file or a text, in one form."""
    text = str(known)
    try:
        if isinstance(known, Path) or not text.startswith(("ssh-", "ecdsa-", "-----")):
            text = Path(known).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"public key {known} cannot be read: {error.strerror}") from error
    found = _same_key(text.encode())
    if not found:
        raise ValueError(f"{known} is not a public key; give the .pub file of ssh-keygen")
    return found


def _same_key(key: bytes) -> bytes:
    """The key in one form, whether ssh-keygen or Flower wrote it; empty if it is not a key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms

    try:
        load = (
            forms.load_pem_public_key
            if key.lstrip().startswith(b"-----")
            else forms.load_ssh_public_key
        )
        return load(key).public_bytes(forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return b""
