"""The server's memory in a real federation, as clients become more.

    python -m benchmarks.server_memory [--clients 4,16,64] [--check]

One round of FedAvg and its evaluation with a model of 10 million parameters (a reply has 38 MiB).
The server runs in a process of its own for each number of clients, the nodes in another; messages
are Flower's, and travel as bytes. --check fails where the most clients take over 1.25 times the
memory of the fewest.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from torch import nn

from benchmarks.machine import describe, peak_memory

CLIENTS, FEATURES, HIDDEN = "4,16,64", 100, 97_000
MOST_RATIO = 1.25


def module() -> nn.Module:
    """10 million parameters."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))


def nodes(pipe: Connection, folder: str) -> None:
    """All nodes: answers messages that come as bytes, until an empty one comes."""
    from evenhand.flower import client_app
    from tests.support.flower_grid import InProcessGrid  # noqa: F401 (messages need its set-up)

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, FEATURES)).astype(np.float32), np.arange(8) % 2
    app = client_app(
        module,
        lambda config: {"x": x, "y": y, "test": {"x": x, "y": y}},
    )
    # clients with the same data reply alike, but for their numbers
    known: dict[tuple[Any, ...], RecordDict] = {}
    while data := pipe.recv_bytes():
        sent = MessageProto()
        sent.ParseFromString(data)
        message = message_from_proto(sent)
        number, about = message.metadata.dst_node_id, message.content.get("about", {})
        kind = (message.metadata.message_type, about.get("how"), about.get("look"))
        if kind not in known or "client" not in about:
            config: dict[str, Any] = {"partition-id": number - 1, "state-dir": f"{folder}/{number}"}
            known[kind] = app(message, Context(1, number, config, RecordDict(), {})).content
        if "client" in about:
            known[kind]["about"]["client"] = about["client"]
        reply = Message(known[kind], reply_to=message)
        pipe.send_bytes(message_to_proto(reply).SerializeToString())


def serve(clients: int) -> float:
    """MiB that the server's process takes at most."""
    import evenhand as eh
    from evenhand.flower import server_app
    from evenhand.local import LocalSGD
    from tests.support.flower_grid import InProcessGrid

    class Elsewhere(InProcessGrid):
        """Nodes in another process; messages wait as they are."""

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            names = []
            for message in messages:
                name = str(len(self.sent))
                message.metadata.__dict__["_message_id"] = name
                self.sent.append(name)  # type: ignore[arg-type]
                self.waiting[name] = message
                names.append(name)
            return names

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            return [self._answered(self.waiting.pop(name)) for name in sorted(message_ids)]

        def _answered(self, message: Message) -> Message:
            mine.send_bytes(message_to_proto(message).SerializeToString())
            sent = MessageProto()
            sent.ParseFromString(mine.recv_bytes())
            return message_from_proto(sent)

    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir=os.environ.get("EVENHAND_SPOOL")) as folder:
        mine, theirs = multiprocessing.Pipe()
        other = multiprocessing.get_context("spawn").Process(target=nodes, args=(theirs, folder))
        other.start()
        grid = Elsewhere(None, [{} for _ in range(clients)])  # type: ignore[arg-type]
        app = server_app(
            eh.FedAvg(),
            module(),
            clients=clients,
            out=Path(folder) / "run",
            rounds=1,
            local=LocalSGD(lr=0.1, steps=1),
        )
        app(grid, grid.contexts[1])
        mine.send_bytes(b"")
        other.join()
    return peak_memory("cpu") * 1e9 / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default=CLIENTS)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        torch.set_num_threads(1)
        print(serve(options.serve))
        return
    print(describe())
    found = []
    for clients in options.clients.split(","):
        command = [sys.executable, "-m", "benchmarks.server_memory", "--serve", clients]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(float(out.split()[-1]))
        print(f"{clients:>4} clients  {found[-1]:6.0f} MiB", flush=True)
    if options.check and found[-1] > MOST_RATIO * found[0]:
        sys.exit(f"memory grows with clients, by {found[-1] / found[0]:.2f}")


if __name__ == "__main__":
    main()
