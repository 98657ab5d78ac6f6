"""A run on disk: its spec, and for each method the tables, the models and, while it runs, a
checkpoint.

runs/digits/
  spec.toml            what was asked for
  about.json           versions, seed, machine, what the data are
  encoding.json        how a table's columns became numbers, where the data came as one
  samples.safetensors  whose each test sample is, and of which group
  comparison.csv       numbers of every method with intervals, and other tables like it
  fedavg/
    history.csv        a row per round scores.csv         a row per client, group and team
    validation.csv     the same on validation data, where there are any over_clients.json  numbers
    over clients, where the server of a real federation saw sums alone tally.safetensors  what the
    scores are made of: counts and sums by client and group values.safetensors     of each test
    sample, whether it was predicted right, or its squared error weights.json       which weight
    each client effectively had at the end, for methods with an objective weights.safetensors    the
    same at every evaluated round model.safetensors  the model handed out personal.safetensors
    each client's own model, for methods that have them checkpoint.safetensors     only until the
    method is done
"""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from evenhand import files
from evenhand.algorithm import Algorithm, visible
from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.engines import Vmap, choose, processes
from evenhand.errors import RunError, SpecError
from evenhand.metrics.scores import rows_of
from evenhand.studies.measure import Measure, measure_of
from evenhand.studies.spec import NODES, RESERVED, Method, Spec
from evenhand.training.checkpoints import CHECKPOINT, HISTORY
from evenhand.training.fit import Progress, fit
from evenhand.training.result import Result
from evenhand.training.settings import Settings
from evenhand.training.stacks.fit_many import fit_each
from evenhand.training.stacks.plan import Run
from evenhand.training.start import prepare

SCORES, MODEL, PERSONAL = "scores.csv", "model.safetensors", "personal.safetensors"
WEIGHTS = "weights.json"
VALIDATION, TALLY, VALUES = "validation.csv", "tally.safetensors", "values.safetensors"
WEIGHT_HISTORY = "weights.safetensors"
ABOUT, ENCODING, SAMPLES = "about.json", "encoding.json", "samples.safetensors"
OVER_CLIENTS = "over_clients.json"
PACKAGES = ("evenhand", "torch", "numpy", "scikit-learn")
# parameters; up to here runs together were measured to be faster on a CPU, too (docs/comparing.md)
SMALL = 1_000_000
METHOD_FILES = (
    HISTORY,
    MODEL,
    PERSONAL,
    SCORES,
    WEIGHTS,
    VALIDATION,
    TALLY,
    VALUES,
    WEIGHT_HISTORY,
    OVER_CLIENTS,
)


@processes.on_first
def new_directory(wanted: Path, numbered: bool) -> Path:
    """A directory for a new run; never one that holds something. ``numbered``: append -2, -3, ...
    to a name that is taken."""
    path, count = wanted, 1
    while path.exists() and any(path.iterdir()):
        if not numbered:
            raise RunError(
                f"{wanted} is not empty; give another --out, or continue it with: evenhand resume"
                f" {shlex.quote(str(wanted))}"
            )
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


