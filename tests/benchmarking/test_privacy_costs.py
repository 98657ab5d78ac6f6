"""The experiment about whom differential privacy costs accuracy: its federations and its table."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pandas as pd
import pytest

import evenhand as eh
from benchmarks import privacy_costs as costs

pytest.importorskip("dp_accounting", reason="pip install 'evenhand[privacy]'")


@pytest.mark.parametrize("name", ["rules", "digits"])
def test_the_minority_comes_last_and_has_its_public_share(name: str) -> None:
    setting = costs.FEDERATIONS[name]
    fed = setting.make(0)
    for part in (fed.train, fed.test):
        assert part is not None
        names = [
            {fed.group_names[int(code)] for code in part.client(client)[2]}  # type: ignore[union-attr]
            for client in range(fed.clients)
        ]
        few = sum(own == {"minority"} for own in names)
        assert few == round(setting.share * fed.clients)
        assert names[-few:] == [{"minority"}] * few
        assert {"minority"} not in names[:-few]


def test_a_seed_gives_the_same_rows_and_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(costs.FEDERATIONS["digits"], rounds=2)
    monkeypatch.setitem(costs.FEDERATIONS, "digits", short)
    rows = list(islice(costs.runs("digits", 0), 4))  # FedAvg: plain, clipped, two epsilons
    again = list(islice(costs.runs("digits", 0), 4))
    assert [row["minority"] for row in rows] == [row["minority"] for row in again]
    assert [row["privacy"] for row in rows] == ["no privacy", "clipped", "8", "3"]
    assert rows[1]["noise"] == 0
    assert rows[3]["noise"] > rows[2]["noise"] > 0
    (table,) = costs.result_tables(pd.DataFrame(rows))
    row = next(line for line in table.splitlines() if line.startswith("| FedAvg | minority |"))
    assert f"| {rows[0]['minority']:.1f} ± nan | {rows[1]['minority']:.1f} ± nan |" in row


def test_every_method_of_the_experiment_can_be_private() -> None:
    setting = costs.FEDERATIONS["rules"]
    for algorithm in setting.methods().values():
        levels = list(costs.protections(algorithm, setting, 0))
        assert [clip for _, clip, _ in levels] == [np.inf, *(4 * [1.0]), *(4 * [0.3])]
        assert all(isinstance(method, eh.Private) for _, _, method in levels[1:])
