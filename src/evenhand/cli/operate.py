"""evenhand flower status and check: how a federation fares, and what keeps a node from it."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenhand.cli.options import examples
from evenhand.cli.terminal import results_console, stopping_cleanly

if TYPE_CHECKING:
    from evenhand.flower.status import Client, Status


@click.command(epilog=examples("evenhand flower status runs/hospitals --watch"))
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Everything as one line of JSON.")
@click.option("--watch", is_flag=True, help="Again and again, until the run is finished.")
@click.option(
    "--every",
    default=5.0,
    show_default=True,
    type=click.FloatRange(min=0.2),
    help="Seconds between looks with --watch.",
)
def status(run: Path, as_json: bool, watch: bool, every: float) -> None:
    """Show where the run of a federation stands.

    RUN is the directory that the server app was given as out. It is only read, so the command
    works while a server is at work, after it was killed, and when the run is done.
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
    """Print where a run stands."""
    from rich.table import Table

    for line in lines(status):
        click.echo(line)
    if not status.clients:
        return
    table = Table(box=None, pad_edge=False, header_style="")
    for heading in ("client", "shares", "last answered", "left out", "why, the last time"):
        table.add_column(heading, overflow="fold")
    for client in status.clients:
        table.add_row(*_row(client, known=status.moved is not None))
    click.echo()
    results_console().print(table, markup=False)


def lines(status: Status) -> list[str]:
    """Where a run stands, in words."""
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
        found.append(f"last sign {_duration(status.quiet_seconds)} ago ({status.moved})")
    for fault in status.others[-3:]:
        found.append(f"{fault.get('name') or 'a node'} is not a client: {fault.get('what')}")
    found += [f"problem: {problem}" for problem in status.problems]
    return found


def _state(status: Status) -> str:
    server = status.server
    who = f"process {server.pid} on {server.host} since {server.since}" if server else ""
    return {
        "finished": "finished, model and scores are written",
        "working": f"a server is at work ({who})",
        "waiting": f"a server waits for its nodes ({who})",
        "stalled": (
            f"a server holds the run, and nothing has moved for longer than it may take ({who});"
            " stop that process and start the run again with the same out"
        ),
        "stopped": "no server is at work; start the run again with the same out to go on",
    }[status.state]


def _row(client: Client, known: bool) -> tuple[str, ...]:
    """``known``: the run is not one of an earlier version, which did not note who answered."""
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


@click.command(epilog=examples("evenhand flower check supernode.log"))
@click.argument("logs", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--superlink", metavar="HOST:PORT", help="Compare this machine's clock with its.")
@click.option(
    "--root-certificates",
    "authority",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The SuperLink's ca.crt, as for flower-supernode.",
)
def check(logs: tuple[Path, ...], superlink: str | None, authority: Path | None) -> None:
    """Say what is wrong with a node or a SuperLink, and what to do.

    LOGS are what flower-supernode, flower-superlink or flwr run have printed. The exit code is 1
    where something is wrong, so that a script can restart a node.
    """
    with stopping_cleanly():
        from evenhand.flower.diagnosis import clock_ahead, clock_words, explain

        if not logs and superlink is None:
            raise click.UsageError("give the file of a log, or --superlink HOST:PORT, or both")
        well = True
        for path in logs:
            found = explain(path.read_text(encoding="utf-8", errors="replace"))
            well = well and not found
            for words in found or ["nothing that is known to go wrong"]:
                click.echo(f"{path}: {words}")
        if superlink is not None:
            try:
                near, words = clock_words(clock_ahead(superlink, authority))
            except OSError as error:
                near, words = False, f"{superlink} does not answer: {error}"
            well = well and near
            click.echo(words)
        sys.exit(not well)
