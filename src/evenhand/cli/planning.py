"""Options for a run, and the spec that they describe."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.cli.source import data_table, source_options
from evenhand.cli.tracking import early_stopping, stop_option
from evenhand.data.tables.endings import table_ending

if TYPE_CHECKING:
    from evenhand.studies.specs.spec import Spec

# options that are keys of a spec
SETTINGS = ("rounds", "seed", "engine", "device", "precision", "normalisation", "weights")
ALGORITHM_HELP = (
    "Train with this method instead of the spec's; repeat for several. Examples: -a qffl:q=2, -a"
    " fafl:alpha=0.3,local.lr=0.05,label=mild. A method that wraps another: -a"
    " fedprox:mu=0.1,inner=qffl,inner.q=2. Your own: -a mypackage:MyMethod:rate=0.3."
)


def spec_options(
    references: str,
    about_methods: str,
    about_seed: str,
    methods: tuple[str, ...] = ("-a", "--algorithm"),
) -> Callable[..., Any]:
    """Add SPEC and the options that override it to a command; :func:`planned` reads them.

    Args:
        references, about_methods, about_seed: help on --no-reference, the option for methods and
            --seed in this command.
        methods: names of the option for methods.
    """
    options = (
        click.argument("spec", required=False, type=click.Path(dir_okay=False, path_type=Path)),
        click.option(
            "--data",
            metavar="NAME|FILE",
            help=(
                "A data set (NAME[:KEY=VALUE,...]; evenhand data list shows all), a CSV or Parquet"
                " table, or a LEAF directory."
            ),
        ),
        source_options,
        click.option(
            "--model",
            metavar="NAME[:KEY=VALUE,...]",
            help="The model: linear, mlp:hidden=[64], cnn, ...; auto chooses one for the data.",
        ),
        click.option(
            *methods,
            "algorithms",
            multiple=True,
            metavar="NAME[:KEY=VALUE,...]",
            help=f"{ALGORITHM_HELP} {about_methods}",
        ),
        click.option("--rounds", type=click.IntRange(min=1), help="Communication rounds."),
        click.option(
            "--clients",
            type=click.IntRange(min=2),
            help=(
                "Number of clients. If the data come with clients, this many are drawn at random."
            ),
        ),
        click.option("--seed", type=click.IntRange(min=0), help=about_seed),
        click.option(
            "--engine",
            type=click.Choice(["auto", "loop", "vmap"]),
            help="loop trains one client at a time, vmap all at once; auto takes the faster.",
        ),
        click.option(
            "--device",
            metavar="DEVICE",
            help="cpu, cuda, cuda:1, ...  [default: a GPU if there is one]",
        ),
        click.option(
            "--precision",
            type=click.Choice(["fp32", "tf32", "bf16"]),
            help="Of matrix products; tf32 and bf16 are faster on many GPUs.  [default: fp32]",
        ),
        click.option(
            "--normalisation",
            type=click.Choice(["frozen", "local"]),
            help="Of BatchNorm: frozen keeps its statistics, local (FedBN) keeps it on clients.",
        ),
        click.option(
            "--weights",
            type=click.Choice(["data", "uniform"]),
            help="Of clients: their share of the samples, or all equal.  [default: data]",
        ),
        click.option(
            "--metric",
            "metrics",
            multiple=True,
            metavar="NAME=MODULE:FUNCTION",
            help="Also evaluate your own metric.",
        ),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            help="The run directory.  [default: runs/NAME]",
        ),
        click.option(
            "--keep-predictions",
            is_flag=True,
            help="Write predictions.csv for each method: a row per test sample.",
        ),
        stop_option,
        click.option("--no-reference", is_flag=True, help=references),
        click.option("-q", "--quiet", is_flag=True, help="Print only errors."),
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def planned(
    spec: Path | None,
    data: str | None,
    model: str | None,
    algorithms: tuple[str, ...],
    clients: int | None,
    metrics: tuple[str, ...],
    keep_predictions: bool,
    stop_early: str | None,
    **options: Any,
) -> Spec:
    """The spec for these options."""
    import dataclasses

    from evenhand.errors import SpecError
    from evenhand.studies.specs.parsing import parse_method, parse_metric, parse_table
    from evenhand.studies.specs.spec import Spec

    if spec and table_ending(spec.name):
        raise SpecError(
            f"{spec} is a table, not a spec; give it with --data {shlex.quote(str(spec))}"
        )
    given = {name: options.pop(name) for name in SETTINGS}
    table = data_table(data, **options)
    if table and not data and not spec:
        raise SpecError(
            f"{next(iter(table))} needs data; give a table with --data FILE, or a data set with"
            " --data NAME"
        )
    if spec:
        plan = Spec.load(spec)
    elif data:
        plan = Spec.for_data(
            Path(table["path"]).name.split(".")[0] if "path" in table else table["name"]
        )
    else:
        plan = Spec.default()
    plan = dataclasses.replace(plan, data=table if data else plan.data | table)
    if algorithms:
        plan = plan.with_methods(parse_method(text) for text in algorithms)
    given |= {
        "model": parse_table(model) if model else None,
        "data": {**plan.data, "clients": clients} if clients else None,
        "keep_predictions": keep_predictions or None,
        "metrics": {**plan.metrics, **dict(map(parse_metric, metrics))} if metrics else None,
        **(early_stopping(stop_early, plan.validation) if stop_early else {}),
    }
    return dataclasses.replace(
        plan, **{key: value for key, value in given.items() if value is not None}
    )
