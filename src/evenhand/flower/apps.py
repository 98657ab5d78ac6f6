"""The two sides of a Flower app: a user's own is about twenty lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.cohort import Cohort
from evenhand.data.federation import Federation
from evenhand.engines.work import Evaluate, Work
from evenhand.errors import (
    EvenhandError,
    RunError,
    SpecError,
    first_line,
    require_choice,
    require_kind,
    require_number,
    require_whole,
)
from evenhand.flower import bundle, records, roster, wire
from evenhand.flower.attendance import Joined, gather
from evenhand.flower.checks import NotFinite, label, require_finite
from evenhand.flower.exchange import Limits, Link, Remote, fault_content
from evenhand.flower.memory import NodeMemory
from evenhand.flower.node import Node, with_groups
from evenhand.flower.roster import SHARES, Roster
from evenhand.local import LocalSGD
from evenhand.losses import LossFunction
from evenhand.messages import Reply
from evenhand.model import Model

if TYPE_CHECKING:
    from evenhand.training.result import Result

# the second is shown from the level INFO on
log, flowers_log = logging.getLogger(__name__), logging.getLogger("flwr")

T = TypeVar("T")

# one client's: a federation of one, or arrays "x", "y" and, if there are, "group" and "test"
Data = Federation | Mapping[str, Any]
Config = Mapping[str, Any]  # a node's own settings, as it was started with


def client_app(
    model: nn.Module | Callable[[], nn.Module],
    load_data: Callable[[Config], Data],
    *,
    algorithm: Algorithm | None = None,
    loss: str | LossFunction | None = None,
    limit: int = records.LIMIT,
    share: str = "method",
) -> ClientApp:
    """A node's side: trains, answers and evaluates with the data that ``load_data`` gives, which
    never leave it.

    Args:
        model: the module, or a function that makes it; the same as the server's.
        load_data: called with the node's config ("partition-id", "data" ...) for every message: a
            node starts anew each time.
        algorithm: the run's method, where it is not one of evenhand's.
        loss: a function, where the run's loss is not one of evenhand's.
        limit: bytes of a message.
        share: what the server may see of this client by itself. "sums": nothing, it only answers
            what is added up over clients. "method": what the run's method has it look at. "client":
            also how the client fares, for a server with ``by_client=True``. An entry "share" in the
            node's config counts over this: the app comes with the run, the config from the node's
            owner.
    """
    require_choice("share", share, tuple(SHARES))
    _require_model(model)
    if not callable(load_data):
        raise TypeError(
            f"load_data must be a function of the node's config, got {type(load_data).__name__}"
        )
    if algorithm is not None:
        require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    require_whole("limit", limit, 1)
    app = ClientApp()

    def tell(message: Message, context: Context) -> Message:
        return Message(_or_fault(_told, message.content, context), reply_to=message)

    def work(message: Message, context: Context) -> Message:
        return Message(_or_fault(_worked, message.content, context), reply_to=message)

    def data_of(context: Context) -> Federation:
        return _by_owner("load_data", lambda: _data(load_data(context.node_config)))

    def share_of(context: Context) -> str:
        found = str(context.node_config.get("share", share))
        if found not in SHARES:
            raise SpecError(f"share in its node config must be one of {', '.join(SHARES)}")
        return found

    def _told(content: RecordDict, context: Context) -> RecordDict:
        name = str(
            context.node_config.get(
                "name", context.node_config.get("partition-id", context.node_id)
            )
        )
        return records.reply_content(*roster.told(data_of(context), name, share_of(context)), limit)

    def _worked(content: RecordDict, context: Context) -> RecordDict:
        task, about = records.read_task(content, limit)
        client, round, counted = (
            records.whole(about, name) for name in ("client", "round", "counted")
        )
        kind = wire.made(records.text(about, "how"), algorithm)
        task, looked_at = bundle.apart(task)
        data = with_groups(data_of(context), tuple(about["groups"]))
        seed = records.whole(about, "seed")
        trained = Model(
            _by_owner("model", lambda: _made(model, seed)), loss or records.text(about, "loss")
        )
        trained.check(data)
        first = kind.first_memory(trained.init())
        folder = Path(str(context.node_config.get("state-dir", ".evenhand")))
        session = records.whole(about, "session")
        memory = NodeMemory(folder, records.text(about, "run"), client, session=session)
        node = Node(trained, data, seed, client)
        shared = share_of(context)
        remembered = memory.recall(first, counted)
        look = wire.made(records.text(about, "look"), algorithm) if "look" in about else None
        seen = None if look is None else node.answer(look, looked_at, round, remembered)[0]
        if look is not None and seen is not None:
            _require_leave(shared, look, seen)
        reply, remembered = node.answer(kind, task, round, remembered)
        _require_leave(shared, kind, reply)
        if kind.must_be_finite:
            require_finite(reply, remembered)
        if kind.local is not None:
            memory.remember(round, counted, remembered)
        if seen is not None:
            reply = bundle.joined(reply, seen)
        return records.reply_content(
            reply, {"client": client, "round": round, "work": kind.name}, limit
        )

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
    evaluate: str = "after training",
    deadline: float = Limits.deadline,
    patience: float = 600.0,
    limit: int = records.LIMIT,
    by_client: bool = False,
    track_weights: bool = False,
    finished: Callable[[Result], None] | None = None,
) -> ServerApp:
    """The server's side: the rounds of :func:`evenhand.fit`, with Flower's nodes as clients.

    A run that was interrupted goes on from its last round when the app is started again with the
    same ``out``.

    Args:
        clients: nodes to wait for before the first round; who comes later joins from the next round
            on.
        out: the run directory, with the checkpoint of every round, the history, and at the end
            model and scores; ``evenhand report`` reads it.
        deadline: seconds that clients have for an exchange; who takes longer is left out of it.
        patience: seconds to wait for the nodes at the start, and for one of them where all are
            gone.
        limit: bytes of a message.
        by_client: ask how each client fares, for a row per client in the scores and for the
            clients' weights; their owners must allow it with ``share="client"``. Otherwise
            evaluation sends nothing but sums over clients and groups.
        track_weights: needs ``by_client``, and one more exchange with everyone for each evaluated
            round.
        finished: called with the result.

    The other arguments are those of :func:`evenhand.fit`.
    """
    if track_weights and not by_client:
        raise ValueError(
            "track_weights needs by_client=True: weights come of the losses of single clients"
        )
    require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    _require_model(model)
    for name, number in (("clients", clients), ("rounds", rounds), ("limit", limit)):
        require_whole(name, number, 1)
    require_whole("seed", seed, 0)
    require_whole("eval_every", eval_every, 1, optional=True)
    for name, seconds in (("deadline", deadline), ("patience", patience)):
        require_number(name, seconds, "(0, inf)", "it is in seconds")
    if cohort is not None:
        require_kind("cohort", cohort, Cohort, "Uniform(10)")
    if local is not None:
        require_kind("local", local, LocalSGD, "LocalSGD(lr=0.1)")
    if finished is not None and not callable(finished):
        raise TypeError(f"finished must be a function of the result, got {type(finished).__name__}")
    if not isinstance(out, str | Path):
        raise TypeError(f"out must be the path of a directory, got {type(out).__name__}")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        # here: a node starts anew for every message, and does without them
        from evenhand.flower.directory import Directory, run_spec
        from evenhand.training.rounds import train
        from evenhand.training.settings import Settings

        link = Link(grid, Limits(deadline=deadline, message=limit, patience=patience))
        module = _made(model, seed)
        settings = {
            "rounds": rounds,
            "seed": seed,
            "loss": loss,
            "weights": weights,
            "eval_every": eval_every,
            "track_weights": track_weights,
        }
        spec = run_spec(Path(out), algorithm, module, local=local, cohort=cohort, **settings)
        directory = Directory(Path(out), spec, algorithm, module)

        def suits(roster: Roster) -> None:
            algorithm.init(Model(module, loss).init(), roster.federation.census(weights))

        def progress(done: int, row: Mapping[str, Any]) -> None:
            flowers_log.info(
                "round %d of %d: %d of %d clients have answered",
                done,
                rounds,
                row["answered"],
                row["asked"],
            )

        directory.check()
        attendance = gather(link, clients, Path(out), suits)
        directory.begin(attendance.roster.federation, by_client)
        result = None
        while result is None:
            _tell_of_unheard(attendance.roster, algorithm, weights, by_client)
            with suppress(Joined):  # the run then goes on from its last round, with more clients
                result = train(
                    module,
                    attendance.roster.federation,
                    algorithm,
                    Settings(
                        loss=loss,
                        rounds=rounds,
                        local=local or Settings.local,
                        cohort=cohort or Settings.cohort,
                        seed=seed,
                        engine=Remote(
                            link, attendance, algorithm, run_name(Path(out)), loss, by_client
                        ),
                        weights=weights,
                        eval_every=eval_every,
                        evaluate=evaluate,
                        track_weights=track_weights,
                        checkpoint_every=1,
                    ),
                    progress=progress,
                    out=directory.folder,
                    resume=True,
                )
        if all(row["void"] for row in result.history_rows):
            raise RunError(
                "no client has answered in any round, for the reasons that are logged above;"
                " nothing was learned"
            )
        directory.finish(result, attendance.roster.federation, by_client)
        if finished is not None:
            finished(result)

    return app


def _require_model(model: object) -> None:
    if not callable(model):  # a module is, too
        raise TypeError(
            f"model must be a torch module, or a function that makes it, got {type(model).__name__}"
        )


def _made(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module. One that starts at random starts at the same values on the server, on every node
    and when the run is resumed."""
    if isinstance(model, nn.Module):
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = model()
    require_kind("what model() gives", made, nn.Module, "torch.nn.Linear(12, 2)")
    return made


