"""A call from Python as a spec, together with the objects that a spec can only name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.algorithms.naming import Table, described, plain_fields
from evenhand.data.federation import Federation
from evenhand.errors import require_kind
from evenhand.local.naming import plain_changes
from evenhand.studies.runs.comparing import GivenBySeed
from evenhand.studies.runs.executing import Given
from evenhand.studies.specs.parsing import parse_method, parse_table
from evenhand.studies.specs.spec import Spec, plain_name
from evenhand.training.about import PYTHON, run_table
from evenhand.training.callbacks import Callback, require_callbacks
from evenhand.training.settings import Settings
from evenhand.training.stopping import EarlyStopping

# a module, a function that makes one, or the name of a model
Model = nn.Module | Callable[[], nn.Module] | str
# data that all seeds share, or a function of the seed
Data = Federation | Callable[[int], Federation]
# a function of the split that returns the data of a fold
Folded = Callable[[Mapping[str, Any]], Federation]
# a method, its name as on the command line, or its table in a spec
OneMethod = Algorithm | str | Mapping[str, Any]
# the same, or a pair with changes to the local solver
MethodLike = OneMethod | tuple[OneMethod, Mapping[str, Any]]
Methods = Algorithm | str | Sequence[MethodLike] | Mapping[str, MethodLike]


class Request(NamedTuple):
    """What to run, and the objects given for it."""

    spec: Spec
    given: GivenBySeed

    def with_callbacks(self, callbacks: Sequence[Callback]) -> Request:
        """The same with callbacks; early stopping becomes a part of the spec."""
        require_callbacks(callbacks)
        stopping = [one for one in callbacks if type(one) is EarlyStopping]
        others = [one for one in callbacks if one not in stopping[:1]]
        spec = self.spec
        if stopping:
            spec = replace(spec, early_stopping=plain_fields(stopping[0]))
        return Request(spec, lambda seed: self.given(seed)._replace(callbacks=others))


def request(
    model: Model | Spec | Path,
    federation: Data | None,
    methods: Methods | None,
    name: str,
    options: Mapping[str, Any],
) -> Request:
    """The request behind a call of :func:`evenhand.compare`; ``name`` is the directory's."""
    if "seed" in options:
        raise TypeError("there are several seeds; give seeds=5, or seeds=[0, 3, 7]")
    if federation is None:
        found = _from_spec(model, options)
    elif isinstance(model, str):
        found = _suited(model, federation, name, options)
    else:
        found = _own(model, federation, name, options)
    if callable(federation):
        found = found._replace(spec=replace(found.spec, resplit=True))
    return found if methods is None else found._replace(spec=with_methods(found.spec, methods))


def _from_spec(spec: object, options: Mapping[str, Any]) -> Request:
    """A spec or its file, with some settings changed."""
    if not isinstance(spec, Spec | str | Path):
        raise TypeError(f"a {type(spec).__name__} needs data to train on; pass a Federation, too")
    whole = spec if isinstance(spec, Spec) else Spec.load(Path(spec))
    return Request(_changed(whole, options), lambda seed: Given(settings=options))


def _suited(model: str, federation: Data, name: str, options: Mapping[str, Any]) -> Request:
    """The program's own data, with a model by name and the rest chosen to suit the data."""
    spec = replace(Spec.for_data(name), data={"name": PYTHON}, model=parse_table(model))
    return Request(
        _changed(spec, options),
        lambda seed: Given(_dealt(federation, seed), None, options),
    )


def _own(model: object, federation: Data, name: str, options: Mapping[str, Any]) -> Request:
    """The program's own data and module."""
    settings = Settings.of(Settings(track_weights=True), options)
    table = run_table(plain_name(name), _made(model, 0), settings, [{"name": "auto"}])
    # the seed is that of each run
    given = {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if field.name != "seed"
    }
    return Request(
        Spec.from_table(table, "the call"),
        lambda seed: Given(_dealt(federation, seed), _made(model, seed), given),
    )


def _changed(spec: Spec, options: Mapping[str, Any]) -> Spec:
    """The spec with changed settings, as far as a spec can hold them."""
    table = run_table("run", nn.Linear(1, 1), Settings.of(None, options), [])
    return replace(spec, **{key: value for key, value in table.items() if key in options})


def _made(model: object, seed: int) -> nn.Module:
    """The module; a function that returns one is called with the seed set."""
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise TypeError(
            "model must be a torch module, a function that returns one, or the name of a model, got"
            f" {type(model).__name__}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: nn.Module = model()
    require_kind("the result of model()", module, nn.Module, "torch.nn.Linear(12, 2)")
    return module


def by_fold(federation: Data | Folded | None, folds: int | None) -> Data | None:
    """Data as a function of the seed: 0 is that of the first fold."""
    if folds is None or federation is None:
        return cast("Data | None", federation)
    if not callable(federation):
        raise TypeError(
            "with folds, federation must be a function of the split, such as lambda split:"
            " Federation.from_frame(table, split=split, ...)"
        )
    deal = cast("Folded", federation)
    return lambda seed: deal({"fold": [seed + 1, folds]})


def _dealt(federation: Data, seed: int) -> Federation:
    found = federation(seed) if callable(federation) else federation
    require_kind("federation", found, Federation, "Federation.from_arrays(...)")
    return found


def with_methods(spec: Spec, methods: Methods) -> Spec:
    """The spec with these methods; a mapping gives them labels."""
    if isinstance(methods, str) or not isinstance(methods, Mapping | Sequence):
        methods = [methods]
    items: list[tuple[str | None, Any]] = (
        list(methods.items())
        if isinstance(methods, Mapping)
        else [(None, method) for method in methods]
    )
    entries: list[Table] = []
    objects: list[Algorithm | None] = []
    for label, value in items:
        method, local = value if isinstance(value, tuple) else (value, {})
        if isinstance(method, str | Mapping):
            entry = parse_method(method) if isinstance(method, str) else dict(method)
            objects.append(None)
        else:
            require_kind("each of methods", method, Algorithm, "FedAvg()")
            entry = described(method)
            objects.append(method)
        if local:
            entry["local"] = {**entry.get("local", {}), **plain_changes(local)}
        entries.append(entry if label is None else {**entry, "label": label})
    spec = spec.with_methods(entries)
    pairs = zip(spec.methods, objects, strict=True)
    return replace(spec, methods=tuple(replace(method, given=one) for method, one in pairs))
