"""The second message: holders open what hides a sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from evenhand.errors import first_line
from evenhand.flower import records
from evenhand.flower.asking import ABOUT, Asking
from evenhand.flower.faults import in_words
from evenhand.flower.masked import told
from evenhand.secure import Collection, Decoded


def open_sum(collection: Collection, asking: Asking, round: int) -> Decoded:
    """The sum, once enough holders have answered; raises ``Void`` where too few do.

    Holders that have opened it before a restart of the server do so again: it is the same set.
    """
    requests = collection.requests()
    if requests and not collection.enough():
        nodes = asking.membership.nodes_of(sorted(requests))
        contents = {
            node: _content(collection, holder, requests[holder], round)
            for node, holder in nodes.items()
        }
        size = ABOUT + 64 * len(collection.cohort.members) ** 2
        for node, message in asking.link.ask(contents, told.UNMASK, f"{round}", size):
            holder = nodes[node]
            try:
                collection.learn(holder, _opened(message, holder, asking.link.limits.message))
            except ValueError as error:
                what = f"opens no masks in round {round + 1}: {first_line(error)}"
                asking.note(round, holder, "refused", what)
            if collection.enough():
                break
    return collection.result()


def _content(
    collection: Collection, holder: int, boxes: Mapping[int, bytes], round: int
) -> RecordDict:
    context = collection.context
    asked = told.Told(context.exchange, collection.settings, {})
    about: dict[str, Any] = {
        "format": records.FORMAT,
        "run": context.run,
        "client": holder,
        "round": round,
        "work": "unmask",
        "context": told.packed_context(context),
        told.MASKS: asked.to_text(),
        told.COHORT: collection.cohort.packed(),
        told.ANSWERED: list(collection.answered),
        told.SENDERS: list(boxes),
        told.BOXES: list(boxes.values()),
    }
    return RecordDict({"about": ConfigRecord(about)})


def _opened(message: Message, holder: int, limit: int) -> dict[int, bytes]:
    if message.has_error():
        raise ValueError(in_words(message.error.code))
    if fault := records.fault_in(message.content):
        raise ValueError(fault)
    records.check_size(message.content, limit)
    record = message.content.get("about")
    if not isinstance(record, ConfigRecord) or record.get("client") != holder:
        raise ValueError("its reply cannot be read")
    return told.by_number(record, told.SENDERS, told.OPENED)
