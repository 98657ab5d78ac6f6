"""evenhand flower: federations of real processes."""

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

from evenhand.cli.terminal import stopping_cleanly

if TYPE_CHECKING:
    from pandas import DataFrame

    from evenhand.flower.codebook import Codebook
    from evenhand.flower.tryout.loopback import Loopback


@click.group()
def flower() -> None:
    """Run methods in a real federation, with Flower."""


@flower.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--method",
    default="qffl:q=1",
    show_default=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="As in evenhand run --algorithm.",
)
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    help="A table that looks like the nodes'; its columns go into the codebook.",
)
@click.option(
    "--label",
    metavar="COLUMN",
    help=(
        'The column to predict, or a condition on one: "stage > 2".  [default without --table:'
        " disease]"
    ),
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="COLUMN",
    help=(
        "Groups to compare; repeat for intersections.  [default without --table: sex; with it:"
        " none]"
    ),
)
@click.option(
    "--drop",
    "dropped",
    multiple=True,
    metavar="COLUMN",
    help="Table: this column is no feature; repeat for several.",
)
@click.option(
    "--clients", default=4, show_default=True, type=click.IntRange(min=1), help="Number of nodes."
)
def new(
    directory: Path,
    method: str,
    table: Path | None,
    label: str | None,
    groups: tuple[str, ...],
    dropped: tuple[str, ...],
    clients: int,
) -> None:
    """Write a Flower app into the new directory DIR.

    Without --table it comes with the tables of made-up hospitals and runs as it is. With --table, a
    codebook is made from that file: its column names and categories, and means and spreads with two
    digits. All nodes will see the codebook, so take made-up rows, or those of a node that agrees.
    The table itself is not copied.
    """
    with stopping_cleanly():
        from evenhand.flower.project.new import write_project

        codebook, tables = _tables(table, label, groups, dropped, clients)
        write_project(directory, codebook, method, clients, tables)
        place = shlex.quote(str(directory))
        data = f"{place}/data" if tables else "DIRECTORY-OF-CSV-FILES"
        nodes = "" if clients == 4 else f" --nodes {clients}"
        click.echo(
            f"written to {directory}; README.md there says how to run it with real nodes. To try it"
            " on this machine:"
        )
        click.echo(f"  evenhand flower up {place} --data {data}{nodes}")
        if not codebook.group:
            click.echo(
                "no groups of people will be compared; name them with --group COLUMN, or in"
                " codebook.toml",
                err=True,
            )


def _tables(
    table: Path | None,
    label: str | None,
    groups: tuple[str, ...],
    dropped: tuple[str, ...],
    clients: int,
) -> tuple[Codebook, dict[str, DataFrame]]:
    """The codebook of a new app, and tables for a try-out where they can be made up."""
    from evenhand.data.tables.files import read_table
    from evenhand.errors import SpecError
    from evenhand.flower.codebook import Codebook
    from evenhand.flower.project.new import example

    if table is not None:
        if label is None:
            raise SpecError("which column is to be predicted? give it with --label COLUMN")
        return Codebook.of_table(read_table(table), label, groups, dropped), {}
    if dropped or len(groups) > 1:
        raise SpecError(
            "--drop and several groups are about a table of yours; give it with --table FILE"
        )
    return example(label or "disease", groups[0] if groups else "sex", clients)