def check(spec: Spec, federation: Federation | None = None) -> Ready:
    """Build data and model and check every method against them; raises before anything is written
    or trained.

    ``federation``: the spec's data, where they have been built already.
    """
    if spec.data.get("name") == NODES:
        raise SpecError(
            "the data of this run are with the nodes of a federation; start its Flower app to run"
            " it, or to go on with it"
        )
    if not spec.methods:
        raise SpecError("the spec names no method; add a [[methods]] entry")
    for method in spec.methods:
        if method.name != "auto":
            # a slip in a setting shows before data are read
            method.algorithm(), settings_of(spec, method)
    federation = federation or spec.build_data()
    spec = spec.settled(federation)
    module = spec.build_model(federation)
    device = (
        ("cuda" if torch.cuda.is_available() else "cpu") if spec.device == "auto" else spec.device
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training will say it again
        for method in spec.methods:
            settings = settings_of(spec, method, device)
            model = prepare(module, federation, method.algorithm(), settings).model
        choose(spec.engine, model, federation)
    return Ready(spec, federation, module, device)


def settings_of(spec: Spec, method: Method, device: str | None = None) -> Settings:
    """How a method of a spec is trained. ``device``: the one that was chosen."""
    return Settings(
        loss=spec.loss,
        rounds=spec.rounds,
        local=spec.build_local(method),
        cohort=spec.build_cohort(),
        seed=spec.seed,
        engine=spec.engine,
        weights=spec.weights,
        device=device,
        eval_every=spec.eval_every,
        checkpoint_every=spec.checkpoint_every,
        track_weights=spec.track_weights,
        precision=spec.precision,
    )


def execute(ready: Ready, directory: Path, watch: Callable[[Method], Progress]) -> None:
    """Run, or go on with, every method of a spec in ``directory``."""
    spec, federation, module, device = ready
    _claim(ready, directory)
    for method in spec.methods:
        folder = directory / method.label
        if not _finished(folder):
            result = fit(
                module,
                federation,
                method.algorithm(),
                settings=settings_of(spec, method, device),
                out=folder,
                resume=True,
                progress=watch(method),
            )
            save(result, folder)


def pays(ready: Ready) -> bool:
    """Whether runs that are alike are better trained together than one after another: on a GPU, and
    on a CPU for small models."""
    spec, federation, module, device = ready
    method = spec.methods[0]
    settings = settings_of(spec, method, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training will say it again
        model = prepare(module, federation, method.algorithm(), settings).model
        stacks = (
            isinstance(choose(spec.engine, model, federation), Vmap)
            and not model.stochastic
            and not processes.several()
        )
    return stacks and (model.device.type != "cpu" or model.size <= SMALL)


def execute_together(
    places: Sequence[tuple[Ready, Path]], watch: Callable[..., Progress], finished: int = 0
) -> None:
    """Run, or go on with, every method of several specs that share their data, each in its
    directory; see :func:`evenhand.fit_many`."""
    first = places[0][0]
    pairs: list[tuple[int, Method, Path]] = []
    runs: list[Run] = []
    done: list[Run] = []
    for ready, directory in places:
        spec = ready.spec
        _claim(ready, directory)
        for method in spec.methods:
            folder = directory / method.label
            run = Run(method.algorithm(), spec.seed, spec.build_local(method), ready.module, folder)
            if _finished(folder):
                done.append(run)
            else:
                runs.append(run)
                pairs.append((spec.seed, method, folder))
    finished += len(done)
    watched: dict[int, Progress] = {}

    def progress(numbers: Sequence[int], rounds: int) -> None:
        seed, method, _ = pairs[numbers[0]]
        if numbers[0] not in watched:
            watched[numbers[0]] = watch(seed, method, together=len(numbers), finished=finished)
        watched[numbers[0]](rounds, {})

    settings = settings_of(first.spec, first.spec.methods[0], first.device)
    for number, result in fit_each(
        first.module, first.federation, runs, settings, beside=done, resume=True, progress=progress
    ):
        save(result, pairs[number][2])
        finished += 1


def read_measure(about: Mapping[str, Any], spec: Spec) -> Measure:
    """What the methods of a run are compared by, from what it says about itself."""
    return measure_of(
        spec.loss, about.get("label_scale", 1.0), about.get("judged_on", "test") == "test"
    )


@processes.on_first
def _finished(folder: Path) -> bool:
    """Whether a method is done; what a killed process left beside its files is removed."""
    files.clear_partial(folder, METHOD_FILES)
    done = (folder / SCORES).exists()
    if done:
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return done


@processes.on_first
def _claim(ready: Ready, directory: Path) -> None:
    """Write what the run is about; refuse a directory whose results belong to another spec or to
    other data."""
    files.clear_partial(directory, RESERVED)
    spec, federation, module, device = ready
    identity, data = spec_identity(spec), federation.fingerprint()
    path = directory / ABOUT
    begun = json.loads(path.read_text()) if path.exists() else {}
    if begun.get("spec", identity) != identity:
        raise RunError(
            f"{directory} was begun with other settings; run the changed spec.toml in a directory"
            " of its own"
        )
    if begun.get("data", data) != data:
        raise RunError(
            f"the data have changed since {directory} was begun; run them in a directory of"
            " their own"
        )
    files.write_atomic(directory / "spec.toml", spec.to_toml().encode())
    methods = {method.label: method.algorithm() for method in spec.methods}
    files.write_json(path, about_run(spec, federation, methods, module, device))
    if federation.encoding is not None:
        files.write_json(directory / ENCODING, federation.encoding.to_json())
    if not (directory / SAMPLES).exists():
        part = federation.judged
        group = torch.zeros_like(part.owners) if part.group is None else part.group
        files.write_tensors(
            directory / SAMPLES, {"client": part.owners.int(), "group": group.int()}
        )


def spec_identity(spec: Spec) -> str:
    """A text that changes when the settings do."""
    return hashlib.sha256(spec.to_toml().encode()).hexdigest()


def about_run(
    spec: Spec,
    population: Population,
    methods: Mapping[str, Algorithm],
    module: nn.Module,
    device: str,
    packages: Sequence[str] = PACKAGES,
) -> dict[str, Any]:
    """What a run says about itself: data, machine, versions, and what a server learns of a single
    client with each method, by label."""
    encoding = population.encoding if isinstance(population, Federation) else None
    census, params = population.census(spec.weights), dict(module.named_parameters())
    return {
        "spec": spec_identity(spec),
        "data": population.fingerprint(),
        "judged_on": "test" if population.judged_part == "test" else "training",
        "labels": list(population.label_names),
        "label_scale": encoding.label_std if encoding else 1.0,
        "seed": spec.seed,
        "device": device,
        "machine": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in packages},
        },
        "server": {
            label: {
                "sees": list(visible(method, census)),
                "stays": list(method.memory(params)) or ["model"] * method.personal,
            }
            for label, method in methods.items()
        },
    }


