"""The commands of the container files as plain processes, with the real nginx in front of a real
SuperLink: nodes get through, strangers do not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")
pytest.importorskip("yaml")

from evenhand.flower.deploy.write import deployment
from evenhand.flower.project.new import example, write_project
from evenhand.flower.tryout.ports import free_ports
from evenhand.flower.tryout.processes import Processes
from tests.support.containers import nginx_config, services
from tests.support.flower_trial import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
]
FILES = deployment("trial")


class Containers:
    """Starts services with the paths and ports of containers replaced by those of a test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes = Processes(directory, directory, {})
        self.link, self.guard, *self.nodes = free_ports(0, 4)
        self.logs = directory / "logs"
        self.logs.mkdir()
        self.started: list[subprocess.Popen[bytes]] = []

    def words(self, text: str, node: int = 0) -> str:
        """A word of a command, or a file, as it has to be here."""
        home = self.directory / f"node{node}"
        table = self.directory / "app" / "data" / f"hospital-0{node + 1}.csv"
        here = {
            "/etc/evenhand/policy.toml": f"{self.directory}/app/policy.toml",
            "/etc/evenhand/ca.crt": f"{self.directory}/tls/ca.crt",
            "/etc/evenhand/keys": f"{home}/keys",
            "/etc/evenhand/tls": f"{self.directory}/tls",
            "/var/lib/evenhand/state": f"{home}/state",
            "/var/lib/evenhand/link.db": f"{self.directory}/link.db",
            "/data/table.csv": str(table),
            "${NODE_NAME:?set NODE_NAME in .env}": f"north-{node}",
            "${LINK:?set LINK in .env}": f"localhost:{self.guard}",
            "${LINK_NAME:?set LINK_NAME in .env}": "link.example.org",
            "0.0.0.0": "127.0.0.1",
            "8001": str(self.link),
            "listen 8000": f"listen 127.0.0.1:{self.guard}",
            "9094": str(self.nodes[node]),
            "/tmp/": f"{self.directory}/nginx/",
            "access_log /dev/stdout": "access_log off",
        }
        return re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], text)

    def once(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Carry out a command."""
        found = [sys.executable if command[0] == "python" else command[0], *command[1:]]
        return subprocess.run(
            found,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=self.processes.environment("user") | env,
        )

    def start(self, name: str, command: list[str]) -> Callable[[], str]:
        """Start a service; its log."""
        log = self.logs / name
        with log.open("wb") as output:
            self.started.append(
                self.processes.spawn(name, command, stdout=output, cwd=self.directory)
            )
        return log.read_text

    def service(self, file: str, name: str, key: str = "command", node: int = 0) -> list[str]:
        """A service's words."""
        spec: Any = services(FILES[file])[name][key]
        words = spec["test"][1:] if key == "healthcheck" else spec
        return [self.words(word, node) for word in words]


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    found = Containers(tmp_path)
    found.processes.start()
    yield found
    found.processes.stop()
    for process in found.started:
        process.wait(30)


def test_nodes_get_through_nginx_and_strangers_do_not(
    containers: Containers, tmp_path: Path
) -> None:
    codebook, tables = example(hospitals=2)
    write_project(tmp_path / "app", codebook, "fedavg", 2, tables)
    made = containers.once(
        *containers.service("compose.yaml", "certificates", "entrypoint"),
        *containers.service("compose.yaml", "certificates"),
    )
    authority = tmp_path / "tls" / "ca.crt"
    assert made.stdout == authority.read_text()

    containers.start("superlink", containers.service("compose.yaml", "superlink"))
    healthy = containers.service("compose.yaml", "superlink", "healthcheck")
    wait_until(lambda: containers.once(*healthy).returncode == 0)
    (tmp_path / "nginx").mkdir()
    config = tmp_path / "nginx.conf"
    config.write_text(containers.words(nginx_config(FILES["kubernetes/server/10-nginx.yaml"])))
    containers.start("guard", ["nginx", "-c", str(config), "-g", "daemon off;"])

    def flwr(home: str, port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        place = tmp_path / home
        place.mkdir(exist_ok=True)
        text = containers.words(FILES["flwr.toml"]).replace(f":{containers.link}", f":{port}")
        (place / "config.toml").write_text(text)
        return containers.once("flwr", *arguments, FLWR_HOME=str(place), COLUMNS="300")

    logs = []
    for i in (0, 1):
        key = containers.once(
            *containers.service("compose.node.yaml", "key", "entrypoint", node=i)
        ).stdout
        (tmp_path / f"{i}.pub").write_text(key)
        done = flwr(
            "operator", containers.link, "supernode", "register", str(tmp_path / f"{i}.pub"), "link"
        )
        assert done.returncode == 0, done.stdout
        command = containers.service("compose.node.yaml", "supernode", node=i)
        logs.append(containers.start(f"node{i}", command))
    for log in logs:
        wait_until(lambda log=log: "SuperNode ID:" in log())
    healthy = containers.service("compose.node.yaml", "supernode", "healthcheck")
    assert containers.once(*healthy).returncode == 0

    # somebody who has ca.crt, as every node does, and reaches the public port
    run = ("run", str(tmp_path / "app"), "link", "-c", "num-rounds=1")
    for arguments in (
        run,
        ("list", "link"),
        ("supernode", "list", "link"),
        ("supernode", "register", str(tmp_path / "0.pub"), "link"),
    ):
        refused = flwr("stranger", containers.guard, *arguments)
        assert refused.returncode != 0
        assert "403 Forbidden" in refused.stdout + refused.stderr
    for path, status in {
        "/v1/control/list-runs": "403",
        "/v1/fleet/../control/list-runs": "403",
        "/v1/fleet/%2e%2e/control/list-runs": "403",
        "/v1/runtime/acquire-task": "403",
        "/v1/fleet/get-run": "415",  # the SuperLink's own answer to a body that is no message
    }.items():
        address = f"https://localhost:{containers.guard}{path}"
        asked = containers.once(
            *("curl", "-s", "--path-as-is", "-o", "/dev/null", "-w", "%{http_code}"),
            *("-X", "POST", "--cacert", str(authority), address),
        )
        assert (path, asked.stdout) == (path, status)

    # the operator, on the SuperLink's own port
    started = flwr("operator", containers.link, *run)
    assert started.returncode == 0, started.stdout
    wait_until(lambda: any(tmp_path.glob("runs/*/fedavg/model.safetensors")))
