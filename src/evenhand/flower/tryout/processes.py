"""Starts the processes of a federation on loopback so that none outlives it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from evenhand.flower.tryout.guard import MARK, marked

QUIET_FLOWER = {  # no telemetry, no update checks, no installation of dependencies
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


class Processes:
    """All processes of one federation, each with its own mark and FLWR_HOME.

    Args:
        directory: where the federation stores its files.
        cwd: working directory of the SuperLink and the nodes.
        env: additional environment variables for them.
    """

    def __init__(self, directory: Path, cwd: Path, env: Mapping[str, str]) -> None:
        self.directory, self.cwd = directory, cwd
        self._env, self._token = dict(env), secrets.token_hex(16)
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the guard, which ends all other processes when we end."""
        self._token = secrets.token_hex(16)
        self._guard = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("guard.py")), self._token],
            stdin=subprocess.PIPE,
            # Ctrl-C in a terminal goes to a whole group; the guard is the last to end
            start_new_session=True,
        )

    def stop(self) -> None:
        """End the guard, and with it all remaining processes."""
        if self._guard is not None:
            if self._guard.stdin is not None:
                with suppress(BrokenPipeError):
                    self._guard.stdin.close()
            self._guard.wait()
        self._guard = None

    def spawn(
        self,
        name: str,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes] = subprocess.STDOUT,
        cwd: Path | None = None,
        **env: str,
    ) -> subprocess.Popen[bytes]:
        """Start the process ``name`` with additional environment variables ``env``."""
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=self.environment(name) | env,
            cwd=cwd,
            start_new_session=True,
        )
        self._tell_guard(f"+{process.pid}")
        return process

    def ended(self, pid: int) -> None:
        """A process has ended, and its id may be reused."""
        self._tell_guard(f"-{pid}")

    def pids(self) -> list[int]:
        """Ids of all processes (needs /proc)."""
        return marked(self._token)

    def home(self, name: str) -> Path:
        """The FLWR_HOME of a process."""
        return self.directory / "flwr" / name.replace(" ", "-")

    def mark(self, name: str) -> str:
        """The mark of a process and of all that it starts."""
        return f"{self._token}/{name.replace(' ', '-')}"

    def environment(self, name: str) -> dict[str, str]:
        """Environment variables for a process: our settings, its own FLWR_HOME, and Flower's
        commands on the path."""
        scripts = sysconfig.get_path("scripts")  # Flower starts its own commands by name
        return {
            **os.environ,
            "PATH": os.pathsep.join((scripts, os.environ.get("PATH", os.defpath))),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",  # seconds; 1 by default
            "PYTHONUNBUFFERED": "1",
            **self._env,
            **QUIET_FLOWER,
            "FLWR_HOME": str(self.home(name)),
            MARK: self.mark(name),
        }

    def _tell_guard(self, line: str) -> None:
        """Tell the guard which process groups to end."""
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):
                self._guard.stdin.write(f"{line}\n".encode())
                self._guard.stdin.flush()
