"""A federation on this machine's loopback: a SuperLink and SuperNodes as real processes, for
try-outs and tests.

    with Loopback(directory, nodes=4) as federation:
        run = federation.run("my-app", {"num-rounds": 3})
        print(run.wait(timeout=300))                        # "finished:completed"

The directory has everything: logs/, tls/, keys/, flwr/ (the FLWR_HOME of each process), state/ (the
nodes' memory) and link.db. Each start makes new certificates, keys and a new database; state/ is
kept.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from evenhand.errors import require_whole
from evenhand.flower.tryout.certificates import (
    Certificates,
    NodeKey,
    private_directory,
    write_certificates,
    write_node_key,
)
from evenhand.flower.tryout.commands import USER, Commands
from evenhand.flower.tryout.errors import FederationError
from evenhand.flower.tryout.member import Member
from evenhand.flower.tryout.options import (
    CONNECTION,
    connection,
    key_values,
    link_command,
    node_command,
)
from evenhand.flower.tryout.ports import HOST, free_ports, listens
from evenhand.flower.tryout.processes import Processes
from evenhand.flower.tryout.run import Run, kill_server_apps


class Loopback:
    """A SuperLink and ``nodes`` SuperNodes on 127.0.0.1. As a context manager it starts them, and
    ends all their processes on exit.

    Args:
        directory: where everything is stored; only one federation at a time can use it.
        tls: encrypt, and admit only nodes with a registered key. Without it, anything that reaches
            the port is admitted.
        data: one file per node, or a directory with as many .csv files; a node finds its path as
            "data" in its node config.
        env: additional environment variables for all processes.
        port: the SuperLink's; 0 for a free one.
        cwd: working directory of the SuperLink, and so of server apps; by default the current one.
        policy: a file with the owner's limits, for every node.
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
        policy: str | Path | None = None,
    ) -> None:
        require_whole("nodes", nodes, 1)
        if os.name != "posix":
            raise FederationError(
                "a federation on loopback needs Linux or macOS; start flower-superlink and"
                " flower-supernode by hand"
            )
        self.directory, self.tls = Path(directory).absolute(), tls
        self.data = _one_file_each(data, nodes) if data is not None else None
        self._nodes, self._port = nodes, port
        self._policy = policy and Path(policy).absolute()
        self._lock = FileLock(self.directory / "lock")
        self.processes = Processes(self.directory, Path(cwd or "."), env or {})
        self._commands = Commands(self.processes)
        self.certificates: Certificates | None = None
        self.keys: list[NodeKey] = []
        self.members: list[Member] = []  # the SuperLink, then the nodes

    # Starting and stopping

    def start(self) -> None:
        """Start all processes and return when every node is online; if that fails, no process stays
        behind."""
        private_directory(self.directory)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise FederationError(
                f"{self.directory} is in use by another running federation; choose another"
                " directory"
            ) from None
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._prepare()
        self.processes.start()
        self.link.launch()
        self._commands.start()  # loads Flower while the SuperLink does
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
        if self.members:  # before the nodes: a server app would continue and find nobody
            kill_server_apps(self.link)
        # nodes first, so that they can sign off
        for members in (self.nodes, self.members[:1]):
            for member in members:
                member.terminate()
            deadline = time.monotonic() + 6
            while any(member.pid is not None for member in members) and time.monotonic() < deadline:
                time.sleep(0.02)
            for member in members:
                member.kill()
        self._commands.stop()
        self.processes.stop()
        self._lock.release()

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
            self._trust()
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
        return self.processes.home(USER)

    def ended(self) -> list[Member]:
        """Members that should run but do not."""
        return [member for member in self.members if member.pid is None]

    def pids(self) -> list[int]:
        """Ids of all processes of the federation (needs /proc)."""
        return self.processes.pids()

    # Runs and commands

    def run(
        self, app: str | Path, config: Mapping[str, str | int | float | bool] | str | None = None
    ) -> Run:
        """Start a run of the Flower app in a directory; ``config`` overrides values of its
        [tool.flwr.app.config]."""
        settings = config if isinstance(config, str) else key_values(config or {})
        started = self.flwr_json(
            "run", str(app), CONNECTION, *(("--run-config", settings) if settings else ())
        )
        return Run(self._commands, self.link, int(started["run-id"]))

    def flwr(self, *arguments: str) -> str:
        """Run a ``flwr`` command; returns what it prints."""
        return self._commands.flwr(*arguments)

    def flwr_json(self, *arguments: str) -> dict[str, Any]:
        """Run a ``flwr`` command that can answer in JSON."""
        return self._commands.flwr_json(*arguments)

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
            self._trust()
        for name in ("link", USER):
            private_directory(self.processes.home(name))
        config = connection(self.address, self.certificates)
        (self.home / "config.toml").write_text(config, encoding="utf-8")
        command = link_command(self._port, self.directory / "link.db", self.certificates)
        link = Member(self.processes, "link", command, lambda _: listens(self._port))
        self.members = [link, *(self._node(i, ports[1 + i]) for i in range(self._nodes))]

    @property
    def _trusted(self) -> Path:
        """The public keys of all nodes, as their owners would exchange them."""
        return self.directory / "keys" / "trusted.pub"

    def _trust(self) -> None:
        lines = [key.public.read_text(encoding="utf-8") for key in self.keys]
        self._trusted.write_text("".join(lines), encoding="utf-8")

    def _node(self, i: int, port: int) -> Member:
        name, state = f"node {i}", private_directory(self.directory / "state" / f"node-{i}")
        private_directory(self.processes.home(name))
        config: dict[str, str | int | float | bool] = {
            "partition-id": i,
            "num-partitions": self._nodes,
            "state-dir": str(state),
        }
        if self.data is not None and i < len(self.data):
            config["data"] = str(self.data[i])
        if self._policy:
            config["policy"] = str(self._policy)
        if self.tls:  # for masked sums
            config["identity-key"] = str(self.keys[i].private)
            config["trusted-keys"] = str(self._trusted)
        trust = None if self.certificates is None else self.certificates.authority
        key = self.keys[i] if self.tls else None
        command = node_command(self.address, port, config, trust, key)
        return Member(self.processes, name, command, lambda text: "SuperNode ID:" in text)


def data_files(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """Files for the nodes: those given, or the .csv files of a directory in alphabetical order."""
    if isinstance(source, str | Path):
        directory = Path(source)
        if not directory.is_dir():
            return [directory]
        return sorted(directory.glob("*.csv"))
    return [Path(path) for path in source]


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
