"""Real processes on loopback: the simulator's numbers to the bit, and training that goes on when something dies."""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Error, Message

import evenhand as eh
from evenhand.cohort import Draw
from evenhand.files import read_tensors
from evenhand.flower.loopback import Loopback, Member, Run
from federations import METHODS, network, ragged
from flower_grid import InProcessGrid
from test_flower_rounds import Setting

needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")

PROJECT = """
[project]
name = "trial"
version = "0.1.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "trial.server_app:app"
clientapp = "trial.client_app:app"

[tool.flwr.app.config]
method = "fedavg"
rounds = 2
out = ""
deadline = 60.0
"""

CLIENT = """
import numpy as np
from evenhand.flower.apps import client_app
from federations import network

def load(config):
    with np.load(config["data"]) as kept:
        arrays = dict(kept)
    test = {name: arrays.pop(f"test_{name}") for name in ("x", "y", "group")}
    return {**arrays, "team": str(arrays["team"]), "test": test}

app = client_app(network, load)
"""

SERVER = """
from pathlib import Path
from flwr.serverapp import ServerApp
import evenhand as eh
from evenhand.files import write_tensors
from evenhand.flower.apps import server_app
from federations import METHODS, network

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    out = Path(config["out"])
    run = server_app(
        METHODS[config["method"]], network, clients=4, out=out, rounds=config["rounds"],
        local=eh.LocalSGD(lr=0.05, epochs=2, batch_size=8, momentum=0.5), seed=3, eval_every=100,
        deadline=config["deadline"], patience=60, finished=lambda result: write_tensors(out / "final.safetensors", result.params),
    )
    run(grid, context)
"""

FEDERATION = pytest.mark.xdist_group("processes")  # one after another, at one worker: each has a whole federation of processes
SIZES = (30, 7, 40, 12)
ROUNDS = 2
LOCAL = eh.LocalSGD(lr=0.05, epochs=2, batch_size=8, momentum=0.5)  # as in the app
PATIENCE = 300  # seconds for a run, on a busy machine
SECRET = "patients-of-ward-7"  # in the paths of the nodes' data


class Trial:
    """The app, and the data of its four nodes."""

    def __init__(self, place: Path) -> None:
        self.app, self.place, self.data = place / "trial-app", place, ragged(SIZES)
        (self.app / "trial").mkdir(parents=True)
        texts = {"pyproject.toml": PROJECT, "trial/__init__.py": "", "trial/client_app.py": CLIENT, "trial/server_app.py": SERVER}
        for name, text in texts.items():
            (self.app / name).write_text(text)
        self.files = [self._write(client) for client in range(len(SIZES))]

    def _write(self, client: int) -> Path:
        assert self.data.teams is not None
        arrays: dict[str, Any] = {"team": self.data.team_names[int(self.data.teams[client])]}
        for prefix, part in (("", self.data.train), ("test_", self.data.test)):
            assert part is not None
            x, y, group = part.client(client)
            assert group is not None
            arrays |= {f"{prefix}x": x, f"{prefix}y": y, f"{prefix}group": [self.data.group_names[code] for code in group.tolist()]}
        path = self.place / f"{SECRET}-{client}.npz"
        np.savez(path, **{name: np.asarray(values) for name, values in arrays.items()})
        return path

    def federation(self, name: str, tls: bool) -> Loopback:
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])  # the app uses our modules
        return Loopback(self.place / name, len(SIZES), tls, self.files, env={"PYTHONPATH": path}, cwd=self.place)

    def start(self, federation: Loopback, out: Path, method: str = "fedavg", deadline: float = 300.0) -> Run:
        return federation.run(self.app, {"method": method, "rounds": ROUNDS, "out": str(out), "deadline": deadline})

    def simulated(self, method: str, cohort: eh.Cohort | None = None) -> eh.Result:
        """The same run in the simulator."""
        settings: dict[str, Any] = {"rounds": ROUNDS, "local": LOCAL, "seed": 3, "eval_every": 100}
        return eh.fit(network(torch.float64), self.data, METHODS[method], engine="loop", cohort=cohort, **settings)


# Nodes that leave and come back, in one process


class Moving(InProcessGrid):
    """A grid that tells which nodes there are as a test says, when it is asked the n-th time (0: for the census)."""

    moves: dict[int, Callable[[], None]]
    asked = 0
    refused: int | None = None  # a node that leaves between the question and the message

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        names = super().push_messages(messages)
        return [None if message.metadata.dst_node_id == self.refused else name for message, name in zip(messages, names, strict=True)]  # type: ignore[misc]

    def get_node_ids(self) -> list[int]:
        self.moves.get(self.asked, lambda: None)()
        self.asked += 1
        return super().get_node_ids()


