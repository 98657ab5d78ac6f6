"""Flower's grid in one process: its real message and app types, and each message through its real
serialisation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid

# not public API: messages cannot be made without it
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity._run_id = TaskIdentity._task_id = TaskIdentity._node_id = 1


class InProcessGrid(Grid):
    """Nodes 1, 2, ... with a config for each; every message is served when it is pulled.

    Args:
        spoil: may change a reply on its way: (node, reply) -> replies that arrive.
    """

    def __init__(
        self,
        app: ClientApp,
        configs: list[dict[str, Any]],
        spoil: Callable[[int, Message], list[Message]] | None = None,
    ) -> None:
        self.app, self.spoil = app, spoil
        self.contexts = {
            node: Context(1, node, config, RecordDict(), {})
            for node, config in enumerate(configs, 1)
        }
        self.waiting: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.down: set[int] = set()  # nodes that do not answer

    def set_run(self, run: Any) -> None:
        pass

    # Flower's class wants these three as well; a server of ours that used one would fail here

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def get_nodes(self) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(len(self.sent))
            self.sent.append(message)
            self.waiting[str(len(self.sent) - 1)] = message_from_proto(message_to_proto(message))
            ids.append(str(len(self.sent) - 1))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for name in sorted(message_ids, reverse=True):  # the last asked is the first to answer
            message = self.waiting.get(name)
            if message is None or message.metadata.dst_node_id in self.down:
                continue
            del self.waiting[name]
            node = message.metadata.dst_node_id
            try:
                reply = self.app(message, self.contexts[node])
            except Exception as error:
                reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
            replies += self.spoil(node, reply) if self.spoil else [reply]
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))
