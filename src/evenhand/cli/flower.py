"""evenhand flower: federations of real nodes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenhand.cli.deploy import deploy
from evenhand.cli.deploy import write as write_deployment
from evenhand.cli.operate import check, status
from evenhand.cli.terminal import stopping_cleanly
from evenhand.cli.tryout import (
    carry_out,
    check_settings,
    place,
    terminated_cleanly,
    wait,
    what_runs,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from evenhand.flower.codebook import Codebook
    from evenhand.flower.columns.wanted import Columns


@click.group()
def flower() -> None:
    """Train in a real federation, with Flower."""


@flower.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--method",
    default="qffl:q=1",
    show_default=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="The method, as in evenhand run --algorithm.",
)
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    help="A table with the same columns as the nodes' tables; the codebook is made from it.",
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
        "Column with a demographic group; repeat for intersections.  [default: sex, or none with"
        " --table]"
    ),
)
@click.option(
    "--drop",
    "dropped",
    multiple=True,
    metavar="COLUMN",
    help="Ignore this column of the table; repeat for several.",
)
@click.option(
    "--missing",
    multiple=True,
    metavar="TEXT",
    help=(
        'Treat cells with exactly this text, such as "<0.5", as missing, in all tables; repeat for'
        " several."
    ),
)
@click.option(
    "--encoding",
    metavar="NAME",
    help="Encoding of --table, if it is not detected correctly.",
)
@click.option(
    "--columns-from-nodes",
    "from_nodes",
    is_flag=True,
    help=(
        "Compute means, standard deviations and categories from sums over all nodes before the"
        " first round, instead of from --table."
    ),
)
@click.option(
    "--clients", default=4, show_default=True, type=click.IntRange(min=1), help="Number of nodes."
)
@click.option(
    "--secure",
    is_flag=True,
    help="Mask what nodes send, so that the server learns only sums over nodes.",
)
@click.option(
    "--compose",
    is_flag=True,
    help="Also write container files, as evenhand flower deploy does.",
)
def new(
    directory: Path,
    method: str,
    table: Path | None,
    label: str | None,
    groups: tuple[str, ...],
    dropped: tuple[str, ...],
    missing: tuple[str, ...],
    encoding: str | None,
    from_nodes: bool,
    clients: int,
    secure: bool,
    compose: bool,
) -> None:
    """Create a Flower app in the new directory DIR.

    Without --table, the app comes with tables of made-up hospitals and is ready to run.

    With --table, a codebook is made from that file: the names of its columns, their categories, and
    means and standard deviations with two digits. The table itself is not copied, but all nodes see
    the codebook, so use made-up rows, or the table of a node that agrees. With
    --columns-from-nodes, only --label is needed.

    \b
    Examples:
      evenhand flower new hospitals
      evenhand flower new hospitals --table sample.csv --label disease --group sex --method afl
      evenhand flower new hospitals --columns-from-nodes --label disease
    """
    with stopping_cleanly():
        from evenhand.flower.project.new import write_project

        about = label, groups, dropped, missing
        codebook: Codebook | None = None
        tables: dict[str, DataFrame] = {}
        if not from_nodes or table is not None or label is None or encoding is not None:
            codebook, tables = _tables(table, *about, encoding, clients)
        source = codebook if codebook is not None and not from_nodes else _wanted(codebook, *about)
        write_project(directory, source, method, clients, tables, secure)
        for hint in () if codebook is None else codebook.hints:
            click.echo(f"hint: {hint}", err=True)
        place = shlex.quote(str(directory))
        data = f"{place}/data" if tables else "DIRECTORY-OF-CSV-FILES"
        nodes = "" if clients == 4 else f" --nodes {clients}"
        click.echo(
            f"Created {directory}; its README.md explains how to run it with real nodes. To try it"
            " on this machine:"
        )
        click.echo(f"  evenhand flower up {place} --data {data}{nodes}")
        if compose:
            write_deployment(directory)
        if not source.group:
            click.echo(
                "no groups will be compared; name them with --group COLUMN, or in"
                f" {'columns' if from_nodes else 'codebook'}.toml",
                err=True,
            )


def _wanted(
    checked: Codebook | None,
    label: str | None,
    groups: tuple[str, ...],
    dropped: tuple[str, ...],
    missing: tuple[str, ...],
) -> Columns:
    """The columns that nodes make a codebook of; ``checked``: the codebook of a table with the same
    columns, if there is one."""
    from evenhand.flower.columns.wanted import Columns

    if checked is not None:
        return Columns(checked.label, checked.group, dropped, checked.test, checked.missing)
    return Columns(str(label), groups, dropped, missing=missing)


def _tables(
    table: Path | None,
    label: str | None,
    groups: tuple[str, ...],
    dropped: tuple[str, ...],
    missing: tuple[str, ...],
    encoding: str | None,
    clients: int,
) -> tuple[Codebook, dict[str, DataFrame]]:
    """The codebook of a new app, and made-up tables to try it with, if there are any."""
    from evenhand.data.tables.files import read_table
    from evenhand.errors import SpecError
    from evenhand.flower.codebook import Codebook
    from evenhand.flower.project.new import example

    if table is not None:
        if label is None:
            raise SpecError("a table needs a label to predict; give it with --label COLUMN")
        read = read_table(table, missing=missing, encoding=encoding)
        return Codebook.of_table(read, label, groups, dropped, missing), {}
    if dropped or missing or encoding or len(groups) > 1:
        raise SpecError(
            "--drop, --missing, --encoding and several groups need a table; give it with --table"
            " FILE"
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
    help="Use TLS and node keys (the default), or neither; then any process here can join.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for logs, keys and state.  [default: a temporary one]",
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="The SuperLink's port.  [default: a free one]",
)
@click.option(
    "--data",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A directory with a .csv file per node; or repeat it with one file per node.",
)
@click.option(
    "--run/--no-run",
    "start",
    default=True,
    help="Start a run of APP (the default), or only print how to.",
)
@click.option(
    "-c",
    "--run-config",
    default="",
    help="""Settings of the run, such as 'num-rounds=5 out="runs/trial"'.""",
)
@click.option(
    "--log-json",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the logs of the server and node apps to FILE, one JSON object per line.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    default="",
    help="Serve /metrics and /healthz of the server app here; HOST is 127.0.0.1 by default.",
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
    log_json: Path | None,
    metrics: str,
) -> None:
    """Try a Flower app on this machine, with a real SuperLink and SuperNodes.

    All processes listen on 127.0.0.1 only, with fresh certificates and node keys. With APP, the
    directory of a Flower app, the command runs it, shows its log and then stops everything; the
    exit code is 0 if the run completed. Without APP, or with --no-run, the processes run until
    Ctrl-C.

    \b
    Examples:
      evenhand flower up hospitals --data hospitals/data
      evenhand flower up hospitals --data hospitals/data -c 'num-rounds=5 out="runs/trial"'
      evenhand flower up --nodes 8 --dir federation
    """
    with stopping_cleanly(), terminated_cleanly(), place(directory) as kept:
        from evenhand.flower.tryout.loopback import Loopback

        files = data[0] if len(data) == 1 else data or None
        if app is not None and not (app / "pyproject.toml").is_file():
            raise ValueError(f"{app} is not a Flower app: it has no pyproject.toml")
        if app is not None and start:
            check_settings(app, run_config)
        click.echo(f"starting a SuperLink and {nodes} node{'s' * (nodes != 1)}...", err=True)
        watched = {"EVENHAND_METRICS": metrics} if metrics else {}
        if log_json is not None:
            watched["EVENHAND_LOG_JSON"] = str(log_json.absolute())
        with Loopback(kept, nodes, tls, files, env=watched, port=port) as federation:
            click.echo(what_runs(federation, app), err=True)
            if app is not None and start:
                carry_out(federation, app, run_config)
            else:
                wait(federation)


flower.add_command(status)
flower.add_command(check)
flower.add_command(deploy)
