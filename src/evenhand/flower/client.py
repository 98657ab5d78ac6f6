"""A node's side of a Flower app."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.data.federation import Federation
from evenhand.data.samples import Part
from evenhand.engines.client import SingleClient
from evenhand.errors import (
    EvenhandError,
    RunError,
    SpecError,
    first_line,
    require_choice,
    require_kind,
    require_whole,
)
from evenhand.flower import bundle, records
from evenhand.flower.checks import NotFinite, require_finite
from evenhand.flower.memory import KEEP_RUNS, NodeMemory
from evenhand.flower.modules import build_module, require_model
from evenhand.flower.registration import report_data
from evenhand.flower.sharing import SHARES, NotShared, require_permission
from evenhand.flower.wire import read_work
from evenhand.losses import LossFunction
from evenhand.model import Model

log = logging.getLogger(__name__)

T = TypeVar("T")

# of one client: a federation of one, or arrays "x", "y" and, if there are, "group" and "test"
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
    """A node's side: trains, answers and evaluates with its own data, which never leave it.

    Args:
        model: the module, or a function that makes it; the same as the server's.
        load_data: called with the node's config ("partition-id", "data" ...) for every message,
            because a node starts anew each time.
        algorithm: the run's method, where it is not one of evenhand's.
        loss: a function, where the run's loss is not one of evenhand's.
        limit: bytes of a message.
        share: what the server may see of this client by itself. "sums": nothing, it only answers
            what is added up over clients. "method": what the run's method has it look at. "client":
            also how the client fares, for a server with ``by_client=True``. An entry "share" in the
            node's config overrides this, because the app comes with the run and the config from the
            node's owner.
    """
    require_choice("share", share, tuple(SHARES))
    require_model(model)
    if not callable(load_data):
        raise TypeError(
            f"load_data must be a function of the node's config, got {type(load_data).__name__}"
        )
    if algorithm is not None:
        require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    require_whole("limit", limit, 1)
    node = _NodeApp(model, load_data, algorithm, loss, limit, share)
    app = ClientApp()

    def report(message: Message, context: Context) -> Message:
        return Message(_or_fault(node.report, message.content, context), reply_to=message)

    def work(message: Message, context: Context) -> Message:
        return Message(_or_fault(node.work, message.content, context), reply_to=message)

    app.query("census")(report)
    app.query("survey")(work)
    app.train()(work)
    app.evaluate()(work)
    return app


@dataclass(frozen=True)
class _NodeApp:
    """How a node answers messages."""

    model: nn.Module | Callable[[], nn.Module]
    load_data: Callable[[Config], Data]
    algorithm: Algorithm | None
    loss: str | LossFunction | None
    limit: int
    share: str

    def report(self, content: RecordDict, context: Context) -> RecordDict:
        """What the server may know of the node's data beforehand."""
        config = context.node_config
        name = str(config.get("name", config.get("partition-id", context.node_id)))
        found = report_data(self._data(context), name, self._share(context))
        return records.reply_content(*found, self.limit)

    def work(self, content: RecordDict, context: Context) -> RecordDict:
        """The client's reply to a task."""
        task, about = records.read_task(content, self.limit)
        client, round, counted, seed, session = (
            records.whole(about, name) for name in ("client", "round", "counted", "seed", "session")
        )
        work = read_work(records.text(about, "how"), self.algorithm)
        evaluation = (
            read_work(records.text(about, "look"), self.algorithm) if "look" in about else None
        )
        data = with_groups(self._data(context), tuple(about["groups"]))
        module = _by_owner("model", lambda: build_module(self.model, seed))
        model = Model(module, self.loss or records.text(about, "loss"))
        model.check(data)
        folder = Path(str(context.node_config.get("state-dir", ".evenhand")))
        keep = int(context.node_config.get("keep-runs", KEEP_RUNS))
        memory = NodeMemory(
            folder, records.text(about, "run"), client, session=session, keep_runs=keep
        )
        node = SingleClient(model, data, seed, client)
        share = self._share(context)
        remembered = memory.recall(work.first_memory(model.init()), counted)

        task, evaluated = bundle.split_task(task)
        scores = None
        if evaluation is not None:
            scores, _ = node.answer(evaluation, evaluated, round, remembered)
            require_permission(share, evaluation, scores)
        reply, remembered = node.answer(work, task, round, remembered)
        require_permission(share, work, reply)
        if work.must_be_finite:
            require_finite(reply, remembered)
        if work.local is not None:
            memory.remember(round, counted, remembered)
        if scores is not None:
            reply = bundle.join_replies(reply, scores)
        about = {"client": client, "round": round, "work": work.name}
        return records.reply_content(reply, about, self.limit)

    def _data(self, context: Context) -> Federation:
        return _by_owner("load_data", lambda: _as_federation(self.load_data(context.node_config)))

    def _share(self, context: Context) -> str:
        found = str(context.node_config.get("share", self.share))
        if found not in SHARES:
            raise SpecError(f"share in its node config must be one of {', '.join(SHARES)}")
        return found


def _as_federation(found: Data) -> Federation:
    if isinstance(found, Federation):
        return found
    test = found.get("test")
    train = {key: value for key, value in found.items() if key != "test"}
    return Federation.from_arrays([train], test=None if test is None else [test])


def with_groups(federation: Federation, names: tuple[str, ...]) -> Federation:
    """The same data with the groups of the whole federation, some of which may have no sample
    here."""
    if not names or federation.group_names == names:
        return federation
    unknown = set(federation.group_names) - set(names)
    if unknown or not federation.group_names:
        raise RunError(
            "this node's data have other groups than it reported at the start; start a new run"
        )
    codes = torch.tensor([names.index(name) for name in federation.group_names])

    def part(old: Part | None) -> Part | None:
        return (
            old
            if old is None or old.group is None
            else Part(old.x, old.y, old.offsets, codes[old.group])
        )

    train = part(federation.train)
    assert train is not None
    return replace(
        federation,
        train=train,
        val=part(federation.val),
        test=part(federation.test),
        group_names=names,
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
    reveal data or paths."""
    try:
        return answer(content, context)
    except (NotFinite, NotShared) as error:
        return records.fault_content(first_line(error))
    except Exception as error:
        log.exception("a task could not be done")
        # of the others only these have words that are evenhand's alone: about the task, its size,
        # or about memory without a path
        speaks = isinstance(error, RunError | SpecError | records.TooLarge | _OwnersError)
        return records.fault_content(
            first_line(error)
            if speaks
            else f"{type(error).__name__} on the node; its log says more"
        )
