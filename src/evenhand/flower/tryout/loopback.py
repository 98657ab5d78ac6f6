"""A federation on this machine's loopback: a SuperLink and some SuperNodes as real processes, for a
try-out and for tests.

    with Loopback(directory, nodes=4) as federation:
        run = federation.run("my-app", {"num-rounds": 3})
        print(run.wait(timeout=300))                        # "finished:completed"

Everything lies in the directory: logs/, tls/, keys/, flwr/ (the FLWR_HOME of each process), state/
(what nodes remember) and link.db. Certificates, keys and database are fresh at every start; state/
is kept.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from filelock import FileLock, Timeout

from evenhand.errors import require_whole
from evenhand.flower.tryout.certificates import (
    Certificates,
    NodeKey,
    private_directory,
    write_certificates,
    write_node_key,
)
from evenhand.flower.tryout.guard import MARK, end_group, marked
from evenhand.flower.tryout.member import FederationError, Member
from evenhand.flower.tryout.ports import HOST, free_ports, listens

CONNECTION = "loopback"  # the SuperLink's name in Flower's configuration
QUIET_FLOWER = {  # no telemetry, no look for updates, no installing of an app's dependencies
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


class Run:
    """A run that was started on a federation."""

    def __init__(self, federation: Loopback, run_id: int) -> None:
        self.id, self._federation = run_id, federation

    def status(self) -> str:
        """Such as "running", "finished:completed", "finished:failed" or "finished:stopped"."""
        return str(self.row()["status"])

    def details(self) -> str:
        """What Flower says about a failure."""
        return str(self.row().get("status-details", ""))

    def row(self) -> dict[str, Any]:
        """All that ``flwr list`` knows about it."""
        listed = self._federation.flwr_json("list", CONNECTION, "--run-id", str(self.id))
        rows: list[dict[str, Any]] = listed["runs"]
        return rows[0]

    def wait(self, timeout: float | None = None) -> str:
        """Wait until it has finished; its status."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (status := self.status()).startswith("finished"):
            self._federation.link.check()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(
                    f"run {self.id} is {status} after {timeout:g} s; see flwr log {self.id} and"
                    f" {self._federation.link.log}"
                )
            time.sleep(0.2)
        return status

    def log(self) -> str:
        """What the server's app has logged."""
        first, _, rest = self._federation.flwr("log", str(self.id), CONNECTION, "--show").partition(
            "\n"
        )
        return rest if first.startswith("Using SuperLink") else f"{first}\n{rest}"

    def stop_run(self) -> None:
        """Ask the SuperLink to stop it."""
        self._federation.flwr_json("stop", str(self.id), CONNECTION)

    def kill_server_app(self) -> None:
        """Kill the process that runs the server's app (of every run in progress: they cannot be
        told apart)."""
        if not self._federation.kill_server_apps():
            raise FederationError(f"run {self.id} has no server app; its status is {self.status()}")


