"""Turns what a node finds into a reply, or into a reason why there is none.

Nothing here loads torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Context, RecordDict

from evenhand.errors import EvenhandError, RunError, SpecError, first_line
from evenhand.flower.watchdog import Stopped

log = logging.getLogger(__name__)

T = TypeVar("T")


class Declined(EvenhandError):
    """The node does not answer, and says why in words that reveal nothing about its data.

    ``refuses``: whether its owner's rules are the reason.
    """

    refuses = True


class TooLarge(ValueError):
    """A message has more bytes than the limit."""


class OwnersError(EvenhandError):
    """A function of the node's owner failed; only the node's log has the cause."""


def by_owner(name: str, function: Callable[[], T]) -> T:
    """Call a function of the node's owner."""
    try:
        return function()
    except Stopped:
        raise
    except Exception as error:
        raise OwnersError(f"{name} failed on the node; see its log") from error


def fault_content(fault: str) -> RecordDict:
    """The reply of a client that cannot do its task, with a reason that reveals nothing about its
    data."""
    return RecordDict({"fault": ConfigRecord({"reason": fault})})


def or_fault(
    answer: Callable[[RecordDict, Context], RecordDict], content: RecordDict, context: Context
) -> RecordDict:
    """The reply, or a reason why there is none. Flower itself would send the error's text, which
    may reveal data or paths."""
    try:
        return answer(content, context)
    except Declined as error:
        return fault_content(first_line(error))
    except Exception as error:
        log.exception("a task failed")
        # only these have texts written by evenhand, about the task, its size or its memory, and
        # without a path
        speaks = isinstance(error, RunError | SpecError | TooLarge | OwnersError)
        return fault_content(
            first_line(error) if speaks else f"{type(error).__name__} on the node; see its log"
        )


def whole(about: Mapping[str, Any], name: str) -> int:
    """An integer among a message's plain values."""
    value = about.get(name)
    if type(value) is not int:
        raise ValueError(f"a message has no {name}")
    return value


def text(about: Mapping[str, Any], name: str) -> str:
    """A text among a message's plain values."""
    value = about.get(name)
    if not isinstance(value, str):
        raise ValueError(f"a message has no {name}")
    return value


def name_of(context: Context) -> str:
    """The node's name."""
    config = context.node_config
    return str(config.get("name", config.get("partition-id", context.node_id)))


def folder_of(context: Context) -> Path:
    """Where the node stores what outlives a message."""
    return Path(str(context.node_config.get("state-dir", ".evenhand")))
