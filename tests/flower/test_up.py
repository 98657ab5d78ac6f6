"""A federation on loopback: real processes, real TLS, and nothing left behind."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install evenhand[flower]")

from evenhand.cli.flower import flower
from evenhand.cli.tryout import carry_out
from evenhand.flower.diagnosis import reason
from evenhand.flower.tryout.certificates import write_certificates, write_node_key
from evenhand.flower.tryout.errors import FederationError
from evenhand.flower.tryout.guard import __file__ as guard_file
from evenhand.flower.tryout.guard import marked
from evenhand.flower.tryout.loopback import Loopback, data_files
from evenhand.flower.tryout.member import Member
from tests.support.flower_app import write_app

needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")

CLIENT = """
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(msg, context):
    config = context.node_config
    seen = Path(config["state-dir"]) / "seen"
    seen.write_text(seen.read_text() + "x" if seen.exists() else "x")
    answer = {"number": config["partition-id"], "of": config["num-partitions"], "data": Path(config["data"]).read_text()}
    answer["seen"] = seen.read_text()
    return Message(RecordDict({"answer": ConfigRecord(answer)}), reply_to=msg)
"""

SERVER = """
import json, os, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    if context.run_config["fail"]:
        raise ValueError("the app was told to fail")
    rounds = []
    for _ in range(context.run_config["rounds"]):
        waiting = set(grid.push_messages([Message(RecordDict(), dst_node_id=i, message_type="query") for i in grid.get_node_ids()]))
        answers, deadline = [], time.monotonic() + 40
        while waiting and time.monotonic() < deadline:
            for message in grid.pull_messages(waiting):
                waiting.discard(message.metadata.reply_to_message_id)
                answers.append(dict(message.content["answer"]))
            time.sleep(0.05)
        rounds.append(sorted(answers, key=lambda answer: answer["number"]))
    settings = {name: os.environ[name] for name in os.environ if name.startswith("FLWR_")}
    Path(context.run_config["out"]).write_text(json.dumps({"rounds": rounds, "settings": settings}))
    print("written", flush=True)
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Flower app that asks every node who it is, twice."""
    app = tmp_path_factory.mktemp("tiny app")  # with a space
    return write_app(app, "tiny", CLIENT, SERVER, {"rounds": "2", "out": '""', "fail": "false"})


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """Three nodes, with TLS and keys; a data file each."""
    place = tmp_path_factory.mktemp("federation")
    (place / "data").mkdir()
    for name in "bca":
        (place / "data" / f"{name}.csv").write_text(f"data of {name}")
    running = Loopback(place / "state of it", nodes=3, data=place / "data")
    running.start()
    yield running
    running.stop()


def test_a_certificate_is_trusted_through_its_authority_and_no_other(tmp_path: Path) -> None:
    ours, other = write_certificates(tmp_path / "ours"), write_certificates(tmp_path / "other")

    assert _handshake(ours.server, ours.key, trust=ours.authority, name="127.0.0.1") == "trusted"
    assert _handshake(ours.server, ours.key, trust=ours.authority, name="localhost") == "trusted"
    assert "unable to get local issuer certificate" in _handshake(
        ours.server, ours.key, trust=other.authority, name="127.0.0.1"
    )
    assert "IP address mismatch" in _handshake(
        ours.server, ours.key, trust=ours.authority, name="127.0.0.2"
    )
    assert "Hostname mismatch" in _handshake(
        ours.server, ours.key, trust=ours.authority, name="example.org"
    )


def test_a_certificate_for_another_name_is_trusted_there_alone(tmp_path: Path) -> None:
    made = write_certificates(tmp_path, names=("link.example.org",))

    assert (
        _handshake(made.server, made.key, trust=made.authority, name="link.example.org")
        == "trusted"
    )
    assert "Hostname mismatch" in _handshake(
        made.server, made.key, trust=made.authority, name="localhost"
    )


def test_private_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    mask = os.umask(0)  # nothing but our own modes
    try:
        made = write_certificates(tmp_path / "tls")
        key = write_node_key(tmp_path / "keys", "node-0")
        key = write_node_key(tmp_path / "keys", "node-0")  # in place of an older one
    finally:
        os.umask(mask)

    assert [
        _mode(made.key),
        _mode(key.private),
        _mode(tmp_path / "tls"),
        _mode(tmp_path / "keys"),
    ] == [0o600, 0o600, 0o700, 0o700]
    # no key of the authority
    assert sorted(path.name for path in (tmp_path / "tls").iterdir()) == [
        "ca.crt",
        "server.key",
        "server.pem",
    ]
    assert key.private.read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert key.public.read_text().startswith("ecdsa-sha2-nistp384 ")


def test_a_run_reaches_every_node_with_its_own_settings(
    federation: Loopback, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"

    carry_out(federation, tiny, f'out="{out}"')

    written = json.loads(out.read_text())
    expected = [
        [
            {"number": i, "of": 3, "data": f"data of {'abc'[i]}", "seen": "x" * visits}
            for i in range(3)
        ]
        for visits in (1, 2)
    ]  # files in the order of their names; state is kept between messages
    assert written["rounds"] == expected
    assert written["settings"]["FLWR_TELEMETRY_ENABLED"] == "0"
    assert written["settings"]["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert written["settings"]["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert written["settings"]["FLWR_HOME"] == str(federation.directory / "flwr" / "link")
    captured = capsys.readouterr()
    assert captured.out.count("written") == 1
    assert captured.err.strip().endswith(": finished:completed")


def test_a_run_that_fails_is_an_error(
    federation: Loopback, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        carry_out(federation, tiny, "fail=true")

    assert end.value.code == 1
    captured = capsys.readouterr()
    assert "ValueError: the app was told to fail" in captured.out
    assert (
        "finished:failed (ServerApp failed with exception: the app was told to fail)"
        in captured.err
    )


def test_an_app_that_is_none_is_refused_in_one_line(federation: Loopback, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"flwr run .* failed: .*pyproject\.toml") as refused:
        federation.run(tmp_path)

    assert "\n" not in str(refused.value)
    assert "─" not in str(refused.value)


def test_strangers_are_refused_and_told_why(federation: Loopback, tmp_path: Path) -> None:
    assert federation.certificates is not None
    known = ["--root-certificates", str(federation.certificates.authority)]
    stranger = write_node_key(tmp_path / "keys", "stranger").private
    elsewhere = write_certificates(tmp_path / "tls").authority
    attempts = {
        "wrong CA": [
            "--root-certificates",
            str(elsewhere),
            "--auth-supernode-private-key",
            str(federation.keys[0].private),
        ],
        "unregistered key": [*known, "--auth-supernode-private-key", str(stranger)],
        "no key": known,
        "plaintext": ["--insecure"],
    }
    members = {name: _stranger(federation, name, options) for name, options in attempts.items()}
    for member in members.values():
        member.launch()

    try:
        told = {name: _why_it_ended(member) for name, member in members.items()}
    finally:
        for member in members.values():
            member.kill()

    assert "does not trust the SuperLink's certificate" in told["wrong CA"]
    assert "key is not registered" in told["unregistered key"]
    assert "has no key" in told["no key"]
    assert "uses plaintext" in told["plaintext"]
    online = federation.flwr_json("supernode", "list", "loopback")["nodes"]
    assert [node["status"] for node in online] == ["online"] * 3


@needs_proc
def test_a_node_that_dies_is_named_and_can_come_back(federation: Loopback) -> None:
    node = federation.node(2)
    assert len(node.pids()) == 2  # itself and what starts its client apps
    node.stop()

    assert node.pids() == []
    assert federation.ended() == [node]
    with pytest.raises(
        FederationError,
        match=r"^node 2 has ended \(exit code 0\)[\s\S]*node-2\.log:[\s\S]*terminated gracefully",
    ):
        node.check()
    node.restart()
    assert federation.ended() == []


@needs_proc
def test_nothing_is_left_after_the_end(federation: Loopback) -> None:
    ports = [
        int(member.command[member.command.index("--port") + 1]) for member in federation.members
    ]
    pids = federation.pids()
    assert len(pids) == 9  # a SuperLink and 3 nodes, what starts their apps, and the console
    with pytest.raises(FederationError, match="is in use by another running federation"):
        Loopback(federation.directory).start()

    federation.stop()

    assert federation.pids() == []
    assert [pid for pid in pids if _runs(pid)] == []
    for port in ports:
        with socket.socket() as taker:
            taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taker.bind(("127.0.0.1", port))


@needs_proc
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_up_leaves_nothing_behind_however_it_ends(how: signal.Signals, tmp_path: Path) -> None:
    token = secrets.token_hex(8)
    with _up(token, "--nodes", "1", "--insecure", "--dir", str(tmp_path / "fed")) as up:
        said = _read_until(up, "Ctrl-C")
        running = _processes(token)
        up.send_signal(how)
        up.wait(20)

    # up, its guard, its console, the link and the node with what starts their apps
    assert len(running) == 7
    assert "INSECURE: no TLS, no node keys" in said
    assert up.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143}[how]
    _wait_until(lambda: not _processes(token), 10)


@needs_proc
def test_up_interrupted_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    token = secrets.token_hex(8)
    with _up(token, "--dir", str(tmp_path / "fed")) as up:
        # up, its guard, its console and the link
        _wait_until(lambda: len(_processes(token)) >= 4, 10)
        up.send_signal(signal.SIGINT)
        up.wait(20)
        assert up.stderr is not None
        assert up.stderr.read().splitlines() == ["starting a SuperLink and 4 nodes...", "stopped"]

    assert up.returncode == 130
    assert _processes(token) == []


def test_a_port_that_is_taken_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as end:
            flower(["up", "--dir", str(tmp_path / "fed"), "--port", str(port)])

    assert end.value.code == 1
    message = (
        f"evenhand: port {port} of 127.0.0.1 is taken; choose another with --port, or leave it out"
        " to get a free one"
    )
    assert capsys.readouterr().err.splitlines() == ["starting a SuperLink and 4 nodes...", message]


def test_data_is_one_file_for_each_node(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "notes.txt"):
        (tmp_path / name).touch()

    assert data_files(tmp_path) == [tmp_path / "a.csv", tmp_path / "b.csv"]
    assert Loopback(tmp_path / "fed", nodes=2, data=tmp_path).data == [
        tmp_path / "a.csv",
        tmp_path / "b.csv",
    ]
    with pytest.raises(ValueError, match=r"data must be one file for each of the 3 nodes, got 2"):
        Loopback(tmp_path / "fed", nodes=3, data=tmp_path)
    with pytest.raises(ValueError, match=r"none\.csv is not a file"):
        Loopback(tmp_path / "fed", nodes=1, data=[tmp_path / "none.csv"])


@needs_proc
def test_the_guard_ends_what_is_marked_and_nothing_else_when_its_owner_is_gone() -> None:
    mark = secrets.token_hex(8)
    guard = subprocess.Popen([sys.executable, "-P", guard_file, mark], stdin=subprocess.PIPE)
    assert guard.stdin is not None
    one, ten, other = (
        _sleeper(name) for name in (f"{mark}/node-1", f"{mark}/node-10", f"{mark}0/node-1")
    )
    try:
        _wait_until(lambda: len(marked(mark)) == 2 and len(marked(f"{mark}0")) == 1, 5)
        assert marked(f"{mark}/node-1") == [one.pid]
        assert guard.poll() is None

        guard.stdin.close()  # as when the owner ends, in whatever way

        assert guard.wait(5) == 0
        assert (one.wait(5), ten.wait(5), other.poll()) == (-9, -9, None)
    finally:
        for process in (guard, one, ten, other):
            process.kill()
            process.wait()


def _handshake(certificate: Path, key: Path, trust: Path, name: str) -> str:
    """ "trusted", or why a client that expects ``name`` does not trust a server."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            serving.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    server = threading.Thread(target=serve)
    server.start()
    try:
        ssl.create_default_context(cafile=str(trust)).wrap_socket(
            ours, server_hostname=name
        ).close()
        return "trusted"
    except ssl.SSLCertVerificationError as error:
        return str(error)
    finally:
        ours.close()
        server.join()


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _stranger(federation: Loopback, name: str, options: list[str]) -> Member:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = [
        "--superlink",
        federation.address,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-retries",
        "0",
    ]
    return Member(
        federation.processes,
        name,
        ["flower-supernode", *address, *options],
        lambda text: "SuperNode ID:" in text,
    )


