"""The client side of a Flower app."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.calls import OutputFunction
from evenhand.data.federation import Federation
from evenhand.engines.client import SingleClient
from evenhand.engines.work import Train
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
from evenhand.flower.audit import audited, count_answer
from evenhand.flower.cells import without_small_cells
from evenhand.flower.checks import NotFinite, require_finite
from evenhand.flower.logs import log_as_json
from evenhand.flower.memory import KEEP_RUNS, NodeMemory
from evenhand.flower.modules import build_module, require_model
from evenhand.flower.node_data import as_federation, with_groups
from evenhand.flower.policy import NO_POLICY, Policy, Refused, misspelt
from evenhand.flower.registration import report_data
from evenhand.flower.secret_order import SecretOrder, order_key, with_own_secret
from evenhand.flower.sharing import SHARES, NotShared, require_permission
from evenhand.flower.watchdog import Stopped, watched
from evenhand.flower.wire import read_normalisation, read_work, with_metrics, with_own_norms
from evenhand.losses import LossFunction
from evenhand.messages import Reply
from evenhand.metrics.metric import Metric, MetricFunction, named_metrics
from evenhand.metrics.trying import measured
from evenhand.model import Model

if TYPE_CHECKING:
    from evenhand.flower.columns.wanted import Columns

log = logging.getLogger(__name__)

T = TypeVar("T")

Config = Mapping[str, Any]  # the node config that the node was started with


def client_app(
    model: nn.Module | Callable[..., nn.Module],
    load_data: Callable[[Config], Any],
    *,
    algorithm: Algorithm | None = None,
    loss: str | LossFunction | None = None,
    limit: int = records.LIMIT,
    share: str = "method",
    columns: Columns | None = None,
    output: OutputFunction | None = None,
    metrics: Mapping[str, Metric | MetricFunction] | None = None,
) -> ClientApp:
    """Build the client side: it trains and evaluates on the node's own data, which never leave it.

    Args:
        model: the module, or a function that returns it; the same as the server's.
        load_data: called with the node config ("partition-id", "data" ...) for every message,
            because Flower starts a new process each time.
        algorithm: the run's method, if it is not one of evenhand's.
        loss: a function, if the run's loss is not one of evenhand's.
        limit: largest message in bytes.
        share: what the server may see about this client alone. "sums": nothing; the client sends
            only what is summed over clients. "method": what the method reads client by client.
            "client": also its scores, for a server with ``by_client=True``. "share" in the node
            config overrides this, because the app comes with the run, and the config from the
            node's owner.
        columns: as on the server, for a codebook of all nodes; ``model`` is then a function of the
            codebook, and ``load_data`` returns the node's table or its path.
        output: as on the server, if what the module returns is not the loss's output.
        metrics: as on the server; a node evaluates only metrics that it has been given here.

    The file named as "policy" in the node config limits what the server may ask; see
    :class:`evenhand.flower.policy.Policy`.
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
    own = named_metrics(metrics)
    node = _NodeApp(model, load_data, algorithm, loss, limit, share, columns, output, own)
    app = ClientApp()

    log_as_json("node")

    def tell(message: Message, context: Context) -> Message:
        with watched(message.metadata.ttl):
            return Message(_or_fault(node.tell, message.content, context), reply_to=message)

    def report(message: Message, context: Context) -> Message:
        with watched(message.metadata.ttl):
            return Message(_or_fault(node.report, message.content, context), reply_to=message)

    def work(message: Message, context: Context) -> Message:
        with watched(message.metadata.ttl):
            return Message(_or_fault(node.work, message.content, context), reply_to=message)

    app.query("columns")(tell)
    app.query("census")(report)
    app.query("survey")(work)
    app.train()(work)
    app.evaluate()(work)
    return app


