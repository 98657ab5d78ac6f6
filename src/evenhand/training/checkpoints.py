"""What a run keeps on disk to go on from, and which runs may go on from it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from evenhand import files, tree
from evenhand.algorithm import State
from evenhand.data.federation import Federation
from evenhand.data.samples import Batch, Part, Samples
from evenhand.engines import processes
from evenhand.errors import RunError
from evenhand.growth import Extent
from evenhand.metrics.scores import Row
from evenhand.model import Model
from evenhand.tree import Tree

CHECKPOINT = "checkpoint.safetensors"
HISTORY = "history.csv"


class Checkpoints:
    """State, client memories, history and tracked weights of a run, in a directory; enough to go on
    as if nothing had happened."""

    def __init__(self, directory: Path, settings: str, every: int, extent: Extent) -> None:
        self.directory, self.every, self.extent = directory, every, extent
        self.settings = _hashed(settings)
        self._open()

    @processes.on_first
    def _open(self) -> None:
        # a directory that cannot be written to shows now, not after hours
        self.directory.mkdir(parents=True, exist_ok=True)
        files.clear_partial(self.directory, (CHECKPOINT, HISTORY))

    @processes.on_first
    def has_one_to_resume(self, resume: bool) -> bool:
        """Whether there is a checkpoint; raises where there is one that nobody asked to resume."""
        found = (self.directory / CHECKPOINT).exists()
        if found and not resume:
            raise RunError(
                f"{self.directory} holds the checkpoint of an earlier run; continue it with"
                " resume=True, or use another directory"
            )
        if not found and (self.directory / "spec.toml").exists():
            raise RunError(f"{self.directory} holds another run; use another directory")
        return found

    @processes.on_first
    def save(
        self,
        state: State,
        memories: dict[int, Tree],
        history: list[Row],
        tracked: dict[int, Tensor],
    ) -> None:
        # to look at; resuming reads the checkpoint alone
        files.write_rows(self.directory / HISTORY, history)
        kept = {
            "state": tree.to(state, "cpu"),
            "memory": {str(i): memories[i] for i in sorted(memories)},
        }
        kept["weights"] = {str(round): weights for round, weights in tracked.items()}
        about = {
            "rounds": len(history),
            "settings": self.settings,
            "extent": self.extent,
            "history": history,
        }
        files.write_tensors(self.directory / CHECKPOINT, kept, about)

    @processes.on_first
    def extent_then(self) -> Extent:
        """How many clients, groups and teams there were when the checkpoint was written, as far as
        it tells."""
        _, about = files.read_tensors(self.directory / CHECKPOINT)
        return Extent(*about.get("extent", self.extent))

    @processes.on_first
    def load(
        self, settings: str | None = None
    ) -> tuple[State, dict[int, Tree], list[Row], dict[int, Tensor]]:
        """What the checkpoint holds, which must be of a run with ``settings``, by default the
        present ones."""
        flat, about = files.read_tensors(self.directory / CHECKPOINT)
        if about.get("settings") != (self.settings if settings is None else _hashed(settings)):
            raise RunError(
                f"{self.directory} holds a checkpoint of a run with other settings or data; use"
                " another directory"
            )
        kept = tree.unflatten(flat)
        memories, tracked = (
            {int(i): saved for i, saved in kept.get(name, {}).items()}
            for name in ("memory", "weights")
        )
        if "state" not in kept or not isinstance(about.get("history"), list):
            raise RunError(
                f"{self.directory / CHECKPOINT} is damaged: it lacks its state or history"
            )
        return kept["state"], memories, about["history"], tracked


def identify(model: Model, federation: Federation, data: str, *settings: object) -> str:
    """A text that changes when the settings of a run, its initial model, the loss or the ``data``,
    by their fingerprint, do."""
    parameters = [
        (name, tuple(leaf.shape), float(leaf.double().sum())) for name, leaf in model.init().items()
    ]
    first = first_samples(model, federation, 8)
    few = torch.arange(len(first.y), device=model.device)
    loss = float(
        model.loss(
            model.init(),
            Batch(first, few, torch.ones(len(few), device=model.device, dtype=model.dtype)),
        )
    )
    return repr((settings, (loss, parameters, data)))


def first_samples(model: Model, federation: Federation, count: int) -> Samples:
    """The first training samples, as the model takes them."""
    part = federation.train
    x, y, group = part.x[:count], part.y[:count], None if part.group is None else part.group[:count]
    return Part(x, y, torch.tensor([0, len(y)]), group).samples(model.dtype, model.device)


def _hashed(settings: str) -> str:
    return hashlib.sha256(settings.encode()).hexdigest()
