"""The page about moving from Flower's strategies: its code runs, and both sides give the same
model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord

import evenhand as eh
from evenhand.files import read_tensors
from evenhand.flower import server_app
from tests.support.flower_grid import InProcessGrid

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "from-flower.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
ROWS = (12, 40, 25, 90)


def run(name: str) -> dict[str, Any]:
    """What a block of the page defines."""
    scope: dict[str, Any] = {}
    exec(compile(BLOCKS[name], name, "exec"), scope)
    return scope


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Four nodes whose tables differ in size and in what predicts the label."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    for i, rows in enumerate(ROWS):
        x = rng.normal(size=(rows + 10, 8)).astype(np.float32)
        y = (x @ rng.normal(size=8) + 0.5 * i > 0).astype(np.int64)
        np.savez(tmp_path / f"{i}.npz", x=x[:rows], y=y[:rows], test_x=x[rows:], test_y=y[rows:])
    return [
        {
            "partition-id": i,
            "data": str(tmp_path / f"{i}.npz"),
            "state-dir": str(tmp_path / f"state{i}"),
        }
        for i in range(len(ROWS))
    ]


def served(name: str, nodes: list[dict[str, Any]], server: Any) -> None:
    grid = InProcessGrid(run(name)["app"], nodes)
    server(grid, grid.contexts[1])


def test_fedavg_gives_what_flowers_strategy_gives(nodes: list[dict[str, Any]]) -> None:
    served("before/client_app.py", nodes, run("before/server_app.py")["app"])
    served("after/client_app.py", nodes, run("after/server_app.py")["app"])
    ours, _ = read_tensors(Path("runs/fedavg/fedavg/model.safetensors"))
    for name, value in torch.load("model.pt", weights_only=True).items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=2e-6)


def test_qffl_gives_what_flowers_qfedavg_gives(nodes: list[dict[str, Any]]) -> None:
    first = run("after/server_app.py")["first"]
    grid = InProcessGrid(run("before/client_app.py")["app"], nodes)
    theirs = (
        run("before/qfedavg.py")["strategy"]
        .start(grid, ArrayRecord(first().state_dict()), num_rounds=10)
        .arrays.to_torch_state_dict()
    )
    settings = run("after/qffl.py")
    found: list[eh.Result] = []
    options = {"clients": 4, "rounds": 10, "local": settings["local"], "out": "runs/qffl"}
    served(
        "after/client_app.py",
        nodes,
        server_app(
            settings["method"], first, weights=settings["weights"], finished=found.append, **options
        ),
    )
    for name, value in theirs.items():
        # Flower's is float64 by now
        torch.testing.assert_close(found[0].params[name], value.float(), rtol=0, atol=2e-6)


def test_weights_by_data_are_another_model(nodes: list[dict[str, Any]]) -> None:
    found: list[eh.Result] = []
    for weights in ("uniform", "data"):
        app = server_app(
            eh.QFFL(q=1.0),
            run("after/server_app.py")["first"],
            clients=4,
            rounds=10,
            local=eh.LocalSGD(lr=0.5, steps=3),
            out=f"runs/{weights}",
            weights=weights,
            finished=found.append,
        )
        served("after/client_app.py", nodes, app)
    assert (found[0].params["weight"] - found[1].params["weight"]).abs().max() > 1e-2
