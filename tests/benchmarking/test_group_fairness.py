"""The driver behind docs/results/group-fairness.md: its measures, its tables, and a tiny run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import evenhand as eh
from benchmarks.group_fairness import (
    FEDERATIONS,
    METHODS,
    NOTIONS,
    bound_table,
    main,
    measure,
    over_seeds,
    runs,
    tables,
    within,
    within_clients,
)
from evenhand.data.storage.file import data_root
from evenhand.metrics import parity

RESULTS = Path(__file__).parents[2] / "docs" / "results"
needs_data = pytest.mark.skipif(
    not (data_root() / "compas").is_dir(),
    reason=f"COMPAS is not in {data_root()}; set EVENHAND_DATA to a folder that has it",
)


def test_measures_of_eight_decisions_by_hand() -> None:
    label = np.array([1, 1, 0, 0, 1, 1, 0, 0])
    group = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    client = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    chance = np.array([1, 1, 0, 0, 1, 0, 0.5, 0])
    found = measure(chance, label, group, client)
    assert found["accuracy"] == pytest.approx(6.5 / 8)
    assert found["worst"] == pytest.approx(3.5 / 5)  # client 1
    assert found["worst_error"] == pytest.approx((0.7 * 0.3 / 5) ** 0.5)
    assert found["dp"] == pytest.approx(2 / 4 - 1.5 / 4)
    assert found["dp_error"] == pytest.approx((0.5 * 0.5 / 4 + 0.375 * 0.625 / 4) ** 0.5)
    assert (found["eo"], found["fpr"]) == (pytest.approx(0.5), pytest.approx(0.25))
    assert (found["eodds"], found["eodds_error"]) == (found["eo"], found["eo_error"])
    assert np.isnan(found["local_dp"])  # nobody has enough samples


def test_gaps_within_clients_leave_out_small_groups() -> None:
    # client 0: 30 of 60 and 10 of 40; client 1: 20 of 40, and a group of 29 that does not count
    sizes, chances = [60, 40, 40, 29], [0.5, 0.25, 0.5, 1.0]
    group, client = (np.repeat(codes, sizes) for codes in ([0, 1, 0, 1], [0, 0, 1, 1]))
    value, error = within_clients(np.repeat(chances, sizes), group, client)
    assert value == pytest.approx(0.25)
    assert error == pytest.approx((0.5 * 0.5 / 60 + 0.25 * 0.75 / 40) ** 0.5)


def test_gaps_are_those_of_the_library() -> None:
    random = np.random.default_rng(0)
    label, chance = random.integers(0, 2, (2, 400))
    group, client = random.integers(0, 4, (2, 400))
    table = np.zeros((4, 2, 3))
    np.add.at(table, (group, label, chance), 1)
    found = measure(chance.astype(float), label, group, client)
    assert found["dp"] == pytest.approx(parity.demographic_parity(table, 1))
    assert found["eo"] == pytest.approx(parity.equal_opportunity(table, 1))
    assert found["eodds"] == pytest.approx(parity.equalised_odds(table, 1))


def test_intervals_allow_for_seeds_and_samples() -> None:
    # std 1, three seeds: t = 4.302653; sampling errors of 2 stay, since seeds share test samples
    mean, half = over_seeds(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))
    assert mean == 2
    assert half == pytest.approx(np.hypot(4.302653 / 3**0.5, 1.96 * 2), rel=1e-6)
    assert over_seeds(np.array([1.0]), np.array([2.0])) == (1, pytest.approx(3.92))


def test_a_gap_is_within_its_bound_up_to_sampling_error() -> None:
    rows = pd.DataFrame(
        {
            "federation": "some",
            "method": "bounded",
            "bounded": "dp",
            "fitted": 0.04,
            "dp": [0.04, 0.089, 0.090],
            "dp_error": 0.02,
        }
    )
    assert within(rows).tolist() == [True, True, False]  # 0.05 + 1.96 * 0.02 = 0.0892
    assert list(bound_table(rows))[-1] == "| some | bounded | 4.0 | 7.3 | 8.9 | yes | 2 of 3 |"
    assert "| **no** |" in list(bound_table(rows.assign(dp=0.1)))[-1]


@needs_data
def test_a_tiny_run_has_a_row_for_every_method() -> None:
    rows = pd.DataFrame(runs("COMPAS by sex", seed=0, rounds=2))
    assert rows.method.is_unique
    assert len(rows) == 1 + len(METHODS) + 2 * len(NOTIONS)
    assert rows[["accuracy", "worst", "dp", "eo", "eodds"]].notna().all(axis=None)
    assert rows.bounded.dropna().tolist() == 2 * ["dp", "eo", "eodds"]
    assert rows.method.str.startswith("GroupConstraint").sum() == 4
    constrained = rows.set_index("method").loc["FedAvg, thresholds EOdds"]
    assert constrained.fitted <= 0.05 + 1e-9  # on validation data thresholds keep the bound


@needs_data
def test_compas_favours_no_new_charge() -> None:
    make, column = FEDERATIONS["COMPAS by race"]
    fed: eh.Federation = make(column, 0)
    assert fed.label_names == ("new charge", "no new charge")
    assert fed.group_names == ("African-American", "Caucasian", "other")
    share = np.concatenate([part.y.numpy() for part in (fed.train, fed.val, fed.test)]).mean()
    assert share == pytest.approx(1 - 0.455, abs=0.001)  # 2,809 of 6,172 were charged again


def test_the_page_has_the_tables_of_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    file = RESULTS / "group-fairness.csv"
    page = (RESULTS / "group-fairness.md").read_text(encoding="utf-8")
    for text in tables(pd.read_csv(file)):
        assert text.strip() in page
    main(["--tables", str(file)])
    assert "### COMPAS by race" in capsys.readouterr().out
