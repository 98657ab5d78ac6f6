"""A run on a federation on loopback."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from evenhand.flower.tryout.commands import Commands
from evenhand.flower.tryout.errors import FederationError
from evenhand.flower.tryout.member import Member
from evenhand.flower.tryout.options import CONNECTION


class Run:
    """A run of an app."""

    def __init__(self, commands: Commands, link: Member, run_id: int) -> None:
        self.id, self._commands, self._link = run_id, commands, link

    def status(self) -> str:
        """Such as "running", "finished:completed", "finished:failed" or "finished:stopped"."""
        return str(self.row()["status"])

    def details(self) -> str:
        """What Flower says about a failure."""
        return str(self.row().get("status-details", ""))

    def row(self) -> dict[str, Any]:
        """Everything that ``flwr list`` knows about it."""
        listed = self._commands.flwr_json("list", CONNECTION, "--run-id", str(self.id))
        rows: list[dict[str, Any]] = listed["runs"]
        return rows[0]

    def wait(self, timeout: float | None = None) -> str:
        """Wait until it has finished; returns its status."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (status := self.status()).startswith("finished"):
            self._link.check()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(
                    f"run {self.id} is {status} after {timeout:g} s; see flwr log {self.id} and"
                    f" {self._link.log}"
                )
            time.sleep(0.2)
        return status

    def log(self) -> str:
        """The log of the server app."""
        printed = self._commands.flwr("log", str(self.id), CONNECTION, "--show")
        first, _, rest = printed.partition("\n")
        return rest if first.startswith("Using SuperLink") else printed

    def stop_run(self) -> None:
        """Ask the SuperLink to stop it."""
        self._commands.flwr_json("stop", str(self.id), CONNECTION)

    def kill_server_app(self) -> None:
        """Kill the process of the server app (of every run in progress: they cannot be
        distinguished)."""
        if not kill_server_apps(self._link):
            raise FederationError(f"run {self.id} has no server app; its status is {self.status()}")


def kill_server_apps(link: Member) -> bool:
    """Kill the processes of server apps (needs /proc); returns whether there were any."""
    found = [pid for pid in link.pids() if b"flwr-serverapp" in _command_line(pid)]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