def _why_it_ended(member: Member) -> str:
    with pytest.raises(FederationError) as refused:
        member.wait_until_ready(30)
    assert "exit code 1" in str(refused.value)
    return reason(member.text())


def _sleeper(mark: str) -> subprocess.Popen[bytes]:
    """A process that outlives everything but a signal, in a session of its own."""
    code = "import time; time.sleep(30)"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "EVENHAND_FEDERATION": mark},
        start_new_session=True,
    )


def _up(token: str, *options: str) -> subprocess.Popen[str]:
    """The command as a process of its own, whose processes can be told by ``token``."""
    code = "from evenhand.cli.flower import flower; flower()"
    environment = {**os.environ, "EVENHAND_TEST": token}
    return subprocess.Popen(
        [sys.executable, "-c", code, "up", *options],
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )


def _read_until(up: subprocess.Popen[str], words: str) -> str:
    assert up.stderr is not None
    said = ""
    while words not in said:
        line = up.stderr.readline()
        assert line, said
        said += line
    return said


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _processes(token: str) -> list[int]:
    """Processes that inherited a variable from a test."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"EVENHAND_TEST={token}".encode() in environment:
                found.append(int(entry.name))
    return found


def _wait_until(fact: Callable[[], bool], patience: float) -> None:
    deadline = time.monotonic() + patience
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)
