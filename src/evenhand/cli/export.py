"""evenhand export."""

from __future__ import annotations

from pathlib import Path

import click

from evenhand.cli.terminal import stopping_cleanly


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--method", metavar="LABEL", help="The method; may be left out if the run has one method."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="The seed whose model is written.  [default: the first]",
)
@click.option(
    "--client", metavar="NAME", help="The client whose own model is meant, for personal methods."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file to write: .onnx, or .pt2 for torch.export.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["torch", "onnx"]),
    help="The format, if the name of the file does not say it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors, and JSON with --json.")
def export(
    run: Path,
    method: str | None,
    seed: int | None,
    client: str | None,
    out: Path,
    kind: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a trained model to a file that runs without evenhand.

    RUN is the directory of a run or comparison that names its model. The file is ONNX or a program
    of torch.export. It is loaded and run, and kept only if its outputs are those of the model. It
    takes any number of samples. Labels, features and version are stored in the file.

    \b
    Examples:
      evenhand export runs/patients --method qffl --out model.onnx
      evenhand export runs/patients --method ditto --client Northfield --out model.pt2
    """
    with stopping_cleanly(quiet):
        import json

        from evenhand.studies.exporting import export as write

        made = write(run, out, method=method, seed=seed, client=client, format=kind)
        if as_json:
            numbers = {"difference": made.difference, "tolerance": made.tolerance}
            inputs = {name: list(shape) for name, shape in made.inputs.items()}
            about = {"path": str(made.path), "format": made.format, "inputs": inputs, **numbers}
            click.echo(json.dumps(about, indent=2))
        elif not quiet:
            click.echo(str(made))