@dataclass(frozen=True)
class _NodeApp:
    """How a node answers messages."""

    model: nn.Module | Callable[..., nn.Module]
    load_data: Callable[[Config], Any]
    algorithm: Algorithm | None
    loss: str | LossFunction | None
    limit: int
    share: str
    columns: Columns | None = None
    output: OutputFunction | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def tell(self, content: RecordDict, context: Context) -> RecordDict:
        """Sums of the node's columns, for a codebook."""
        from evenhand.flower.columns.agreeing import answer_about_columns

        policy, wanted = Policy.of_node(context.node_config), self.columns
        if wanted is None:
            raise RunError("client_app has no columns; give it those of server_app")

        def answer() -> RecordDict:
            about = content.config_records["about"]
            table = _by_owner("load_data", lambda: self.load_data(context.node_config))
            found = answer_about_columns(wanted, table, about, policy, _name(context))
            return records.reply_content(Reply(), found, self.limit)

        return audited(policy, _folder(context), content, context, "columns", answer)

    def report(self, content: RecordDict, context: Context) -> RecordDict:
        """What the server may know about the node's data beforehand."""
        policy = Policy.of_node(context.node_config)
        if "policy" not in context.node_config:
            log.warning(NO_POLICY)
        for name, meant in misspelt(context.node_config).items():
            log.warning("unknown key %r in the node config; did you mean %r?", name, meant)

        def answer() -> RecordDict:
            data, left_out = self._data(content, context, policy)
            for why, count in () if data.encoding is None else data.encoding.dropped:
                log.warning("excluded %d rows with %s", count, why)
            for part, count in left_out.items():
                log.warning(
                    "%s data: excluded %d samples of groups with fewer than %d here (min-cell in"
                    " the policy); merge groups in the table to use them",
                    *(part, count, policy.min_cell),
                )
            policy.permits_samples(int(data.sizes("train")[0]))
            found = report_data(data, _name(context), self._share(context, policy))
            return records.reply_content(*found, self.limit)

        return audited(policy, _folder(context), content, context, "census", answer)

    def work(self, content: RecordDict, context: Context) -> RecordDict:
        """The client's reply to a task."""
        policy, folder = Policy.of_node(context.node_config), _folder(context)
        return audited(
            policy, folder, content, context, "task", lambda: self._work(content, context, policy)
        )

    def _work(self, content: RecordDict, context: Context, policy: Policy) -> RecordDict:
        task, about = records.read_task(content, self.limit)
        client, round, counted, seed, session = (
            records.whole(about, name) for name in ("client", "round", "counted", "seed", "session")
        )
        work = read_work(records.text(about, "how"), self.algorithm)
        evaluation = (
            read_work(records.text(about, "look"), self.algorithm) if "look" in about else None
        )
        data = with_groups(self._data(content, context, policy)[0], tuple(about["groups"]))
        module = _by_owner("model", lambda: build_module(self._model(content), seed))
        parameters = sum(leaf.numel() for leaf in module.parameters())
        for asked in (work, evaluation):
            if asked is not None:
                policy.permits(asked, data, parameters, records.text(about, "loss"))
        norms = read_normalisation(about.get("normalisation"))
        model = Model(module, self.loss or records.text(about, "loss"), self.output, norms)
        model.check(data)
        own = partial(measured, model, data, self.metrics)
        work = with_metrics(work, records.text(about, "how"), own)
        if evaluation is not None:
            evaluation = with_metrics(evaluation, records.text(about, "look"), own)
        folder = _folder(context)
        for asked in (work, evaluation):
            if asked is not None:
                count_answer(policy, folder, asked.name)
        hidden = work.local is not None and work.local.dp is not None
        if policy.order == "node" and isinstance(work, Train) and not hidden:
            key = order_key(folder, content)
            work = replace(work, local=SecretOrder.of(work.local, key, policy.min_batch))
        keep = int(context.node_config.get("keep-runs", KEEP_RUNS))
        memory = NodeMemory(
            folder, records.text(about, "run"), client, session=session, keep_runs=keep
        )
        work = with_own_norms(work, model)
        evaluation = None if evaluation is None else with_own_norms(evaluation, model)
        node = SingleClient(model, data, seed, client)
        share = self._share(context, policy)
        remembered = memory.recall(work.first_memory(model.init()), counted)
        if hidden:
            work = with_own_secret(work, order_key(folder, content), data, remembered)

        task, evaluated = bundle.split_task(task)
        scores = None
        if evaluation is not None:
            scores, _ = node.answer(evaluation, evaluated, round, remembered)
            require_permission(share, evaluation, scores)
        reply, remembered = node.answer(work, task, round, remembered)
        require_permission(share, work, reply)
        if work.must_be_finite:
            require_finite(reply, remembered, task.shared)
        if work.local is not None:
            memory.remember(round, counted, remembered)
        if scores is not None:
            reply = bundle.join_replies(reply, scores)
        about = {"client": client, "round": round, "work": work.name}
        return records.reply_content(reply, about, self.limit)

    def _model(self, content: RecordDict) -> nn.Module | Callable[[], nn.Module]:
        if self.columns is None:
            return self.model
        from evenhand.flower.columns.agreeing import carried

        return partial(self.model, carried(content))

    def _data(
        self, content: RecordDict, context: Context, policy: Policy
    ) -> tuple[Federation, dict[str, int]]:
        """The node's data without groups that are too small, and how many samples that excludes
        from each split."""

        def load() -> Federation:
            found = self.load_data(context.node_config)
            if self.columns is None:
                return as_federation(found)
            from evenhand.flower.columns.agreeing import carried

            return carried(content).federation(found, strict=False)

        data = _by_owner("load_data", load)
        return without_small_cells(data, policy.min_cell)

    def _share(self, context: Context, policy: Policy) -> str:
        found = str(context.node_config.get("share", policy.share or self.share))
        if found not in SHARES:
            raise SpecError(f"share in its node config must be one of {', '.join(SHARES)}")
        allowed = (found, policy.share or found)  # the file and the config are both the owner's
        return min(allowed, key=tuple(SHARES).index)


def _name(context: Context) -> str:
    """The node's name."""
    config = context.node_config
    return str(config.get("name", config.get("partition-id", context.node_id)))


def _folder(context: Context) -> Path:
    """Where the node stores what outlives a message."""
    return Path(str(context.node_config.get("state-dir", ".evenhand")))


class _OwnersError(EvenhandError):
    """A function of the node's owner failed; only the node's log has the cause."""


def _by_owner(name: str, function: Callable[[], T]) -> T:
    try:
        return function()
    except Stopped:
        raise
    except Exception as error:
        raise _OwnersError(f"{name} failed on the node; see its log") from error


def _or_fault(
    answer: Callable[[RecordDict, Context], RecordDict], content: RecordDict, context: Context
) -> RecordDict:
    """The reply, or a reason why there is none. Flower itself would send the error's text, which
    may reveal data or paths."""
    try:
        return answer(content, context)
    except (NotFinite, NotShared, Refused) as error:
        return records.fault_content(first_line(error))
    except Exception as error:
        log.exception("a task failed")
        # only these have texts written by evenhand, about the task, its size or its memory, and
        # without a path
        speaks = isinstance(error, RunError | SpecError | records.TooLarge | _OwnersError)
        return records.fault_content(
            first_line(error) if speaks else f"{type(error).__name__} on the node; see its log"
        )