class Loopback:
    """A SuperLink and ``nodes`` SuperNodes on 127.0.0.1; entering it as a context starts them,
    leaving it ends all their processes.

    directory: where everything is kept; only one federation at a time can use it. tls: encrypt, and
    let in only nodes whose key is registered. Without it, anything that reaches the port is let in.
    data: one file for each node, or a directory with as many .csv files; a node finds its path as
    "data" in its configuration. env: more environment variables for all processes. port: the
    SuperLink's; 0 for a free one. cwd: working directory of the SuperLink, thus of server apps; the
    present one by default.
    """

    def __init__(
        self,
        directory: str | Path,
        nodes: int = 4,
        tls: bool = True,
        data: str | Path | Sequence[str | Path] | None = None,
        env: Mapping[str, str] | None = None,
        port: int = 0,
        cwd: str | Path | None = None,
    ) -> None:
        require_whole("nodes", nodes, 1)
        if os.name != "posix":
            raise FederationError(
                "a federation on loopback needs Linux or macOS; start flower-superlink and"
                " flower-supernode by hand"
            )
        if find_spec("flwr") is None:
            raise FederationError("a federation needs Flower: pip install evenhand[flower]")
        self.directory, self.tls = Path(directory).absolute(), tls
        self.data = _one_file_each(data, nodes) if data is not None else None
        self._nodes, self._port, self._cwd = nodes, port, Path(cwd or ".")
        self._env = dict(env or {})
        self._token = secrets.token_hex(16)
        self._lock = FileLock(self.directory / "lock")
        self._guard: subprocess.Popen[bytes] | None = None
        self._console: subprocess.Popen[bytes] | None = None
        self.certificates: Certificates | None = None
        self.keys: list[NodeKey] = []
        self.members: list[Member] = []  # the SuperLink, then the nodes

    # Starting and stopping

    def start(self) -> None:
        """Start all processes and return when every node is online; where that fails, nothing is
        left running."""
        private_directory(self.directory)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise FederationError(
                f"{self.directory} is used by another federation that runs; choose another"
                " directory"
            ) from None
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._token = secrets.token_hex(16)
        self._prepare()
        self._guard = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("guard.py")), self._token],
            stdin=subprocess.PIPE,
            # Ctrl-C in a terminal goes to a whole group; the guard is the last to end
            start_new_session=True,
        )
        self.link.launch()
        self._start_console()  # imports Flower while the SuperLink does
        self.link.wait_until_ready()
        if self.tls:
            for key in self.keys:
                self.flwr_json("supernode", "register", str(key.public), CONNECTION)
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_until_ready(timeout=60 + 5 * len(self.nodes))

    def stop(self) -> None:
        """End every process of the federation and wait until they are gone."""
        self.kill_server_apps()  # before the nodes: it would go on, and find nobody
        # nodes first, so that they can take their leave
        for members in (self.nodes, self.members[:1]):
            for member in members:
                member.terminate()
            deadline = time.monotonic() + 6
            while any(member.pid is not None for member in members) and time.monotonic() < deadline:
                time.sleep(0.02)
            for member in members:
                member.kill()
        self._end_helpers()
        self._lock.release()

    def _end_helpers(self) -> None:
        for helper in (self._console, self._guard):  # the guard ends whatever is left
            if helper is not None:
                with suppress(BrokenPipeError):
                    _pipe(helper.stdin).close()
                if helper is self._console:
                    _pipe(helper.stdout).close()
                    end_group(helper.pid)
                helper.wait()
        self._console = self._guard = None

    def __enter__(self) -> Loopback:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def add_node(self, data: str | Path | None = None) -> Member:
        """Start one more SuperNode, and return when it is online."""
        i = self._nodes
        self._nodes += 1
        if self.data is not None and data is not None:
            self.data.append(Path(data).absolute())
        if self.tls:
            self.keys.append(write_node_key(self.directory / "keys", f"node-{i}"))
            self.flwr_json("supernode", "register", str(self.keys[i].public), CONNECTION)
        node = self._node(i, free_ports(0, 1)[0])
        self.members.append(node)
        node.launch()
        node.wait_until_ready()
        return node

    # What there is

    @property
    def link(self) -> Member:
        """The SuperLink."""
        return self.members[0]

    @property
    def nodes(self) -> list[Member]:
        """The SuperNodes."""
        return self.members[1:]

    def node(self, i: int) -> Member:
        """SuperNode ``i``, counted from 0."""
        return self.nodes[i]

    @property
    def address(self) -> str:
        """Host and port of the SuperLink."""
        return f"{HOST}:{self._port}"

    @property
    def home(self) -> Path:
        """The FLWR_HOME with which ``flwr`` commands find this federation."""
        return self.directory / "flwr" / "user"

    def ended(self) -> list[Member]:
        """Members that should run and do not."""
        return [member for member in self.members if member.pid is None]

    def pids(self) -> list[int]:
        """Ids of all processes of the federation (where there is a /proc to search)."""
        return marked(self._token)

    # Runs and commands

    def kill_server_apps(self) -> bool:
        """Kill the processes that run servers' apps (where there is a /proc to find them); whether
        there were any."""
        found = (
            [pid for pid in self.link.pids() if b"flwr-serverapp" in _command_line(pid)]
            if self.members
            else []
        )
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def run(
        self, app: str | Path, config: Mapping[str, str | int | float | bool] | str | None = None
    ) -> Run:
        """Start a run of the Flower app in a directory; ``config`` overrides values of its
        [tool.flwr.app.config]."""
        settings = (
            config
            if isinstance(config, str)
            else " ".join(f"{key}={_value(value)}" for key, value in (config or {}).items())
        )
        started = self.flwr_json(
            "run", str(app), CONNECTION, *(("--run-config", settings) if settings else ())
        )
        return Run(self, int(started["run-id"]))

    def flwr(self, *arguments: str) -> str:
        """Carry out a ``flwr`` command and give what it prints."""
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
                f"flwr {' '.join(arguments)} ended without an answer; see {self._console_log}"
            )
        code, printed = json.loads(answer)
        if code:
            raise FederationError(f"flwr {' '.join(arguments)} failed: {_error_in(printed)}")
        return str(printed)

    def flwr_json(self, *arguments: str) -> dict[str, Any]:
        """Carry out a ``flwr`` command that can answer in JSON."""
        answer: dict[str, Any] = json.loads(self.flwr(*arguments, "--format", "json"))
        if not answer.get("success"):
            raise FederationError(
                f"flwr {' '.join(arguments)} failed:"
                f" {_error_in(str(answer.get('error-message', answer)))}"
            )
        return answer

    def environment(self, name: str) -> dict[str, str]:
        """Environment variables for a process: our settings, a FLWR_HOME of its own, and Flower's
        commands on the path."""
        scripts = sysconfig.get_path("scripts")  # Flower starts its own commands by name
        return {
            **os.environ,
            "PATH": os.pathsep.join((scripts, os.environ.get("PATH", os.defpath))),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",  # seconds; 1 by default
            "PYTHONUNBUFFERED": "1",
            **self._env,
            **QUIET_FLOWER,
            "FLWR_HOME": str(self.directory / "flwr" / name.replace(" ", "-")),
            MARK: self.mark(name),
        }

    def mark(self, name: str) -> str:
        """What marks processes of a member."""
        return f"{self._token}/{name.replace(' ', '-')}"

    def spawn(self, name: str, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process that ends with this federation, whatever happens to us."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment(name),
                cwd=self._cwd,
                start_new_session=True,
            )
        self.tell_guard(f"+{process.pid}")
        return process

    def tell_guard(self, line: str) -> None:
        """Which process groups the guard has to end."""
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):
                self._guard.stdin.write(f"{line}\n".encode())
                self._guard.stdin.flush()

    def _start_console(self) -> None:
        with self._console_log.open("ab") as log:
            self._console = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("console.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**self.environment("user"), "COLUMNS": "1000"},
                start_new_session=True,
            )
        self.tell_guard(f"+{self._console.pid}")

    @property
    def _console_log(self) -> Path:
        return self.directory / "logs" / "console.log"

    # Files

    def _prepare(self) -> None:
        """Files, ports and command lines."""
        for old in ("logs", "tls", "keys", "flwr"):
            shutil.rmtree(self.directory / old, ignore_errors=True)
        for path in self.directory.glob("link.db*"):
            path.unlink()
        (self.directory / "logs").mkdir()
        ports = free_ports(self._port, 1 + self._nodes)
        self._port = ports[0]
        if self.tls:
            self.certificates = write_certificates(self.directory / "tls")
            self.keys = [
                write_node_key(self.directory / "keys", f"node-{i}") for i in range(self._nodes)
            ]
        self._write_connection()
        for name in ("link", "user"):
            private_directory(self.directory / "flwr" / name)
        link = Member(self, "link", self._link_command(), lambda _: listens(self._port))
        self.members = [link, *(self._node(i, ports[1 + i]) for i in range(self._nodes))]

    def _node(self, i: int, port: int) -> Member:
        private_directory(self.directory / "flwr" / f"node-{i}")
        return Member(
            self, f"node {i}", self._node_command(i, port), lambda text: "SuperNode ID:" in text
        )

    def _write_connection(self) -> None:
        trust = (
            "insecure = true"
            if self.certificates is None
            else f"root-certificates = {json.dumps(str(self.certificates.authority))}"
        )
        private_directory(self.home)
        text = (
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress ='
            f' "{self.address}"\n{trust}\n'
        )
        (self.home / "config.toml").write_text(text)

    def _link_command(self) -> list[str]:
        tls = ["--insecure"]
        if self.certificates is not None:
            authority, server, key = map(str, self.certificates)
            tls = [
                "--ssl-ca-certfile",
                authority,
                "--ssl-certfile",
                server,
                "--ssl-keyfile",
                key,
                "--enable-supernode-auth",
            ]
        database = str(self.directory / "link.db")
        return [
            "flower-superlink",
            "--host",
            HOST,
            "--port",
            str(self._port),
            "--database",
            database,
            *tls,
        ]

    def _node_command(self, i: int, port: int) -> list[str]:
        state = private_directory(self.directory / "state" / f"node-{i}")
        config: dict[str, str | int] = {
            "partition-id": i,
            "num-partitions": self._nodes,
            "state-dir": str(state),
        }
        if self.data is not None and i < len(self.data):
            config["data"] = str(self.data[i])
        tls = ["--insecure"]
        if self.certificates is not None:
            tls = [
                "--root-certificates",
                str(self.certificates.authority),
                "--auth-supernode-private-key",
                str(self.keys[i].private),
            ]
        settings = " ".join(f"{key}={_value(value)}" for key, value in config.items())
        here = ["--host", HOST, "--port", str(port)]
        return [
            "flower-supernode",
            "--superlink",
            self.address,
            *here,
            *tls,
            "--node-config",
            settings,
        ]


