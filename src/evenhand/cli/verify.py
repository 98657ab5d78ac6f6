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
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but damaged files.")
def verify(runs: tuple[Path, ...], quiet: bool) -> None:
    """Check that the files of runs are as they were written.

    RUN are directories of runs, comparisons or sweeps. Prints a line for each file that has changed
    or is missing, with what to do about it, and exits with 1 where there is one.

    evenhand verify runs/digits
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
