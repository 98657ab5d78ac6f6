"""Locks that let one process at a time work in a directory, and tell others which one it is.

The operating system releases a lock when its process ends, so nobody has to clean up by hand.
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
    """Another process is working in the directory."""


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Lock a directory, creating it if needed.

    Raises ``Held`` at once if another process, or another thread of this one, holds the lock.
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
        with suppress(OSError):  # full disk: the message to others then says "another process"
            holder.write_text(text, encoding="utf-8")
        yield
    finally:
        # done while we hold the lock: a waiting process finds the file gone and creates a new one.
        # If somebody removed our file, the one there now is not ours.
        with suppress(OSError):
            if (directory / LOCK).stat().st_ino == inode:
                (directory / HOLDER).unlink()
                (directory / LOCK).unlink()
        lock.release()


def _holder(directory: Path) -> str:
    """Describe the process that holds the lock."""
    try:
        about = json.loads((directory / HOLDER).read_text(encoding="utf-8"))
        return (
            f"process {int(about['pid'])} on {about['host']} since {about['since']}"
            f" ({about['command']})"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
