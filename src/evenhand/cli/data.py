"""evenhand data: list and download data sets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from evenhand.datasets.entry import Entry, State

WIDTH_IN_FILES = 130  # rich would cut columns to fit 80 in a pipe


@click.group()
def data() -> None:
    """List, download and describe data sets."""


@data.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def list_(as_json: bool) -> None:
    """List the data sets, and whether their files are on this machine.

    Files are stored in the directory given by EVENHAND_DATA, by default in your cache directory.

    \b
    Examples:
      evenhand data list
      EVENHAND_DATA=/data evenhand data list --json
    """
    from evenhand.data.storage.file import data_root
    from evenhand.datasets.catalogue import CATALOGUE

    root = data_root()
    states = {entry: entry.state(root) for entry in CATALOGUE.values()}
    if as_json:
        click.echo(
            json.dumps(
                {
                    "root": str(root),
                    "datasets": [_record(entry, state) for entry, state in states.items()],
                },
                indent=2,
            )
        )
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=WIDTH_IN_FILES)
    table = Table(box=box.SIMPLE, title=f"Data root: {root}", title_justify="left")
    for heading in ("name", "what it is", "clients", "samples", "files"):
        table.add_column(heading, no_wrap=heading == "name", overflow="fold")
    for entry, state in states.items():
        table.add_row(entry.name, entry.about, entry.clients, entry.samples, _files(state, root))
    console.print(table)
    console.print(
        "fetch: evenhand data fetch NAME downloads it. by hand: that command says what to do.",
        highlight=False,
        soft_wrap=True,
    )


def _files(state: State, root: Path) -> str:
    """Where the files of a data set are."""
    from evenhand.datasets.entry import FETCH, PRESENT

    if state.kind == FETCH:
        return f"fetch ({state.megabytes:g} MB)" if state.megabytes else "fetch"
    elsewhere = [str(folder) for folder in state.folders if root not in folder.parents]
    return (
        f"present in {', '.join(elsewhere)}" if state.kind == PRESENT and elsewhere else state.kind
    )


def _record(entry: Entry, state: State) -> dict[str, Any]:
    fields = {key: getattr(entry, key) for key in ("name", "about", "clients", "samples", "source")}
    return {
        **fields,
        "files": state.kind,
        "folders": [str(folder) for folder in state.folders],
        "missing": [str(path) for path in state.missing],
        "megabytes": state.megabytes,
    }


@data.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--check", is_flag=True, help="Also compare the files with their published checksums."
)
def fetch(names: tuple[str, ...], check: bool) -> None:
    """Download the files of data sets.

    Files that are already on this machine are not downloaded again, and an interrupted download
    resumes. If a file cannot be downloaded, the message says where to get it and where to put it.

    \b
    Examples:
      evenhand data fetch adult
      evenhand data fetch mnist femnist --check
    """
    from evenhand.data.storage.file import data_root
    from evenhand.datasets.catalogue import entry
    from evenhand.errors import EvenhandError

    root, failed = data_root(), False
    try:
        for name in names:
            try:
                _fetch(entry(name), root, check)
            except (EvenhandError, OSError) as error:
                click.echo(f"evenhand: {error}", err=True)
                failed = True
    except KeyboardInterrupt:
        click.echo("stopped; run the same command to resume the download", err=True)
        sys.exit(130)
    sys.exit(int(failed))


def _fetch(entry: Entry, root: Path, check: bool) -> None:
    """Download the files of a data set and print where they are."""
    from evenhand.data.storage.file import verify

    before = entry.state(root)
    if entry.kind:
        click.echo(f"{entry.name}: {entry.kind}, needs no files")
        return
    needs = entry.needs()
    for need in needs:
        need.fetch(root)
    found = [pair for need in needs for pair in need.found(root)]
    folders = ", ".join(str(folder) for folder in entry.state(root).folders)
    how = f"{len(before.missing)} of them new" if before.missing else "all were here"
    click.echo(f"{entry.name}: {len(found)} file{'s' * (len(found) != 1)} in {folders}, {how}")
    if check:
        checked = sum(verify(path, file) for file, path in found)
        click.echo(f"  {checked} checked, {len(found) - checked} without a known checksum")
    click.echo(f"  {entry.source}")
