"""One process of a federation on loopback, the SuperLink or a SuperNode, and why it is refused."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from evenhand.flower.diagnosis import COLOURS, reason
from evenhand.flower.tryout.errors import FederationError
from evenhand.flower.tryout.guard import end_group, end_marked, marked
from evenhand.flower.tryout.processes import Processes

TAIL = 15  # lines of a log that a message quotes


class Member:
    """One process of the federation and all that it starts: the SuperLink or a SuperNode."""

    def __init__(
        self, processes: Processes, name: str, command: Sequence[str], ready: Callable[[str], bool]
    ) -> None:
        self.name, self.command = name, list(command)
        self.log = processes.directory / "logs" / f"{name.replace(' ', '-')}.log"
        self._processes, self._ready, self._log_start = processes, ready, 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None if it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def pids(self) -> list[int]:
        """Ids of its process and of all that it started (needs /proc)."""
        return marked(self._mark)

    def text(self) -> str:
        """Its log since it was last started."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return COLOURS.sub("", file.read().decode(errors="replace"))

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join([line for line in self.text().splitlines() if line.strip()][-TAIL:])

    def launch(self) -> None:
        """Start the process and return at once."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self._process = self._processes.spawn(
                self.name, self.command, stdout=output, cwd=self._processes.cwd
            )

    def wait_until_ready(self, timeout: float = 60) -> None:
        """Wait until it works; raise with its log if it ends instead."""
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise FederationError(
                    f"{self._label} was not ready after {timeout:g} s; the end of its log"
                    f" {self.log}:\n{self.tail()}"
                )
            time.sleep(0.05)

    def is_ready(self) -> bool:
        """Whether it works: the SuperLink listens, or a node was accepted by the SuperLink."""
        return self.pid is not None and self._ready(self.text())

    def check(self) -> None:
        """Raise with the end of its log if it has ended."""
        if self.pid is None:
            code = self._process.returncode if self._process else "none"
            why = f": {words}" if (words := reason(self.text())) else ""
            raise FederationError(
                f"{self._label} has ended (exit code {code}){why}; the end of its log"
                f" {self.log}:\n{self.tail()}"
            )

    def terminate(self) -> None:
        """Ask it to end, as an administrator would (SIGTERM), and return at once."""
        if self._process is not None and self.pid is not None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self, patience: float = 8) -> None:
        """Let it sign off and end; a node can then be started again at once."""
        self.terminate()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self.kill()

    def kill(self) -> None:
        """End it and all that it started at once (SIGKILL), as a power cut would."""
        if self._process is None:
            return
        end_group(self._process.pid)
        end_marked(self._mark)
        self._process.wait()
        self._processes.ended(self._process.pid)

    def restart(self, timeout: float = 120) -> None:
        """Start it again, with the same address, key and database.

        After :meth:`kill` the SuperLink refuses a node with a key until the killed process's
        heartbeats time out, about a minute later; so this retries until it is accepted.
        """
        deadline = time.monotonic() + timeout
        while True:
            if self.pid is None:
                self.launch()
            try:
                self.wait_until_ready(max(1.0, deadline - time.monotonic()))
                return
            except FederationError:
                self.kill()
                if time.monotonic() > deadline:
                    raise
                time.sleep(2)

    @property
    def _label(self) -> str:
        return "the SuperLink" if self.name == "link" else self.name

    @property
    def _mark(self) -> str:
        return self._processes.mark(self.name)
