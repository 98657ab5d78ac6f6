"""Options that several commands share: the measure, intervals and formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

MEASURES = (
    *("accuracy", "balanced_accuracy", "recall", "specificity", "precision", "auc", "loss"),
    *("error", "mae"),
)
LEVEL = click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Confidence level of the intervals.",
)
NUMBERS = (
    click.option(
        "--measure",
        type=click.Choice(MEASURES),
        help=(
            "The measure to compare by. With more than two classes, recall and precision are means"
            " over classes.  [default: accuracy, or error for a regression]"
        ),
    ),
    click.option(
        "--over",
        type=click.Choice(["auto", "seeds+samples", "seeds", "samples", "clients", "both"]),
        default="auto",
        show_default=True,
        help=(
            "What intervals allow for. seeds+samples: other seeds and other test samples of these"
            " clients; clients: other clients like these; both: other clients and other samples."
            " auto: seeds+samples with two seeds or more, else samples."
        ),
    ),
    LEVEL,
    click.option(
        "--least",
        type=click.IntRange(min=0),
        default=10,
        show_default=True,
        help="Do not evaluate clients and groups with fewer test samples.",
    ),
    click.option(
        "--positive",
        metavar="LABEL",
        help="The label that rates are about.  [default: the second of two]",
    ),
)


def format_option(which: str) -> Callable[..., Any]:
    """--format; ``which`` says which tables it is about."""
    kinds, text = (
        click.Choice(["csv", "parquet", "json"]),
        f"Format of the tables {which}; repeat for several.",
    )
    return click.option(
        "--format",
        "formats",
        type=kinds,
        multiple=True,
        default=("csv",),
        show_default=True,
        help=text,
    )


def adding(options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """A decorator that adds options to a command in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


number_options = adding(NUMBERS)
