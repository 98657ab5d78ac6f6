"""Train the methods of a spec: build and check everything first, then train and save."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from evenhand.data.federation import Federation
from evenhand.engines import Engine, Vmap, choose, processes
from evenhand.engines.auto import ENGINES
from evenhand.errors import SpecError
from evenhand.model import Model
from evenhand.studies.runs.directories import claim_run, is_finished
from evenhand.studies.specs.building import changed_local, sample_form
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import NODES, Spec
from evenhand.training.about import PYTHON, about_run
from evenhand.training.callbacks import Callback, Hooks, own_copies, require_callbacks
from evenhand.training.directory import write_method
from evenhand.training.fit import Progress, train
from evenhand.training.provenance import begun_engine, note_place
from evenhand.training.settings import Settings
from evenhand.training.stacks.fit_many import fit_each
from evenhand.training.stacks.plan import Run
from evenhand.training.start import prepare

# parameters; measurements show that stacked runs are faster on a CPU up to this size
SMALL = 1_000_000
ELSEWHERE = {
    NODES: (
        "the data of this run stay with the nodes of a federation; start its Flower app to run or"
        " resume it"
    ),
    PYTHON: (
        "the data of this run came from a Python program; resume it there: repeat the call with"
        " resume=True"
    ),
}


class Given(NamedTuple):
    """What a Python program passes instead of what a spec would build."""

    federation: Federation | None = None
    module: nn.Module | None = None
    # fields of Settings as objects that a spec can only name
    settings: Mapping[str, Any] = {}
    callbacks: Sequence[Callback] = ()  # each run gets copies


class Ready(NamedTuple):
    """A checked spec, with its data and model, and every choice made."""

    spec: Spec
    federation: Federation
    module: nn.Module
    given: Mapping[str, Any] = {}  # see Given.settings
    callbacks: Sequence[Callback] = ()

    def settings(self, method: Method) -> Settings:
        """How a method is trained."""
        return settings_of(self.spec, method, self.given)

    def hooks(self, method: Method, folder: Path) -> Hooks:
        """The callbacks of one run; early stopping comes first, so that others see its numbers."""
        place = f"{folder.parent.name}/{folder.name}"
        callbacks = [*self.spec.build_callbacks(), *own_copies(self.callbacks)]
        return Hooks(callbacks, method.label, place)

    @property
    def has_callbacks(self) -> bool:
        """Whether runs have callbacks, and so are not trained together."""
        return bool(self.callbacks or self.spec.early_stopping)

    def check_callbacks(self) -> Ready:
        """Raise if a callback cannot work with these runs."""
        if self.has_callbacks:
            for method in self.spec.methods:
                hooks = self.hooks(method, Path(method.label))
                model, settings = self.model(method), self.settings(method)
                hooks.check(model, self.federation, method.algorithm(), settings)
        return self

    def model(self, method: Method) -> Model:
        """The model as a method trains it; raises if parts do not fit together."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training will say it again
            algorithm, settings = method.algorithm(), self.settings(method)
            return prepare(self.module, self.federation, algorithm, settings).model

    def engine(self, model: Model) -> Engine:
        """The engine that trains the methods."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training will say it again
            return choose(self.settings(self.spec.methods[0]).engine, model, self.federation)

    def about(self) -> dict[str, Any]:
        """The metadata of the run."""
        spec, first = self.spec, self.spec.methods[0]
        about = about_run(
            spec.to_toml(),
            self.federation,
            {method.label: method.algorithm() for method in spec.methods},
            self.module,
            spec.weights,
            spec.seed,
            str(self.settings(first).device or next(self.module.parameters()).device),
            normalisation=self.settings(first).normalisation,
        )
        model = self.model(first)
        about["model"] = sample_form(self.federation, spec.loss)
        about["engine"] = type(self.engine(model)).__name__.lower()
        about["predicts"] = model.target.to_json()
        if callable(self.given.get("loss")):
            about["classifies"] = model.classifies
        return about

    def with_engine_of(self, directory: Path) -> Ready:
        """The same with the engine that "auto" chose when the directory was started."""
        chosen, engine = self.given.get("engine", self.spec.engine), begun_engine(directory)
        if chosen == "auto" and engine in ENGINES:
            return self._replace(given={**self.given, "engine": engine})
        return self


def settings_of(spec: Spec, method: Method, given: Mapping[str, Any]) -> Settings:
    """How a method of a spec is trained; ``given`` fields override the spec's."""
    chosen = {**spec.settings(without=given), **given}
    local = (
        changed_local(chosen.pop("local"), method.local)
        if "local" in chosen
        else spec.build_local(method)
    )
    return Settings(local=local, **chosen)


