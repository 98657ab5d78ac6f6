"""A node opens the masks of clients that have answered; needs neither torch nor data."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, Context, RecordDict

from evenhand.errors import first_line
from evenhand.flower.answering import Declined, folder_of, text, whole
from evenhand.flower.audit import audited
from evenhand.flower.faults import FORMAT
from evenhand.flower.masked import told
from evenhand.flower.masked.owner import node_of
from evenhand.flower.policy import Policy
from evenhand.secure import Refused


def unmask(content: RecordDict, context: Context) -> RecordDict:
    """The node's shares of the masks in the boxes that are meant for it."""
    policy = Policy.of_node(context.node_config)

    def answer() -> RecordDict:
        return _opened(content, context, policy)

    return audited(policy, folder_of(context), content, context, "unmask", answer)


def _opened(content: RecordDict, context: Context, policy: Policy) -> RecordDict:
    record = content.get("about")
    if not isinstance(record, ConfigRecord) or record.get("format") != FORMAT:
        raise ValueError("a message is not from this version of evenhand")
    about: dict[str, Any] = dict(record)
    cohort, asked = told.cohort_in(about), told.Told.read(about)
    number, run = whole(about, "client"), text(about, "run")
    answered = about.get(told.ANSWERED)
    if not isinstance(answered, list) or number not in cohort.numbers:
        raise ValueError("a message has no list with this client")
    boxes = told.by_number(about, told.SENDERS, told.BOXES)
    # under another name the node has another key, which is not the one in the list
    name = cohort.member(number).announced.name
    node = node_of(context.node_config, policy, folder_of(context), name, run)
    try:
        opened = node.open_boxes(
            answered,
            boxes,
            number,
            cohort,
            told.unpacked_context(text(about, "context")),
            asked.settings,
            cohort.member(number).own,
        )
    except Refused as error:
        raise Declined(f"it refuses to open masks: {first_line(error)}") from error
    plain: dict[str, Any] = {
        "format": FORMAT,
        "client": number,
        "round": whole(about, "round"),
        "work": "unmask",
        told.SENDERS: list(opened),
        told.OPENED: list(opened.values()),
    }
    return RecordDict({"about": ConfigRecord(plain)})
