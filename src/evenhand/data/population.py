"""What a server knows of its clients."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Census(NamedTuple):
    """What the server may know beforehand."""

    sizes: Tensor  # (n,) training samples of each client
    weight: Tensor  # (n,) base weights w_i, float64, sum 1: the data share p_i, or 1/n
    group_counts: Tensor | None  # (n, A) training samples of each group on each client
    teams: Tensor | None  # (n,) code of each client's team
    names: tuple[str, ...] | None = None  # of the clients; None means their numbers

    def name(self, client: int) -> str:
        """The name of a client, its number where it has none."""
        return str(client) if self.names is None else self.names[client]

    @property
    def clients(self) -> int:
        return len(self.sizes)
