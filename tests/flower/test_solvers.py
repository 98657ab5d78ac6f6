"""Local solvers in a real federation: sent as tables, rebuilt by nodes, bounded by the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.engines.work import Train
from evenhand.errors import SpecError
from evenhand.flower import client_app, server_app
from evenhand.flower.claims import steps_of
from evenhand.flower.secret_order import SecretOrder
from evenhand.flower.wire import describe_work, read_work
from evenhand.local import LocalSolver
from evenhand.studies.specs.spec import Spec
from tests.support.federations import network, ragged
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import one_client, trusting

SOLVERS: dict[str, LocalSolver] = {
    "sgd": eh.LocalSGD(0.1, momentum=0.9, nesterov=True, clip=0.5),
    "adam": eh.LocalAdam(1e-3, steps=7, betas=(0.8, 0.99), amsgrad=True),
    "adamw": eh.LocalAdamW(
        1 / 3,
        epochs=2,
        batch_size=8,
        schedule=eh.schedules.Cosine(30, warmup=5),
        step_schedule=eh.schedules.Step(2, 0.5),
    ),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_comes_back_equal(name: str) -> None:
    work = Train(eh.QFFL(), SOLVERS[name])
    again = read_work(describe_work(work, work.algorithm))
    assert again == work
    assert repr(again) == repr(work)


def test_plain_sgd_is_sent_as_before_so_that_older_nodes_understand_it() -> None:
    sent = json.loads(describe_work(Train(eh.FedAvg(), eh.LocalSGD(0.1)), eh.FedAvg()))
    assert sent["local"] == {
        "lr": 0.1,
        "epochs": None,
        "steps": None,
        "batch_size": None,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "decay": 1.0,
    }


@pytest.mark.parametrize(
    "local",
    [
        {"solver": "lbfgs", "lr": 0.1},
        {"lr": 0.1, "schedule": "os.system"},
        {"lr": 0.1, "schedule": {"name": "cosine", "length": "x"}},
        {"solver": ["adam"], "lr": 0.1},
        {"solver": "adam", "lr": 0.1, "betas": 3},
        [0.1],
    ],
)
def test_a_node_refuses_a_solver_that_it_cannot_build(local: Any) -> None:
    text = json.dumps({"kind": "train", "part": "train", "plain": True, "local": local})
    with pytest.raises(SpecError, match="invalid settings for the local solver") as caught:
        read_work(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["schedule", "step_schedule"])
def test_a_function_cannot_be_sent(name: str, tmp_path: Path) -> None:
    local = eh.LocalSGD(0.1, **{name: lambda place: 0.5})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is a function, which a spec or message cannot hold"):
        server_app(eh.FedAvg(), network(), clients=2, local=local, out=tmp_path / "run")


def federated(tmp_path: Path, local: LocalSolver, order: str = "server") -> eh.Result:
    federation, module = ragged((2, 12, 7)), network()
    app = client_app(module, lambda config: one_client(federation, int(config["partition-id"])))
    policy = Path(trusting(tmp_path))
    policy.write_text(policy.read_text().replace('"server"', f'"{order}"'))
    configs: list[dict[str, Any]] = [
        {"partition-id": i, "state-dir": str(tmp_path / "state"), "policy": str(policy)}
        for i in range(3)
    ]
    grid, found = InProcessGrid(app, configs), list[eh.Result]()
    settings: dict[str, Any] = {"rounds": 2, "local": local, "seed": 3, "eval_every": 2}
    out = tmp_path / "run"
    server_app(
        eh.FedAvg(), module, clients=3, out=out, finished=found.append, bound=None, **settings
    )(grid, grid.contexts[1])
    assert Spec.load(out / "spec.toml").local.get("solver", "sgd") in SOLVERS
    return found[0]


def test_a_federation_with_adam_is_its_simulation_to_the_bit(tmp_path: Path) -> None:
    local = eh.LocalAdam(
        0.01, epochs=2, batch_size=4, clip=0.5, schedule=eh.schedules.Cosine(2),
        step_schedule=eh.schedules.Warmup(2),
    )  # fmt: skip
    found = federated(tmp_path, local)
    wanted = eh.fit(
        network(), ragged((2, 12, 7)), eh.FedAvg(), rounds=2, local=local, seed=3, engine="loop"
    )
    for key, value in wanted.params.items():
        assert torch.equal(found.params[key], value), key


def test_nodes_draw_secret_batches_for_adam_too(tmp_path: Path) -> None:
    local = eh.LocalAdam(0.01, batch_size=4)
    found = federated(tmp_path, local, order="node")
    other = eh.fit(
        network(), ragged((2, 12, 7)), eh.FedAvg(), rounds=2, local=local, seed=3, engine="loop"
    )
    assert not torch.equal(found.params["0.weight"], other.params["0.weight"])
    for value in found.params.values():
        assert value.isfinite().all()


@pytest.mark.parametrize("name", SOLVERS)
def test_a_secret_order_changes_batches_only(name: str) -> None:
    local, secret = SOLVERS[name], SecretOrder.of(SOLVERS[name], key=1, least=1)
    start = {"model": {"w": torch.ones(1, 3)}}
    gradient = {"model": {"w": torch.tensor([[1.0, 2.0, 3.0]])}}
    moved = []
    for one in (local, secret):
        variables = eh.tree.map(torch.clone, start)
        numbers, state = one.numbers(torch.tensor([2])), one.state(start)
        for step in range(2):
            here = None if numbers is None else numbers[step].float()
            one.update(variables, state, gradient, {"model": torch.tensor([0.1])}, None, here)
        moved.append(variables["model"]["w"])
    assert torch.equal(*moved)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_the_effect_of_momentum_on_a_variable_is_counted(steps: int, nesterov: bool) -> None:
    local = eh.LocalSGD(1.0, steps=steps, momentum=0.75, nesterov=nesterov)
    variables = {"eta": torch.zeros(1, dtype=torch.float64)}
    state = local.state(variables)
    for _ in range(steps):
        one = {"eta": torch.ones(1, dtype=torch.float64)}
        local.update(variables, state, one, {"eta": torch.ones(1, dtype=torch.float64)}, None)
    assert steps_of(local, 10) == pytest.approx(-float(variables["eta"]))
    assert steps_of(eh.LocalAdam(1.0, steps=steps), 10) == steps
