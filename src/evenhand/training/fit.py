"""``fit``: one run, from a module and data to a result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.data.population import Population
from evenhand.engines import Engine, choose, processes
from evenhand.engines.auto import ENGINES
from evenhand.errors import AGAIN, CallbackError
from evenhand.metrics.scores import Row
from evenhand.model import Model
from evenhand.training.callbacks import Callback, Hooks
from evenhand.training.checkpoints import Start
from evenhand.training.directory import SCORES, Origin
from evenhand.training.ending import Ending, Stopped
from evenhand.training.evaluation import Judge
from evenhand.training.places import alone
from evenhand.training.protecting import keep_secret, privacy_of, require_masks
from evenhand.training.provenance import begun_engine, note_place, place_of
from evenhand.training.result import Result
from evenhand.training.rounds import Rounds
from evenhand.training.server import SingleServer
from evenhand.training.settings import Options, Settings, takes_settings
from evenhand.training.start import open_store, prepare, require_out

log = logging.getLogger(__name__)

# called after every round with the number of rounds done and the history row
Progress = Callable[[int, Row], None]


@takes_settings()
@processes.together
def fit(
    module: nn.Module,
    federation: Population,
    algorithm: Algorithm,
    *,
    settings: Settings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[Options],
) -> Result:
    """Train ``module`` on ``federation`` with a method, and evaluate the result.

    Training starts from the module's own parameters and leaves the module unchanged. The same
    arguments give the same result, byte for byte, on the same engine and device.

    >>> import torch
    >>> import evenhand as eh
    >>> fed = eh.datasets.digits(clients=4)
    >>> result = eh.fit(torch.nn.Linear(64, 10), fed, eh.FedAvg(), rounds=2, loss="cross_entropy")
    >>> len(result.history), list(result.summary)
    (2, ['mean', 'worst10', 'best10', 'worst', 'std'])

    Args:
        module: the network to train.
        federation: the clients' data; a population without samples if ``engine`` is an engine
            object that reaches clients elsewhere.
        algorithm: the method, such as ``FedAvg()`` or ``QFFL(q=1)``.
        settings: how to train, as one value; by default ``Settings()``.
        out: a run directory, which ``evenhand.load`` and ``evenhand.report`` can read when the run
            is done; it also has the checkpoints. None writes nothing.
        resume: resume from the checkpoint in ``out``, if there is one. All other arguments must be
            the same, with two exceptions: the federation may have additional clients at the end,
            which join the run (``Algorithm.join``), and a finished run may be given more rounds.
            A run that a callback stopped is finished.
        progress: called after every round with the number of rounds done and the history row; with
            several processes, by the first.
        callbacks: ``Callback`` objects, called in this order after every round; such as
            ``EarlyStopping()`` or ``track.TensorBoard("runs")``.
        **options: fields of ``evenhand.Settings``, such as ``rounds=50`` or ``loss="mse"``; they
            override ``settings``.

    Returns:
        Models, a row per round, and scores per client and group.
    """
    settings = Settings.of(settings, options)
    origin = Origin(module, federation, settings)
    with nullcontext() if out is None else alone(out):
        chosen = begun_engine(Path(out)) if out and settings.engine == "auto" else None
        if chosen in ENGINES:
            settings = replace(settings, engine=chosen)
        try:
            result = train(
                module,
                federation,
                algorithm,
                settings,
                out=out,
                resume=resume,
                progress=progress,
                begun=partial(_note, Path(out or "")),
                hooks=Hooks(callbacks),
            )
        except CallbackError as error:
            if error.result is not None:
                error.result = error.result.recorded(origin, out)
            raise
        return result.recorded(origin, out)


def _note(out: Path, model: Model, engine: Engine) -> None:
    """Record where a run starts or resumes; a finished run stays as it is."""
    if not processes.from_first(lambda: (out / SCORES).exists(), "whether the run is done"):
        here = place_of(str(model.device)) | {"engine": type(engine).__name__.lower()}
        note_place(out, here)


@processes.together
def train(
    module: nn.Module,
    federation: Population,
    algorithm: Algorithm,
    settings: Settings,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    begun: Callable[[Model, Engine], None] = lambda model, engine: None,
    guard: Callable[[], None] | None = None,
    hooks: Hooks | None = None,
) -> Result:
    """Do what ``fit`` does without a run directory: ``out`` only gets the checkpoint and the
    history.

    ``begun`` is called once ``out`` is known to belong to this run. ``guard`` is called before each
    checkpoint, and raises if the run now belongs to another process. If a callback fails, the
    rounds done are in the checkpoint; without one, in the error's ``result``.
    """
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function (rounds done, history row), got {progress!r}")
    require_out(out, resume, settings)
    prepared = prepare(module, federation, algorithm, settings)
    model, census, state, method = prepared
    hooks = hooks or Hooks(())
    hooks.check(model, federation, algorithm, settings)
    engine = choose(settings.engine, model, federation)
    if isinstance(settings.engine, str):
        # perhaps chosen by measuring: all processes use what the first has chosen
        engine = processes.from_first(lambda: engine)
    attached = engine.attach(model, federation, settings.seed)
    exchange = processes.split(attached, model, federation)
    require_masks(method, exchange)
    store, start = None, Start(state, {}, [], {})
    if out is not None:
        store, start = open_store(out, prepared, federation, algorithm, settings, resume)
        store.guard = guard or store.guard
    keep_secret(method, out, start)
    if out is not None:
        begun(model, engine)
    start = start._replace(ending=_resumed(start, settings, bool(hooks)))
    judge = Judge(method, model, federation, census, exchange)
    server = SingleServer(method, settings, exchange, judge, start, store)

    def after(done: int) -> None:
        rounds.notes.settle(done)
        if progress and processes.is_first():
            progress(done, start.history[done - 1])

    every = settings.checkpoint_every or max(1, settings.rounds // 10)
    rounds = Rounds(server, settings, census, every, federation, after, hooks)
    hooks.start(start.history)
    try:
        trained = rounds.run()
    except CallbackError as error:
        if store is not None:
            text = f"{error}; the rounds done are saved: {AGAIN}"
            raise CallbackError(text) from error.__cause__
        stopped = Stopped(server.done, settings.rounds, str(error))
        server.ending = server.ending._replace(stopped=stopped)
        failed = CallbackError(f"{error}; the error's result has the rounds done")
        failed.result = _result(server, rounds.finish(), algorithm, hooks)
        raise failed from error.__cause__
    result = _result(server, trained, algorithm, hooks)
    hooks.end(result)
    return result


def _result(server: SingleServer, trained: int, algorithm: Algorithm, hooks: Hooks) -> Result:
    """Return the result of a run, with the method as the user gave it and what it may claim."""
    result = next(server.results(trained))[1]
    watched = not all(callback.only_watches for callback in hooks.callbacks)
    privacy = privacy_of(server.algorithm, server.state["model"], server.done, watched)
    if privacy is None:
        return result
    if privacy.epsilon is not None and result.history_rows:
        result.history_rows[-1]["epsilon"] = privacy.epsilon
    log.info("%s", privacy.sentence)
    return replace(result, algorithm=algorithm, privacy=privacy)


def _resumed(start: Start, settings: Settings, watched: bool) -> Ending:
    """Return what earlier callbacks asked for, as far as it still holds.

    A run that was stopped may be given more rounds. If it then trains without callbacks, it
    returns its last model.
    """
    stopped, kept = start.ending
    if stopped is not None and settings.rounds <= stopped.rounds:
        return start.ending
    goes_on = len(start.history) < settings.rounds
    return Ending(None, None if goes_on and not watched else kept)