def check(spec: Spec, given: Given | None = None, begun: bool = True) -> Ready:
    """Build data and model and check every method against them; raises before anything is written
    or trained. Callbacks are not checked yet unless the spec has ``begun``."""
    federation, module, settings, callbacks = given or Given()
    require_callbacks(callbacks)
    if federation is None and spec.data.get("name") in ELSEWHERE:
        raise SpecError(ELSEWHERE[spec.data["name"]])
    if not spec.methods:
        raise SpecError("the spec names no method; add a [[methods]] entry")
    for method in spec.methods:
        if method.name != "auto":
            # so that a mistake in a setting shows before data are read
            method.algorithm(), settings_of(spec, method, {"loss": "mse", **settings})
    if federation is None:
        federation = spec.build_data()
    else:
        federation = federation.with_validation(spec.validation, spec.data_seed)
    spec = spec.settled(federation)
    ready = Ready(spec, federation, module or spec.build_model(federation), settings, callbacks)
    models = [ready.model(method) for method in spec.methods]
    ready.engine(models[-1])
    return ready.check_callbacks() if begun else ready


def execute(ready: Ready, directory: Path, watch: Callable[[Method], Progress]) -> None:
    """Run or resume every method of a spec in ``directory``."""
    ready = ready.with_engine_of(directory)
    about = ready.about()
    claim_run(directory, ready.spec, ready.federation, about)
    left = [m for m in ready.spec.methods if not is_finished(directory / m.label)]
    if left:
        note_place(directory, about)
    for method in left:
        folder = directory / method.label
        settings = ready.settings(method)
        result = train(
            ready.module,
            ready.federation,
            method.algorithm(),
            settings,
            out=folder,
            resume=True,
            progress=watch(method),
            hooks=ready.hooks(method, folder),
        )
        kept = _kept(ready.federation, settings)
        write_method(result, folder, predicted=kept, module=ready.module)


def _kept(federation: Federation, settings: Settings) -> Federation | None:
    """The samples whose predictions are to be written, if any are."""
    return federation if settings.keep_predictions else None


def pays(ready: Ready) -> bool:
    """Whether training similar runs together is faster than one after another: on a GPU, and on a
    CPU for small models. Runs with callbacks are trained by themselves."""
    if ready.has_callbacks:
        return False
    model = ready.model(ready.spec.methods[0])
    stacks = (
        isinstance(ready.engine(model), Vmap) and not model.stochastic and not processes.several()
    )
    return stacks and (model.device.type != "cpu" or model.size <= SMALL)


def execute_together(
    places: Sequence[tuple[Ready, Path]], watch: Callable[..., Progress], finished: int = 0
) -> None:
    """Run or resume every method of several specs that share their data, each in its directory; see
    :func:`evenhand.fit_many`."""
    first = places[0][0]
    pairs: list[tuple[int, Method, Path]] = []
    runs: list[Run] = []
    done: list[Run] = []
    for ready, directory in places:
        seed, about = ready.spec.seed, ready.about()
        claim_run(directory, ready.spec, ready.federation, about)
        for method in ready.spec.methods:
            folder = directory / method.label
            local = ready.settings(method).local
            run = Run(method.algorithm(), seed, local, ready.module, folder)
            if is_finished(folder):
                done.append(run)
            else:
                runs.append(run)
                pairs.append((seed, method, folder))
        if any(pair[0] == seed for pair in pairs):
            note_place(directory, about)
    finished += len(done)
    watched: dict[int, Progress] = {}

    def progress(numbers: Sequence[int], rounds: int) -> None:
        seed, method, _ = pairs[numbers[0]]
        if numbers[0] not in watched:
            watched[numbers[0]] = watch(seed, method, together=len(numbers), finished=finished)
        watched[numbers[0]](rounds, {})

    settings = first.settings(first.spec.methods[0])
    for number, result in fit_each(
        first.module,
        first.federation,
        runs,
        settings=settings,
        beside=done,
        progress=progress,
        resume=True,
    ):
        kept = _kept(first.federation, settings)
        write_method(result, pairs[number][2], predicted=kept, module=first.module)
        finished += 1
