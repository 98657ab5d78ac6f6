"""The JSON Schema of spec files: it knows every spec that we have, and refuses what the parser
refuses."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import evenhand as eh
from evenhand.algorithms import ALGORITHMS
from evenhand.datasets import DATASETS, FORMATS, loader
from evenhand.models import MODELS
from evenhand.papers.experiment import experiments
from evenhand.studies.runs.executing import check
from evenhand.studies.specs import schema as module
from evenhand.studies.specs.annotations import limits
from evenhand.studies.specs.keys import KINDS
from evenhand.studies.specs.schema import spec_schema
from evenhand.studies.specs.spec import Spec
from tests.conftest import Call

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "evenhand"
FENCED = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCHEMA = spec_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

SMALL = """
rounds = 1
loss = "cross_entropy"
[data]
name = "digits"
clients = 4
[model]
name = "linear"
[local]
lr = 0.1
[cohort]
name = "uniform"
k = 2
[[methods]]
name = "fedavg"
[[methods]]
name = "qffl"
q = 2.0
local = { lr = 0.05 }
[[methods]]
name = "lossguard"
cap = 0.3
inner = { name = "afl", lr_lambda = 0.1 }
"""


def _specs() -> dict[str, dict[str, Any]]:
    """The specs of the repository, and those in its docs, by where they stand."""
    found = {"default.toml": _read(PACKAGE / "studies" / "default.toml")}
    suite = {field.name for field in dataclasses.fields(Spec)}
    for path in sorted((PACKAGE / "benchmarking" / "federations").glob("*.toml")):
        table = _read(path)
        found[path.name] = {key: value for key, value in table.items() if key in suite}
    for experiment in experiments().values():
        for part in experiment.parts:
            found[part.title] = {**part.spec, "methods": [row.method for row in part.rows]}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for place, text in enumerate(FENCED.findall(path.read_text())):
            table = tomllib.loads(text)
            if "methods" in table:
                found[f"{path.relative_to(ROOT)} {place}"] = table
    return found


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


SPECS = _specs()


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA


@pytest.mark.parametrize("place", SPECS)
def test_every_spec_of_the_repository_is_valid(place: str) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(SPECS[place])] == []
    assert Spec.from_table(SPECS[place], place)


def test_specs_are_found_everywhere() -> None:
    kinds = ("default.toml", "digits.toml", "fafl-table1", "docs/reference/spec.md")
    for kind in kinds:
        assert any(place.startswith(kind) for place in SPECS), kind


def test_what_a_run_writes_down_is_valid() -> None:
    for spec in (Spec(), Spec.default(), Spec.for_data("x"), Spec(seeds=(0, 3), validation=0.25)):
        VALIDATOR.validate(tomllib.loads(spec.to_toml()))


def test_the_small_spec_is_accepted_by_both() -> None:
    VALIDATOR.validate(tomllib.loads(SMALL))
    check(Spec.from_toml(SMALL, "small"))


WRONG = {
    "unknown key": ("rounds = 1", "round = 1"),
    "text for a number": ("rounds = 1", 'rounds = "1"'),
    "no rounds": ("rounds = 1", "rounds = 0"),
    "true for a number": ("rounds = 1", "rounds = true"),
    "negative seed": ("rounds = 1", "seed = -1"),
    "the same seed twice": ("rounds = 1", "seeds = [1, 1]"),
    "a share of one": ("rounds = 1", "validation = 1.0"),
    "unknown loss": ('loss = "cross_entropy"', 'loss = "crossentropy"'),
    "unknown engine": ("rounds = 1", 'engine = "turbo"'),
    "unknown weights": ("rounds = 1", 'weights = "size"'),
    "a name with a slash": ("rounds = 1", 'name = "a/b"'),
    "unknown data set": ('name = "digits"', 'name = "digit"'),
    "unknown argument of data": ("clients = 4", "clientz = 4"),
    "unknown model": ('name = "linear"', 'name = "linea"'),
    "unknown argument of a model": ('name = "linear"', 'name = "linear"\nhidden = [3]'),
    "step size of zero": ("lr = 0.1\n[cohort]", "lr = 0\n[cohort]"),
    "unknown argument of the solver": ("lr = 0.1\n[cohort]", "rate = 0.1\n[cohort]"),
    "unknown cohort": ('name = "uniform"', 'name = "random"'),
    "a cohort without its size": ("k = 2", ""),
    "unknown method": ('name = "qffl"', 'name = "q-ffl"'),
    "a method without a name": ('name = "qffl"', 'label = "qffl"'),
    "unknown hyper-parameter": ("q = 2.0", "qq = 2.0"),
    "hyper-parameter out of range": ("q = 2.0", "q = -2.0"),
    "text for a hyper-parameter": ("q = 2.0", 'q = "2"'),
    "not one of its values": ("q = 2.0", 'solver = "newton"'),
    "unknown step of a method": ("local = { lr = 0.05 }", "local = { rate = 0.05 }"),
    "unknown inner method": ('inner = { name = "afl"', 'inner = { name = "flaf"'),
    "unknown hyper-parameter inside": ("lr_lambda = 0.1", "lam = 0.1"),
    "inner of a method without one": ("q = 2.0", 'inner = "afl"'),
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_spec_is_refused_by_the_schema_and_by_the_parser(change: str) -> None:
    old, new = WRONG[change]
    assert SMALL.count(old) == 1
    text = SMALL.replace(old, new)
    assert not VALIDATOR.is_valid(tomllib.loads(text))
    with pytest.raises(ValueError):  # noqa: PT011 - what is said is tested elsewhere
        check(Spec.from_toml(text, "small"))


def test_the_schema_has_every_key_of_a_spec_with_a_description() -> None:
    assert set(SCHEMA["properties"]) == {field.name for field in dataclasses.fields(Spec)}
    assert set(SCHEMA["properties"]) == set(KINDS)
    assert all(entry["description"] for entry in SCHEMA["properties"].values())


def test_a_new_field_of_a_spec_needs_a_description(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Larger(Spec):
        patience: int = 3

    monkeypatch.setattr(module, "Spec", Larger)
    with pytest.raises(KeyError, match="patience"):
        spec_schema()


def test_every_method_data_set_and_model_has_all_its_settings() -> None:
    methods = _tables(SCHEMA["$defs"]["method"])
    for name, kind in ALGORITHMS.items():
        fields = {field.name for field in dataclasses.fields(kind)}
        assert fields <= set(methods[name]["properties"]), name
    data = _tables(SCHEMA["properties"]["data"])
    for name in (*DATASETS, *FORMATS):
        arguments = set(inspect.signature(loader(name)).parameters)
        assert arguments <= set(data[name]["properties"]), name
    assert {*MODELS, "auto"} == set(_tables(SCHEMA["properties"]["model"]))


def _tables(schema: dict[str, Any]) -> dict[str, Any]:
    return {table["title"]: table for table in schema["anyOf"] if "title" in table}


def test_ranges_and_choices_come_from_the_checks() -> None:
    assert limits(eh.QFFL)["q"] == {"minimum": 0}
    assert limits(eh.LossGuard)["cap"] == {"exclusiveMinimum": 0, "maximum": 1}
    assert limits(eh.AFL)["order"] == {"enum": ["after", "before"]}
    assert limits(eh.LocalSGD)["steps"] == {"minimum": 1}  # checked in a loop over names
    assert limits(eh.FedAvg) == {}


def test_the_command_prints_the_schema(call: Call) -> None:
    code, out, err = call("spec", "schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == SCHEMA
