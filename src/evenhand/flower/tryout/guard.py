"""Ends every process of a federation, even if the process that started it is killed.

Flower's processes start others, some in new sessions, so a process group does not contain them all.
But all inherit the environment, so a variable with a random value, the mark, finds them. Run as a
script, with only the standard library, this file waits until its standard input closes, which
happens however its owner ends, and then kills the rest. It also reads process ids: without a /proc
to search, it kills their groups, and the rest follows because Flower's processes watch their
parents.
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
    """Ids of running processes whose mark is ``mark``, or begins with it and a slash."""
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
    """Kill all marked processes, and any they start meanwhile."""
    deadline = time.monotonic() + patience
    while (
        pids := [pid for pid in marked(mark) if pid != os.getpid()]
    ) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def end_group(leader: int) -> None:
    """Kill a process and its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def main() -> None:
    """Wait for the owner's end: ``guard.py MARK``. Lines on standard input are +ID and -ID of the
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