@flower.command()
@click.argument(
    "app", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--nodes",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of SuperNodes.",
)
@click.option(
    "--tls/--insecure",
    default=True,
    help="TLS and node keys (the default), or neither: anything on this machine may join then.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep everything. [default: temporary]",
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="The SuperLink's port. [default: a free one]",
)
@click.option(
    "--data",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A directory of .csv files or, repeated, one for each node.",
)
@click.option(
    "--run/--no-run",
    "start",
    default=True,
    help="Start a run of APP at once (the default), or only print how.",
)
@click.option(
    "-c",
    "--run-config",
    default="",
    help="""Settings of the run, such as 'num-rounds=5 name="trial"'.""",
)
def up(
    app: Path | None,
    nodes: int,
    tls: bool,
    directory: Path | None,
    port: int,
    data: tuple[Path, ...],
    start: bool,
    run_config: str,
) -> None:
    """Start a SuperLink and SuperNodes on this machine for a try-out.

    They are real processes on 127.0.0.1, with fresh certificates and node keys. With APP, the
    directory of a Flower app, a run of it starts and its log is shown; when it ends everything
    stops, and the exit code tells whether it completed. Without APP, or with --no-run, they run
    until Ctrl-C.
    """
    with stopping_cleanly(), _terminated_cleanly(), _place(directory) as place:
        from evenhand.flower.tryout.loopback import Loopback

        files = data[0] if len(data) == 1 else data or None
        if app is not None and not (app / "pyproject.toml").is_file():
            raise ValueError(f"{app} is not a Flower app: it has no pyproject.toml")
        if app is not None and start:
            _check_settings(app, run_config)
        click.echo(f"starting a SuperLink and {nodes} node{'s' * (nodes != 1)} ...", err=True)
        with Loopback(place, nodes, tls, files, port=port) as federation:
            click.echo(_what_runs(federation, app), err=True)
            if app is not None and start:
                _carry_out(federation, app, run_config)
            else:
                _wait(federation)


def _check_settings(app: Path, settings: str) -> None:
    """Raise where ``-c`` cannot be read, of which Flower says nothing, or names a setting that the
    app does not have."""
    from evenhand.errors import require_known

    if settings.endswith(".toml"):
        return
    pair = r"(\S+?)=(\'[^\']*\'|\"[^\"]*\"|[^\s=]+)"  # as Flower reads it
    rest = re.sub(pair, "", settings).strip()
    if rest:
        raise ValueError(
            f"""-c: {rest!r} is no setting; write them as 'num-rounds=5 name="trial"'"""
        )
    known = (
        tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        .get("tool", {})
        .get("flwr", {})
        .get("app", {})
        .get("config", {})
    )
    for name, _ in re.findall(pair, settings):
        require_known("setting", name.split(".")[0], tuple(known))


def _what_runs(federation: Loopback, app: Path | None) -> str:
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
            f"logs, keys, database and what nodes remember are in {federation.directory}",
            "to start a run from another terminal:",
            f"  export {settings}",
            (
                f"  flwr run {shlex.quote(str(app.absolute())) if app else 'APP'} {CONNECTION}"
                " --stream"
            ),
            "Ctrl-C stops everything",
        )
    )


def _carry_out(federation: Loopback, app: Path, settings: str) -> None:
    """A run from start to end, with its log; exits with 1 unless it completes."""
    run, reported, shown = federation.run(app.absolute(), settings), set[str](), ""
    try:
        while True:
            # asked before the log, so that the log is whole after it
            finished = run.status().startswith("finished")
            log = run.log().rstrip("\n")
            click.echo(_explained(log[len(shown) :], federation), nl=False)
            shown = log
            if finished:
                break
            _report_ended(federation, reported)
            time.sleep(0.5)
    finally:
        click.echo()
    status, details = run.status(), run.details()
    click.echo(
        f"run {run.id}: {status}" + (f" ({details})" if details not in ("", "N/A") else ""),
        err=True,
    )
    if status != "finished:completed":
        sys.exit(1)


def _explained(text: str, federation: Loopback) -> str:
    """A server's log with what it cannot know: which of our nodes a number means, and what that
    node's own log says."""
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
            whose, told = (words.replace("\\", "\\\\") for words in (whose, said[-1]))
            text = re.sub(
                rf"node {number[1]} (.*)its log says more",
                rf"node {number[1]} ({whose}) \1its log says: {told}",
                text,
            )
    return text


def _wait(federation: Loopback) -> None:
    reported = set[str]()
    while True:
        _report_ended(federation, reported)
        time.sleep(0.5)


def _report_ended(federation: Loopback, reported: set[str]) -> None:
    """Say it once where a node has ended; without the SuperLink nothing goes on."""
    from evenhand.flower.tryout.errors import FederationError

    federation.link.check()
    for member in federation.ended():
        if member.name not in reported:
            reported.add(member.name)
            try:
                member.check()
            except FederationError as error:
                click.echo(f"evenhand: {error}", err=True)


@contextlib.contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    """The directory asked for, or a temporary one of which the logs are kept where something went
    wrong."""
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
def _terminated_cleanly() -> Iterator[None]:
    """Leave by the same way when the process is told to end or its terminal closes."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
