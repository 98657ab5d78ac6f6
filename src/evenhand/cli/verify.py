"""evenhand verify."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from evenhand.cli.terminal import stopping_cleanly


@click.command()
@click.argument(
    "runs",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("-q", "--quiet", is_flag=True, help="Print only damaged files.")
def verify(runs: tuple[Path, ...], quiet: bool) -> None:
    """Check that no file of a run has changed or gone missing.

    RUN is the directory of a run, comparison or sweep. Prints a line for each damaged file, with
    what to do about it. The exit code is 1 if there is any, else 0.

    \b
    Examples:
      evenhand verify runs/digits
      evenhand verify --quiet runs/*
    """
    with stopping_cleanly(quiet):
        from evenhand.studies.runs.verifying import verify as check

        whole = True
        for run in runs:
            found = check(run)
            whole &= found.whole
            for line in found.damages:
                click.echo(line, err=True)
            for line in list(found.lines())[len(found.damages) :] if not quiet else ():
                click.echo(line)
    sys.exit(not whole)
