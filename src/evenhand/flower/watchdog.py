"""Ends a node's process when nobody waits for its answer any more, and processes that hang.

Flower starts a process for every message, one at a time, and a node gets nothing else until there
is a reply. So a process that gets SIGTERM, or whose task has expired, sends a reason instead of a
reply. A process that waits for the rest of a message from a killed server does so for up to two
hours, before any code of ours is loaded; the next process ends it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from evenhand.errors import RunError

log = logging.getLogger(__name__)

COMMAND, ADDRESS = "flwr-clientapp", b"--runtime-api-address"
GRACE = 20.0  # seconds to answer after SIGTERM
PROCESSES = Path("/proc")


class Stopped(RunError):
    """The work was given up."""


@contextmanager
def watched(seconds: float) -> Iterator[None]:
    """Limit a message's work to ``seconds``: raise :class:`Stopped` in it when they are over, or on
    SIGTERM. Only acts in a process that Flower started for one message."""
    if (
        Path(sys.argv[0]).name != COMMAND
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    end_leftovers()
    with giving_up(seconds):
        yield


@contextmanager
def giving_up(seconds: float, grace: float = GRACE) -> Iterator[None]:
    """Raise :class:`Stopped` in the main thread on SIGTERM and when the time is over; a process
    that does not stop then is killed."""
    late = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(
            f"its task has expired after {seconds:g} s; raise the deadline or reduce the work"
            if late.is_set()
            else "its process got SIGTERM"
        )

    def expire() -> None:
        late.set()
        os.kill(os.getpid(), signal.SIGTERM)
        if not done.wait(grace):
            log.error("a task expired after %g s and does not stop; its process is killed", seconds)
            os._exit(1)

    done, before = threading.Event(), signal.signal(signal.SIGTERM, stop)
    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        done.set()
        timer.cancel()
        signal.signal(signal.SIGTERM, before)


def end_leftovers() -> list[int]:
    """Send SIGTERM to older processes of the same node; returns their ids."""
    found = leftovers(os.getpid())
    for pid in found:
        log.warning("process %d of an earlier message hangs; it gets SIGTERM", pid)
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    return found


def leftovers(pid: int) -> list[int]:
    """Older processes for messages of the same node as ``pid`` (where there is a /proc to search):
    a node works on one message at a time, so nobody waits for them."""
    mine = _about(pid)
    if mine is None:
        return []
    others = (int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdigit())
    return sorted(
        other
        for other in others
        if other != pid
        and (theirs := _about(other)) is not None
        and theirs.node == mine.node
        and theirs.started < mine.started
    )


class _About(NamedTuple):
    node: tuple[int, bytes]  # who has started the process, and the address of its node
    started: int


def _about(pid: int) -> _About | None:
    """A process for a message; None for any other."""
    place = PROCESSES / str(pid)
    try:
        words = (place / "cmdline").read_bytes().split(b"\0")
        if COMMAND.encode() not in (word.rpartition(b"/")[2] for word in words[:3]):
            return None
        address = words[words.index(ADDRESS) + 1]
        # after the name, which is in brackets and may have spaces: state, parent, ... , start
        fields = (place / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return _About((int(fields[1]), address), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None