def _tell_of_unheard(roster: Roster, algorithm: Algorithm, weights: str, by_client: bool) -> None:
    """Warn of clients whose owners share less than the run will ask for; raise where no client
    would be left."""
    seen = algorithm.seen(roster.federation.census(weights))
    unscored = roster.sharing_less("client") if by_client else []
    untrained = roster.sharing_less("method") if seen else []
    for clients, what, remedy in (
        (
            untrained,
            f"the method sees of each client: {', '.join(seen)}",
            'share="method", or a method that needs sums alone',
        ),
        (
            unscored,
            "the run sees how each client fares (by_client=True)",
            'share="client", or by_client=False',
        ),
    ):
        if len(clients) == len(roster.entries):
            raise RunError(f"{what}, and no client's owner shares that; it takes {remedy}")
        for client in clients:
            log.warning(
                "%s will be left out: %s, and its owner does not share that",
                label(client, roster.federation.name),
                what,
            )


def run_name(out: Path) -> str:
    """A name for the run that has its files in ``out``: made once, and found there again when the
    run is resumed."""
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


class NotShared(EvenhandError):
    """The server asks for what the node's owner does not share."""


def _require_leave(share: str, work: Work, reply: Reply) -> None:
    """Raise where a reply would show more of this client by itself than its owner shares."""
    if reply.each and (share == "sums" or (share == "method" and isinstance(work, Evaluate))):
        names = ", ".join(reply.each)
        raise NotShared(
            f'its owner shares {SHARES[share]} (share="{share}"), and {work.name} would show of'
            f" this client by itself: {names}"
        )


class _OwnersError(EvenhandError):
    """A function of the node's owner has failed; the cause is for the node's log alone."""


def _by_owner(name: str, function: Callable[[], T]) -> T:
    try:
        return function()
    except Exception as error:
        raise _OwnersError(f"{name} has failed on the node; its log says more") from error


def _or_fault(
    answer: Callable[[RecordDict, Context], RecordDict], content: RecordDict, context: Context
) -> RecordDict:
    """A reply; where there is none, a reason: Flower itself would send the error's text, which may
    tell of data or paths."""
    try:
        return answer(content, context)
    except (NotFinite, NotShared) as error:
        return fault_content(first_line(error))
    except Exception as error:
        log.exception("a task could not be done")
        # of the others only these have words that are evenhand's alone: about the task, its size,
        # or about memory without a path
        told = isinstance(error, RunError | SpecError | records.TooLarge | _OwnersError)
        return fault_content(
            first_line(error) if told else f"{type(error).__name__} on the node; its log says more"
        )
