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

# called after every round with the rounds done and the history row
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
    """Train ``module`` on ``federation`` with ``algorithm``.

    Training starts from the module's own parameters and leaves the module unchanged. Same
    arguments, same result, byte for byte, on one engine and device.

    Args:
        federation: the clients' data; a population without samples where ``engine`` is an engine
            object that reaches clients elsewhere.
        settings: how to train, as a value; by default ``Settings``' defaults. Its fields can
            be given as keywords of their own: ``fit(..., rounds=50, loss="mse")``.
        out: a run directory, which ``evenhand.load`` and ``evenhand.report`` read when the
            run is done, with checkpoints until then; None keeps nothing on disk.
        resume: go on from the checkpoint in ``out`` if there is one; all other arguments must be
            those of the first call. But the federation may have more clients, with the next
            numbers: they join the run (``evenhand.Algorithm.join``). And a run that is done may
            go on with more rounds, as if it had been asked for so many at first.
        progress: called after every round with the number of rounds done and the history row; of
            several processes, by the first.

    The other keywords are the fields of ``evenhand.Settings``: loss, rounds, local, cohort,
    seed, engine, weights, device, eval_every, checkpoint_every, track_weights, precision, evaluate.
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
    """Write where a run begins, or goes on; one that is done stays as it is."""
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
    """``fit`` without the run directory: ``out`` gets the checkpoint and the history alone.

    ``begun`` is called once ``out`` was found to be of this run; ``guard`` before each checkpoint,
    and raises where the run is no longer ours.
    """
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function (rounds done, history row), got {progress!r}")
    require_out(out, resume, settings)
    prepared = prepare(module, federation, algorithm, settings)
    model, census, state = prepared
    engine = choose(settings.engine, model, federation)
    if isinstance(settings.engine, str):
        # by a measurement, perhaps: all processes take what the first has found
        engine = processes.from_first(lambda: engine)
    attached = engine.attach(model, federation, settings.seed)
    exchange = processes.split(attached, model, federation)
    store, start = None, Start(state, {}, [], {})
    if out is not None:
        store, start = open_store(out, prepared, federation, algorithm, settings, resume)
        store.guard = guard or store.guard
        begun(model, engine)
    judge = Judge(algorithm, model, federation, census, exchange)
    server = SingleServer(algorithm, settings, exchange, judge, start, store)

    def after(done: int) -> None:
        rounds.notes.settle(done)
        if progress and processes.is_first():
            progress(done, start.history[done - 1])

    every = settings.checkpoint_every or max(1, settings.rounds // 10)
    rounds = Rounds(server, settings, census, every, federation.name, after)
    rounds.run()
    return next(server.results(settings.rounds))[1]
