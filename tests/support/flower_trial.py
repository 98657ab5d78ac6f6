"""A small app for real processes, the data of its nodes, and what the simulator makes of them."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evenhand as eh
from evenhand.files import read_tensors
from evenhand.flower.tryout.loopback import Loopback, Run
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_app import write_app
from tests.support.flower_faults import Unheard
from tests.support.flower_nodes import trusting

CLIENT = """
import numpy as np
from evenhand.flower import client_app
from tests.support.federations import network

def load(config):
    with np.load(config["data"]) as kept:
        arrays = dict(kept)
    test = {name.removeprefix("test_"): arrays.pop(name) for name in list(arrays) if name.startswith("test_")}
    return {**arrays, "team": str(arrays["team"]), "test": test or None}

app = client_app(network, load)
"""

SERVER = """
from pathlib import Path
from flwr.serverapp import ServerApp
import evenhand as eh
from evenhand.files import write_tensors
from evenhand.flower import server_app
from tests.support.federations import METHODS, network

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    out = Path(config["out"])
    run = server_app(
        METHODS[config["method"]], network, clients=3, out=out, rounds=config["rounds"],
        local=eh.LocalSGD(lr=0.05, epochs=2, batch_size=8, momentum=0.5), seed=3, eval_every=100,
        deadline=config["deadline"], limit=config["limit"], patience=60,
        finished=lambda result: write_tensors(out / "final.safetensors", result.params),
    )
    run(grid, context)
"""

SWOLLEN = """
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp
from evenhand.flower import records
from trial import honest

class Swollen(ClientApp):
    \"\"\"At node 1, replies with far more than anybody has asked for.\"\"\"

    def __call__(self, message, context):
        reply = honest.app(message, context)
        if context.node_config["partition-id"] == 1 and message.metadata.message_type == "train":
            found, about = records.read_reply(reply.content)
            found.total["more"] = torch.zeros(10 * context.run_config["limit"] // 8, dtype=torch.float64)
            reply = Message(records.reply_content(found, about), reply_to=message)
        return reply

app = Swollen()
"""

SIZES = (30, 7, 40)
# clients with test data: every message costs the start of a process, so evaluation asks one alone
JUDGES = (2,)
ROUNDS = 2
LIMIT = 100_000  # bytes of a message; the network's have about a thousand
LOCAL = eh.LocalSGD(lr=0.05, epochs=2, batch_size=8, momentum=0.5)  # as in the app
PATIENCE = 600  # seconds for a run, on a busy machine
SECRET = "patients-of-ward-7"  # in the paths of the nodes' data


# clients that take their time, and say when they are at it
AT_WORK = "the client is at work"
SLOW = CLIENT.replace("import numpy", "import time\nimport numpy").replace(
    "def load(config):", f'def load(config):\n    print("{AT_WORK}", flush=True)\n    time.sleep(4)'
)


class Trial:
    """The app, and the data of its nodes."""

    def __init__(self, place: Path) -> None:
        self.place, self.data = place, _with_judges(ragged(SIZES))
        self.app = self._app("trial-app", CLIENT)
        self.slow = self._app("slow-app", SLOW)
        self.large = self._app(
            "large-app", CLIENT.replace("network", "large"), SERVER.replace("network", "large")
        )
        self.swollen = self._app("swollen-app", SWOLLEN)
        (self.swollen / "trial" / "honest.py").write_text(CLIENT)
        self.files = [self._write(client) for client in range(len(SIZES))]

    def _app(self, name: str, client: str, server: str = SERVER) -> Path:
        settings = {
            "method": '"fedavg"',
            "rounds": "2",
            "out": '""',
            "deadline": "60.0",
            "limit": str(LIMIT),
        }
        return write_app(self.place / name, "trial", client, server, settings)

    def _write(self, client: int) -> Path:
        assert self.data.teams is not None
        arrays: dict[str, Any] = {"team": self.data.team_names[int(self.data.teams[client])]}
        for prefix, part in (("", self.data.train), ("test_", self.data.test)):
            if prefix == "" or client in JUDGES:
                arrays |= {
                    f"{prefix}{name}": values
                    for name, values in _arrays(self.data, part, client).items()
                }
        path = self.place / f"{SECRET}-{client}.npz"
        np.savez(path, **{name: np.asarray(values) for name, values in arrays.items()})
        return path

    def federation(self, name: str, tls: bool) -> Loopback:
        # the app uses our modules
        path = os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        # a node starts anew for every message: it should neither compile modules each time nor use
        # several threads for tiny tensors
        env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
        policy = trusting(self.place)  # clients of seven samples
        return Loopback(
            self.place / name, len(SIZES), tls, self.files, env=env, cwd=self.place, policy=policy
        )

    def start(self, federation: Loopback, out: Path, method: str = "fedavg", **changes: Any) -> Run:
        config = {"method": method, "rounds": ROUNDS, "out": str(out), "deadline": 300.0} | changes
        return federation.run(
            changes.pop("app", self.app),
            {name: value for name, value in config.items() if name != "app"},
        )

    def simulated(
        self, method: str, rounds: int = ROUNDS, lost: Iterable[tuple[str, int, int]] = ()
    ) -> eh.Result:
        """The same run in the simulator; ``lost``: work, round and client that are not heard."""
        settings: dict[str, Any] = {"rounds": rounds, "local": LOCAL, "seed": 3, "eval_every": 100}
        return eh.fit(
            network(torch.float64),
            self.data,
            METHODS[method],
            engine=Unheard(tuple(lost)),
            **settings,
        )


def _arrays(federation: eh.Federation, part: Any, client: int) -> dict[str, Any]:
    x, y, group = part.client(client)
    return {"x": x, "y": y, "group": [federation.group_names[code] for code in group.tolist()]}


def _with_judges(federation: eh.Federation) -> eh.Federation:
    """The federation with test data of JUDGES alone."""
    assert federation.teams is not None
    teams = [federation.team_names[team] for team in federation.teams.tolist()]
    train = [
        _arrays(federation, federation.train, client) | {"team": team}
        for client, team in enumerate(teams)
    ]
    test = [
        _arrays(federation, federation.test, client) if client in JUDGES else None
        for client in range(len(teams))
    ]
    return eh.Federation.from_arrays(train, test=test)


def same_params(out: Path, reference: eh.Result) -> bool:
    """Whether the run in ``out`` ended with the parameters of ``reference``, to the bit."""
    found, _ = read_tensors(out / "final.safetensors")
    return found.keys() == reference.params.keys() and all(
        torch.equal(found[name], value) for name, value in reference.params.items()
    )


def history(out: Path) -> list[dict[str, str]]:
    path = next(out.glob("*/history.csv"), None)
    if path is None:
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def wait_for_round(federation: Loopback, run: Run, round: int) -> None:
    """Until node 1 has its task of ``round``, counted from 1, and a process has been started for
    it."""

    def begun() -> bool:
        _, received, since = (
            federation.node(1).text().partition(f"[RUN {run.id}, ROUND {round - 1}]\n")
        )
        return bool(received) and "Start `flwr-clientapp` process" in since

    wait_until(begun)


def wait_until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)
