"""evenhand flower status and check: the state of a run, and problems of nodes."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenhand.cli.terminal import results_console, stopping_cleanly

if TYPE_CHECKING:
    from evenhand.flower.status import Client, Status


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, and nothing else.")
@click.option("--watch", is_flag=True, help="Repeat until the run is finished.")
@click.option(
    "--every",
    default=5.0,
    show_default=True,
    type=click.FloatRange(min=0.2),
    help="Seconds between updates with --watch.",
)
def status(run: Path, as_json: bool, watch: bool, every: float) -> None:
    """Show the progress of a federation's run.

    RUN is the run directory, which the server app calls out. The command only reads it, so it is
    safe at any time: while the server is running, after it was killed, and when the run is done.

    \b
    Examples:
      evenhand flower status runs/hospitals
      evenhand flower status runs/hospitals --watch --every 10
      evenhand flower status runs/hospitals --json
    """
    with stopping_cleanly():
        from evenhand.flower.status import read_status

        while True:
            found = read_status(run)
            if as_json:
                click.echo(json.dumps(dataclasses.asdict(found)))
            else:
                if watch:
                    click.clear()
                show(found)
            if not watch or found.state == "finished":
                return
            time.sleep(every)


def show(status: Status) -> None:
    """Print the state of a run."""
    from rich.table import Table

    for line in lines(status):
        click.echo(line)
    if not status.clients:
        return
    table = Table(box=None, pad_edge=False, header_style="")
    for heading in ("client", "shares", "last answered", "skipped", "last reason"):
        table.add_column(heading, overflow="fold")
    for client in status.clients:
        table.add_row(*_row(client, known=status.moved is not None))
    click.echo()
    results_console().print(table, markup=False)


def lines(status: Status) -> list[str]:
    """The state of a run, in words."""
    from evenhand.flower.masked.described import in_words, settings_in

    rounds = f"round {status.done} of {status.rounds or '?'} done"
    found = [f"{status.run}: {rounds}; {_state(status)}"]
    if status.seconds is not None and status.last_seconds is not None:
        left = ""
        if status.left_seconds and status.state in ("working", "stalled", "waiting"):
            left = f"; about {_duration(status.left_seconds)} left"
        found.append(
            f"a round takes {status.seconds:.1f} s, the last took {status.last_seconds:.1f} s{left}"
        )
    if status.moved and status.quiet_seconds is not None and status.state != "finished":
        found.append(f"last activity {_duration(status.quiet_seconds)} ago ({status.moved})")
    if (settings := settings_in(Path(status.run))) is not None:
        found.append(f"the server sees sums alone: {in_words(settings)}")
    for fault in status.others[-3:]:
        if fault.get("kind") == "void":
            found.append(f"round {fault.get('round')} was void: {fault.get('what')}")
            continue
        found.append(f"{fault.get('name') or 'a node'} is not a client: {fault.get('what')}")
    found += [f"problem: {problem}" for problem in status.problems]
    return found


def _state(status: Status) -> str:
    server = status.server
    who = f"process {server.pid} on {server.host} since {server.since}" if server else ""
    return {
        "finished": "finished; model and scores are written",
        "working": f"the server is running ({who})",
        "waiting": f"the server is waiting for nodes ({who})",
        "stalled": (
            f"the server has made no progress for too long ({who}); stop that process and start the"
            " run again with the same out"
        ),
        "stopped": "no server is running; start the run again with the same out to resume it",
    }[status.state]


def _row(client: Client, known: bool) -> tuple[str, ...]:
    """``known``: whether the run notes who answered, which earlier versions did not."""
    name = (
        str(client.number)
        if client.name == str(client.number)
        else (f"{client.number} {client.name}")
    )
    answered = "never" if known else "unknown"
    if client.answered is not None:
        answered = f"round {client.answered}"
    out = f"{client.left_out} times" if client.left_out != 1 else "once"
    why = client.why if client.when is None else f"round {client.when}: {client.why}"
    return name, client.share, answered, out if client.left_out else "", why


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"


@click.command()
@click.argument("logs", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--superlink", metavar="HOST:PORT", help="Compare this machine's clock with the SuperLink's."
)
@click.option(
    "--root-certificates",
    "authority",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The SuperLink's ca.crt, as for flower-supernode.",
)
def check(logs: tuple[Path, ...], superlink: str | None, authority: Path | None) -> None:
    """Find out what is wrong with a node or a SuperLink, and how to fix it.

    LOGS are files with the output of flower-supernode, flower-superlink or flwr run. The exit code
    is 1 if there is a problem, so that a script can restart a node.

    \b
    Examples:
      evenhand flower check supernode.log
      evenhand flower check --superlink link.example.org:8000 --root-certificates ca.crt
    """
    with stopping_cleanly():
        from evenhand.flower.diagnosis import clock_ahead, clock_words, explain

        if not logs and superlink is None:
            raise click.UsageError("give a log file, --superlink HOST:PORT, or both")
        well = True
        for path in logs:
            found = explain(path.read_text(encoding="utf-8", errors="replace"))
            well = well and not found
            for words in found or ["no known problem"]:
                click.echo(f"{path}: {words}")
        if superlink is not None:
            try:
                near, words = clock_words(clock_ahead(superlink, authority))
            except OSError as error:
                near, words = False, f"{superlink} does not answer: {error}"
            well = well and near
            click.echo(words)
        sys.exit(not well)
