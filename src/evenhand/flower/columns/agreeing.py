"""Lets nodes and server make a codebook together before the first round.

The server asks every node twice: for counts, sums and names, and then for sums of squares around
the common means. It saves the codebook in the run directory, and every later message carries it:
nodes store nothing, and nodes that join later get the same.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import nn

from evenhand.errors import RunError
from evenhand.files import write_atomic
from evenhand.flower import records
from evenhand.flower.codebook import Codebook
from evenhand.flower.columns.merging import Told, means_of, merged, read_squares, read_told
from evenhand.flower.columns.sums import OwnColumns, Table
from evenhand.flower.columns.wanted import Columns
from evenhand.flower.link import Limits, Link
from evenhand.flower.ordering import natural_order
from evenhand.flower.policy import Policy, Refused

log = logging.getLogger(__name__)

KIND = "query.columns"  # the type of the message that asks nodes for their sums
FILE = "codebook.toml"
ENTRY = "codebook"  # of a message


def with_codebook(
    grid: Grid,
    limits: Limits,
    clients: int,
    out: Path,
    wanted: Columns,
    model: Callable[..., nn.Module],
) -> tuple[Grid, Callable[[], nn.Module]]:
    """A grid whose messages carry the codebook of all nodes, and the model for it."""
    codebook = agreed(Link(grid, limits), clients, out, wanted)
    return CarryingGrid(grid, codebook.to_toml()), partial(model, codebook)


def agreed(link: Link, clients: int, out: Path, wanted: Columns) -> Codebook:
    """The codebook in ``out``, or else a new one from the first ``clients`` nodes."""
    path = out / FILE
    if path.exists():
        return Codebook.load(path)
    told: dict[int, tuple[str, Told]] = {}
    refused: dict[int, str] = {}
    end = time.monotonic() + link.limits.patience
    codebook, failed = None, set[int]()  # nodes that did not give both answers
    while codebook is None:
        fresh = [node for node in link.grid.get_node_ids() if node not in {*told, *failed}]
        for node, about in _ask(link, fresh, {"step": 1}, refused):
            try:
                answer = (records.text(about, "name"), read_told(records.text(about, "columns")))
                told[node] = answer
            except ValueError as error:
                _refuse(node, str(error), refused)
        if len(told) >= clients:
            codebook = _finished(link, wanted, told, refused)
            failed |= refused.keys() - told.keys()
        elif time.monotonic() > end:
            raise TimeoutError(
                f"only {len(told)} of {clients} nodes reported their columns within"
                f" {link.limits.patience:g} s; start the others, or wait for fewer"
            )
        else:
            time.sleep(link.limits.poll)
    write_atomic(path, codebook.to_toml().encode())
    return codebook


def _finished(
    link: Link, wanted: Columns, told: dict[int, tuple[str, Told]], refused: dict[int, str]
) -> Codebook | None:
    """The codebook; None if a node failed to give the second answer and was excluded."""
    names = [name for name, _ in told.values()]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise RunError(
            f"two nodes have the name {doubled}; give each its own name in its node config"
        )
    place = {name: number for number, name in enumerate(natural_order(names))}
    nodes = sorted(told, key=lambda node: place[told[node][0]])
    means, squares = means_of([told[node][1] for node in nodes]), dict[int, dict[str, float]]()
    about = {"step": 2, "means": json.dumps(means)}
    for node, answer in _ask(link, nodes, about, refused):
        try:
            squares[node] = read_squares(records.text(answer, "squares"), means)
        except ValueError as error:
            _refuse(node, str(error), refused)
    if squares.keys() != told.keys():
        for node in told.keys() - squares.keys():
            refused.setdefault(node, "it sent no sums of squares")
            del told[node]
        return None
    return merged(wanted, [told[node][1] for node in nodes], [squares[node] for node in nodes])


def _ask(
    link: Link, nodes: list[int], about: Mapping[str, Any], refused: dict[int, str]
) -> Iterable[tuple[int, dict[str, Any]]]:
    """Yield nodes and their answers; log refusals."""
    if not nodes:
        return
    question = RecordDict({"about": ConfigRecord({"format": records.FORMAT, **about})})
    for node, reply in link.ask(dict.fromkeys(nodes, question), KIND, "columns"):
        try:
            if reply.has_error():
                raise ValueError(f"Flower's error {reply.error.code}")
            if fault := records.fault_in(reply.content):
                raise ValueError(fault)
            yield node, records.read_reply(reply.content, link.limits.message)[1]
        except ValueError as error:
            _refuse(node, str(error), refused)


def _refuse(node: int, reason: str, refused: dict[int, str]) -> None:
    """Log once why a node does not contribute to the codebook."""
    if refused.get(node) != reason:
        log.warning("node %s does not contribute to the codebook: %s", node, reason)
    refused[node] = reason


def answer_about_columns(
    wanted: Columns, table: Table, about: Mapping[str, Any], policy: Policy, name: str
) -> dict[str, Any]:
    """On a node: the answer to one of the two questions."""
    if not policy.codebook:
        raise Refused("codebook = false", "it asks for sums of columns")
    own = OwnColumns(wanted, table, policy.min_cell)
    if records.whole(about, "step") == 1:
        return {"name": name, "columns": json.dumps(own.told())}
    means = json.loads(records.text(about, "means"))
    if not isinstance(means, dict) or not all(isinstance(m, int | float) for m in means.values()):
        raise RunError("the server's request cannot be read; install the same version everywhere")
    return {"name": name, "squares": json.dumps(own.squares(means))}


def carried(content: RecordDict) -> Codebook:
    """On a node: the codebook that a message carries."""
    about = content.config_records.get("about")
    text = None if about is None else about.get(ENTRY)
    if not isinstance(text, str):
        raise RunError("the message has no codebook; does server_app lack columns=?")
    try:
        return Codebook.parse(text)
    except (TypeError, ValueError) as error:
        raise RunError("the server sent a codebook that cannot be read") from error


class CarryingGrid(Grid):
    """A grid that adds a codebook to every message."""

    def __init__(self, grid: Grid, text: str) -> None:
        self._grid, self._text = grid, text

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        return self._grid.create_message(*arguments, **options)

    def get_nodes(self) -> Any:
        return self._grid.get_nodes()

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        carrying = list(messages)
        for message in carrying:
            message.content.config_records["about"][ENTRY] = self._text
        return self._grid.push_messages(carrying)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)
