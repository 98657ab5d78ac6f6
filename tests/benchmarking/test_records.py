"""Records: what is kept of a unit gives back the numbers of its run directory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.benchmarking.rebuilt import study_of
from evenhand.benchmarking.record import Record, packed, record_of, unpacked
from evenhand.benchmarking.running import read_data, run_unit
from evenhand.benchmarking.suite import Unit
from evenhand.studies.analysis.comparison import compare
from evenhand.studies.runs.study import Study
from tests.support.benchmarks import by_hand, tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], Study]:
    """Two units of the small suite: their records, and the study of their directories."""
    suite, place = tiny(), tmp_path_factory.mktemp("units")
    bench = suite.benches["tiny"]
    data = read_data(bench, suite.budget)
    records = [
        run_unit(Unit(bench, suite.entries[label], suite.budget), data, place / label, "cpu", print)
        for label in ("fedavg", "qffl")
    ]
    return records, Study.load([place / label for label in ("fedavg", "qffl")])


def test_a_record_survives_its_line(trained: tuple[list[Record], Study]) -> None:
    for record in trained[0]:
        again = Record.parse(record.line(), "a line")
        assert again == record
        assert again.same_numbers(replace(record, machine="elsewhere", seconds=None))
        assert not again.same_numbers(replace(record, down=record.down + 1))


def test_a_rebuilt_study_has_the_numbers_of_the_directories(
    trained: tuple[list[Record], Study],
) -> None:
    records, study = trained
    rebuilt = study_of(records)
    assert rebuilt.seeds == study.seeds == (0, 1)
    assert rebuilt.labels == study.labels == ("fedavg", "qffl")
    for label in study.labels:
        for seed in study.seeds:
            for by in ("client", "group"):
                np.testing.assert_array_equal(
                    rebuilt.merits(label, seed, by), study.merits(label, seed, by)
                )
    one, other = compare(rebuilt), compare(study)
    for label in study.labels:
        for name, interval in other.rows[label].items():
            np.testing.assert_allclose(one.rows[label][name], interval, atol=1e-12)
    for name, difference in other.differences["qffl"].items():
        np.testing.assert_allclose(
            one.differences["qffl"][name].interval, difference.interval, atol=1e-12
        )


def test_groups_take_the_place_of_clients(trained: tuple[list[Record], Study]) -> None:
    records, study = trained
    grouped = study_of(records, "group")
    assert grouped.names("client") == study.names("group")
    np.testing.assert_array_equal(grouped.merits("qffl", 1), study.merits("qffl", 1, by="group"))


def test_a_record_tells_what_was_chosen_and_sent(trained: tuple[list[Record], Study]) -> None:
    fedavg, qffl = trained[0]
    numbers = 64 * 10 + 10  # the model; lr, weight and share come with it, and the share goes back
    assert (fedavg.down, fedavg.up) == (numbers + 3, numbers + 1)
    assert fedavg.tried == qffl.tried == 3
    assert set(fedavg.settings) == {"local.lr"}
    assert set(qffl.settings) == {"q"}
    assert sum(map(sum, fedavg.cells)) == len(fedavg.values(0))
    assert fedavg.seconds is not None
    assert fedavg.seconds > 0


def test_teams_stand_in_for_groups() -> None:
    right = {0: [[1, 1], [0, 0], [1, 0]], 1: [[1, 1], [0, 1], [1, 0]]}
    record = by_hand("fedavg", right, teams=("b", "a", "b"))
    grouped = study_of([record], "group")
    assert grouped.names("client") == ("a", "b")
    assert grouped.merits("fedavg", 0).tolist() == [0.0, 0.75]
    assert grouped.merits("fedavg", 1).tolist() == [0.5, 0.75]


def test_a_training_that_diverged_is_not_judged() -> None:
    right = {0: [[1, 1]], 1: [[0, 1]]}
    study = study_of([by_hand("fedavg", right), by_hand("qffl", right, diverged=(1,))])
    assert study.labels == ("fedavg",)
    assert [one.seeds for one in study.diverged] == [(1,)]


def test_bits_are_packed_and_unpacked() -> None:
    values = np.random.default_rng(0).integers(0, 2, 1001)
    assert unpacked(packed(values), 1001).tolist() == values.tolist()


def test_samples_are_in_the_order_of_clients_and_groups() -> None:
    record = by_hand("fedavg", {0: [[1, 0, 1], [0]]}, groups=[1, 0])
    client, group = record.sample_cells()
    assert client.tolist() == [0, 0, 0, 1]
    assert group.tolist() == [1, 1, 1, 0]
    assert record.right_by_client(0) == [2, 0]


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"federation": "x"})])
def test_a_line_that_is_no_record_is_told(text: str) -> None:
    with pytest.raises(eh.RunError, match="is not a benchmark record"):
        Record.parse(text, "a line")


def test_other_data_are_refused() -> None:
    right = {0: [[1, 1]], 1: [[0, 1]]}
    with pytest.raises(eh.RunError, match="different data"):
        study_of([by_hand("fedavg", right), by_hand("qffl", right, data="other")])


def test_a_regression_is_refused(tmp_path: Path, trained: tuple[list[Record], Study]) -> None:
    suite = tiny()
    unit = Unit(suite.benches["tiny"], suite.entries["fedavg"], suite.budget)
    with pytest.raises(eh.RunError, match="no run"):
        record_of(tmp_path, unit, (1, 1), None)
