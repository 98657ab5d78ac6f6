"""Masked sums between real processes with TLS and node keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.files import read_tensors
from evenhand.flower.tryout.loopback import Loopback
from tests.support.federations import network, ragged
from tests.support.flower_app import write_app
from tests.support.flower_masks import FixedPoint
from tests.support.flower_nodes import trusting
from tests.support.flower_trial import wait_until

needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")

SIZES, ROUNDS, PATIENCE = (30, 20, 40), 2, 600
LOCAL = eh.LocalSGD(lr=0.05, batch_size=8, momentum=0.5)
CLIENT = """
from evenhand.flower import client_app

def model():
    from tests.support.federations import network
    return network()

def load(config):
    import numpy as np
    with np.load(config["data"]) as kept:
        arrays = dict(kept)
    test = {name: arrays.pop(f"test_{name}") for name in ("x", "y", "group")}
    return {**arrays, "team": str(arrays["team"]), "test": test}

app = client_app(model, load, share="masked")
"""
SERVER = """
from pathlib import Path
from flwr.serverapp import ServerApp
import evenhand as eh
from evenhand.files import write_tensors
from evenhand.flower import SecureSums, server_app
from tests.support.federations import METHODS, network

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    out = Path(config["out"])
    run = server_app(
        METHODS[config["method"]], network, clients=3, out=out, rounds=config["rounds"],
        local=eh.LocalSGD(lr=0.05, batch_size=8, momentum=0.5), seed=3, weights="uniform",
        deadline=300.0, patience=60, secure=SecureSums(mode=config["mode"]),
        finished=lambda result: write_tensors(out / "final.safetensors", result.params),
    )
    run(grid, context)
"""


class Trial:
    """The app, its nodes' data, and what the simulator makes of them."""

    def __init__(self, place: Path) -> None:
        self.place, self.data = place, ragged(SIZES)
        settings = {"method": '"fedavg"', "rounds": f"{ROUNDS}", "out": '""', "mode": '"recover"'}
        self.app = write_app(place / "app", "masked", CLIENT, SERVER, settings)
        self.files = [self._write(client) for client in range(len(SIZES))]

    def _write(self, client: int) -> Path:
        path = self.place / f"{client}.npz"
        groups, teams = self.data.group_names, self.data.teams
        assert teams is not None
        arrays = {}
        for prefix, part in (("", self.data.train), ("test_", self.data.test)):
            x, y, group = part.client(client)
            arrays |= {
                f"{prefix}x": x,
                f"{prefix}y": y,
                f"{prefix}group": [groups[code] for code in group.tolist()],
            }
        np.savez(path, **arrays, team=self.data.team_names[int(teams[client])])
        return path

    def federation(self) -> Loopback:
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        return Loopback(
            *(self.place / "federation", len(SIZES), True, self.files),
            env={"PYTHONPATH": path},
            cwd=self.place,
            policy=trusting(self.place),
        )

    def expected(self, method: eh.Algorithm, rounds: int = ROUNDS) -> eh.Result:
        return eh.fit(
            network(torch.float64),
            self.data,
            method,
            engine=FixedPoint(),
            rounds=rounds,
            local=LOCAL,
            seed=3,
            weights="uniform",
            evaluate="with training",
        )


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def federation(trial: Trial) -> Iterator[Loopback]:
    with trial.federation() as running:
        yield running


def assert_params(out: Path, reference: eh.Result) -> None:
    found, _ = read_tensors(out / "final.safetensors")
    assert found.keys() == reference.params.keys()
    for name, value in reference.params.items():
        assert torch.equal(found[name], value), name


@needs_proc
def test_masked_sums_give_what_the_simulator_gives_to_the_bit(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    run = federation.run(trial.app, {"out": str(tmp_path)})
    assert run.wait(PATIENCE) == "finished:completed", run.log()
    assert_params(tmp_path, trial.expected(eh.FedAvg()))
    for i, node in enumerate(federation.nodes):
        log = node.text()
        assert log.count("Receiving: query.count message") == 1
        # counts, rounds, and the trained model's evaluation; not every holder is needed each time
        assert log.count("Receiving: query.unmask message") in (ROUNDS, ROUNDS + 1, ROUNDS + 2)
        assert log.count("Receiving: train message") == ROUNDS
        assert (federation.directory / "state" / f"node-{i}" / "masks.json").exists()


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(("method", "mode"), [("term", "strict"), ("ditto", "recover")])
def test_other_methods_and_strict_mode_do_too(
    method: str, mode: str, federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    from tests.support.federations import METHODS

    run = federation.run(trial.app, {"out": str(tmp_path), "method": method, "mode": mode})
    assert run.wait(PATIENCE) == "finished:completed", run.log()
    assert_params(tmp_path, trial.expected(METHODS[method]))


@needs_proc
@pytest.mark.slow
def test_a_server_app_killed_between_the_messages_goes_on_with_the_same_set(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    run = federation.run(trial.app, {"out": str(tmp_path), "rounds": 3})
    wait_until(lambda: any(tmp_path.glob("*/masked-sums/round-1-*.sum")))
    run.kill_server_app()
    again = federation.run(trial.app, {"out": str(tmp_path), "rounds": 3})
    assert again.wait(PATIENCE) == "finished:completed", again.log()
    assert_params(tmp_path, trial.expected(eh.FedAvg(), rounds=3))


@needs_proc
@pytest.mark.slow
def test_a_superlink_killed_between_the_messages_is_started_again_and_the_run_goes_on(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    federation.run(trial.app, {"out": str(tmp_path), "rounds": 3})
    wait_until(lambda: any(tmp_path.glob("*/masked-sums/round-1-*.sum")))
    federation.link.kill()
    federation.link.restart()
    again = federation.run(trial.app, {"out": str(tmp_path), "rounds": 3})
    assert again.wait(PATIENCE) == "finished:completed", again.log()
    assert_params(tmp_path, trial.expected(eh.FedAvg(), rounds=3))
