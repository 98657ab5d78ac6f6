"""Draws batches that only the node knows.

In a simulation the order of a client's samples follows from the run's seed. A server could compute
that order too: it would know which samples are in every batch, and could solve the steps for single
rows. So a node draws batches with its own secret, unless its owner's policy says ``order =
"server"``, which makes a federation equal to a simulation bit for bit.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from numpy.typing import NDArray
from torch import Tensor

from evenhand import tree
from evenhand.data.federation import Federation
from evenhand.data.fingerprints import Fingerprint
from evenhand.engines.work import Train, Work
from evenhand.local import Batches, LocalSolver
from evenhand.tree import Tree

FILE = "order-key"
# settings that a solver has whatever it is, which the engine reads
COMMON = (
    *("lr", "epochs", "steps", "batch_size", "weight_decay", "decay"),
    *("clip", "schedule", "step_schedule"),
)


@dataclass(frozen=True, repr=False)
class SecretOrder(LocalSolver):
    """A local solver over batches drawn with ``key``. No batch has fewer than ``least`` samples: a
    small last batch is merged into the one before it."""

    solver: LocalSolver
    key: int
    least: int

    def __post_init__(self) -> None:
        for name in COMMON:
            object.__setattr__(self, name, getattr(self.solver, name))

    @classmethod
    def of(cls, local: LocalSolver, key: int, least: int) -> SecretOrder:
        """The same solver with the node's own batches."""
        return cls(local.solver if isinstance(local, SecretOrder) else local, key, least)

    def state(self, variables: Tree) -> Tree:
        """What the solver accumulates."""
        return self.solver.state(variables)

    def numbers(self, steps: Tensor) -> Tensor | None:
        """What the solver's steps differ in."""
        return self.solver.numbers(steps)

    def _step(self, *arguments: Any) -> None:
        self.solver._step(*arguments)

    def batches(
        self, ids: Tensor, sizes: Tensor, width: int, round: int, seed: int | Tensor
    ) -> Batches:
        """The order in which the client visits its samples."""
        samples = int(sizes[0])
        if self.batch_size is None or self.batch_size >= samples:
            return self.solver.batches(ids, sizes, width, round, seed)
        rest = samples % self.batch_size
        starts = np.arange(0, samples - (rest if rest < self.least else 0), self.batch_size)
        ends = np.append(starts[1:], samples)
        steps = self.steps or len(starts) * (self.epochs or 1)
        positions = np.zeros((1, steps, int((ends - starts).max())), dtype=np.int64)
        valid = np.zeros(positions.shape, dtype=bool)
        for step in range(steps):
            batch = step % len(starts)
            if batch == 0:
                order = _shuffled(samples, f"{self.key} {step}")
            chosen = order[starts[batch] : ends[batch]]
            positions[0, step, : len(chosen)], valid[0, step, : len(chosen)] = chosen, True
        return Batches(
            torch.from_numpy(positions), torch.from_numpy(valid), torch.full_like(sizes, steps)
        )


def _shuffled(count: int, key: str) -> NDArray[np.int64]:
    """A permutation that nobody can compute without the key."""
    numbers = hashlib.shake_256(key.encode()).digest(8 * count)
    return np.frombuffer(numbers, dtype="<u8").argsort(kind="stable")


def with_own_secret(work: Work, key: int, data: Federation, memory: Tree) -> Work:
    """The same training with noise and batches that only this node can compute.

    Everything that the reply depends on goes into the secret: were a task to come again after the
    data have changed, the same noise would show the change.
    """
    if not isinstance(work, Train) or work.local.dp is None:
        return work
    seen = Fingerprint()
    for name, leaf in tree.flatten(memory).items():
        seen.array(name, leaf)
    text = f"{key} {data.fingerprint()} {seen.text()}"
    secret = replace(work.local.dp, seed=None, key=hashlib.sha256(text.encode()).digest())
    return replace(work, local=replace(work.local, dp=secret))


def order_key(folder: Path, content: RecordDict) -> int:
    """A number that only this node can compute: equal for the same task, so that repeating a task
    gives the same reply, and unrelated for any other."""
    digest = hashlib.sha256(_secret(folder))
    about = {
        key: value for key, value in content.config_records["about"].items() if key != "session"
    }
    digest.update(repr(sorted(about.items())).encode())
    for name, array in sorted(content.array_records["trees"].items()):
        digest.update(f"{name} {array.dtype} {array.shape} {len(array.data)}".encode())
        digest.update(array.data)
    return int.from_bytes(digest.digest()[:16], "big")


def _secret(folder: Path) -> bytes:
    """Random bytes, made once and atomically, even if two messages arrive together."""
    path = folder / FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(dir=folder, prefix=f".{FILE}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
        with suppress(FileExistsError):
            os.link(made, path)
        os.unlink(made)
    return path.read_bytes()
