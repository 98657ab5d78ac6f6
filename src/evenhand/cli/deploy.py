"""evenhand flower deploy: containers for a federation."""

from __future__ import annotations

from pathlib import Path

import click

from evenhand.cli.terminal import stopping_cleanly


@click.command()
@click.argument("app", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
def deploy(app: Path) -> None:
    """Write container files for the Flower app in DIR.

    They go into DIR/deploy: a Dockerfile, Compose files for the server and for a node, Kubernetes
    manifests, and a README.md with every step.

    \b
    Examples:
      evenhand flower deploy hospitals
    """
    with stopping_cleanly():
        write(app)


def write(app: Path) -> None:
    """Write the files and say where the steps are."""
    from evenhand.flower.deploy.write import write_deployment

    click.echo(f"container files written; {write_deployment(app)}/README.md has the steps")
