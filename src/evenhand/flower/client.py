"""The client side of a Flower app.

Flower starts a process for every message. This module does without torch, so a message that needs
no model costs a node less; :mod:`evenhand.flower.node` has what the others need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from evenhand.errors import require_choice, require_kind, require_whole
from evenhand.flower.answering import or_fault
from evenhand.flower.faults import LIMIT
from evenhand.flower.logs import log_as_json
from evenhand.flower.sharing import SHARES
from evenhand.flower.watchdog import watched

if TYPE_CHECKING:
    from torch import nn

    from evenhand.algorithm import Algorithm
    from evenhand.calls import OutputFunction
    from evenhand.flower.columns.wanted import Columns
    from evenhand.flower.node import NodeApp
    from evenhand.losses import LossFunction
    from evenhand.metrics.metric import Metric, MetricFunction

Config = Mapping[str, Any]  # the node config that the node was started with


def client_app(
    model: nn.Module | Callable[..., nn.Module],
    load_data: Callable[[Config], Any],
    *,
    algorithm: Algorithm | None = None,
    loss: str | LossFunction | None = None,
    limit: int = LIMIT,
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
        share: what the server may see about this client alone. "masked": nothing; the client sends
            only masked sums, also of its counts, and refuses every other task. "sums": the client
            sends only what is summed over clients. "method": what the method reads client by
            client. "client": also its scores, for a server with ``by_client=True``. "share" in the
            node config overrides this, because the app comes with the run, and the config from the
            node's owner.
        columns: as on the server, for a codebook of all nodes; ``model`` is then a function of the
            codebook, and ``load_data`` returns the node's table or its path.
        output: as on the server, if what the module returns is not the loss's output.
        metrics: as on the server; a node evaluates only metrics that it has been given here.

    The file named as "policy" in the node config limits what the server may ask; see
    :class:`evenhand.flower.policy.Policy`.
    """
    require_choice("share", share, tuple(SHARES))
    if not callable(model):  # a module is, too
        raise TypeError(
            f"model must be a torch module, or a function that makes it, got {type(model).__name__}"
        )
    if not callable(load_data):
        raise TypeError(
            f"load_data must be a function of the node's config, got {type(load_data).__name__}"
        )
    if algorithm is not None:
        from evenhand.algorithm import Algorithm

        require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    require_whole("limit", limit, 1)
    own = None
    if metrics is not None:
        from evenhand.metrics.metric import named_metrics

        own = named_metrics(metrics)
    app = ClientApp()

    log_as_json("node")

    def node() -> NodeApp:
        from evenhand.flower.node import NodeApp

        return NodeApp(
            model, load_data, algorithm, loss, limit, share, columns, output, dict(own or {})
        )

    def tell(message: Message, context: Context) -> Message:
        with watched(message.metadata.ttl):
            return Message(or_fault(node().tell, message.content, context), reply_to=message)

    def report(message: Message, context: Context) -> Message:
        with watched(message.metadata.ttl):
            return Message(or_fault(node().report, message.content, context), reply_to=message)

    def work(message: Message, context: Context) -> Message:
        with watched(message.metadata.ttl):
            return Message(or_fault(node().work, message.content, context), reply_to=message)

    def count(message: Message, context: Context) -> Message:
        with watched(message.metadata.ttl):
            return Message(or_fault(node().count, message.content, context), reply_to=message)

    def unmask(message: Message, context: Context) -> Message:
        from evenhand.flower.masked.holder import unmask as opened

        with watched(message.metadata.ttl):
            return Message(or_fault(opened, message.content, context), reply_to=message)

    app.query("columns")(tell)
    app.query("census")(report)
    app.query("count")(count)
    app.query("survey")(work)
    app.query("unmask")(unmask)
    app.train()(work)
    app.evaluate()(work)
    return app
