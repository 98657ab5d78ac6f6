"""``fit_many``: several runs, trained together if they are alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Unpack

from torch import nn

from evenhand.data.federation import Federation
from evenhand.engines import processes
from evenhand.errors import CallbackError, ClientError, first_line
from evenhand.metrics.scores import Row
from evenhand.training.callbacks import Callback, Hooks, own_copies, require_callbacks
from evenhand.training.fit import train
from evenhand.training.places import alone
from evenhand.training.result import Result
from evenhand.training.rounds import Rounds
from evenhand.training.settings import Options, Settings, takes_settings
from evenhand.training.stacks.plan import Entry, Plan, Run, Stack
from evenhand.training.stacks.server import StackServer

log = logging.getLogger(__name__)

# called with the numbers of runs and the rounds they have done
Together = Callable[[Sequence[int], int], None]


@takes_settings("seed")
def fit_many(
    module: nn.Module,
    federation: Federation,
    runs: Sequence[Run],
    *,
    settings: Settings | None = None,
    resume: bool = False,
    progress: Together | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[Options],
) -> list[Result]:
    """Train several runs on one federation, together if they are alike.

    Each result is that of ``evenhand.fit``, up to rounding. Runs are stacked if they have the same
    method with the same hyper-parameters except for plain numbers, local solvers that differ only
    in lr and decay, and modules of the same architecture. On a GPU, or with small models, a hundred
    stacked runs take only a few times as long as one. On the loop engine, with dropout, with
    callbacks, and with several processes, runs are trained one after another.

    Args:
        module: the network to train, unless a run has its own.
        federation: the clients' data.
        runs: what differs between the runs.
        settings: as in ``fit``, common to all runs.
        resume: as in ``fit``.
        progress: called at the start and after every round with the numbers of the runs that are
            trained together, and the number of rounds they have done.
        callbacks: as in ``fit``; each run gets copies of its own.
        **options: fields of ``evenhand.Settings`` except ``seed``, which belongs to a run.

    Returns:
        The results, in the order of ``runs``.
    """
    if "seed" in options:
        raise TypeError("fit_many takes no seed; set it in each run, as in Run(FedAvg(), seed=1)")
    settings = Settings.of(settings, options)
    with alone(*(run.out for run in runs if isinstance(run, Run) and run.out is not None)):
        results: dict[int, Result] = {}
        each = fit_each(
            module,
            federation,
            runs,
            settings,
            resume=resume,
            progress=progress,
            callbacks=callbacks,
        )

        def recorded(number: int, result: Result) -> Result:
            run = runs[number]
            return result.recorded(run.origin(module, federation, settings), run.out)

        try:
            for number, result in each:
                results[number] = recorded(number, result)
        except CallbackError as error:
            if error.result is not None:
                error.result = recorded(error.number, error.result)
            error.earlier = results
            raise
        return [results[number] for number in range(len(runs))]


def fit_each(
    module: nn.Module,
    federation: Federation,
    runs: Sequence[Run],
    settings: Settings,
    *,
    beside: Sequence[Run] = (),
    resume: bool = False,
    progress: Together | None = None,
    callbacks: Sequence[Callback] = (),
) -> Iterator[tuple[int, Result]]:
    """Yield the results of ``fit_many``, each with its number, as they become available.

    Args:
        beside: runs that are not trained now, but are part of the same sweep. They also decide
            which hyper-parameters become tensors, so that an interrupted sweep ends with the same
            bits.
    """
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function (runs, rounds done), got {progress!r}")
    require_callbacks(callbacks)
    plan = Plan(module, federation, runs, beside, settings, resume)
    told = progress or (lambda numbers, done: None)
    if not callbacks:
        for stack in plan.stacks():
            yield from _train(plan, stack, told)
        return
    entries = [entry for stack in plan.stacks() for entry in stack.entries]
    for entry in entries:  # all of them, before the first is trained
        hooks = _hooks(entry, callbacks)
        hooks.check(entry.model, federation, entry.run.algorithm, entry.settings)
    yield from _one_after_another(plan, entries, told, callbacks)


def _train(plan: Plan, stack: Stack, progress: Together) -> Iterator[tuple[int, Result]]:
    first, entries = stack.entries[0], stack.entries
    exchange = None
    alone = len(entries) == 1 and not stack.varying
    # clients' normalisation would need the initial one of each run
    alone |= plan.settings.normalisation == "local"
    alone |= first.settings.local.dp is not None  # each run has a secret of its own
    if not alone and not first.model.stochastic and not processes.several():
        exchange = plan.engine.attach(first.model, plan.federation, first.run.seed)
    if exchange is None or not hasattr(exchange, "exchange_runs"):
        if len(entries) > 1:
            log.info(
                "training %d runs one after another: this engine, module or number of processes"
                " cannot stack them",
                len(entries),
            )
        yield from _one_after_another(plan, entries, progress)
        return
    numbers = [entry.number for entry in entries]
    try:
        server = StackServer(stack, plan.federation, plan.census, exchange)
        progress(numbers, server.done)
        Rounds(
            server,
            plan.settings,
            plan.census,
            plan.settings.checkpoint_every,
            plan.federation,
            lambda done: progress(numbers, done),
        ).run()
        for row, result in server.results(plan.settings.rounds):
            yield numbers[row], result
    except ClientError as error:
        text = "training %d runs one after another, because training them together failed: %s"
        log.info(text, len(entries), first_line(error))
        yield from _one_after_another(plan, entries, progress)


def _one_after_another(
    plan: Plan, entries: Sequence[Entry], progress: Together, callbacks: Sequence[Callback] = ()
) -> Iterator[tuple[int, Result]]:
    for entry in entries:

        def after(done: int, row: Row, number: int = entry.number) -> None:
            progress([number], done)

        progress([entry.number], len(entry.start.history))
        try:
            result = train(
                entry.run.module or plan.module,
                plan.federation,
                entry.run.algorithm,
                replace(entry.settings, engine=plan.engine),
                out=entry.run.out,
                resume=entry.store is not None,
                progress=after,
                hooks=_hooks(entry, callbacks),
            )
        except CallbackError as error:
            error.number = entry.number
            raise
        yield entry.number, result


def _hooks(entry: Entry, callbacks: Sequence[Callback]) -> Hooks:
    return Hooks(own_copies(callbacks), folder=f"run-{entry.number}")
