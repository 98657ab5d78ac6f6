"""A method, a module, data and a loss as a user would write them; tests also copy this file into
the directory that a command is started in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import evenhand as eh


@dataclass(frozen=True)
class PowerLoss(eh.Algorithm):
    """Descend f^power / power on every client, so that high losses take longer steps."""

    power: float = 2.0

    def __post_init__(self) -> None:
        if not self.power >= 1:
            raise ValueError(f"power must be at least 1, got {self.power}; 1 gives FedAvg")

    def objective(
        self, model: eh.Model, variables: dict[str, Tensor], batch: eh.Batch, task: eh.Task
    ) -> Tensor:
        return model.loss(variables["model"], batch) ** self.power / self.power


class TwoLayers(nn.Module):
    """A module of the user's own."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(4, 3), nn.Linear(3, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.hidden(x)))


def clinics(seed: int = 0, clients: int = 5, regression: bool = False) -> eh.Federation:
    """Clients with a shift each, two groups, names and two teams; each has 12 test samples."""
    rng = np.random.default_rng(seed)
    parts: tuple[list[dict[str, object]], ...] = ([], [])
    for client in range(clients):
        for part, rows in zip(parts, (20 + 5 * client, 12), strict=True):
            x = rng.normal(size=(rows, 4)).astype(np.float32)
            score = x.sum(1) + rng.normal(size=rows) - 0.4 * client
            y = score.astype(np.float32) if regression else (score > 0) * 1
            group = np.where(np.arange(rows) % 3 > 0, "old", "young")
            part.append({"x": x, "y": y, "group": group, "name": f"clinic {client}"})
    for client, entry in enumerate(parts[0]):
        entry["team"] = "north" if client % 2 else "south"
    return eh.Federation.from_arrays(parts[0], test=parts[1])


def helper() -> None:
    """No method."""


def copy_to(directory: Path, name: str = "mymethods") -> None:
    """Write this module where a user would have it."""
    (directory / f"{name}.py").write_text(Path(__file__).read_text())
