"""The command and its function: run what is missing, keep it, resume, merge, show."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest

import evenhand as eh
from evenhand.benchmarking import entry as entry_module
from evenhand.benchmarking import running, store
from evenhand.benchmarking.record import Record
from evenhand.benchmarking.suite import Suite, Unit
from evenhand.studies.runs.executing import check
from evenhand.studies.specs.method import Method
from evenhand.training.fit import train
from tests.support.benchmarks import METHODS, TINY, tiny
from tests.support.commands import invoke

OWN = "tests.support.own_method:PowerLoss"
CLOSE = 2  # samples of a client that another processor may judge differently


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the small suite was run."""
    out = tmp_path_factory.mktemp("benchmark")
    eh.benchmark(suite=tiny(), out=out, device="cpu")
    return out


@pytest.fixture
def as_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small suite in place of the one that comes with the package."""
    monkeypatch.setattr(Suite, "standard", classmethod(lambda cls: tiny()))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of units that are run from here on."""
    labels: list[str] = []

    def noted(unit: Unit, *rest: object) -> Record:
        labels.append(unit.entry.label)
        return running.run_unit(unit, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(entry_module, "run_unit", noted)
    return labels


def test_records_are_kept_and_runs_are_not(done: Path) -> None:
    assert sorted(path.name for path in (done / "tiny").iterdir()) == [
        "fedavg.record.json",
        "localonly.record.json",
        "qffl.record.json",
    ]


def test_what_is_done_is_not_run_again(done: Path, trained: list[str]) -> None:
    found = eh.benchmark(suite=tiny(), out=done, device="cpu")
    assert trained == []
    assert found.missing == ()
    assert [record.method for record in found.records["tiny"]] == ["fedavg", "localonly", "qffl"]
    assert {row["method"] for row in found.rows("results")} == {"fedavg", "localonly", "qffl"}
    assert len(found.table("clients")) == 3 * 2 * 4
    assert "fedavg" in str(found)


def test_a_changed_spec_is_run_again_and_said(
    done: Path, trained: list[str], tmp_path: Path
) -> None:
    for record in store.made(done):
        store.keep(tmp_path, record)
    suite = tiny(methods={"fedavg": {}, "qffl": {"grid": {"q": [0.1, 1.0, 2.0]}}})
    found = eh.benchmark(suite=suite, out=tmp_path, device="cpu")
    assert trained == ["qffl"]
    assert found.notes == (
        "tiny, qffl: the spec has changed since this record was made; running it again",
    )
    assert eh.benchmark(suite=suite, out=tmp_path, device="cpu").notes == ()
    assert trained == ["qffl"]


def test_a_method_of_ones_own_is_placed_among_the_others(done: Path, trained: list[str]) -> None:
    found = eh.benchmark(OWN, grid={"power": [1, 2, 3]}, suite=tiny(), out=done, device="cpu")
    assert trained == ["PowerLoss"]
    assert set(found.standings[0].labels) == {"fedavg", "localonly", "qffl", "PowerLoss"}
    record = found.standings[0].records["PowerLoss"]
    assert (record.name, record.tried, set(record.settings)) == (OWN, 3, {"power"})
    assert "PowerLoss" in {score.label for score in found.scores}


def test_without_a_record_of_fedavg_it_is_run_first(tmp_path: Path, trained: list[str]) -> None:
    eh.benchmark("qffl", suite=tiny(), out=tmp_path, device="cpu")
    assert trained == ["fedavg", "localonly", "qffl"]


def test_an_interrupted_unit_goes_on_where_it_stopped(tmp_path: Path, done: Path) -> None:
    def stop(done: float, total: int, text: str) -> None:
        if done > 0.8:  # settings are chosen, seeds are under way
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        eh.benchmark("fedavg", suite=tiny(), out=tmp_path, device="cpu", progress=stop)
    assert (tmp_path / "tiny/fedavg/tuning").exists()
    assert store.made(tmp_path) == []
    found = eh.benchmark("fedavg", suite=tiny(), out=tmp_path, device="cpu")
    again = next(one for one in found.records["tiny"] if one.method == "fedavg")
    first = next(one for one in store.made(done) if one.method == "fedavg")
    assert again.same_numbers(first)
    assert again.seconds is None  # not the time of a whole training


def test_runs_of_another_spec_are_thrown_away(tmp_path: Path) -> None:
    def stop(done: float, total: int, text: str) -> None:
        if done > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        eh.benchmark("fedavg", suite=tiny(rounds=3), out=tmp_path, device="cpu", progress=stop)
    found = eh.benchmark("fedavg", suite=tiny(), out=tmp_path, device="cpu")
    assert {record.rounds for record in found.records["tiny"]} == {2}


def test_records_of_other_machines_are_merged(done: Path, tmp_path: Path) -> None:
    records = store.made(done, "tiny")
    here, there = tmp_path / "here", tmp_path / "there"
    store.keep(here, records[0])
    for record in records:
        store.keep(there, replace(record, machine="there", seconds=9.0))
    merged = store.merge(here, there)
    assert [one.method for one in merged.known] == [records[0].method]
    assert len(merged.taken) == len(records) - 1
    assert merged.conflicts == []
    assert next(r for r in store.made(here) if r.method == records[0].method) == records[0]


def test_a_conflict_is_named_and_nothing_is_overwritten(done: Path, tmp_path: Path) -> None:
    record = next(one for one in store.made(done) if one.method == "fedavg")
    here, there = tmp_path / "here", tmp_path / "there"
    store.keep(here, record)
    store.keep(there, replace(record, validation=0.123, machine="there"))
    found = eh.benchmark(suite=tiny(), out=here, merge=[there], run=False)
    assert any("different numbers for the same spec" in note for note in found.notes)
    assert store.made(here) == [record]


def test_lines_as_they_are_committed_are_read_again(done: Path, tmp_path: Path) -> None:
    records = store.made(done, "tiny")
    (path,) = store.write_lines(tmp_path / "lines", records)
    assert path.name == "tiny.jsonl"
    assert len(store.merge(tmp_path / "a", path).taken) == len(records)
    assert len(store.merge(tmp_path / "b", tmp_path / "lines").taken) == len(records)


def test_large_federations_wait_for_a_gpu_unless_they_are_named(
    tmp_path: Path, trained: list[str]
) -> None:
    large = Suite.of({"tiny": {**TINY, "quick": False}}, METHODS)
    found = eh.benchmark(suite=large, out=tmp_path, device="cpu")
    assert trained == []
    assert found.notes == (
        "skipped tiny: they take hours without a GPU; name them as federations to run them anyway",
    )
    eh.benchmark("fedavg", federations="tiny", suite=large, out=tmp_path, device="cpu")
    assert trained == ["fedavg", "localonly"]


def test_missing_data_are_skipped_with_what_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"data": {"name": "vehicle"}, "rounds": 1}
    suite = Suite.of({"sensors": table}, {"settings": 3, "seeds": 2, "methods": {"fedavg": {}}})
    monkeypatch.setattr(entry_module, "read_data", _missing)
    found = eh.benchmark(suite=suite, out=tmp_path, device="cpu")
    assert found.notes == ("skipped sensors: fetch it",)
    assert found.missing == ("sensors, fedavg",)
    assert found.standings == ()


