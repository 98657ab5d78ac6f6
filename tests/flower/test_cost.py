"""What a message costs a node: Flower starts a process for each, so nothing may be loaded that the
answer does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto

import evenhand as eh
from evenhand import tree
from evenhand.flower import records
from tests.support.federations import network, ragged
from tests.support.flower_masks import Masked
from tests.support.flower_nodes import Setting

# What torch and Flower load themselves is there before; the rest is printed.
NODE = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity._run_id = TaskIdentity._task_id = TaskIdentity._node_id = 1
there = set(sys.modules)

from evenhand.flower.apps import client_app  # as older projects; it is evenhand.flower.client_app

place = Path(sys.argv[1])

def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()

def load(config):
    train, test = (dict(np.load(place / f"{part}.npz")) for part in ("train", "test"))
    return {**train, "team": "even", "test": test}

for name in sys.argv[2:]:
    message = Message()
    message.ParseFromString((place / name).read_bytes())
    config = {"state-dir": str(place / "state"), "name": "3", "policy": str(place / "policy.toml")}
    reply = client_app(module, load)(message_from_proto(message), Context(1, 1, config, RecordDict(), {}))
    (place / f"{name}.reply").write_bytes(message_to_proto(reply).SerializeToString())
print(json.dumps(sorted(set(sys.modules) - there)))
"""
SERVER = """
import json, sys
from pathlib import Path
import torch
import evenhand as eh
from tests.support.federations import network, ragged
from tests.support.flower_masks import Masked
from tests.support.flower_nodes import Setting

result = Setting(Path(sys.argv[1]), ragged((30, 7, 40)), network()).run(eh.FedAvg(), rounds=2, by_client=False)
assert len(result.history_rows) == 2
print(json.dumps(sorted(sys.modules)))
"""
CLIENT = 2
# numpy itself is there; safetensors takes another part of it
KEPT_ON_DISK = {"filelock", "safetensors", "numpy"}


@pytest.mark.parametrize(
    ("method", "more"),
    [(eh.FedAvg(), set()), (eh.Ditto(lam=0.5), KEPT_ON_DISK)],
    ids=["fedavg", "ditto"],
)
def test_a_node_loads_nothing_that_its_answer_does_not_need(
    method: eh.Algorithm, more: set[str], tmp_path: Path
) -> None:
    federation = ragged((30, 7, 40))
    setting = Setting(tmp_path, federation, network(torch.float64))
    replies: dict[str, Message] = {}
    setting.grid.spoil = lambda node, reply: (
        replies.setdefault(reply.metadata.reply_to_message_id, reply) and [reply]
    )
    setting.run(method, rounds=1, by_client=False)
    asked = {
        message.metadata.message_type: message
        for message in setting.grid.sent
        if message.metadata.dst_node_id == CLIENT + 1
    }
    for kind, message in asked.items():
        (tmp_path / kind).write_bytes(message_to_proto(message).SerializeToString())
    for name in ("train", "test"):
        x, y, group = getattr(federation, name).client(CLIENT)
        np.savez(
            tmp_path / f"{name}.npz",
            x=x,
            y=y,
            group=[federation.group_names[code] for code in group.tolist()],
        )

    done = subprocess.run(
        [sys.executable, "-c", NODE, str(tmp_path), *asked],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert list(asked) == ["query.census", "train", "evaluate"]
    loaded = json.loads(done.stdout.splitlines()[-1])
    packages = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert packages == {"evenhand", *more}
    assert not [
        name for name in loaded if name.startswith(("evenhand.flower.server", "evenhand.training"))
    ]
    for message in asked.values():
        answered = MessageProto.FromString(
            (tmp_path / f"{message.metadata.message_type}.reply").read_bytes()
        )
        (found, _), (expected, _) = (
            records.read_reply(reply.content)
            for reply in (message_from_proto(answered), replies[message.metadata.message_id])
        )
        for one, other in zip(map(tree.flatten, found), map(tree.flatten, expected), strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_server_loads_no_package_of_reports(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert "evenhand" in loaded
    assert loaded.isdisjoint({"scipy", "pandas", "plotly", "matplotlib", "sympy"})


MASKED_NODE = """
import json, sys
from pathlib import Path
from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity._run_id = TaskIdentity._task_id = TaskIdentity._node_id = 1

from evenhand.flower import client_app

def never(*given):
    raise AssertionError("a message that opens masks needs neither model nor data")

message = Message()
message.ParseFromString((Path(sys.argv[1]) / "unmask").read_bytes())
config = json.loads((Path(sys.argv[1]) / "config.json").read_text())
app = client_app(never, never, share="masked")
reply = app(message_from_proto(message), Context(1, 1, config, RecordDict(), {}))
assert list(reply.content["about"]["opened"]), reply.content
print(json.dumps(sorted(sys.modules)))
"""


def test_a_node_opens_masks_without_torch_model_and_data(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    setting.run(rounds=1)
    unmask = [it for it in setting.grid.sent if it.metadata.message_type == "query.unmask"][-1]
    (tmp_path / "unmask").write_bytes(message_to_proto(unmask).SerializeToString())
    context = setting.grid.contexts[unmask.metadata.dst_node_id]
    (tmp_path / "config.json").write_text(json.dumps(dict(context.node_config)))
    done = subprocess.run(
        [sys.executable, "-c", MASKED_NODE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert "evenhand" in loaded
    assert loaded.isdisjoint({"torch", "pandas", "scipy", "sklearn"})
