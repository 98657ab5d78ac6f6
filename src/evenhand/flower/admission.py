"""Who may take part in a federation, and how much a client may weigh: what its operator approves.

A node says itself how many samples it has, so a claim must not buy weight. By default a client
weighs no more than five times the median of the clients' samples; the operator approves more.
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

LEAST = 3  # clients of which a median says anything


@dataclass(frozen=True)
class Admission:
    """What the operator of a federation approves.

    Args:
        cap: a client weighs no more than so many times the median of the clients' samples, in
            training and in sums over samples; None for no cap.
        samples: how many samples a client may weigh, whatever the median is: a number for all, or
            numbers by name for some.
        names: clients that may take part; None for any.
        groups: groups that samples may have; None for those that the first clients have.
        teams: teams that clients may be in; None for any.
        nodes: which node a name belongs to: Flower's number of the node, or its public key (a path
            or the text of the key, as it was registered). Names without an entry belong to the
            first node that uses them.
        most_groups: groups in the whole federation; more costs memory on the server.
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
        _ = self._keys  # a key that cannot be read shows now

    @property
    def needs_keys(self) -> bool:
        """Whether the public keys of nodes decide who may take part."""
        return bool(self._keys)

    @cached_property
    def _keys(self) -> dict[str, bytes]:
        nodes = (self.nodes or {}).items()
        return {name: _key(known) for name, known in nodes if not isinstance(known, int)}

    def reason_against(self, report: Registration, node: int, key: bytes = b"") -> str:
        """Why the operator has not approved this node, which ``key`` belongs to; empty where it may
        take part."""
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
        """(n,) samples that count for each client, of those that it reports."""
        known = [size for size in sizes.tolist() if size]
        most = int(sizes.max()) if known else 0
        if self.cap is not None and len(known) >= LEAST:
            most = int(self.cap * statistics.median(known))
        if isinstance(self.samples, int):
            most = self.samples
        by_name = self.samples if isinstance(self.samples, Mapping) else {}
        limits = torch.tensor([by_name.get(name, most) for name in names], dtype=torch.int64)
        return torch.minimum(sizes, limits)


# whatever nodes report; what a roster without an operator has
ANYONE = Admission(cap=None, most_groups=1 << 20)


def _allows(allowed: Collection[str] | None, name: str) -> bool:
    return allowed is None or name in allowed


def _key(known: str | Path) -> bytes:
    """A public key, of a file or a text, in one form."""
    text = str(known)
    try:
        if isinstance(known, Path) or not text.startswith(("ssh-", "ecdsa-", "-----")):
            text = Path(known).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"public key {known} cannot be read: {error.strerror}") from error
    found = _same_key(text.encode())
    if not found:
        raise ValueError(f"{known} is no public key; give the file NAME.pub of ssh-keygen")
    return found


def _same_key(key: bytes) -> bytes:
    """The key in one form, whether ssh-keygen or Flower has written it; empty where it is none."""
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
