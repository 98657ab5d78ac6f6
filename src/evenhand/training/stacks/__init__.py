"""Several runs at once: seeds and values of hyper-parameters as one more stacked dimension.

The points of a front are small: on a GPU, or for small models, a run waits for Python most of the
time. Runs of one method that differ in seeds, initial parameters and settings that are plain
numbers are therefore trained together, each round of all of them in the same few tensor operations.
A *stack* is a list of such runs; everything in it has one more dimension in front, of length R, a
row for each run.

* Settings that differ within a stack are tensors: clients find them in ``task.shared["knobs"]``,
  server functions in the method itself. Settings that are the same stay what they are.
* Cohorts are drawn once for each seed, tasks and server steps are batched with ``torch.func.vmap``,
  clients of all runs are trained by the engine's ``exchange_runs``, and all models are evaluated in
  the same blocks of samples.
* What cannot be batched is done run by run: a server function that looks at values, a cohort of
  another size, a client left out. Where a method's client looks at a setting, runs with different
  values of it are stacked apart. The log says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from evenhand.cohort import Cohort, Full
from evenhand.data.federation import Federation
from evenhand.engines import Engine
from evenhand.losses import LossFunction
from evenhand.training.result import Result
from evenhand.training.settings import Settings
from evenhand.training.stacks.plan import Plan, Run, Together

__all__ = ["Run", "fit_each", "fit_many"]


def fit_many(
    module: nn.Module,
    federation: Federation,
    runs: Sequence[Run],
    *,
    loss: str | LossFunction = "cross_entropy",
    rounds: int = 100,
    cohort: Cohort | None = None,
    engine: str | Engine = "auto",
    weights: str = "data",
    device: str | torch.device | None = None,
    eval_every: int | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: Together | None = None,
    track_weights: bool = False,
    precision: str = "fp32",
) -> list[Result]:
    """Train several runs on one federation, together where they are alike; the same as
    :func:`evenhand.fit` for each, up to rounding.

    Runs are stacked where they have the same kind of method with the same settings but for plain
    numbers, local solvers that differ in lr and decay alone, and modules of one architecture. On a
    GPU, and for small models, a hundred of them then take a few times as long as one
    (docs/speed.md). On the loop engine, with dropout and over several processes they are trained
    one after another.

    Args:
        runs: what differs. The other arguments are common to all runs, and those of
            :func:`evenhand.fit`.
        checkpoint_every: rounds between checkpoints of runs with ``out``; default once a minute.
        progress: called at the beginning and after every round with the numbers of the runs that
            are trained together, and the rounds that they have done.

    Returns:
        The results, in the order of ``runs``.
    """
    found = fit_each(
        module,
        federation,
        runs,
        loss=loss,
        rounds=rounds,
        cohort=cohort,
        engine=engine,
        weights=weights,
        device=device,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        resume=resume,
        progress=progress,
        track_weights=track_weights,
        precision=precision,
    )
    results = dict(found)
    settings = Settings(
        loss=loss,
        rounds=rounds,
        cohort=cohort or Full(),
        engine=engine,
        weights=weights,
        device=device,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        track_weights=track_weights,
        precision=precision,
    )
    return [
        results[number].recorded(run.origin(module, federation, settings), run.out)
        for number, run in enumerate(runs)
    ]


def fit_each(
    module: nn.Module,
    federation: Federation,
    runs: Sequence[Run],
    *,
    settings: Settings | None = None,
    beside: Sequence[Run] = (),
    progress: Together | None = None,
    **common: Any,
) -> Iterator[tuple[int, Result]]:
    """The results of :func:`fit_many`, each with its number, as they come.

    Args:
        beside: runs that are not trained, but were, or would be, together with these. Which
            settings become tensors is decided by all of them, so that a sweep that was interrupted
            ends with the same bits.
    """
    if settings is not None:
        common |= {
            field.name: getattr(settings, field.name)
            for field in dataclasses.fields(settings)
            if field.name not in ("local", "seed", "evaluate")
        }
    plan = Plan(module, federation, list(runs), list(beside), progress, **common)
    for stack in plan.stacks():
        yield from plan.carry_out(stack)
