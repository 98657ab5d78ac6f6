"""The outcome of a unit: which settings were chosen, and which test samples were right with every
seed. All numbers follow from it."""

from __future__ import annotations

import base64
import json
import time
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evenhand.benchmarking.suite import Unit
from evenhand.errors import RunError
from evenhand.layers.choices import processor
from evenhand.studies.runs.divergence import has_diverged
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trial import Trial
from evenhand.studies.runs.tuning import read_tuned

Ints = NDArray[np.int64]
# what may differ between two records of the same numbers
ABOUT = ("seconds", "machine", "versions", "device", "engine", "date")


@dataclass(frozen=True)
class Record:
    """What is kept of a unit. Test samples are in the order of clients, then groups."""

    federation: str
    method: str  # its label
    name: str
    personal: bool
    identity: str  # of the unit, see Unit.identity
    data: str  # fingerprint
    settings: dict[str, Any]  # that were chosen
    at_edge: tuple[str, ...]  # of them, those that are the smallest or largest that was tried
    tried: int
    validation: float  # the number that they were chosen by
    rule: str
    rounds: int
    clients: tuple[str, ...]
    teams: tuple[str, ...]  # of each client; () where there are none
    groups: tuple[str, ...]  # () where there are none
    labels: tuple[str, ...]
    cells: tuple[tuple[int, ...], ...]  # (n, A) test samples by client and group
    right: dict[str, str]  # by seed: a bit for each test sample
    loss: dict[str, tuple[float | None, ...]]  # by seed and client
    # of two labels, by seed: (A, 2, 3) counts by group, label and prediction
    counts: dict[str, Any]
    diverged: tuple[int, ...]  # seeds
    down: float  # numbers sent to a client in a round
    up: float  # and back
    seconds: float | None  # of one training; None where it was interrupted
    machine: str  # its processor
    versions: dict[str, str]
    device: str
    engine: str
    date: str

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(int(seed) for seed in self.right)

    def values(self, seed: int) -> NDArray[np.uint8]:
        """(N,) whether each test sample was right."""
        return unpacked(self.right[str(seed)], int(np.sum(self.cells)))

    def sample_cells(self) -> tuple[Ints, Ints]:
        """(N,) client and group of each test sample."""
        cells = np.array(self.cells, np.int64)
        client, group = np.divmod(np.repeat(np.arange(cells.size), cells.ravel()), cells.shape[1])
        return client, group

    def right_by_client(self, seed: int) -> list[int]:
        """How many test samples of each client were right."""
        client, _ = self.sample_cells()
        found = np.bincount(client, self.values(seed), len(self.clients))
        return [int(count) for count in found]

    def line(self) -> str:
        """A line of JSON."""
        return json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str, source: str) -> Record:
        """Read a line; ``source`` is named in errors."""
        try:
            table = json.loads(text)
            given = {entry.name: _frozen(table[entry.name]) for entry in fields(cls)}
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{source} is not a benchmark record ({error}); delete it and run it again"
            ) from error
        return cls(**given)

    def same_numbers(self, other: Record) -> bool:
        """Whether both hold the same outcome, wherever they were made."""
        mine, its = asdict(self), asdict(other)
        return all(mine[key] == its[key] for key in mine if key not in ABOUT)


def _frozen(value: Any) -> Any:
    """A value of JSON with tuples for lists."""
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def packed(values: NDArray[Any]) -> str:
    """Whether each value is above a half, as text."""
    bits = np.packbits(np.asarray(values) > 0.5).tobytes()
    return base64.b64encode(zlib.compress(bits, 9)).decode()


def unpacked(text: str, count: int) -> NDArray[np.uint8]:
    """The first ``count`` values of :func:`packed`."""
    bits = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return np.unpackbits(bits, count=count)


def record_of(
    directory: Path, unit: Unit, messages: tuple[float, float], seconds: float | None
) -> Record:
    """The record of a unit whose runs are in ``directory``."""
    study, tuned = Study.load([directory]), read_tuned(directory)
    assert tuned is not None  # every unit is tuned
    label, chosen, about = unit.entry.label, tuned.methods[0], study.about[0]
    if not study.measure.of_shares or not study.sampled:
        raise RunError(
            f"{unit.bench.name} is not a classification task; the benchmark compares accuracies"
        )
    trials = {seed: study.trials[label, seed] for seed in study.seeds}
    first = trials[study.seeds[0]]
    groups = study.names("group")
    client, group = first.sample_client, first.sample_group
    assert client is not None  # samples are in this process
    assert group is not None
    shape = (len(study.names("client")), max(1, len(groups)))
    cells = np.bincount(np.ravel_multi_index((client, group), shape), minlength=shape[0] * shape[1])
    order = np.lexsort((group, client))  # keeps the order of samples within a cell
    labels = first.counts.labels if first.counts is not None else ()
    return Record(
        unit.bench.name,
        label,
        unit.entry.name,
        unit.entry.personal,
        unit.identity,
        about["data"],
        dict(chosen.settings),
        (*chosen.smallest, *chosen.largest),
        chosen.tried,
        chosen.number,
        unit.budget.rule,
        study.specs[0].rounds,
        study.names("client"),
        study.teams if study.names("team") else (),
        groups,
        labels,
        tuple(map(tuple, cells.reshape(shape).tolist())),
        {str(seed): packed(_values(trial)[order]) for seed, trial in trials.items()},
        {str(seed): _losses(trial) for seed, trial in trials.items()},
        {
            str(seed): _frozen(trial.counts.by_group.tolist())
            for seed, trial in trials.items()
            if trial.counts is not None and len(labels) == 2
        },
        tuple(seed for seed, trial in trials.items() if has_diverged(trial)),
        *messages,
        None if seconds is None else round(seconds, 3),
        processor(torch.device(about["device"])),
        about["versions"],
        about["device"],
        about["engine"],
        time.strftime("%Y-%m-%d"),
    )


def _values(trial: Trial) -> NDArray[np.float64]:
    assert trial.values is not None  # samples are in this process
    return trial.values


def _losses(trial: Trial) -> tuple[float | None, ...]:
    found = trial.column("loss", "client").tolist()
    return tuple(float(f"{loss:.6g}") if np.isfinite(loss) else None for loss in found)
