"""Checkpoints of a run, and which runs may resume from one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenhand import files, tree
from evenhand.algorithm import Algorithm, State
from evenhand.data.earlier import earlier_fingerprint
from evenhand.data.fingerprints import Fingerprint
from evenhand.data.population import Extent, Population
from evenhand.data.samples import Batch, Samples
from evenhand.engines import processes
from evenhand.engines.threads import one_thread
from evenhand.errors import RunError
from evenhand.metrics.scores import Row
from evenhand.model import Model
from evenhand.reading import damaged, read_tensors
from evenhand.training.ending import Ending, Kept, read_ending
from evenhand.training.settings import Settings
from evenhand.tree import Tree

CHECKPOINT = "checkpoint.safetensors"
HISTORY = "history.csv"
FORMAT = 2  # checkpoints of format 1 do not say so
FROM_THE_START = "restore a copy, or delete it to train from the first round"


class Start(NamedTuple):
    """Where training starts or resumes: everything that rounds change."""

    state: State
    memories: dict[int, Tree]  # by client
    history: list[Row]
    tracked: dict[int, Tensor]  # the clients' weights after some rounds
    ending: Ending = Ending()


class Then(NamedTuple):
    """What a checkpoint says about its run."""

    extent: Extent  # the numbers of clients, groups and teams, if it says so
    exact: bool  # whether it identifies the data by their bytes; earlier versions used sums


class Checkpoints:
    """The checkpoint of a run in a directory: enough to resume as if nothing had happened."""

    def __init__(self, directory: Path, identity: str, extent: Extent) -> None:
        self.directory, self.extent = directory, extent
        self.settings = _hashed(identity)
        # called before anything is replaced; raises if another process has taken over the run
        self.guard: Callable[[], None] = _nobody_else
        self._open()

    @processes.on_first
    def _open(self) -> None:
        # find out now, not after hours, if the directory is not writable
        self.directory.mkdir(parents=True, exist_ok=True)
        files.clear_partial(self.directory)

    @processes.on_first
    def has_one_to_resume(self, resume: bool) -> bool:
        """Whether there is a checkpoint; raises if there is one but ``resume`` is False."""
        found = (self.directory / CHECKPOINT).exists()
        if found and not resume:
            raise RunError(
                f"{self.directory} holds the checkpoint of an earlier run; resume it with"
                " resume=True, or use another directory"
            )
        if not found and (self.directory / "spec.toml").exists():
            raise RunError(f"{self.directory} holds another run; use another directory")
        return found

    @processes.on_first
    def save(self, now: Start) -> None:
        """Replace the checkpoint."""
        self.guard()
        state, memories, history, tracked, ending = now
        # for people; resuming only reads the checkpoint
        files.write_rows(self.directory / HISTORY, history)
        kept = {
            "state": tree.to(state, "cpu"),
            "memory": {str(i): memories[i] for i in sorted(memories)},
        }
        kept["weights"] = {str(round): weights for round, weights in tracked.items()}
        if ending.kept is not None:
            saved = ending.kept.memories
            memory = {str(i): saved[i] for i in sorted(saved)}
            kept |= {"kept": {"state": tree.to(ending.kept.state, "cpu"), "memory": memory}}
        about = {
            "format": FORMAT,
            "rounds": len(history),
            "settings": self.settings,
            "extent": self.extent,
            "history": history,
            **ending.about(),
        }
        files.write_tensors(self.directory / CHECKPOINT, kept, about)

    @processes.on_first
    def then(self) -> Then:
        """Return what the checkpoint says about the run when it was written."""
        _, about = self._read()
        return Then(Extent(*about.get("extent", self.extent)), "format" in about)

    @processes.on_first
    def rounds_then(self) -> int:
        """Return the number of rounds done when the checkpoint was written, if it says so; those
        asked for if the run was stopped."""
        about = self._read()[1]
        stopped, _ = read_ending(about)
        return int(about.get("rounds", 0)) if stopped is None else stopped.rounds

    @processes.on_first
    def load(self, *identities: str) -> Start:
        """Load the checkpoint; its run must have one of these identities, by default the present
        one."""
        flat, about = self._read()
        known = {_hashed(identity) for identity in identities} or {self.settings}
        if about.get("settings") not in known:
            raise RunError(
                f"{self.directory} holds a checkpoint of a run with other settings or data; use"
                " another directory"
            )
        kept = tree.unflatten(flat)
        memories, tracked = (
            {int(i): saved for i, saved in kept.get(name, {}).items()}
            for name in ("memory", "weights")
        )
        stopped, round = read_ending(about)
        ending = Ending(stopped)
        if round is not None:
            earlier = kept["kept"]
            saved = {int(i): memory for i, memory in earlier.get("memory", {}).items()}
            ending = Ending(stopped, Kept(round, earlier["state"], saved))
        return Start(kept["state"], memories, about["history"], tracked, ending)

    def _read(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self.directory / CHECKPOINT
        flat, about = read_tensors(path, FROM_THE_START)
        history, extent = about.get("history"), about.get("extent", self.extent)
        if (
            not isinstance(history, list)
            or not all(isinstance(row, dict) for row in history)
            or not any(key.startswith("state/") for key in flat)
        ):
            raise damaged(path, "it lacks its state or history", FROM_THE_START)
        if not isinstance(extent, list | tuple) or len(extent) != len(self.extent):
            raise damaged(path, "it does not say how many clients it has", FROM_THE_START)
        return flat, about


def _nobody_else() -> None:
    """Do nothing: a run on one machine is guarded by its directory's lock."""


def identify(
    model: Model,
    population: Population,
    algorithm: Algorithm,
    settings: Settings,
    data: str | None = None,
) -> str:
    """Return a text that changes when a run's settings, initial model, loss or data change.

    ``data`` is the population's fingerprint, if it is known.
    """
    start = model.init()
    parameters = Fingerprint()
    for name, leaf in start.items():
        parameters.array(name, leaf)
    with one_thread():  # sums depend on the number of threads
        loss = _first_loss(model, population, start)
    data = data or population.fingerprint()
    return repr((settings.identity(algorithm), (loss, parameters.text(), data)))


def identify_as_before(
    model: Model, population: Population, algorithm: Algorithm, settings: Settings
) -> str:
    """Return what ``identify`` returned in versions whose checkpoints have no format."""
    start = model.init()
    parameters = [
        (name, tuple(leaf.shape), float(leaf.double().sum())) for name, leaf in start.items()
    ]
    loss = _first_loss(model, population, start)
    data = earlier_fingerprint(population)
    return repr((settings.identity(algorithm), (loss, parameters, data)))


def _first_loss(model: Model, population: Population, start: Tree) -> float:
    """Return the loss of a few samples, which changes when the loss function changes."""
    first = first_samples(model, population, 8)
    few = torch.arange(len(first.y), device=model.device)
    ones = torch.ones(len(few), device=model.device, dtype=model.dtype)
    return float(model.loss(start, Batch(first, few, ones)))


def first_samples(model: Model, population: Population, count: int) -> Samples:
    """Return the first training samples as the model takes them; zeros if the samples are
    elsewhere."""
    return population.probe(count).to(model.dtype, model.device)


def _hashed(settings: str) -> str:
    return hashlib.sha256(settings.encode()).hexdigest()
