"""Comparisons and sweeps from Python, with your own modules, data and methods if you like."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from evenhand.engines import processes
from evenhand.errors import AGAIN, CallbackError, require_whole
from evenhand.files import write_tables
from evenhand.studies.findings import Findings, conclude
from evenhand.studies.given import Data, Folded, Methods, Model, Request, by_fold, request
from evenhand.studies.runs.comparing import Planned, check_comparison, execute_comparison
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.tuning import plan_tuning
from evenhand.studies.runs.tuning import tune as tune_first
from evenhand.studies.specs.asked import check_numbers
from evenhand.studies.specs.grid import Axis, parse_axis, swept
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import REFERENCES, Spec
from evenhand.training.callbacks import Callback
from evenhand.training.checkpoints import HISTORY
from evenhand.training.fit import Progress
from evenhand.training.manifest import renew
from evenhand.training.places import alone, new_place
from evenhand.training.provenance import ElsewhereWarning
from evenhand.training.settings import Options, takes_settings

UNNAMED = "run"  # the directory of a comparison without one

# called after every round with the number of rounds done and the total
Counter = Callable[[int, int], None]


@takes_settings("seed")
def compare(
    model: Model | Spec | Path,
    federation: Data | Folded | None = None,
    methods: Methods | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    references: Sequence[str] = REFERENCES,
    out: str | Path | None = None,
    resume: bool = False,
    validation: float | None = None,
    resplit: bool | None = None,
    folds: int | None = None,
    tune: bool | str | Mapping[str, Any] = False,
    over: str = "auto",
    level: float = 0.95,
    least: int = 10,
    positive: str | None = None,
    measure: str | None = None,
    progress: Counter | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[Options],
) -> Findings:
    """Train every method with every seed and compare them: metrics with intervals, gains and losses
    of every client and group, and a summary in words.

    >>> import evenhand as eh
    >>> fed = eh.datasets.digits(clients=4, seed=0)
    >>> found = eh.compare("linear", fed, {"plain": eh.FedAvg(), "fair": "qffl:q=1"}, rounds=1)
    >>> found.study.labels, found.study.seeds
    (('plain', 'fair', 'localonly'), (0, 1, 2))

    Args:
        model: a torch module, whose parameters every seed starts from; a function without arguments
            that returns one, called with torch's seed set; or the name of a model ("mlp", "auto").
            Without a federation: a spec, or the path of its TOML file.
        federation: the data; or a function of the seed that partitions them; with folds, a function
            of the split, such as ``lambda split: Federation.from_frame(table, split=split, ...)``.
        methods: algorithms, or their names as on the command line ("qffl:q=2"), in a list or by
            label; a pair such as ``("qffl:q=2", {"lr": 0.4})`` also changes the local solver. By
            default the spec's methods, or methods that suit the data.
        seeds: how many, starting at 0, or a list; by default the spec's, or three.
        references: methods to add if they are missing; gains and losses are measured against them.
        out: a directory for the results; None keeps nothing on disk.
        resume: continue what is in ``out``; all other arguments must be those of the first call.
        validation: the share of each client's training samples to set aside if the data have no
            validation split.
        resplit: partition and split the spec's data differently with each seed.
        folds: cross-validation instead of seeds: split each client's samples into this many folds
            and test on each of them once.
        tune: first choose each method's step size and fairness hyper-parameter on validation data,
            trying equally many settings for every method. True chooses the best mean over clients,
            "worst10" or "min" the best of that metric; a mapping has "rule" and "grid", the values
            to try, such as ``{"local.lr": [0.01, 0.1], "qffl.q": [0.5, 2]}``.
        over, level, least, positive, measure: see :func:`evenhand.analyse`.
        progress: called after every round with the number of rounds done and the total.
        callbacks: as in :func:`evenhand.fit`; every run gets copies of its own, and no runs are
            trained together.

    The other keywords are the fields of :class:`evenhand.Settings`.
    """
    data = by_fold(federation, folds)
    asked = request(model, data, methods, Path(out or UNNAMED).resolve().name, options)
    spec = replace(_with_seeds(asked.spec, seeds, resplit, validation, folds), select={})
    if tune:
        given = {"rule": tune} if isinstance(tune, str) else tune
        spec = replace(spec, tune={"rule": "mean"} | ({} if given is True else dict(given)))
    numbers = {
        "over": over,
        "level": level,
        "least": least,
        "positive": positive,
        "measure": measure,
    }
    asked = asked._replace(spec=spec).with_callbacks(callbacks)
    return _carry_out(asked, references, out, resume, progress, numbers)


@takes_settings("seed")
def sweep(
    model: Model | Spec | Path,
    federation: Data | None = None,
    methods: Methods | None = None,
    grid: Mapping[str, Sequence[Any] | str] | None = None,
    *,
    rule: str | None = None,
    tolerance: float | None = None,
    seeds: int | Sequence[int] | None = None,
    references: Sequence[str] = REFERENCES,
    out: str | Path | None = None,
    resume: bool = False,
    validation: float | None = None,
    resplit: bool | None = None,
    over: str = "auto",
    level: float = 0.95,
    least: int = 10,
    positive: str | None = None,
    measure: str | None = None,
    progress: Counter | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[Options],
) -> Findings:
    """Train every point of a grid with every seed, choose one on validation data, and compare it
    with the references on test data.

    ``result.sweep`` holds the choice and its reason, ``result.table("sweep")`` every point.

    Args:
        grid: values by hyper-parameter: ``{"q": [0.1, 1, 5], "local.lr": "log:0.01:1:5"}``; for one
            of several methods, ``{"qffl.q": [0.1, 1]}``.
        rule: how to choose: "qffl", the largest drop of the variance over clients with a mean no
            worse than FedAvg's; "worst10", "min", "std" or "mean", the best of that metric.
        tolerance: how far a point's mean may lie below FedAvg's, in points of accuracy or in the
            label's unit. By default 0 for "qffl" and no limit for the others.

    The other arguments are those of :func:`evenhand.compare`; FedAvg is always among the
    references.
    """
    asked = request(model, federation, methods, Path(out or UNNAMED).resolve().name, options)
    spec = _with_seeds(asked.spec, seeds, resplit, validation)
    given = {"rule": rule, "tolerance": tolerance}
    select = (
        {"rule": "qffl"}
        | spec.select
        | {key: value for key, value in given.items() if value is not None}
    )
    spec = replace(swept(spec, _axes(grid or {}), references), select=select, tune={})
    numbers = {
        "over": over,
        "level": level,
        "least": least,
        "positive": positive,
        "measure": measure,
    }
    asked = asked._replace(spec=spec).with_callbacks(callbacks)
    return _carry_out(asked, (), out, resume, progress, numbers)


def load(*runs: str | Path) -> Study:
    """Load the directories of runs, comparisons or sweeps on the same data as one study.

    ``study.trial("qffl", seed=1)`` holds the model, scores and history of a method.
    """
    return Study.load(runs)


def _with_seeds(
    spec: Spec,
    seeds: int | Sequence[int] | None,
    resplit: bool | None,
    validation: float | None,
    folds: int | None = None,
) -> Spec:
    if folds is not None:
        if seeds is not None:
            raise ValueError(
                "folds and seeds exclude each other, as each fold has its own seed; leave out seeds"
            )
        seeds, resplit = folds, bool(resplit)
    if isinstance(seeds, int):
        require_whole("seeds", seeds, 1)
        seeds = range(spec.seed, spec.seed + seeds)
    chosen: dict[str, Any] = {
        "seeds": seeds or spec.seeds or range(spec.seed, spec.seed + 3),
        "resplit": resplit,
        "validation": validation,
        "folds": folds,
    }
    chosen["seeds"] = tuple(chosen["seeds"])
    return replace(spec, **{key: value for key, value in chosen.items() if value is not None})


def _axes(grid: Mapping[str, Sequence[Any] | str]) -> list[Axis]:
    return [
        parse_axis(f"{key}={values}")
        if isinstance(values, str)
        else Axis.of(key, list(values), f"{key}={list(values)}")
        for key, values in grid.items()
    ]


def _carry_out(
    asked: Request,
    references: Sequence[str],
    out: str | Path | None,
    resume: bool,
    progress: Counter | None,
    numbers: Mapping[str, Any],
) -> Findings:
    """Check, train, and analyse."""
    over, positive = numbers["over"], numbers["positive"]
    check_numbers(asked.spec, over=over)
    planned = check_comparison(asked.spec, references, asked.given)
    check_numbers(planned.spec, planned.first.federation.label_names, over, positive)
    tuning = plan_tuning(planned) if planned.spec.tune else None
    with _place(out, resume) as directory:
        if tuning is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some step sizes are too large on purpose
                warnings.simplefilter("default", ElsewhereWarning)
                planned = tune_first(planned, tuning, directory, _watching(tuning, progress))
        execute_comparison(planned, directory, _watching(planned, progress))

        def found() -> Findings:
            study = Study.load([directory])
            findings = conclude(study, planned.spec, **numbers)
            written = write_tables(directory, findings.tables())
            renew(directory, [path.name for path in written])
            if out is None:  # models are otherwise read lazily
                for trial in study.trials.values():
                    trial.read_models()
            return findings

        return processes.from_first(found, "the findings")


@contextmanager
def _place(out: str | Path | None, resume: bool) -> Iterator[Path]:
    """The directory to work in; without ``out`` a temporary one, kept if a callback fails."""
    if out is not None:
        path = Path(out)
        remedy = "resume it with resume=True, or use another directory"
        with alone(path) if resume else new_place(path, False, remedy):
            yield path
        return
    if resume:
        raise ValueError("resume needs out, the directory of the results")
    made = Path(processes.from_first(lambda: tempfile.mkdtemp(prefix="evenhand-"), "a directory"))
    place, kept = made / UNNAMED, False
    place.mkdir(exist_ok=True)
    try:
        yield place
    except CallbackError as error:
        if next(place.rglob(HISTORY), None) is None:  # it failed before the first round
            raise
        kept = True
        saved = "" if str(error).endswith(AGAIN) else f"; the runs done are saved: {AGAIN}"
        failed = CallbackError(f"{error}{saved} and out='{place}'")
        failed.result = error.result
        raise failed from error.__cause__
    finally:
        if not kept:
            shutil.rmtree(made, ignore_errors=True)


def _watching(planned: Planned, progress: Counter | None) -> Callable[..., Progress]:
    spec = planned.spec
    total = len(spec.seeds) * len(spec.methods) * spec.rounds

    def watch(
        seed: int, method: Method, together: int = 1, finished: int | None = None
    ) -> Progress:
        before = spec.rounds * spec.runs_before(seed, method, finished)

        def after_round(done: int, _: Mapping[str, Any]) -> None:
            if progress is not None and done and processes.is_first():
                progress(before + together * done, total)

        return after_round

    return watch
