"""The federation of ``evenhand flower up``: its run, its log and its end."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from evenhand.flower.tryout.loopback import Loopback


def check_settings(app: Path, settings: str) -> None:
    """Raise if ``-c`` cannot be parsed, which Flower would ignore, or has an unknown setting."""
    from evenhand.errors import require_known

    if settings.endswith(".toml"):
        return
    pair = r"(\S+?)=(\'[^\']*\'|\"[^\"]*\"|[^\s=]+)"  # as Flower reads it
    rest = re.sub(pair, "", settings).strip()
    if rest:
        raise ValueError(
            f"""cannot parse -c at {rest!r}; write settings as 'num-rounds=5 out="runs/trial"'"""
        )
    known = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    for key in ("tool", "flwr", "app", "config"):
        known = known.get(key, {})
    for name, _ in re.findall(pair, settings):
        require_known("setting", name.split(".")[0], tuple(known))


def what_runs(federation: Loopback, app: Path | None) -> str:
    """What is online, and how to start a run."""
    from evenhand.flower.tryout.options import CONNECTION
    from evenhand.flower.tryout.processes import QUIET_FLOWER

    settings = " ".join(
        f"{name}={shlex.quote(value)}"
        for name, value in {"FLWR_HOME": str(federation.home), **QUIET_FLOWER}.items()
    )
    protection = "TLS and node keys" if federation.tls else "INSECURE: no TLS, no node keys"
    return "\n".join(
        (
            (
                f"SuperLink on {federation.address} and {len(federation.nodes)} nodes are online"
                f" ({protection})"
            ),
            f"logs, keys, the database and the nodes' memories are in {federation.directory}",
            "to start a run from another terminal:",
            f"  export {settings}",
            (
                f"  flwr run {shlex.quote(str(app.absolute())) if app else 'APP'} {CONNECTION}"
                " --stream"
            ),
            "Ctrl-C stops everything",
        )
    )


def carry_out(federation: Loopback, app: Path, settings: str) -> None:
    """Run the app and show its log; exit with 1 unless it completes."""
    from evenhand.flower.diagnosis import explain

    run, reported, shown = federation.run(app.absolute(), settings), set[str](), ""
    try:
        while True:
            # before the log is read, so that the log is complete
            finished = run.status().startswith("finished")
            log = without_traceback(run.log(), finished).rstrip("\n")
            click.echo(explained(log[len(shown) :], federation), nl=False)
            shown = log
            if finished:
                break
            report_ended(federation, reported)
            time.sleep(0.5)
    finally:
        click.echo()
    status, details = run.status(), run.details()
    click.echo(
        f"run {run.id}: {status}" + (f" ({details})" if details not in ("", "N/A") else ""),
        err=True,
    )
    for words in explain(f"{details}\n{shown}"):
        click.echo(f"evenhand: {words}", err=True)
    if status != "finished:completed":
        sys.exit(1)


FAILED = "ERROR :     ServerApp raised an exception"


def without_traceback(log: str, finished: bool) -> str:
    """A server's log with one line in place of Flower's traceback, if the error is evenhand's own.
    An error is not shown until its traceback is complete."""
    before, mark, rest = log.partition(FAILED)
    if not mark:
        return log
    if not finished:
        return before
    files = re.findall(r'^  File "(.+)", line', rest, re.MULTILINE)
    errors = re.findall(r"^([\w.]+): (.+)$", rest.partition("ERROR :")[0], re.MULTILINE)
    ours = bool(errors) and (
        errors[-1][0].startswith("evenhand.") or (bool(files) and "/evenhand/" in files[-1])
    )
    return f"{before}ERROR :     {errors[-1][1]}" if ours else log


def explained(text: str, federation: Loopback) -> str:
    """A server's log with the name of each node that it mentions by number, and the error in that
    node's log, which the server cannot know."""
    for i, node in enumerate(federation.nodes if "its log says more" in text else ()):
        log = node.log.read_text(encoding="utf-8", errors="replace")
        number = re.search(r"SuperNode ID: (\d+)", log)
        said = [
            line
            for line in re.findall(r"^[\w.]*Error: (.+)$", log, re.MULTILINE)
            if "its log says more" not in line
        ]
        if number and said:
            whose = f"{node.name}, {federation.data[i].name}" if federation.data else node.name
            # re.sub reads backslashes
            whose, why = (words.replace("\\", "\\\\") for words in (whose, said[-1]))
            text = re.sub(
                rf"node {number[1]} (.*)its log says more",
                rf"node {number[1]} ({whose}) \1its log says: {why}",
                text,
            )
    return text


def wait(federation: Loopback) -> None:
    """Wait until Ctrl-C, or until the SuperLink ends."""
    reported = set[str]()
    while True:
        report_ended(federation, reported)
        time.sleep(0.5)


def report_ended(federation: Loopback, reported: set[str]) -> None:
    """Report each node that has ended or has a problem, once; raise if the SuperLink has ended."""
    from evenhand.flower.diagnosis import explain
    from evenhand.flower.tryout.errors import FederationError

    federation.link.check()
    for node in federation.nodes:
        for words in explain(node.text()) if node.pid is not None else ():
            if f"{node.name}: {words}" not in reported:
                reported.add(f"{node.name}: {words}")
                click.echo(f"evenhand: {node.name}: {words}", err=True)
    for member in federation.ended():
        if member.name not in reported:
            reported.add(member.name)
            try:
                member.check()
            except FederationError as error:
                click.echo(f"evenhand: {error}", err=True)


@contextlib.contextmanager
def place(directory: Path | None) -> Iterator[Path]:
    """The given directory, or a temporary one, whose logs are kept after an error."""
    if directory is not None:
        yield directory
        return
    temporary = Path(tempfile.mkdtemp(prefix="evenhand-flower-"))
    try:
        yield temporary
    except KeyboardInterrupt:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except BaseException:
        for name in ("tls", "keys", "flwr", "state"):
            shutil.rmtree(temporary / name, ignore_errors=True)
        click.echo(f"logs are kept in {temporary}", err=True)
        raise
    shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def terminated_cleanly() -> Iterator[None]:
    """Stop all processes on SIGTERM, and when the terminal closes."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
