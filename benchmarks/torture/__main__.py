"""Try to lose results, and to fool people: ``python -m benchmarks.torture [PART ...]``."""

from __future__ import annotations

import importlib
import sys

import click

from benchmarks.machine import describe
from benchmarks.torture import Figure

PARTS = ("kills", "damage", "fuzz", "lies", "lies_about_data", "curious", "faults")


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--seconds", default=60.0, show_default=True, help="For each part.")
@click.option("--seed", default=0, show_default=True, help="Of what is tried.")
@click.option("--check", is_flag=True, help="Exit with 1 where something did not hold.")
def main(parts: tuple[str, ...], seconds: float, seed: int, check: bool) -> None:
    """Kill it, damage it, fuzz it, lie to it; all PARTS unless some are named."""
    click.echo(describe())
    failed = False
    for part in parts or PARTS:
        module = importlib.import_module(f"benchmarks.torture.{part}")
        for figure in module.figures(seconds, seed):
            click.echo(_line(part, figure))
            failed |= figure.held < figure.tried
    sys.exit(check and failed)


def _line(part: str, figure: Figure) -> str:
    note = f"  ({figure.note})" if figure.note else ""
    return f"{part:7} {figure.what:60} {figure.held} of {figure.tried}{note}"


if __name__ == "__main__":
    main()
