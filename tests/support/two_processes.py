"""The program that two processes run for test_processes.py: each works through CASES and what
follows, and leaves what came out.

Starting processes costs seconds, so one pair of them does it all. The tests work through the same
cases in one process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import evenhand as eh
from evenhand import tree
from evenhand.engines import processes
from evenhand.engines.work import Train
from evenhand.messages import Replies, Reply, Task
from tests.support.federations import METHODS, network, ragged
from tests.support.own_metrics import METRICS as METRICS_OF_A_USER

LOCAL = eh.LocalSGD(lr=0.05, epochs=1, batch_size=32, momentum=0.5)
SETTINGS: dict[str, Any] = {
    "rounds": 4,
    "local": LOCAL,
    "cohort": eh.Uniform(5),
    "eval_every": 2,
    "seed": 3,
}
Outcome = dict[str, Any]


def outcome(result: eh.Result) -> Outcome:
    """What a run leaves, as plain values."""
    personal = {str(i): params for i, params in enumerate(result.personal or [])}
    tensors = tree.flatten(
        tree.to({"params": result.params, "state": result.state, "personal": personal}, "cpu")
    )
    tally = {f"tally/{name}": torch.from_numpy(sums) for name, sums in result.tally.items()}
    return {"tensors": tensors | tally, "history": result.history_rows, "scores": result.score_rows}


def train(
    method: str | eh.Algorithm, federation: eh.Federation | None = None, **settings: Any
) -> Outcome:
    algorithm = METHODS[method] if isinstance(method, str) else method
    return outcome(eh.fit(network(), federation or ragged(), algorithm, **{**SETTINGS, **settings}))


def with_bad_client(bad: tuple[int, ...]) -> eh.Federation:
    """Clients with data of which nothing finite comes."""
    federation = ragged()
    for i in bad:
        federation.train.x[federation.train.owners == i] = torch.nan
    return federation


def summed_tables() -> Outcome:
    """An evaluation whose tables are too large to be kept for each client."""
    with mock.patch("evenhand.engines.work.MOST_CELLS", 10):
        return train("fedavg", engine="vmap")


def without_test_data() -> Outcome:
    rng = np.random.default_rng(1)
    clients = [
        {"x": rng.normal(size=(4 + 3 * i, 5)), "y": rng.integers(0, 3, 4 + 3 * i)} for i in range(5)
    ]
    return train("qffl", eh.Federation.from_arrays(clients), engine="vmap")


class Runs:
    """Several runs as an exchange of their own: one exchange after another, each with its own
    memories."""

    def __init__(self, seeds: list[int]) -> None:
        model, federation = eh.Model(network()), ragged()
        model.check(federation)
        self.seeds = seeds
        self.exchanges = [eh.Loop().attach(model, federation, seed) for seed in seeds]

    def exchange_runs(
        self,
        work: Any,
        task: Task,
        ids: Tensor,
        round: int,
        seeds: Tensor,
        runs: Tensor | None = None,
    ) -> tuple[Replies, Tensor]:
        found = []
        for row, run in enumerate(range(len(ids)) if runs is None else runs.tolist()):
            assert self.seeds[run] == seeds[row]
            found.append(
                self.exchanges[run].exchange(
                    work, Task(*(tree.row(part, row) for part in task)), ids[row], round
                )
            )
        total, each = (
            tree.stack([getattr(replies, part) for replies in found]) for part in ("total", "each")
        )
        return Replies(ids, total, each), torch.ones(ids.shape, dtype=torch.bool)

    def memories_of(self, run: int) -> dict[int, Any]:
        return self.exchanges[run].memories

    def remember_runs(self, memories: list[dict[int, Any]]) -> None:
        for exchange, memory in zip(self.exchanges, memories, strict=True):
            exchange.memories = memory


@dataclass(frozen=True)
class Telling(eh.Ditto):
    """Ditto whose clients also send a few values of their own, of several kinds."""

    def reply(
        self, model: Any, start: Any, end: Any, data: Any, task: Task, memory: Any
    ) -> tuple[Reply, Any]:
        reply, memory = eh.Ditto.reply(self, model, start, end, data, task, memory)
        weight = data.weight.sum()
        each = {
            "model": end["model"],
            "samples": weight.long(),
            "many": weight > 30,
            "nothing": weight.new_zeros(0),
        }
        return Reply(reply.total, each), memory


def several_runs() -> Outcome:
    """Three runs with cohorts and models of their own, for two rounds, then two of them; memories
    are handed over from round to round."""
    seeds, algorithm = torch.tensor([5, 6, 7]), Telling(lam=0.5)
    ids = torch.tensor([[0, 1, 4, 9], [1, 2, 3, 4], [5, 6, 7, 8]])
    model, federation = eh.Model(network()), ragged()
    shared = {
        "model": tree.stack([network(seed=seed).state_dict() for seed in range(3)]),
        "lr": torch.tensor([0.1, 0.05, 0.02]),
    }
    weight = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    task, work = Task(shared, {"weight": weight, "share": weight}), Train(algorithm, LOCAL)
    kept: list[dict[int, Any]] = [{}, {}, {}]
    found = {}
    for round, runs in enumerate((None, None, torch.tensor([0, 2]))):
        rows = slice(None) if runs is None else runs
        exchange: Any = (
            Runs(seeds.tolist()[dist.get_rank() :: 2])
            if processes.several()
            else Runs(seeds.tolist())
        )
        if processes.several():
            exchange = processes.Split(exchange, model, federation)
        exchange.remember_runs(kept)
        given = Task(*(tree.map(lambda leaf, rows=rows: leaf[rows], part) for part in task))
        replies, good = exchange.exchange_runs(
            work, given, ids[rows], round, seeds[rows], *(() if runs is None else (runs,))
        )
        kept = [exchange.memories_of(run) for run in range(3)]
        memory = {
            str(run): {str(i): each for i, each in sorted(kept[run].items())} for run in range(3)
        }
        found[str(round)] = {
            "ids": replies.ids,
            "total": replies.total,
            "each": replies.each,
            "good": good,
            "memory": memory,
        }
    return {"tensors": tree.flatten(found)}


CASES: dict[str, Callable[[], Outcome]] = {
    **{
        f"{method}-{engine}": lambda method=method, engine=engine: train(method, engine=engine)  # type: ignore[misc]
        for method in ("fedavg", "afl", "ditto", "term_team", "fedminmax", "gifair_per")
        for engine in ("loop", "vmap")
    },
    "memory at the end alone": lambda: train(eh.FineTuned(), engine="vmap"),
    "other memory at the end": lambda: train("finetuned", engine="vmap"),
    "models one by one": lambda: train("fedmgda", engine="vmap"),
    "two questions": lambda: train("drfa", engine="vmap"),
    "everyone": lambda: train("ditto", cohort=eh.Full(), engine=eh.Vmap(chunk=2)),
    "cohort of one": lambda: train("afl", cohort=eh.Uniform(1), engine="vmap"),
    "cohort of one with memory": lambda: train("ditto", cohort=eh.Uniform(1), engine="loop"),
    "a client left out": lambda: train(
        "afl", with_bad_client((1,)), cohort=eh.Full(), engine="vmap"
    ),
    "a client with memory left out": lambda: train(
        "ditto", with_bad_client((1, 3)), cohort=eh.Uniform(3), engine="loop"
    ),
    "all left out": lambda: train(
        "ditto", with_bad_client(tuple(range(10))), cohort=eh.Uniform(3), engine="vmap"
    ),
    "summed tables": summed_tables,
    "no test data": without_test_data,
    "own metrics": lambda: train("ditto", metrics=METRICS_OF_A_USER, engine="vmap"),
    "several runs": several_runs,
}
if torch.cuda.is_available():  # which the two processes share where there is one
    CASES |= {
        f"{method} on a GPU": lambda method=method: train(method, engine="vmap", device="cuda")  # type: ignore[misc]
        for method in ("fedavg", "ditto", "fedmgda")
    }


# ---- what two processes run


class Stop(Exception):
    """What interrupts a run here."""


class Misshapen(Exception):
    """An error that our messages do not know."""


@dataclass(frozen=True)
class Failing(eh.FedAvg):
    """Fails at one process."""

    process: int = 1

    def reply(self, *arguments: Any) -> tuple[Reply, Any]:
        if dist.get_rank() == self.process:
            raise Misshapen("no reply from here")
        return eh.FedAvg.reply(self, *arguments)


def failures(out: Path) -> dict[str, str]:
    """What becomes of errors: kind and message, at this process."""
    rank = dist.get_rank()

    def stop(done: int, row: Any) -> None:
        if done == 2:
            raise Stop("enough")

    def fit(algorithm: eh.Algorithm | None = None, module: Any = None, **settings: Any) -> Any:
        return eh.fit(
            module or network(),
            ragged(),
            algorithm or eh.FedAvg(),
            **{**SETTINGS, "engine": "loop", **settings},
        )

    attempts: dict[str, Callable[[], Any]] = {
        "a client at process 1": lambda: fit(Failing()),
        "a client at process 0": lambda: fit(Failing(process=0)),
        "a wrong argument everywhere": lambda: fit(engine="fast"),
        "a wrong argument at process 1": lambda: fit(engine="fast" if rank else "loop"),
        "other models": lambda: fit(module=network(seed=rank)),
        "other lengths": lambda: fit(rounds=2 + rank),
        "other cohorts": lambda: fit(seed=rank),
        "progress": lambda: fit(progress=stop),
        "no place for checkpoints": lambda: fit(out=out / "file" / "below"),
    }
    (out / "file").touch()
    found = {}
    for name, attempt in attempts.items():
        with pytest.raises(Exception) as caught:  # noqa: PT011 (which one is what the tests look at)
            attempt()
        found[name] = (
            f"{'RunError' if isinstance(caught.value, eh.RunError) else type(caught.value).__name__}:"
            f" {caught.value}"
        )
    return found


def interrupted(out: Path) -> dict[str, Outcome]:
    """A run that is stopped and goes on, and one that is not; all but the first process are given a
    directory of their own."""

    def stop(done: int, row: Any) -> None:
        if done == 3:
            raise Stop

    mine = out / f"run-{dist.get_rank()}"
    settings = {"out": mine, "checkpoint_every": 1, "engine": "vmap"}
    with contextlib.suppress(eh.RunError):
        train("ditto", progress=stop, **settings)
    if processes.is_first():
        shutil.copytree(mine, out / "half")  # for one process to go on with
    return {
        "resumed": train("ditto", resume=True, **settings),
        "never stopped": train("ditto", engine="vmap"),
    }


def work_through(out: Path) -> None:
    with processes.join():
        found: dict[str, Any] = {name: case() for name, case in CASES.items()}
        found |= {"failures": failures(out), **interrupted(out)}
        found["a last one"] = train("afl", engine="loop")  # after all these errors
    assert not dist.is_initialized()
    # a thread of gloo's that is still there when Python ends can abort the process
    assert not [
        name
        for name in (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
        if "gloo" in name
    ]
    (out / f"found-{os.environ['RANK']}").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    work_through(Path(sys.argv[1]))
