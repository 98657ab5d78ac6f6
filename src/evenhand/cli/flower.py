"""evenhand flower: federations of real processes."""

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
    help="A column of the table that is no feature; repeat for several.",
)
@click.option(
    "--missing",
    multiple=True,
    metavar="TEXT",
    help=(
        'Cells of all tables with this text, such as "<0.5", have no value; it goes into the'
        " codebook. Repeat for several."
    ),
)
@click.option(
    "--encoding",
    metavar="NAME",
    help="Encoding of the table, where the guess is wrong; nodes guess that of theirs.",
)
@click.option(
    "--columns-from-nodes",
    "from_nodes",
    is_flag=True,
    help=(
        "Means, spreads and categories come from all nodes together, as sums before the first"
        " round, in place of a codebook made beforehand."
    ),
)
@click.option(
    "--clients", default=4, show_default=True, type=click.IntRange(min=1), help="Number of nodes."
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
    compose: bool,
) -> None:
    """Write a Flower app into the new directory DIR.

    Without --table it comes with the tables of made-up hospitals and runs as it is. With --table, a
    codebook is made from that file: its column names and categories, and means and spreads with two
    digits. All nodes will see the codebook, so take made-up rows, or those of a node that agrees.
    The table itself is not copied. With --columns-from-nodes no table is needed, only --label.
    """
    with stopping_cleanly():
        from evenhand.flower.project.new import write_project

        about = label, groups, dropped, missing
        codebook: Codebook | None = None
        tables: dict[str, DataFrame] = {}
        if not from_nodes or table is not None or label is None or encoding is not None:
            codebook, tables = _tables(table, *about, encoding, clients)
        source = codebook if codebook is not None and not from_nodes else _wanted(codebook, *about)
        write_project(directory, source, method, clients, tables)
        for hint in () if codebook is None else codebook.hints:
            click.echo(f"hint: {hint}", err=True)
        place = shlex.quote(str(directory))
        data = f"{place}/data" if tables else "DIRECTORY-OF-CSV-FILES"
        nodes = "" if clients == 4 else f" --nodes {clients}"
        click.echo(
            f"written to {directory}; README.md there says how to run it with real nodes. To try it"
            " on this machine:"
        )
        click.echo(f"  evenhand flower up {place} --data {data}{nodes}")
        if compose:
            write_deployment(directory)
        if not source.group:
            click.echo(
                "no groups of people will be compared; name them with --group COLUMN, or in"
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
    """What nodes are asked for, where the codebook is to come from them; ``checked``: a codebook
    of a table like theirs, where there is one."""
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
    """The codebook of a new app, and tables for a try-out where they can be made up."""
    from evenhand.data.tables.files import read_table
    from evenhand.errors import SpecError
    from evenhand.flower.codebook import Codebook
    from evenhand.flower.project.new import example

    if table is not None:
        if label is None:
            raise SpecError("which column is to be predicted? give it with --label COLUMN")
        read = read_table(table, missing=missing, encoding=encoding)
        return Codebook.of_table(read, label, groups, dropped, missing), {}
    if dropped or missing or encoding or len(groups) > 1:
        raise SpecError(
            "--drop, --missing, --encoding and several groups are about a table of yours; give it"
            " with --table FILE"
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
@click.option(
    "--log-json",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add what the server's and the nodes' apps log to FILE, one JSON object per line.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    default="",
    help="Serve /metrics and /healthz of the server app there, on 127.0.0.1 unless HOST is given.",
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
    """Start a SuperLink and SuperNodes on this machine for a try-out.

    They are real processes on 127.0.0.1, with fresh certificates and node keys. With APP, the
    directory of a Flower app, a run of it starts and its log is shown; when it ends everything
    stops, and the exit code tells whether it completed. Without APP, or with --no-run, they run
    until Ctrl-C.
    """
    with stopping_cleanly(), terminated_cleanly(), place(directory) as kept:
        from evenhand.flower.tryout.loopback import Loopback

        files = data[0] if len(data) == 1 else data or None
        if app is not None and not (app / "pyproject.toml").is_file():
            raise ValueError(f"{app} is not a Flower app: it has no pyproject.toml")
        if app is not None and start:
            check_settings(app, run_config)
        click.echo(f"starting a SuperLink and {nodes} node{'s' * (nodes != 1)} ...", err=True)
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