@processes.on_first
def save(result: Result, folder: Path, keep_checkpoint: bool = False) -> None:
    """Write a finished method; scores last, since they mark it as finished."""
    files.write_rows(folder / HISTORY, result.history_rows)
    files.write_tensors(folder / MODEL, dict(result.params))
    if result.personal is not None:
        files.write_tensors(
            folder / PERSONAL,
            {str(client): dict(params) for client, params in enumerate(result.personal)},
        )
    if result.certificate is not None:
        value, gap = float(result.certificate.value), float(result.certificate.gap)
        files.write_json(
            folder / WEIGHTS, {"objective": value, "gap": gap, "clients": result.weight_rows}
        )
    if result.weight_history is not None:
        history = {
            "round": torch.tensor(result.weight_rounds),
            "weight": torch.from_numpy(result.weight_history).float(),
        }
        files.write_tensors(folder / WEIGHT_HISTORY, history)
    if result.validation is not None:
        files.write_rows(folder / VALIDATION, rows_of(result.validation))
    files.write_tensors(
        folder / TALLY, {name: torch.from_numpy(sums) for name, sums in result.tally.items()}
    )
    if len(result.values):  # of a real federation, samples are with its nodes
        values = torch.from_numpy(result.values)
        files.write_tensors(
            folder / VALUES,
            {"value": values.to(torch.uint8) if "correct" in result.tally else values},
        )
    if result.over_clients is not None:
        files.write_json(folder / OVER_CLIENTS, result.over_clients)
    files.write_rows(folder / SCORES, result.score_rows)
    if not keep_checkpoint:
        (folder / CHECKPOINT).unlink(missing_ok=True)
