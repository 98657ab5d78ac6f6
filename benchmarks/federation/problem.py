"""What both sides train, and how both are timed. Nodes import this for every message: nothing but
torch, numpy and Flower."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import nn

INPUTS, CLASSES = 100, 10
HIDDEN = int(os.environ.get("BENCHMARK_HIDDEN", "200"))
TRAINED, TESTED = 500, 100  # samples of each node
LR, BATCH = 0.1, 32


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def write_data(path: Path, node: int) -> None:
    """Samples around a centre for each class, the same centres on all nodes."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, INPUTS)) / 4
    rng, arrays = np.random.default_rng([1, node]), {}
    for part, count in (("train", TRAINED), ("test", TESTED)):
        y = rng.integers(0, CLASSES, count)
        arrays |= {
            f"{part}_x": (centres[y] + rng.normal(size=(count, INPUTS))).astype(np.float32),
            f"{part}_y": y,
        }
    np.savez(path, **arrays)


def read_data(path: str, part: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    with np.load(path) as arrays:
        return arrays[f"{part}_x"], arrays[f"{part}_y"]


class Watch:
    """Writes down when a server sends messages, and how large their arrays and those of replies
    are; the same for both sides."""

    def __init__(self, grid: Grid, path: Path) -> None:
        self._push, self._pull, self._path = grid.push_messages, grid.pull_messages, path
        self._rows: list[dict[str, Any]] = []
        grid.push_messages, grid.pull_messages = self.push_messages, self.pull_messages  # type: ignore[method-assign]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for kind in {message.metadata.message_type for message in messages}:
            self._note(
                "sent",
                kind,
                [message for message in messages if message.metadata.message_type == kind],
            )
        return self._push(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._pull(message_ids))
        if replies:
            self._note(
                "received",
                replies[0].metadata.message_type,
                [reply for reply in replies if reply.has_content()],
            )
        return replies

    def _note(self, what: str, kind: str, messages: list[Message]) -> None:
        sizes = [
            record.count_bytes()
            for message in messages
            for record in message.content.array_records.values()
        ]
        self._rows.append(
            {
                "at": time.time(),
                "what": what,
                "kind": kind,
                "messages": len(messages),
                "bytes": sum(sizes),
            }
        )
        self._path.write_text(json.dumps(self._rows))
