"""Metrics of a user in a real federation: nodes evaluate those that they were given, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import torch

import evenhand as eh
from evenhand.errors import RunError
from evenhand.flower import client_app, server_app
from evenhand.flower.evaluation_checks import check_evaluation
from evenhand.flower.weighing import _fewer
from evenhand.messages import Reply, Task
from evenhand.metrics.client_sums import client_sums
from evenhand.metrics.measuring import ratios
from tests.support.federations import network, ragged
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import FAST, one_client, trusting
from tests.support.own_metrics import METRICS, cost, f1_parts

RUN: dict[str, Any] = {**FAST, "rounds": 2}


def trained(directory: Path, federation: eh.Federation, by_client: bool, metrics: Any) -> eh.Result:
    """A run of nodes that were given ``metrics``."""
    held = [one_client(federation, client) for client in range(federation.clients)]
    app = client_app(
        network(), lambda config: held[int(config["partition-id"])], share="client", metrics=metrics
    )
    policy, found = trusting(directory), []
    configs = [
        {"partition-id": i, "state-dir": str(directory / f"state{i}"), "policy": policy}
        for i in range(federation.clients)
    ]
    server = server_app(
        eh.FedAvg(),
        network(),
        clients=federation.clients,
        out=directory / "run",
        by_client=by_client,
        patience=1,
        finished=found.append,
        metrics=METRICS,
        **RUN,
    )
    grid = InProcessGrid(app, configs)
    server(grid, next(iter(grid.contexts.values())))
    return found[0]


@pytest.mark.parametrize("by_client", [True, False])
def test_nodes_evaluate_as_the_simulator_does(tmp_path: Path, by_client: bool) -> None:
    federation = ragged((9, 12, 7), teams=False)
    result = trained(tmp_path, federation, by_client, METRICS)
    expected = eh.fit(network(), federation, eh.FedAvg(), metrics=METRICS, **RUN)
    mine, its = (
        [row for row in one.score_rows if row["by"] == "group"] for one in (result, expected)
    )
    for name in METRICS:
        assert [row[name] for row in mine] == pytest.approx([row[name] for row in its], rel=1e-5)
        assert result.history_rows[-1][name] == pytest.approx(
            expected.history_rows[-1][name], rel=1e-5
        )
    study = eh.load(tmp_path / "run")
    found = eh.analyse(study)
    view = found.metrics["cost"]
    assert view.value("fedavg", "mean").value == pytest.approx(
        expected.history_rows[-1]["cost"], rel=1e-5
    )
    assert "nan" not in str(found)


def test_a_metric_that_nodes_lack_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunError):
        trained(tmp_path, ragged((9, 12), teams=False), True, {"top2": METRICS["top2"]})
    assert "metrics that this node does not have: f1, cost; give them to client_app" in caplog.text


def test_a_client_that_counts_less_keeps_its_metrics() -> None:
    table = torch.tensor([[[2.0, 3.0], [4.0, 8.0]]]).double()  # (A, 2, L)
    tally = {"count": torch.tensor([8.0]), "loss": torch.tensor([4.0]), "higher:f1": table}
    fewer = _fewer(tally, 0.5)
    assert fewer["higher:f1"].tolist() == (table / 2).tolist()
    assert ratios(fewer["higher:f1"].numpy()) == ratios(table.numpy())


def test_a_value_over_clients_that_does_not_match_its_sums_is_a_fault() -> None:
    model = eh.Model(network())
    tally = {
        "count": torch.tensor([4.0]).double(),
        "loss": torch.tensor([2.0]).double(),
        "lower:cost": torch.tensor([[[2.0], [4.0]]]).double(),
    }
    sent = tally | client_sums(tally)
    task = Task({"model": model.init()})
    assert check_evaluation(Reply(sent), task, model, "client 0") == []
    sent["client_metric:lower:cost"] = torch.tensor([0.1, 1.0]).double()
    (fault,) = check_evaluation(Reply(sent), task, model, "client 0")
    assert "values that do not match its tally: client_metric:lower:cost" in fault


def test_metrics_of_a_node_are_checked_when_the_app_is_made() -> None:
    with pytest.raises(ValueError, match="metric 'accuracy' has the name of another column"):
        client_app(network(), lambda config: None, metrics={"accuracy": cost})
    assert client_app(network(), lambda config: None, metrics={"f1": f1_parts})
