"""Lies that a registered node of a real federation can tell, and what they cost honest clients.

Eight clients with the patients of four hospitals; the last one, with 4.8 % of the data, lies. It
speaks to the server through Flower's real types: a lie is a function that changes its honest
messages. The figure is the worst honest client's accuracy.

    python -m benchmarks.torture.lies                 the table of docs/results/reliability.md
    python -m benchmarks.torture.lies --only loss     lies whose name has these words
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from flwr.app import Message
from torch import nn

import evenhand as eh
from benchmarks.machine import describe
from benchmarks.torture import Figure
from evenhand import tree
from evenhand.flower import client_app, records, server_app
from evenhand.messages import Reply
from tests.support.flower_grid import InProcessGrid

Change = Callable[[Message], Message]
SHARE = 0.048  # of the data, the liar's
LIAR = 7  # the last of eight clients
HELD = 0.59  # what the worst honest client must have
ROUNDS = 20

METHODS: dict[str, eh.Algorithm] = {
    "FedAvg": eh.FedAvg(),
    "AFL": eh.AFL(),
    "FAFL": eh.FAFL(),
    "QFFL": eh.QFFL(),
    "FedMinMax": eh.FedMinMax(),
    "TERM": eh.TERM(),
    "FedMGDA": eh.FedMGDA(),
    "DRFA": eh.DRFA(),
}


# ---- the lies


@dataclass(frozen=True)
class Lie:
    """What a node says that is not true.

    Args:
        change: its honest message in, what it sends out.
        flipped: whether it also trains on labels that are the wrong way round, as somebody does
            who wants the model to fail.
        methods: those that it is told to; all where there are none.
        plausible: whether no server could tell it from the truth; it is shown, and not judged.
    """

    name: str
    change: Change = lambda message: message
    flipped: bool = False
    methods: tuple[str, ...] = ()
    plausible: bool = False


def in_replies(*kinds: str) -> Callable[[Callable[[Reply], Reply]], Change]:
    """A change of replies to work of some kinds ("train", "survey", "evaluate") as one of
    messages."""

    def lifted(change: Callable[[Reply], Reply]) -> Change:
        def changed(message: Message) -> Message:
            if message.has_error() or "work" not in message.content.get("about", {}):
                return message
            reply, about = records.read_reply(message.content)
            if about["work"] in kinds:
                message.content = records.reply_content(change(reply), about)
            return message

        return changed

    return lifted


def times(factor: float, *names: str) -> Callable[[Reply], Reply]:
    """Entries of these names, in either compartment, times a factor; all where there are none."""

    def scaled(part: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            if names and name not in names
            else tree.map(lambda leaf: leaf * factor, {name: value})[name]
            for name, value in part.items()
        }

    return lambda reply: Reply(scaled(reply.total), scaled(reply.each))


def set_to(value: float, *names: str) -> Callable[[Reply], Reply]:
    """Entries whose names begin with one of ``names`` set to a value, where they are not 0."""

    def told(part: dict[str, Any]) -> dict[str, Any]:
        return {
            name: torch.where(old != 0, torch.full_like(old, value), old)
            if name.startswith(names)
            else old
            for name, old in part.items()
        }

    return lambda reply: Reply(told(reply.total), told(reply.each))


UPDATES = ("delta", "snapshot")
trained, told = in_replies("train"), in_replies("train", "survey")
LOSSES = ("AFL", "FedMinMax", "DRFA")
TOLD = ("loss", "loss_at_start", "group_loss")  # names of losses
LIES = (
    Lie("nothing", plausible=True),
    Lie("flipped labels alone", flipped=True, plausible=True),
    Lie("loss x 2.5", told(times(2.5, *TOLD)), True, LOSSES, plausible=True),
    Lie("total/weight and update x 1e6", trained(times(1e6)), flipped=True),
    Lie("update x 1000", trained(times(1000.0, *UPDATES)), flipped=True),
    Lie("wrong sign x 10", trained(times(-10.0, *UPDATES))),
    Lie("loss 9e29", told(set_to(9e29, "loss", "group_loss")), True, LOSSES),
    Lie("loss 9e29, labels as they are", told(set_to(9e29, "loss", "group_loss")), False, LOSSES),
    Lie("loss -1", told(set_to(-1.0, "loss", "group_loss")), True, LOSSES),
    Lie("eta 9e29", trained(set_to(-9e29, "eta")), True, ("FAFL",)),
)


# ---- the federation


def federation(seed: int = 0) -> eh.Federation:
    """Eight clients with the heart-disease data of four hospitals, or with made-up patients where
    those are not on this machine; the last client has SHARE of the training data."""
    try:
        hospitals = eh.datasets.heart_disease(seed=seed)
    except eh.DataError:
        return _made_up(seed)
    train = [_arrays(hospitals, "train", client) for client in range(4)]
    test = [_arrays(hospitals, "test", client) for client in range(4)]
    few = round(SHARE * sum(len(part["y"]) for part in train))
    mine, rest = _cut(train[0], [few])
    mine_test, rest_test = _cut(test[0], [9])
    pieces, tests = [], []
    for part, exam, count in zip(
        (rest, *train[1:]), (rest_test, *test[1:]), (2, 2, 1, 2), strict=True
    ):
        pieces += _cut(part, [len(part["y"]) // 2] if count == 2 else [])
        tests += _cut(exam, [len(exam["y"]) // 2] if count == 2 else [])
    return eh.Federation.from_arrays([*pieces, mine], test=[*tests, mine_test])


def _arrays(hospitals: eh.Federation, part: str, client: int) -> dict[str, Any]:
    x, y, group = getattr(hospitals, part).client(client)
    names = np.array(hospitals.group_names)
    return {"x": x.numpy(), "y": y.numpy(), "group": names[group.numpy()]}


def _cut(samples: dict[str, Any], places: list[int]) -> list[dict[str, Any]]:
    pieces = {name: np.split(values, places) for name, values in samples.items()}
    return [
        {name: piece[place] for name, piece in pieces.items()} for place in range(len(places) + 1)
    ]


def _made_up(seed: int) -> eh.Federation:
    """Patients of hospitals whose labels depend on other features in part."""
    rng = np.random.default_rng(seed)
    common, sizes = rng.normal(size=12), [104, 103, 117, 118, 98, 80, 80, 35]

    def patients(size: int, own: Any) -> dict[str, Any]:
        x = rng.normal(size=(size, 12)).astype(np.float32)
        y = (x @ (common + own) + 2.0 * rng.normal(size=size) > 0).astype(np.int64)
        return {"x": x, "y": y, "group": rng.choice(["female", "male"], size, p=[0.25, 0.75])}

    slopes = [0.7 * rng.normal(size=12) for _ in sizes]
    return eh.Federation.from_arrays(
        [patients(size, own) for size, own in zip(sizes, slopes, strict=True)],
        test=[patients(25, own) for own in slopes],
    )


def _alone(clients: eh.Federation, client: int, flipped: bool) -> eh.Federation:
    train, test = (_arrays(clients, part, client) for part in ("train", "test"))
    if flipped:
        train["y"] = 1 - train["y"]
    return eh.Federation.from_arrays([train], test=[test])


def worst_honest(
    method: eh.Algorithm,
    lie: Lie,
    seed: int = 0,
    rounds: int = ROUNDS,
    clients: eh.Federation | None = None,
    **options: Any,
) -> float:
    """The accuracy of the honest client that fares worst; 0 where the run ends with an error."""
    clients = clients or federation(seed)
    data = [
        _alone(clients, client, lie.flipped and client == LIAR) for client in range(clients.clients)
    ]
    module = nn.Linear(clients.train.x.shape[1], 2)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.zero_()
    app = client_app(module, lambda config: data[int(config["partition-id"])], share="client")
    found: list[eh.Result] = []
    with tempfile.TemporaryDirectory() as folder, _silence():
        configs = [
            {"partition-id": client, "name": f"client {client}", "state-dir": f"{folder}/{client}"}
            for client in range(clients.clients)
        ]
        grid = InProcessGrid(
            app,
            configs,
            lambda node, message: [lie.change(message) if node == LIAR + 1 else message],
        )
        server = server_app(
            method,
            module,
            clients=clients.clients,
            out=Path(folder) / "run",
            rounds=rounds,
            local=eh.LocalSGD(lr=0.1, epochs=1, batch_size=16),
            seed=seed,
            by_client=True,
            finished=found.append,
            **options,
        )
        try:
            server(grid, grid.contexts[1])
        except (eh.EvenhandError, ValueError, ArithmeticError):
            return 0.0
    rows = [row for row in found[0].score_rows if row["by"] == "client"]
    honest = [row["accuracy"] for row in rows if row["name"] != f"client {LIAR}" and row["count"]]
    return float(min(honest))


@contextmanager
def _silence() -> Iterator[None]:
    """Without the lines in which the server names the liar, hundreds of them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def cases(words: str = "") -> Iterator[tuple[str, Lie]]:
    """Methods and the lies that they are told, one lie after the other."""
    for lie in LIES:
        for name in METHODS:
            if words in lie.name and name in (lie.methods or METHODS):
                yield name, lie