def _missing(*_: object) -> None:
    raise eh.DataError("fetch it")


def test_a_unit_that_fails_does_not_end_the_others(
    tmp_path: Path, as_standard: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(unit: Unit, *rest: object) -> Record:
        if unit.entry.label == "localonly":
            raise eh.RunError("no setting has finite scores")
        return running.run_unit(unit, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(entry_module, "run_unit", fail)
    code, _, errors = invoke("benchmark", "--out", str(tmp_path), "--device", "cpu")
    assert code == 1
    assert "tiny, localonly: no setting has finite scores" in errors
    assert len(store.made(tmp_path)) == 2


@pytest.mark.usefixtures("as_standard")
def test_the_command_runs_prints_and_writes(tmp_path: Path) -> None:
    out = str(tmp_path / "runs")
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    arguments = ("benchmark", "--quick", "--out", out, "--device", "cpu")
    drawing = tmp_path / "gains.svg"
    code, text, errors = invoke(
        *arguments, "--html", str(page), "--csv", str(table), "--svg", str(drawing)
    )
    assert code == 0
    assert "Tiny: test accuracy over 4 clients" in text
    assert "3 of 3, tiny: qffl" in errors
    assert table.read_text().splitlines()[0].startswith("federation,method,mean,mean_low")
    html = page.read_text()
    labels = [one.text for one in ElementTree.parse(drawing).iter() if one.tag.endswith("text")]
    assert {"fedavg", "localonly", "qffl", "Tiny"} <= set(labels)
    assert "Fair federated methods against a tuned FedAvg" in html
    assert "{{" not in html
    assert "http" not in html.replace("http-equiv", "")
    code, text, errors = invoke("benchmark", "--list", "--out", out)
    assert code == 0
    assert "3 of 3" in text
    code, text, errors = invoke(*arguments, "-q")
    assert (code, text, errors) == (0, "", "")


@pytest.mark.usefixtures("as_standard")
def test_the_command_tells_slips(tmp_path: Path) -> None:
    code, _, errors = invoke("benchmark", "--federation", "tin", "--out", str(tmp_path))
    assert code == 1
    assert errors.startswith("evenhand: ")
    assert "tiny" in errors


# ---- what comes with the package


def committed() -> dict[str, list[Record]]:
    return {name: store.committed(name) for name in Suite.standard().benches}


def test_committed_records_are_of_the_suite_as_it_is() -> None:
    suite = Suite.standard()
    for name, records in committed().items():
        for record in records:
            unit = suite.unit(suite.benches[name], suite.entries[record.method])
            assert unit is not None
            assert record.identity == unit.identity, f"{name}, {record.method}: run it again"
            assert record.tried == suite.budget.settings
            assert record.seeds == tuple(range(suite.budget.seeds))


def test_every_quick_federation_has_all_its_records() -> None:
    suite = Suite.standard()
    for bench in suite.chosen((), quick=True):
        units = [unit for one in suite.entries.values() if (unit := suite.unit(bench, one))]
        found = {record.method for record in store.committed(bench.name)}
        assert found == {unit.entry.label for unit in units}, bench.name


def test_a_committed_number_is_found_again() -> None:
    """FedAvg with the settings that were chosen and the first seed, on generated data."""
    suite = Suite.standard()
    record = next(one for one in store.committed("minimax") if one.method == "fedavg")
    spec = suite.benches["minimax"].spec(suite.budget, "cpu")
    local = {key.removeprefix("local."): value for key, value in record.settings.items()}
    ready = check(replace(spec, methods=(Method("fedavg", "fedavg", {}, local),)).for_seed(0))
    method = ready.spec.methods[0]
    result = train(ready.module, ready.federation, method.algorithm(), ready.settings(method))
    assert ready.federation.fingerprint() == record.data
    right = [round(c) for c in result.tally["correct"].sum(1).tolist()]
    apart = [abs(a - b) for a, b in zip(right, record.right_by_client(0), strict=True)]
    assert max(apart) <= CLOSE


def test_tables_in_the_docs_are_those_of_the_records() -> None:
    """docs/results/benchmark.csv is made by the command from the committed records."""
    path = Path(__file__).parents[2] / "docs" / "results" / "benchmark.csv"
    rows = path.read_text(encoding="utf-8").splitlines()
    expected = sum(len(records) for records in committed().values())
    assert len(rows) == 1 + expected
    home = resources.files("evenhand.benchmarking") / "results"
    for file in home.iterdir():
        if file.name.endswith(".jsonl"):
            for line in file.read_text(encoding="utf-8").splitlines():
                json.loads(line)
