"""evenhand predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evenhand.cli.terminal import stopping_cleanly


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("table", metavar="TABLE", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--method",
    metavar="LABEL",
    help="The method whose model predicts; may be left out if the run has one method.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="The seed whose model predicts.  [default: the first]",
)
@click.option(
    "--out",
    metavar="FILE",
    default="-",
    help="Write the table here, as .csv, .tsv or .parquet.  [default: print CSV]",
)
@click.option(
    "--proba",
    "each",
    is_flag=True,
    help="Add a column with the probability of each label instead of one column.",
)
@click.option(
    "--client-column",
    metavar="COLUMN",
    help=(
        "The column with the client, for methods that give each client a model.  [default: the"
        " run's client column]"
    ),
)
@click.option(
    "--for-client", "client", metavar="NAME", help="Use this client's model for all rows."
)
@click.option(
    "--group-column",
    "group_columns",
    multiple=True,
    metavar="COLUMN",
    help=(
        "The column with the group, for thresholds that differ by group; repeat for intersections."
        "  [default: the run's group columns]"
    ),
)
@click.option(
    "--shared",
    is_flag=True,
    help="Use the shared model for clients without a model of their own.",
)
@click.option(
    "--encoding",
    metavar="NAME",
    help="Encoding of a text file, such as cp1252.  [default: detected from the file]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a summary as JSON; needs --out with a file."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors, and the table without --out.")
def predict(
    run: Path,
    table: Path,
    out: str,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Predict for new rows with a model of a finished run.

    RUN is the directory of a run, comparison or sweep that was trained on a table. TABLE is a CSV
    or Parquet file with the same columns; it needs no label. Its columns are kept, and prediction
    and probability are added: that of the second of two labels, or of the predicted one of several.
    Thresholds of the run are applied.

    Missing values and values that no training row had are counted on standard error.

    \b
    Examples:
      evenhand predict runs/patients new.csv --method qffl --out predictions.csv
      evenhand predict runs/patients new.csv --method ditto --for-client Harbour
      evenhand audit predictions.csv --client hospital --label ill --prediction prediction
    """
    if options["client"] is not None and options["client_column"] is not None:
        raise click.UsageError("--for-client and --client-column exclude each other; drop one")
    if as_json and out == "-":
        raise click.UsageError("--json needs --out FILE, because the table would follow the JSON")
    with stopping_cleanly(quiet):
        from evenhand.files import json_text
        from evenhand.studies.runs.predicting import check_out, predict_file, write_table

        if out != "-":
            check_out(Path(out), table)
        found = predict_file(run, table, **options)
        if out == "-":
            click.echo(found.table.to_csv(index=False), nl=False)
        else:
            write_table(found.table, Path(out))
        if as_json:
            click.echo(json_text({**found.numbers(), "out": out}))
        elif not quiet:
            for line in found.lines():
                click.echo(line, err=True)
            if out != "-":
                click.echo(f"Predictions: {out}", err=True)
