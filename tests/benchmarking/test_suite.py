"""The suite that comes with the package: complete, the same budget for every method, sound specs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.benchmarking.suite import Bench, Suite, Unit, own_entry
from evenhand.data.storage.file import data_root
from evenhand.datasets.catalogue import entry as data_entry
from evenhand.studies.runs.executing import check
from evenhand.studies.specs.building import built
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.tuning import Tuning, tuning_points
from evenhand.training.fit import train
from tests.support.benchmarks import TINY, tiny

SUITE = Suite.standard()
# these change what others do, and have no aim of their own
NO_METHODS = {
    "averaged",
    "clipped",
    "lossguard",
    "coordinatemedian",
    "trimmedmean",
    "geometricmedian",
    "private",
}
# these aim at rates of groups, which benchmarks/group_fairness.py compares
OF_RATES = {"groupconstraint", "fedfb", "fairfed", "reweighed", "fcfl"}


def test_every_method_of_the_catalogue_takes_part() -> None:
    assert {entry.name for entry in SUITE.entries.values()} == (
        set(eh.ALGORITHMS) - NO_METHODS - OF_RATES
    )


def test_every_unit_tries_the_same_number_of_different_settings() -> None:
    for bench in SUITE.benches.values():
        for entry in SUITE.entries.values():
            spec = Unit(bench, entry, SUITE.budget).spec("cpu")
            points = tuning_points(spec, built("tune", Tuning, spec.tune))[entry.label]
            assert len({str(point.table()) for point in points}) == SUITE.budget.settings
            for point in points:
                point.algorithm()


def test_settings_that_are_given_stay_while_others_are_tried() -> None:
    unit = Unit(SUITE.benches["digits"], SUITE.entries["gifair-personal"], SUITE.budget)
    spec = unit.spec("cpu")
    points = tuning_points(spec, built("tune", Tuning, spec.tune))["gifair-personal"]
    assert all(point.parameters["personal"] is True for point in points)
    own = Unit(SUITE.benches["digits"], own_entry("qffl:q=2"), SUITE.budget).spec("cpu")
    points = tuning_points(own, built("tune", Tuning, own.tune))["qffl q=2"]
    assert [point.parameters["q"] for point in points] == [2] * 15
    assert len({point.local["lr"] for point in points}) == 15


@pytest.mark.parametrize("bench", SUITE.benches.values(), ids=lambda bench: bench.name)
def test_a_federation_has_what_its_file_says(bench: Bench) -> None:
    state = data_entry(bench.table["data"]["name"]).state(data_root())
    if state.missing:
        pytest.skip(f"{bench.name} needs files")
    spec = replace(bench.spec(SUITE.budget, "cpu"), methods=(Method("fedavg", "fedavg"),))
    federation = check(spec.for_seed(0)).federation
    assert bool(federation.groups) == bench.groups
    assert federation.val is not None
    assert len(federation.val.x)
    assert federation.test is not None
    assert 100 <= len(federation.test.x) <= 6000
    assert bench.why
    assert bench.why.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize("bench", SUITE.benches.values(), ids=lambda bench: bench.name)
def test_every_federation_can_be_trained_on(bench: Bench) -> None:
    """One round with two steps, on all clients; test data are looked at once."""
    if data_entry(bench.table["data"]["name"]).state(data_root()).missing:
        pytest.skip(f"{bench.name} needs files")
    spec = bench.spec(SUITE.budget, "cpu")
    local = {**spec.local, "steps": 2, "batch_size": 8}
    local.pop("epochs", None)
    methods = (Method("fedavg", "fedavg"),)
    ready = check(replace(spec, rounds=1, local=local, methods=methods).for_seed(0))
    result = train(
        ready.module, ready.federation, eh.FedAvg(), ready.settings(ready.spec.methods[0])
    )
    assert np.isfinite(result.scores["loss"].to_numpy(float)).all()


def test_quick_federations_come_first_and_are_chosen_alone() -> None:
    quick = [bench.quick for bench in SUITE.benches.values()]
    assert quick == sorted(quick, reverse=True)
    assert {b.name for b in SUITE.chosen((), quick=True)} == {
        b.name for b in SUITE.benches.values() if b.quick
    }
    assert [b.name for b in SUITE.chosen(["cifar10"], quick=True)] == ["cifar10"]


def test_methods_for_groups_are_left_out_where_there_are_none() -> None:
    assert SUITE.unit(SUITE.benches["synthetic"], SUITE.entries["fedminmax"]) is None
    assert SUITE.unit(SUITE.benches["digits"], SUITE.entries["fedminmax"]) is not None


def test_identity_changes_with_what_changes_numbers_and_nothing_else() -> None:
    def identity(**changes: object) -> str:
        suite = Suite.of({"tiny": {**TINY, **changes}}, {"methods": {"fedavg": {}}})
        return Unit(suite.benches["tiny"], suite.entries["fedavg"], suite.budget).identity

    first = identity()
    assert identity(title="Other", why="Other.", quick=False) == first
    assert identity(rounds=3) != first
    other = tiny(seeds=3)
    assert Unit(other.benches["tiny"], other.entries["fedavg"], other.budget).identity != first


def test_identity_changes_with_the_text_of_an_own_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = own_entry("tests.support.own_method:PowerLoss:power=3")
    assert (entry.label, entry.settings) == ("PowerLoss power=3", {"power": 3})
    bench, budget = SUITE.benches["digits"], SUITE.budget
    changed = replace(entry, source="another text")
    assert Unit(bench, entry, budget).identity != Unit(bench, changed, budget).identity


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SUITE.chosen(["digit"], False), "digits"),
        (lambda: SUITE.methods(["qfl"]), "qffl"),
        (lambda: SUITE.methods(["qffl"], ["q=1,2"]), "those of the suite have theirs"),
        (lambda: SUITE.methods([], ["q=1,2"]), "name it with -a"),
        (lambda: own_entry("clipped"), "give it settings"),
        (lambda: own_entry("qffl:local.lr=1"), "leave out local."),
        (lambda: own_entry("qffl", ["q=lin:1:16:16"]).rates(0.1, SUITE.budget), "16 points"),
    ],
)
def test_slips_are_told(call: object, message: str) -> None:
    with pytest.raises(eh.SpecError, match=message):
        call()  # type: ignore[operator]
