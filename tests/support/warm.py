"""An ``evenhand`` command that starts at once: a process that has imported everything forks for it.

Every command is a process of its own, with its own arguments, environment, directory and streams,
as usual, but need not spend two to four seconds on imports. It writes UTF-8. For tests of what a command does; those
of how a process starts, is stopped or is killed call the real one.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# imported lazily by most commands
LATER = (
    "evenhand.studies.runs.directories",
    "evenhand.studies.runs.executing",
    "evenhand.studies.findings",
    "evenhand.page.report",
    "evenhand.engines.vmap",
    "evenhand.track",
    "sklearn.datasets",
    "torch._dynamo",
    "torch.func",
)
# what is run in place of the command: no imports but those that sending takes
STUB = """\
#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
server.sendall(asked)
sys.exit(int(server.recv(8) or b"70"))
"""


@cache
def commands() -> Path:
    """A directory with the command, for the front of PATH; it lasts as long as this process."""
    directory = Path(tempfile.mkdtemp(prefix="warm"))
    address = str(directory / "server")
    stub = directory / "evenhand"
    stub.write_text(STUB.format(python=sys.executable, address=address), encoding="utf-8")
    stub.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm", address],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,  # it ends when this closes, however this process ends
        stdout=subprocess.PIPE,
    )
    atexit.register(_stop, server, directory)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return directory


def _stop(server: subprocess.Popen[bytes], directory: Path) -> None:
    server.communicate()
    shutil.rmtree(directory)


def serve(address: str) -> None:
    """Fork for every connection, until standard input ends."""
    import importlib
    import select

    for name in ("evenhand.cli", *LATER):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    while listener in (ready := select.select([listener, sys.stdin], [], [])[0]) or not ready:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> None:
    """Run one command in a child, and send its exit status."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    left, asked = int.from_bytes(size, "big"), b""
    while len(asked) < left:
        asked += connection.recv(left - len(asked))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _run(*json.loads(asked))
    for stream in streams:
        os.close(stream)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        connection.sendall(str(status if status >= 0 else 128 - status).encode())
    os._exit(0)


def _run(arguments: list[str], environment: dict[str, str], directory: str) -> None:
    """The command, from its first to its last line."""
    status: Any = 0
    try:
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        # new streams: those of the server remember what kind of file they had
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(  # noqa: SIM115
            2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        random.seed()
        sys.argv[1:] = arguments
        sys.path[0] = str(Path(sys.executable).parent)  # as for a script
        runpy.run_module("evenhand", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


if __name__ == "__main__":
    serve(sys.argv[1])
