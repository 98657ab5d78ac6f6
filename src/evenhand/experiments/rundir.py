"""A run on disk: its spec, and for each method the tables, the models and, while it runs, a checkpoint.

runs/digits/
  spec.toml            what was asked for
  about.json           versions, seed, machine
  encoding.json        how a table's columns became numbers, where the data came as one
  summary.csv          a row per method
  fedavg/
    history.csv        a row per round
    scores.csv         a row per client and group
    weights.json       which weight each client effectively had at the end, for methods with an objective
    model.safetensors  the model handed out
    personal.safetensors   each client's own model, for methods that have them
    checkpoint.safetensors     only until the method is done
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shlex
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from evenhand import files
from evenhand.algorithm import Algorithm
from evenhand.data import Federation
from evenhand.engines import choose
from evenhand.errors import RunError, SpecError
from evenhand.experiments.spec import RESERVED, Method, Spec
from evenhand.metrics.scores import Row, summary
from evenhand.run import CHECKPOINT, HISTORY, Progress, Result, check_arguments, fit, prepare

SCORES, MODEL, PERSONAL, WEIGHTS = "scores.csv", "model.safetensors", "personal.safetensors", "weights.json"
ENCODING = "encoding.json"


@dataclass(frozen=True)
class Measure:
    """What methods are compared by, and how it is written. A *merit* is larger where a model is better."""

    name: str
    unit: str
    scale: float  # of a merit, as it is written
    digits: int
    percent: str
    gain: str  # title of a table of gains
    words: tuple[str, str, str]  # of what, better, worse
    column: str = "accuracy"  # of the scores
    part: str = "test"  # of the data that it was taken on

    def show(self, merit: float) -> str:
        """A merit as it is written: errors are merits with a minus."""
        return "-" if math.isnan(merit) else f"{abs(self.scale * merit):.{self.digits}f}"


ACCURACY = Measure(
    "accuracy", ", %", 100.0, 1, " %", "Gain or loss of each {} against FedAvg, points of accuracy", ("accuracy", "lifts", "lowers")
)


def error_measure(scale: float) -> Measure:
    """The root of the mean squared error, in units of the label: ``scale`` of them are 1 in the model's output."""
    digits = max(0, 3 - math.floor(math.log10(scale))) if scale < 1000 else 0
    title = "Decrease (+) or increase (-) of each {}'s error against FedAvg"
    return Measure("error (RMSE)", "", scale, digits, "", title, ("error", "lowers", "raises"), column="loss")


@dataclass(frozen=True)
class Outcome:
    """What a method of a run came to."""

    method: Method
    algorithm: Algorithm
    scores: list[Row]
    weights: dict[str, Any] | None = None  # the objective, how well the weights explain it, and a row per client
    measure: Measure = ACCURACY

    def rows(self, by: str) -> list[Row]:
        """One row per client, or per group."""
        return [row for row in self.scores if row["by"] == by]

    def merits(self, by: str) -> list[float]:
        """How well each client or group is served, larger is better; NaN for one without test data."""
        values = [row.get(self.measure.column, math.nan) for row in self.rows(by)]
        return values if self.measure.column == "accuracy" else [-math.sqrt(value) for value in values]


def new_directory(wanted: Path, numbered: bool) -> Path:
    """A directory for a new run; never one that holds something. ``numbered``: append -2, -3, ... to a name that is taken."""
    path, count = wanted, 1
    while path.exists() and any(path.iterdir()):
        if not numbered:
            raise RunError(f"{wanted} is not empty; give another --out, or continue it with: evenhand resume {shlex.quote(str(wanted))}")
        count += 1
        path = wanted.with_name(f"{wanted.name}-{count}")
    path.mkdir(parents=True, exist_ok=True)
    return path


def load_spec(directory: Path) -> Spec:
    """The spec of an existing run."""
    path = directory / "spec.toml"
    if not path.exists():
        raise RunError(f"{directory} holds no run: there is no spec.toml in it")
    return Spec.load(path)


class Ready(NamedTuple):
    """A spec whose parts were built and found to fit together; nothing in it is left to choose."""

    spec: Spec
    federation: Federation
    module: nn.Module
    device: str


