"""evenhand spec."""

from __future__ import annotations

import click


@click.group()
def spec() -> None:
    """Help with writing spec files."""


@spec.command()
def schema() -> None:
    """Print the JSON Schema of spec files.

    Editors that know TOML schemas then complete and check your specs: begin the spec with the line
    #:schema ./spec.schema.json

    \b
    Examples:
      evenhand spec schema > spec.schema.json
    """
    import json

    from evenhand.studies.specs.schema import spec_schema

    click.echo(json.dumps(spec_schema(), indent=2))
