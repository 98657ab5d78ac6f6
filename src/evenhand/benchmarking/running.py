"""Runs a unit: tunes a method on validation data, trains it with every seed, keeps the record."""

from __future__ import annotations

import dataclasses
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenhand import files, tree
from evenhand.benchmarking.record import Record, record_of
from evenhand.benchmarking.suite import Bench, Budget, Unit
from evenhand.data.federation import Federation
from evenhand.reading import read_text
from evenhand.studies.runs.comparing import Planned, check_comparison, execute_comparison
from evenhand.studies.runs.executing import Given
from evenhand.studies.runs.tuning import plan_tuning, tune, unlogged
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import Spec
from evenhand.testing.watch import Recorder, Sent
from evenhand.training.fit import Progress, train

# called after every round with the share of the unit that is done
Tell = Callable[[float], None]


def read_data(bench: Bench, budget: Budget) -> Federation:
    """The federation's data; raises a DataError where files are missing."""
    return bench.spec(budget).for_seed(0).build_data()


def run_unit(
    unit: Unit, federation: Federation, directory: Path, device: str, tell: Tell
) -> Record:
    """Run or resume a unit in ``directory``, which is deleted when the record is made."""
    note, asked = directory / "unit.txt", f"{unit.identity} {device}"
    if directory.exists() and not (note.exists() and read_text(note) == asked):
        shutil.rmtree(directory)  # begun with another spec, or on another device
    directory.mkdir(parents=True, exist_ok=True)
    files.write_atomic(note, asked.encode())
    planned = check_comparison(unit.spec(device), given=lambda seed: Given(federation=federation))
    tuning = plan_tuning(planned)
    tried, seeds = len(tuning.spec.methods), len(planned.spec.seeds)
    with _quietly():
        planned = tune(planned, tuning, directory, _watch(tuning.spec, tell, 0, tried + seeds))
        messages = count_messages(planned)
        fresh = not any(directory.glob("seed-*"))
        started = _clocks()
        execute_comparison(planned, directory, _watch(planned.spec, tell, tried, tried + seeds))
        seconds = _since(started) / seeds if fresh else None
        return record_of(directory, unit, messages, seconds)


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(started: tuple[float, float]) -> float:
    """Elapsed seconds, or processor seconds if other programs slowed us down."""
    return min(now - then for now, then in zip(_clocks(), started, strict=True))


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings: some step sizes are too large on purpose."""
    with unlogged(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _watch(spec: Spec, tell: Tell, before: int, runs: int) -> Callable[..., Progress]:
    def watch(
        seed: int, method: Method, together: int = 1, finished: int | None = None
    ) -> Progress:
        done = before + spec.runs_before(seed, method, finished)

        def after_round(rounds: int, _: dict[str, Any]) -> None:
            tell((done + together * rounds / spec.rounds) / runs)

        return after_round

    return watch


def count_messages(planned: Planned) -> tuple[float, float]:
    """Numbers sent to and from a client in a round, averaged over the clients contacted.

    The first round is not counted: a question asked only once costs next to nothing.
    """
    ready, method = planned.first, planned.spec.methods[0]
    sent: list[Sent] = []
    settings = dataclasses.replace(
        ready.settings(method), rounds=2, engine=Recorder(sent), eval_every=2
    )
    train(ready.module, ready.federation, method.algorithm(), settings)
    # what comes after the last round, such as fine-tuning, is sent to nobody
    second = [one for one in sent if one.round == 1]
    asked = max(len(one.ids) for one in second)
    down = sum(len(one.ids) * _size(one.task.shared) + _size(one.task.own) for one in second)
    up = sum(len(one.ids) * _size(one.replies.total) + _size(one.replies.each) for one in second)
    return round(down / asked, 1), round(up / asked, 1)


def _size(numbers: dict[str, Any]) -> int:
    return sum(leaf.numel() for leaf in tree.leaves(numbers))