def check(spec: Spec) -> Ready:
    """Build data and model and check every method against them; raises before anything is written or trained."""
    if not spec.methods:
        raise SpecError("the spec names no method; add a [[methods]] entry")
    check_arguments(spec.rounds, spec.seed, spec.eval_every, spec.checkpoint_every)
    cohort = spec.build_cohort()
    for method in spec.methods:
        if method.name != "auto":
            method.algorithm(), spec.build_local(method)  # a slip in a setting shows before data are read
    federation = spec.build_data()
    spec = spec.settled(federation)
    methods = [(method.algorithm(), spec.build_local(method)) for method in spec.methods]
    module = spec.build_model(federation)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if spec.device == "auto" else spec.device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training will say it again
        for algorithm, local in methods:
            model = prepare(module, federation, algorithm, spec.loss, local, cohort, spec.weights, device).model
        choose(spec.engine, model, federation)
    return Ready(spec, federation, module, device)


def execute(ready: Ready, directory: Path, watch: Callable[[Method], Progress]) -> list[Outcome]:
    """Run, or go on with, every method of a spec in ``directory``."""
    spec, federation, module, device = ready
    measure = ACCURACY if spec.loss != "mse" else error_measure(federation.encoding.label_std if federation.encoding else 1.0)
    if federation.test is None or not len(federation.test.x):
        measure = replace(measure, part="training")
    _claim(spec, federation, directory, device)
    if federation.encoding is not None:
        files.write_json(directory / ENCODING, federation.encoding.to_json())
    outcomes = []
    for method in spec.methods:
        folder, algorithm = directory / method.label, method.algorithm()
        files.clear_partial(folder, (HISTORY, MODEL, PERSONAL, SCORES, WEIGHTS))
        if (folder / SCORES).exists():
            (folder / CHECKPOINT).unlink(missing_ok=True)
        else:
            result = fit(
                module,
                federation,
                algorithm,
                loss=spec.loss,
                rounds=spec.rounds,
                local=spec.build_local(method),
                cohort=spec.build_cohort(),
                seed=spec.seed,
                engine=spec.engine,
                weights=spec.weights,
                device=device,
                eval_every=spec.eval_every,
                out=folder,
                checkpoint_every=spec.checkpoint_every,
                resume=True,
                progress=watch(method),
            )
            save(result, folder)
        weights = json.loads((folder / WEIGHTS).read_text()) if (folder / WEIGHTS).exists() else None
        scores = files.read_rows(folder / SCORES, text=("by", "name", "team"))
        outcomes.append(Outcome(method, algorithm, scores, weights, measure))
    rows = [{"method": o.method.label, **summary(o.merits("client"))} for o in outcomes]
    files.write_rows(directory / "summary.csv", rows)
    return outcomes


def _claim(spec: Spec, federation: Federation, directory: Path, device: str) -> None:
    """Write what the run is about; refuse a directory whose results belong to another spec or to other data."""
    files.clear_partial(directory, RESERVED)
    identity, data = hashlib.sha256(spec.to_toml().encode()).hexdigest(), federation.fingerprint()
    about = directory / "about.json"
    begun = json.loads(about.read_text()) if about.exists() else {}
    if begun.get("spec", identity) != identity:
        raise RunError(f"{directory} was begun with other settings; run the changed spec.toml in a directory of its own")
    if begun.get("data", data) != data:
        raise RunError(f"the data have changed since {directory} was begun; run them in a directory of their own")
    files.write_atomic(directory / "spec.toml", spec.to_toml().encode())
    packages = ("evenhand", "torch", "numpy", "scikit-learn")
    versions = {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}
    files.write_json(
        about, {"spec": identity, "data": data, "seed": spec.seed, "device": device, "machine": platform.platform(), "versions": versions}
    )


def save(result: Result, folder: Path) -> None:
    """Write a finished method; scores last, since they mark it as finished."""
    files.write_rows(folder / HISTORY, result.history_rows)
    files.write_tensors(folder / MODEL, dict(result.params))
    if result.personal is not None:
        files.write_tensors(folder / PERSONAL, {str(client): dict(params) for client, params in enumerate(result.personal)})
    if result.certificate is not None:
        value, gap = float(result.certificate.value), float(result.certificate.gap)
        files.write_json(folder / WEIGHTS, {"objective": value, "gap": gap, "clients": result.weight_rows})
    files.write_rows(folder / SCORES, result.score_rows)
    (folder / CHECKPOINT).unlink(missing_ok=True)