class Place(Setting):
    """Four nodes in this process, with numbers 1 to 4."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, ragged(SIZES), network(torch.float64))
        self.grid = Moving(self.grid.app, [context.node_config for context in self.grid.contexts.values()])
        self.grid.moves = {}

    def train(self, **settings: Any) -> eh.Result:
        return self.run(eh.Ditto(lam=0.5), rounds=3, eval_every=100, **settings)

    def renumber(self, old: int, new: int) -> None:
        self.grid.contexts[new] = self.grid.contexts.pop(old)


def _left_out(result: eh.Result) -> list[str]:
    return [row["left_out"] for row in result.history_rows]


def test_a_node_under_another_number_is_the_same_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    undisturbed = Place(tmp_path / "undisturbed").train()
    place = Place(tmp_path / "moved")
    place.grid.moves = {2: lambda: (place.renumber(2, 9), place.renumber(4, 8))}  # before the second round

    result = place.train()

    assert _left_out(result) == ["", "", ""]
    for name, value in undisturbed.params.items():
        assert torch.equal(result.params[name], value)
    assert [record.message for record in caplog.records] == ["client 1 has a new node", "client 3 has a new node"]
    asked = [message.metadata.dst_node_id for message in place.grid.sent if message.metadata.message_type == "query.census"]
    assert asked == [1, 2, 3, 4, 8, 9]  # nobody twice


@pytest.mark.parametrize("change", ["name", "counts", "nobody"])
def test_a_client_whose_node_is_gone_is_left_out_at_once(change: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(tmp_path)

    def leave() -> None:
        gone = place.grid.contexts.pop(2)
        if change == "name":
            place.grid.contexts[9] = gone
            gone.node_config["name"] = "somebody else"
        elif change == "counts":
            place.grid.contexts[9] = gone
            gone.node_config["partition-id"], gone.node_config["name"] = 0, "1"

    place.grid.moves = {2: leave}
    before = time.monotonic()
    result = place.train(deadline=30)

    assert time.monotonic() - before < 15
    assert _left_out(result) == ["", "1", "1"]
    assert "client 1 has no node any more and is left out of round 2" in caplog.text
    assert "new node" not in caplog.text


def test_a_node_that_comes_back_under_its_number_goes_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    kept = place.grid.contexts[2]
    place.grid.moves = {2: lambda: place.grid.contexts.pop(2), 3: lambda: place.grid.contexts.update({2: kept})}
    assert _left_out(place.train()) == ["", "1", ""]


def test_a_silent_node_that_flower_still_lists_gives_way_to_its_successor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(tmp_path)

    def come_back() -> None:
        place.grid.contexts[9] = place.grid.contexts[2]
        place.grid.down = {2}

    place.grid.moves = {2: come_back}
    result = place.train(deadline=0.5)

    assert _left_out(result) == ["", "1", ""]
    assert "client 1 has not answered within 0.5 s and is left out of round 2" in caplog.text
    assert "client 1 has a new node" in caplog.text


def test_so_does_one_for_which_flower_itself_replies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(tmp_path)

    def expired(node: int, reply: Message) -> list[Message]:
        if node == 2 and place.grid.asked == 3:
            reply.__dict__["_error"], reply.__dict__["_content"] = Error(3, "expired"), None
        return [reply]

    place.grid.spoil = expired
    place.grid.moves = {2: lambda: place.grid.contexts.update({9: place.grid.contexts[2]})}

    assert _left_out(place.train()) == ["", "1", ""]
    assert [record.message for record in caplog.records][:2] == [
        "client 1 is left out: it has not answered in time (Flower's error 3)",
        "client 1 has a new node",
    ]


def test_a_second_node_with_the_name_of_a_client_that_answers_gets_no_work(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.grid.moves = {2: lambda: place.grid.contexts.update({9: place.grid.contexts[2]})}
    assert _left_out(place.train()) == ["", "", ""]
    assert [message.metadata.message_type for message in place.grid.sent if message.metadata.dst_node_id == 9] == ["query.census"]


def test_a_node_that_leaves_at_the_last_moment_is_not_waited_for(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.grid.moves = {2: lambda: setattr(place.grid, "refused", 2), 3: lambda: setattr(place.grid, "refused", None)}
    before = time.monotonic()
    assert _left_out(place.train(deadline=30)) == ["", "1", ""]
    assert time.monotonic() - before < 15


def test_messages_that_the_superlink_finds_too_large_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    place.grid.moves = {1: lambda: monkeypatch.setattr(place.grid, "push_messages", lambda _: [])}
    with pytest.raises(eh.RunError, match="takes no messages as large as this model's"):
        place.train()


# Real processes


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(tmp_path_factory.mktemp("trial"))


@pytest.fixture(scope="module")
def federation(trial: Trial) -> Iterator[Loopback]:
    """A SuperLink and four SuperNodes with TLS and node keys."""
    with trial.federation("federation", tls=True) as running:
        yield running


@needs_proc
@pytest.mark.slow
@FEDERATION
@pytest.mark.parametrize("method", ["fedavg", "afl", "ditto"])  # sums only, needs each client's loss, has client memories
def test_a_method_gives_what_the_simulator_gives_to_the_bit(method: str, federation: Loopback, trial: Trial, tmp_path: Path) -> None:
    run = trial.start(federation, tmp_path, method)
    _assert_completes(run, tmp_path)
    _assert_equal(tmp_path, trial.simulated(method))
    _assert_tells_nothing(run.log())
    kept = (federation.directory / "state").glob(f"node-*/{(tmp_path / 'run-name').read_text()}/client-*/after-1.safetensors")
    memories = [(f"node-{i}", f"client-{i}") for i in range(4)] if method == "ditto" else []  # each at its own node
    assert sorted((path.parts[-4], path.parts[-2]) for path in kept) == memories


@needs_proc
@pytest.mark.slow
@FEDERATION
def test_a_killed_server_app_and_then_a_killed_superlink_change_nothing(federation: Loopback, trial: Trial, tmp_path: Path) -> None:
    run = trial.start(federation, tmp_path, "ditto")
    _wait_until(lambda: len(_history(tmp_path)) == 1 and _works(federation.node(1)))
    run.kill_server_app()
    assert run.wait(90) == "finished:failed"

    trial.start(federation, tmp_path, "ditto")
    _wait_until(lambda: _has_server_app(federation) and _works(federation.node(1)))
    federation.link.kill()
    federation.link.restart()

    run = trial.start(federation, tmp_path, "ditto")
    _assert_completes(run, tmp_path)
    _assert_equal(tmp_path, trial.simulated("ditto"))
    assert all(node.pid is not None for node in federation.nodes)  # nobody had to start them again


@needs_proc
@pytest.mark.slow
@FEDERATION
def test_a_killed_node_that_comes_back_under_another_number_goes_on(trial: Trial, tmp_path: Path) -> None:
    with trial.federation("without keys", tls=False) as federation:
        run = trial.start(federation, tmp_path, deadline=25)
        _wait_until(lambda: (tmp_path / "run-name").exists() and _works(federation.node(1)))  # in the first round
        federation.node(1).kill()
        federation.node(1).restart()
        _assert_completes(run, tmp_path)
        log = run.log()
    rows = [(row["round"], row["asked"], row["answered"], row["left_out"]) for row in _history(tmp_path)]
    assert rows == [("1", "4", "3", "1"), ("2", "4", "4", "")]
    _assert_params(tmp_path, trial.simulated("fedavg", _Without(client=1, round=0)))
    assert "client 1 is left out: it has not answered in time (Flower's error 3)" in log
    assert "client 1 has a new node" in log
    _assert_tells_nothing(log)


@needs_proc
@pytest.mark.slow
@FEDERATION
def test_a_killed_node_with_a_key_comes_back_under_its_number(federation: Loopback, trial: Trial, tmp_path: Path) -> None:
    run = trial.start(federation, tmp_path, deadline=200)
    _wait_until(lambda: (tmp_path / "run-name").exists() and _works(federation.node(1)))
    federation.node(1).kill()
    federation.node(1).restart()  # tries until the heartbeats of the killed process have run out

    _assert_completes(run, tmp_path)
    rows = _history(tmp_path)
    assert [row["round"] for row in rows] == ["1", "2"]
    assert rows[0]["left_out"] == "1"
    assert "client 1 is left out: its node is gone (Flower's error 5)" in run.log()
    assert rows[1]["left_out"] == ""


@dataclass(frozen=True)
class _Without(eh.Cohort):
    """Everyone but ``client`` in ``round``."""

    client: int
    round: int

    def draw(self, census: eh.Census, seed: int, round: int) -> Draw:
        draw = eh.Full().draw(census, seed, round)
        return Draw(*(values[draw.ids != self.client] for values in draw)) if round == self.round else draw


def _assert_completes(run: Run, out: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (out / "final.safetensors").exists() and time.monotonic() < deadline:  # asking Flower takes the time of nodes
        time.sleep(0.1)
    assert run.wait(30) == "finished:completed", run.log()


def _assert_equal(out: Path, reference: eh.Result) -> None:
    """The run in ``out`` has every round once, left nobody out, and ends with the parameters of ``reference``."""
    rows = _history(out)
    assert [(row["round"], row["answered"], row["left_out"]) for row in rows] == [(str(i + 1), "4", "") for i in range(ROUNDS)]
    _assert_params(out, reference)


def _assert_params(out: Path, reference: eh.Result) -> None:
    found, _ = read_tensors(out / "final.safetensors")
    assert found.keys() == reference.params.keys()
    for name, value in reference.params.items():
        assert value.dtype == torch.float64
        assert torch.equal(found[name], value), name


def _assert_tells_nothing(log: str) -> None:
    """No path of a node, and no number with a fraction: no loss, no value of a sample."""
    assert SECRET not in log
    assert not re.findall(r"\d\.\d{3,}", log)


def _history(out: Path) -> list[dict[str, str]]:
    path = out / "history.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _works(node: Member) -> bool:
    """Whether a client's process runs at the node."""
    return _runs(node, b"flwr-clientapp")


def _has_server_app(federation: Loopback) -> bool:
    return _runs(federation.link, b"flwr-serverapp")


def _runs(member: Member, command: bytes) -> bool:
    lines = []
    for pid in member.pids():
        with suppress(OSError):  # ended meanwhile
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return any(command in line for line in lines)


def _wait_until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)
