"""The JSON Schema of a spec file, so that editors complete and check specs.

It is read off the code: keys and types from dataclasses and signatures, ranges and choices from the
checks in ``__post_init__``, descriptions from docstrings. It accepts every spec that the parser
accepts; the parser also checks what a schema cannot say, such as keys that exclude each other.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from evenhand.algorithms import ALGORITHMS
from evenhand.cohort import Full, Poisson, Proportional, Uniform
from evenhand.data.partitions import PARTITIONS
from evenhand.data.shifts import shifted
from evenhand.data.splits import KEYS as SPLIT_KEYS
from evenhand.datasets import DATASETS, FORMATS, loader
from evenhand.engines.auto import ENGINES
from evenhand.local import SOLVERS
from evenhand.losses import LOSSES
from evenhand.models import MODELS
from evenhand.schedules import SCHEDULES
from evenhand.studies.specs.annotations import Schema, interval, limits, summary, told, typed
from evenhand.studies.specs.keys import KINDS
from evenhand.studies.specs.labels import FILE_NAME
from evenhand.studies.specs.method import OUTPUTS, WITH_OUTPUT
from evenhand.studies.specs.selection import Selection
from evenhand.studies.specs.spec import Spec
from evenhand.studies.specs.tuning import Tuning
from evenhand.training.settings import Settings
from evenhand.training.stopping import EarlyStopping

DRAFT = "https://json-schema.org/draft/2020-12/schema"
JSON_KINDS = {int: "integer", float: "number", bool: "boolean", str: "string"}
NAME = {"type": "string", "pattern": f"^{FILE_NAME.pattern}$"}
OWN = {"type": "string", "pattern": r"^[^:\s]+:[^:\s]+$"}  # mypackage:MyMethod
# what a spec has beyond the fields of Settings
ABOUT = {
    "name": "Results go to runs/NAME.",
    "seeds": "For evenhand compare: one run with each seed.",
    "resplit": "Partition and split the data again with each seed.",
    "folds": "Cross-validation with this many folds, one seed for each; 0 for none.",
    "loss": 'The loss. "auto": cross-entropy for classes, mse for numbers.',
    "engine": "How clients are simulated.",
    "device": 'Where to compute: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1".',
    "validation": "Share of each client's training samples to validate with.",
    "data": "The data set, table or LEAF directory; the other keys are its arguments.",
    "model": 'The network; the other keys are its arguments. "auto" suits the data.',
    "local": "The local solver: the arguments of LocalSGD, LocalAdam or LocalAdamW.",
    "cohort": "The clients of a round.",
    "metrics": 'What else to evaluate: your own functions by name, such as "mypackage:top5".',
    "select": "For evenhand sweep: how one of the methods is chosen.",
    "tune": "For evenhand compare --tune: how each method's hyper-parameters are chosen.",
    "early_stopping": "Stop when a metric on validation data no longer improves.",
    "methods": "The methods to train, with their hyper-parameters.",
}


def spec_schema() -> Schema:
    """The JSON Schema of a spec file."""
    about = {**told(Settings), **ABOUT}
    checked = limits(Settings)
    tables = _tables()
    properties: Schema = {}
    for field in fields(Spec):
        known = tables.get(field.name) or {"type": JSON_KINDS[KINDS[field.name]]}
        properties[field.name] = {
            **known,
            **checked.get(field.name, {}),
            "description": about[field.name],
            **_default(field.default),
        }
    return {
        "$schema": DRAFT,
        "title": "evenhand spec",
        "description": "A training run, comparison or sweep of evenhand.",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": {
            "method": _method(),
            "local": _local(),
            "schedule": _schedule(),
            "partition": _partition(),
            "split": _split(),
        },
    }


def _tables() -> dict[str, Schema]:
    """The keys of a spec whose values are more than one plain value of the kind in KINDS."""
    cohorts = {
        "full": _of_class(Full, {}),
        "uniform": _of_class(Uniform, {}, ("k",)),
        "proportional": _of_class(Proportional, {}, ("k",)),
        "poisson": _of_class(Poisson, {}, ("rate",)),
    }
    return {
        "name": NAME,
        "seeds": {"type": "array", "items": _whole(0), "uniqueItems": True},
        "folds": _whole(0),
        "loss": {"enum": [*LOSSES, "auto"]},
        "engine": {"enum": list(ENGINES)},
        "validation": {"type": "number", **interval("[0, 1)")},
        "data": _by_name({name: _data(name) for name in (*DATASETS, *FORMATS)}),
        "model": _by_name(
            {
                **{name: _of_function(made, ("shape",), {}) for name, made in MODELS.items()},
                "auto": _table({}),
            }
        ),
        "local": {"$ref": "#/$defs/local"},
        "cohort": _by_name(cohorts),
        "metrics": {"type": "object", "additionalProperties": OWN},
        "select": _of_class(Selection, {}),
        "tune": _of_class(Tuning, {}),
        "early_stopping": _of_class(EarlyStopping, {}),
        "methods": {
            "type": "array",
            "items": {"anyOf": [{"$ref": "#/$defs/method"}, _named("auto", _table({}))]},
        },
    }


def _method() -> Schema:
    """A [[methods]] entry, or the table of an inner method."""
    more = {
        "label": {"type": "string", "description": "Names the directory and the row of tables."},
        "local": {"$ref": "#/$defs/local", "description": "What this method changes in [local]."},
    }
    found = {}
    for name, kind in ALGORITHMS.items():
        found[name] = _of_class(kind, more)
        if name in WITH_OUTPUT:
            found[name]["properties"]["output"] = {"enum": list(OUTPUTS)}
    own = _table(more, required=("name",))
    own["properties"]["name"] = OWN
    own["additionalProperties"] = True
    own["description"] = "A method of your own: its module and class."
    return {"anyOf": [*_by_name(found)["anyOf"], own]}


def _local() -> Schema:
    """The local solver; nothing is required, since a method's own table adds to [local]. The parser
    checks which settings belong to which solver."""
    properties: Schema = {}
    for kind in reversed(SOLVERS.values()):
        properties |= _of_class(kind, {})["properties"]
    # these differ between solvers
    properties["weight_decay"].pop("default")
    properties["weight_decay"]["description"] = "Strength of weight decay."
    schedule = {"$ref": "#/$defs/schedule"}
    for name in ("schedule", "step_schedule"):
        properties[name] = {"description": properties[name]["description"], **schedule}
    sizes = properties["batch_size"]
    properties["batch_size"] = {"anyOf": [sizes, {"const": "auto"}]}
    which = {"enum": list(SOLVERS), "description": "The solver.", "default": "sgd"}
    about = (
        "Local training: stochastic gradient descent, Adam, or Adam with decoupled weight decay."
    )
    return {**_table({"solver": which, **properties}), "description": about}


def _schedule() -> Schema:
    needed = {"step": ("every",), "warmup": ("length",)}
    return _by_name(
        {name: _of_class(made, {}, needed.get(name, ())) for name, made in SCHEDULES.items()}
    )


def _data(name: str) -> Schema:
    shift = _of_function(shifted, ("federation",), {})
    found = _of_function(loader(name), (), {"shift": shift})
    for key in ("partition", "split"):
        if key in found["properties"]:
            found["properties"][key] = {"$ref": f"#/$defs/{key}"}
    return found


def _partition() -> Schema:
    tables = {name: _of_function(made, ("pool",), {}) for name, made in PARTITIONS.items()}
    for table in tables.values():
        table["required"] = ["name"]  # clients may be given in [data]
    return {"anyOf": [{"enum": list(PARTITIONS)}, *_by_name(tables)["anyOf"]]}


def _split() -> Schema:
    share = {"type": "number", **interval("[0, 1)")}
    kinds: Schema = {
        "val": share,
        "test": share,
        "stratify": {"type": "boolean"},
        "official": {"enum": [True, False, "train"]},
        "fold": {"type": "array", "items": _whole(1), "minItems": 2, "maxItems": 2},
        "seed": _whole(0),
    }
    return {"anyOf": [{"const": "official"}, _table({key: kinds[key] for key in SPLIT_KEYS})]}


def _whole(least: int) -> Schema:
    return {"type": "integer", "minimum": least}


# Tables of a spec


def _table(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _by_name(tables: Mapping[str, Schema]) -> Schema:
    """One of several tables, as its key "name" has it."""
    return {"anyOf": [_named(name, table) for name, table in tables.items()]}


def _named(name: str, table: Schema) -> Schema:
    return {
        **table,
        "title": name,
        "properties": {"name": {"const": name}, **table["properties"]},
        "required": ["name", *(key for key in table["required"] if key != "name")],
    }


def _of_class(kind: type[Any], more: Schema, required: tuple[str, ...] = ()) -> Schema:
    """The table that holds the fields of a dataclass."""
    checked, about = limits(kind), told(kind)
    properties = {
        field.name: {
            **(typed(str(field.type), checked.get(field.name, {}), kind) or {}),
            **_described(field.name, about),
            **_default(field.default),
        }
        for field in fields(kind)
    }
    return {**_table({**properties, **more}, required), "description": summary(kind)}


def _of_function(function: Callable[..., Any], without: tuple[str, ...], more: Schema) -> Schema:
    """The table that holds the arguments of a function. Those that the data or the run settle are
    ``without``; a seed is never required."""
    properties, required = {}, []
    about = told(function)
    for name, parameter in inspect.signature(function).parameters.items():
        known = typed(parameter.annotation, {}, function)
        if name in without or known is None:
            continue
        default = {} if parameter.default is parameter.empty else _default(parameter.default)
        properties[name] = {**known, **_described(name, about), **default}
        if parameter.default is parameter.empty and name not in ("seed", "outputs"):
            required.append(name)
    table = _table({**properties, **more}, tuple(required))
    return {**table, "description": summary(function)}


def _described(name: str, about: Mapping[str, str]) -> Schema:
    return {"description": about[name]} if name in about else {}


def _default(value: Any) -> Schema:
    """A default that JSON can hold."""
    value = list(value) if isinstance(value, tuple) else value
    plain = isinstance(value, bool | int | str | list) or (
        isinstance(value, float) and math.isfinite(value)
    )
    return {"default": value} if plain else {}
