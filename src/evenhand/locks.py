"""One process at a time works in a directory; others are told which one it is.

The operating system gives a lock back when its process dies, however it dies, so nothing has to be
cleared away by hand.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evenhand.errors import RunError

LOCK, HOLDER = ".lock", ".lock.json"


class Held(RunError):
    """Another process works in the directory."""


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Work alone in a directory, which is made where it is missing.

    Raises :class:`Held` at once where another process, or another thread of this one, is at it.
    """
    from filelock import FileLock, Timeout

    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise Held(
            f"{directory} is in use by {_holder(directory)}; wait for it, or stop it"
        ) from error
    holder, inode = directory / HOLDER, (directory / LOCK).stat().st_ino
    try:
        about = {
            "pid": os.getpid(),
            "host": platform.node(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        text = json.dumps({**about, "command": " ".join(sys.argv)[:200]})
        with suppress(OSError):  # a full disk: others are then told of "another process"
            holder.write_text(text, encoding="utf-8")
        yield
    finally:
        # while the lock is ours: whoever waits for it finds the file gone and makes a new one.
        # Where somebody has removed ours, the file that is there now is another's.
        with suppress(OSError):
            if (directory / LOCK).stat().st_ino == inode:
                (directory / HOLDER).unlink()
                (directory / LOCK).unlink()
        lock.release()


def _holder(directory: Path) -> str:
    """The process that holds the lock, in words."""
    try:
        about = json.loads((directory / HOLDER).read_text(encoding="utf-8"))
        return (
            f"process {int(about['pid'])} on {about['host']} since {about['since']}"
            f" ({about['command']})"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
