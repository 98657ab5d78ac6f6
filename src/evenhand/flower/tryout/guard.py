"""The end of every process of a federation, also when the one that started it is killed.

Flower's processes start others, some in sessions of their own, so a process group does not hold
them all. They all inherit the environment: a variable with a random value, the mark, finds them.
Run as a script, with the standard library alone, this file waits until its standard input closes,
which happens whatever way its owner ends, and then ends what is left. It reads process ids on the
way: where there is no /proc to search, their groups are ended, and the rest follows because
Flower's processes watch their parents.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

MARK = "EVENHAND_FEDERATION"  # the environment variable: "federation/member"
PROCESSES = Path("/proc")


def marked(mark: str) -> list[int]:
    """Ids of the running processes whose mark is ``mark``, or begins with it and a slash."""
    whole, start = f"{MARK}={mark}".encode(), f"{MARK}={mark}/".encode()
    found = []
    for entry in os.listdir(PROCESSES) if PROCESSES.is_dir() else ():
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            # empty for those that have ended
            environment = (PROCESSES / entry / "environ").read_bytes().split(b"\0")
            if any(variable == whole or variable.startswith(start) for variable in environment):
                found.append(int(entry))
    return found


def end_marked(mark: str, patience: float = 5.0) -> None:
    """Kill all marked processes, and those they start meanwhile."""
    deadline = time.monotonic() + patience
    while (
        pids := [pid for pid in marked(mark) if pid != os.getpid()]
    ) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def end_group(leader: int) -> None:
    """Kill a process and what it started in its own group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def main() -> None:
    """Wait for the owner's end: ``guard.py MARK``; lines on standard input: +ID and -ID of the
    processes it started and saw end."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    owner, leaders, rest = os.getppid(), set[int](), b""
    # a process that the owner forked may hold its end of the pipe open
    while os.getppid() == owner:
        if not select.select([0], [], [], 0.5)[0]:
            continue
        if not (received := os.read(0, 4096)):
            break
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            (leaders.add if line[:1] == b"+" else leaders.discard)(int(line[1:]))
    for leader in leaders:
        end_group(leader)
    end_marked(sys.argv[1])


if __name__ == "__main__":
    main()
