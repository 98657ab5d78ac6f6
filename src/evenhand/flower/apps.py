"""The two sides of a Flower app: a user's own is about twenty lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.cohort import Cohort
from evenhand.data import Federation
from evenhand.errors import EvenhandError, first_line
from evenhand.flower import records, roster, wire
from evenhand.flower.checks import NotFinite, require_finite
from evenhand.flower.exchange import Limits, Link, Remote, census, fault_content
from evenhand.flower.memory import NodeMemory
from evenhand.flower.node import Node, with_groups
from evenhand.local import LocalSGD
from evenhand.losses import LossFunction
from evenhand.model import Model
from evenhand.run import Result, fit

log = logging.getLogger(__name__)

Data = Federation | Mapping[str, Any]  # one client's: a federation of one, or arrays "x", "y" and, if there are, "group" and "test"
Config = Mapping[str, Any]  # a node's own settings, as it was started with


def client_app(
    model: nn.Module | Callable[[], nn.Module],
    load_data: Callable[[Config], Data],
    *,
    algorithm: Algorithm | None = None,
    loss: str | LossFunction | None = None,
    limit: int = records.LIMIT,
) -> ClientApp:
    """A node's side: trains, answers and evaluates with the data that ``load_data`` gives, which never leave it.

    Args:
        model: the module, or a function that makes it; the same as the server's.
        load_data: called with the node's config ("partition-id", "data" ...) for every message: a node starts anew each time.
        algorithm: the run's method, where it is not one of evenhand's.
        loss: a function, where the run's loss is not one of evenhand's.
        limit: bytes of a message.
    """
    app = ClientApp()

    def module() -> nn.Module:
        return model if isinstance(model, nn.Module) else model()

    def tell(message: Message, context: Context) -> Message:
        data = _data(load_data(context.node_config))
        name = str(context.node_config.get("name", context.node_config.get("partition-id", context.node_id)))
        return Message(records.reply_content(*roster.told(data, name), limit), reply_to=message)

    def work(message: Message, context: Context) -> Message:
        try:
            content = _worked(message.content, context)
        except NotFinite as error:
            content = fault_content(str(error))
        except Exception as error:  # its text would go to the server, and may tell of data or paths
            log.exception("a task could not be done")
            content = fault_content(_harmless(error))
        return Message(content, reply_to=message)

    def _worked(content: RecordDict, context: Context) -> RecordDict:
        task, about = records.read_task(content, limit)
        client, round, counted = (records.whole(about, name) for name in ("client", "round", "counted"))
        kind = wire.made(records.text(about, "how"), algorithm)
        data = with_groups(_data(load_data(context.node_config)), tuple(about["groups"]))
        trained = Model(module(), loss or records.text(about, "loss"))
        trained.check(data)
        first = kind.first_memory(trained.init())
        memory = NodeMemory(Path(str(context.node_config.get("state-dir", ".evenhand"))), records.text(about, "run"), client)
        node = Node(trained, data, records.whole(about, "seed"), client)
        reply, remembered = node.answer(kind, task, round, memory.recall(first, counted))
        if kind.must_be_finite:
            require_finite(reply, remembered)
        if kind.local is not None:
            memory.remember(round, counted, remembered)
        return records.reply_content(reply, {"client": client, "round": round, "work": kind.name}, limit)

    app.query("census")(tell)
    app.query("survey")(work)
    app.train()(work)
    app.evaluate()(work)
    return app


def server_app(
    algorithm: Algorithm,
    model: nn.Module | Callable[[], nn.Module],
    *,
    clients: int,
    out: str | Path,
    rounds: int = 100,
    loss: str = "cross_entropy",
    local: LocalSGD | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    weights: str = "data",
    eval_every: int | None = None,
    deadline: float = Limits.deadline,
    patience: float = 600.0,
    limit: int = records.LIMIT,
    finished: Callable[[Result], None] | None = None,
) -> ServerApp:
    """The server's side: the rounds of :func:`evenhand.fit`, with Flower's nodes as clients.

    A run that was interrupted goes on from its last round when the app is started again with the same ``out``.

    Args:
        clients: nodes to wait for before the first round.
        out: a directory for the checkpoint of every round and the history.
        deadline: seconds that clients have for an exchange; who takes longer is left out of it.
        patience: seconds to wait for the nodes at the start.
        limit: bytes of a message.
        finished: called with the result.

    The other arguments are those of :func:`evenhand.fit`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        link = Link(grid, Limits(deadline=deadline, message=limit))
        federation, nodes = census(link, clients, patience)
        module = model if isinstance(model, nn.Module) else model()
        result = fit(
            module,
            federation,
            algorithm,
            loss=loss,
            rounds=rounds,
            local=local,
            cohort=cohort,
            seed=seed,
            engine=Remote(link, nodes, algorithm, run_name(Path(out)), loss),
            weights=weights,
            eval_every=eval_every,
            out=out,
            checkpoint_every=1,
            resume=True,
        )
        if finished is not None:
            finished(result)

    return app


def run_name(out: Path) -> str:
    """A name for the run that has its files in ``out``: made once, and found there again when the run is resumed."""
    import secrets

    from evenhand.files import write_atomic

    path = out / "run-name"
    if not path.exists():
        write_atomic(path, secrets.token_hex(8).encode())
    return path.read_text()


def _data(found: Data) -> Federation:
    if isinstance(found, Federation):
        return found
    test = found.get("test")
    train = {key: value for key, value in found.items() if key != "test"}
    return Federation.from_arrays([train], test=None if test is None else [test])


def _harmless(error: Exception) -> str:
    """A reason that tells nothing of the client: evenhand's own words, else the kind of error alone."""
    if isinstance(error, EvenhandError):
        return first_line(error)
    return f"{type(error).__name__} on the node; its log says more"
