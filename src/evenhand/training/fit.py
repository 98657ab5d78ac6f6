"""``fit``: one run, from a module and data to a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.data.population import Population
from evenhand.engines import Engine, choose, processes
from evenhand.engines.auto import ENGINES
from evenhand.metrics.scores import Row
from evenhand.model import Model
from evenhand.training.checkpoints import Start
from evenhand.training.directory import SCORES, Origin
from evenhand.training.evaluation import Judge
from evenhand.training.places import alone
from evenhand.training.provenance import begun_engine, note_place, place_of
from evenhand.training.result import Result
from evenhand.training.rounds import Rounds
from evenhand.training.server import SingleServer
from evenhand.training.settings import Options, Settings, takes_settings
from evenhand.training.start import open_store, prepare, require_out

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
        progress: called after every round with the number of rounds done and the history row; with
            several processes, by the first.
        **options: fields of ``evenhand.Settings``, such as ``rounds=50`` or ``loss="mse"``; they
            override ``settings``.

    Returns:
        Models, a row per round, and scores per client and group.
    """
    settings = Settings.of(settings, options)
    origin = Origin(module, federation, settings)
    if out is None:
        return train(
            module, federation, algorithm, settings, resume=resume, progress=progress
        ).recorded(origin, None)
    with alone(out):
        chosen = begun_engine(Path(out)) if settings.engine == "auto" else None
        if chosen in ENGINES:
            settings = replace(settings, engine=chosen)
        result = train(
            module,
            federation,
            algorithm,
            settings,
            out=out,
            resume=resume,
            progress=progress,
            begun=partial(_note, Path(out)),
        )
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
) -> Result:
    """Do what ``fit`` does without a run directory: ``out`` only gets the checkpoint and the
    history.

    ``begun`` is called once ``out`` is known to belong to this run. ``guard`` is called before each
    checkpoint, and raises if the run now belongs to another process.
    """
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function (rounds done, history row), got {progress!r}")
    require_out(out, resume, settings)
    prepared = prepare(module, federation, algorithm, settings)
    model, census, state, trained = prepared
    engine = choose(settings.engine, model, federation)
    if isinstance(settings.engine, str):
        # perhaps chosen by measuring: all processes use what the first has chosen
        engine = processes.from_first(lambda: engine)
    attached = engine.attach(model, federation, settings.seed)
    exchange = processes.split(attached, model, federation)
    store, start = None, Start(state, {}, [], {})
    if out is not None:
        store, start = open_store(out, prepared, federation, algorithm, settings, resume)
        store.guard = guard or store.guard
        begun(model, engine)
    judge = Judge(trained, model, federation, census, exchange)
    server = SingleServer(trained, settings, exchange, judge, start, store)

    def after(done: int) -> None:
        rounds.notes.settle(done)
        if progress and processes.is_first():
            progress(done, start.history[done - 1])

    every = settings.checkpoint_every or max(1, settings.rounds // 10)
    rounds = Rounds(server, settings, census, every, federation, after)
    rounds.run()
    return next(server.results(settings.rounds))[1]
