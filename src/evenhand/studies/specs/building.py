"""Build data, models, solvers and cohorts from the tables of a spec; mistakes become one-line
errors."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.algorithms.naming import Table, imported_module
from evenhand.errors import DataError, SpecError, unknown
from evenhand.metrics.metric import Metric, MetricFunction, named_metrics
from evenhand.studies.specs.keys import KINDS

if TYPE_CHECKING:
    from torch import nn

    from evenhand.cohort import Cohort
    from evenhand.data.federation import Federation
    from evenhand.local import LocalSolver


MEANINGS = {
    "k": "clients per round",
    "rate": "each client's probability to take part",
}  # of required keywords whose names do not say it


def check_name(what: str, name: Any, known: Collection[str]) -> None:
    """Raise a SpecError unless ``name`` is among ``known``; suggest the closest one."""
    if not isinstance(name, str) or name not in known:
        raise SpecError(unknown(what, name, known))


def built(what: str, factory: Any, arguments: Table) -> Any:
    """Call ``factory``; unknown keywords and bad values become a SpecError that names them."""
    known = inspect.signature(factory).parameters
    for key in arguments:
        _check_keyword(what, key, known)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        name
        for name, p in known.items()
        if p.default is p.empty and p.kind not in several and name not in arguments
    ]
    if missing:
        meaning = f" ({MEANINGS[missing[0]]})" if missing[0] in MEANINGS else ""
        raise SpecError(f"{what} needs {missing[0]}{meaning}")
    try:
        return factory(**arguments)
    except DataError as error:  # names the file itself
        raise SpecError(str(error) if what in str(error) else f"{what}: {error}") from error
    except (ValueError, TypeError) as error:
        raise SpecError(f"{what}: {error}") from error


def _check_keyword(what: str, key: str, known: Collection[str]) -> None:
    if key not in known and KINDS.get(key) not in (None, dict):
        raise SpecError(
            f"unknown keyword of {what}: {key!r}; it is a setting of the run: in a spec it belongs"
            " at the top, before the first [table]"
        )
    check_name(f"keyword of {what}:", key, known)


def build_data(table: Mapping[str, Any], seed: int, data_seed: int) -> Federation:
    """The federation of a [data] table. ``data_seed`` seeds the partition and split, ``seed`` a
    shift."""
    from evenhand.data.shifts import shifted
    from evenhand.datasets import DATASETS, FORMATS, loader

    name = table.get("name", "")
    check_name("data set", name, (*DATASETS, *FORMATS))
    arguments = {key: value for key, value in table.items() if key not in ("name", "shift")}
    what = Path(str(table.get("path", ""))).name if name in FORMATS else ""
    federation: Federation = built(
        what or f"data set {name}", loader(name), {"seed": data_seed, **arguments}
    )
    if "shift" in table:
        shift = {"seed": seed, **table["shift"]}
        federation = built("shift", partial(shifted, federation), shift)
    return federation


def build_model(
    table: Mapping[str, Any], federation: Federation, seed: int, data: Mapping[str, Any]
) -> nn.Module:
    """The module of a [model] table for a federation; ``data`` is its [data] table. The seed draws
    the initial parameters."""
    return build_network(table, sample_form(federation), seed, data)


def sample_form(federation: Federation) -> Table:
    """The shape of a sample, and how many outputs a model for it has."""
    y = federation.train.y
    # a number to predict, or labels -1 and 1
    scores = y.is_floating_point() or int(y.min()) < 0
    outputs = 1 if scores else max(len(federation.label_names), int(y.max()) + 1)
    return {"shape": list(federation.train.x.shape[1:]), "outputs": outputs}


def build_network(
    table: Mapping[str, Any], form: Mapping[str, Any], seed: int, data: Mapping[str, Any]
) -> nn.Module:
    """The same for samples of a form that ``sample_form`` returned, without their values."""
    from evenhand.models import MODELS

    name = table.get("name", "")
    check_name("model", name, MODELS)
    factory = MODELS[name]
    known: Table = {"shape": tuple(form["shape"]), "outputs": form["outputs"], "seed": seed}
    # word vectors must match the codes of the data set
    known |= {
        key: data[key]
        for key in ("root", "dimensions", "most")
        if key in data and key in inspect.signature(factory).parameters
    }
    given = {key: value for key, value in table.items() if key != "name"}
    module: nn.Module = built(f"model {name}", factory, {**known, **given})
    return module


def build_local(table: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> LocalSolver:
    """The local solver of a [local] table, with a method's own changes; "auto" values take the
    solver's defaults."""
    from evenhand.local.naming import merged, solver_of

    whole = merged(table, changes or {})
    try:
        kind, settings = solver_of({k: value for k, value in whole.items() if value != "auto"})
    except ValueError as error:
        raise SpecError(f"local solver: {error}") from error
    local: LocalSolver = built("local solver", kind, settings)
    return local


def changed_local(local: LocalSolver, changes: Mapping[str, Any]) -> LocalSolver:
    """A local solver from Python with a method's own changes."""
    from evenhand.local.naming import given_table

    return build_local(given_table(local), changes) if changes else local


def build_cohort(table: Mapping[str, Any]) -> Cohort:
    """The cohort of a [cohort] table."""
    from evenhand.cohort import Full, Poisson, Proportional, Uniform

    kinds: dict[str, type[Cohort]] = {
        "full": Full,
        "uniform": Uniform,
        "proportional": Proportional,
        "poisson": Poisson,
    }
    name = table.get("name", "")
    check_name("cohort", name, kinds)
    given = {key: value for key, value in table.items() if key != "name"}
    cohort: Cohort = built("cohort", kinds[name], given)
    return cohort


def build_metrics(table: Mapping[str, Any]) -> dict[str, Metric | MetricFunction]:
    """The metrics of a [metrics] table, imported from the modules that define them."""
    found: dict[str, Metric | MetricFunction] = {}
    for name, where in table.items():
        example = f'metrics = {{ {name} = "mypackage:{name}" }}'
        if not isinstance(where, str) or not all(where.partition(":")):
            raise SpecError(
                f"metric {name!r} must name a module and a function, such as {example}, got"
                f" {where!r}"
            )
        module, function = imported_module(where, "metric"), where.partition(":")[2]
        if not hasattr(module, function):
            known = [known for known, value in vars(module).items() if callable(value)]
            at = getattr(module, "__file__", module.__name__)
            raise SpecError(unknown(f"metric of {at}:", function, known))
        found[name] = getattr(module, function)
    try:
        named_metrics(found)
    except (ValueError, TypeError) as error:
        raise SpecError(str(error)) from error
    return found


def build_device(name: str) -> str:
    """The device; "auto" is a GPU if there is one."""
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