def data_files(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """Files for the nodes: those given, or the .csv files of a directory in the order of their
    names."""
    if isinstance(source, str | Path):
        directory = Path(source)
        if not directory.is_dir():
            return [directory]
        return sorted(directory.glob("*.csv"))
    return [Path(path) for path in source]


def _error_in(printed: str) -> str:
    """In one line, what a ``flwr`` command that failed says, without its notes before and the box
    it draws."""
    said = re.sub(r".*(Using SuperLink: \S+ \(\S+\)|Error ─)", "", printed, flags=re.DOTALL)
    return " ".join(said.translate(dict.fromkeys(map(ord, "─│╭╮╰╯"), " ")).split())


def _one_file_each(data: str | Path | Sequence[str | Path], nodes: int) -> list[Path]:
    files = [path.absolute() for path in data_files(data)]
    if len(files) != nodes:
        raise ValueError(
            f"data must be one file for each of the {nodes} nodes, got {len(files)}; change --nodes"
            " or the files"
        )
    for path in files:
        if not path.is_file():
            raise ValueError(f"{path} is not a file; data must be one file for each node")
    return files


def _value(value: str | int | float | bool) -> str:
    """A value as Flower's key=value lists have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    if '"' in value or "\\" in value or "\n" in value:
        raise ValueError(
            f"{value!r} has a quotation mark, backslash or line break, which Flower's configuration"
            " cannot carry; rename it"
        )
    return f'"{value}"'


def _command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise FederationError("the federation is not running; call start() first")
    return stream
