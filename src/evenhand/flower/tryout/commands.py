"""Runs ``flwr`` commands for a federation on loopback in one process that has Flower loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from evenhand.flower.tryout.errors import FederationError
from evenhand.flower.tryout.guard import end_group
from evenhand.flower.tryout.processes import Processes

USER = "user"  # the process that runs commands, and its FLWR_HOME


class Commands:
    """Runs ``flwr`` commands in the process of ``console.py``."""

    def __init__(self, processes: Processes) -> None:
        self._processes, self._log = processes, processes.directory / "logs" / "console.log"
        self._console: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and return at once."""
        with self._log.open("ab") as log:
            self._console = self._processes.spawn(
                USER,
                [sys.executable, "-P", str(Path(__file__).with_name("console.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                COLUMNS="1000",
            )

    def stop(self) -> None:
        """End the process."""
        if self._console is not None:
            with suppress(BrokenPipeError):
                _pipe(self._console.stdin).close()
            _pipe(self._console.stdout).close()
            end_group(self._console.pid)
            self._console.wait()
        self._console = None

    def flwr(self, *arguments: str) -> str:
        """Run a command; returns what it prints."""
        if self._console is None:
            raise FederationError("the federation is not running; call start() first")
        try:
            _pipe(self._console.stdin).write(json.dumps(arguments).encode() + b"\n")
            _pipe(self._console.stdin).flush()
            answer = _pipe(self._console.stdout).readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise FederationError(
                f"flwr {' '.join(arguments)} ended without an answer; see {self._log}"
            )
        code, printed = json.loads(answer)
        if code:
            raise FederationError(f"flwr {' '.join(arguments)} failed: {_error_in(printed)}")
        return str(printed)

    def flwr_json(self, *arguments: str) -> dict[str, Any]:
        """Run a command that can answer in JSON."""
        answer: dict[str, Any] = json.loads(self.flwr(*arguments, "--format", "json"))
        if not answer.get("success"):
            raise FederationError(
                f"flwr {' '.join(arguments)} failed:"
                f" {_error_in(str(answer.get('error-message', answer)))}"
            )
        return answer


def _error_in(printed: str) -> str:
    """The message of a failed command on one line, without the notes before it and the box around
    it."""
    said = re.sub(r".*(Using SuperLink: \S+ \(\S+\)|Error ─)", "", printed, flags=re.DOTALL)
    return " ".join(said.translate(dict.fromkeys(map(ord, "─│╭╮╰╯"), " ")).split())


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # the process was started with pipes
    return stream