def figures(seconds: float, seed: int) -> list[Figure]:
    """For every lie, the methods whose worst honest client kept an accuracy of HELD; as many as
    fit into the time."""
    end, clients = time.monotonic() + seconds, federation(seed)
    found: dict[str, list[float]] = {}
    judged = [(name, lie) for name, lie in cases() if not lie.plausible]
    for place in np.random.default_rng(seed).permutation(len(judged)):
        if time.monotonic() > end and found:
            break
        name, lie = judged[place]
        found.setdefault(lie.name, []).append(
            worst_honest(METHODS[name], lie, seed, clients=clients)
        )
    return [
        Figure(lie, len(values), sum(value >= HELD for value in values), f"worst {min(values):.2f}")
        for lie, values in found.items()
    ]


@click.command()
@click.option("--only", default="", help="Lies whose name has these words.")
@click.option("--seed", default=0, show_default=True)
def main(only: str, seed: int) -> None:
    """The worst honest client's accuracy for every lie and method, as a table."""
    click.echo(describe())
    clients = federation(seed)
    table: dict[str, dict[str, str]] = {}
    for name, lie in cases(only):
        accuracy = worst_honest(METHODS[name], lie, seed, clients=clients)
        table.setdefault(lie.name, {})[name] = f"{accuracy:.2f}"
        print(f"{lie.name}, {name}: {accuracy:.2f}", file=sys.stderr, flush=True)
    click.echo(f"| lie | {' | '.join(METHODS)} |\n|---|{'---|' * len(METHODS)}")
    for lie_name, row in table.items():
        click.echo(f"| {lie_name} | {' | '.join(row.get(name, '') for name in METHODS)} |")


if __name__ == "__main__":
    main()
