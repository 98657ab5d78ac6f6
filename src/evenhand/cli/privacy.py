"""evenhand privacy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenhand.cli.terminal import stopping_cleanly

if TYPE_CHECKING:
    from evenhand.privacy import Plan


@click.command()
@click.argument("spec", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--clients", type=click.IntRange(min=1), help="Number of clients.")
@click.option("--per-round", type=float, help="Clients per round on average.  [default: all]")
@click.option("--rounds", type=click.IntRange(min=1), help="Communication rounds.")
@click.option("--noise", type=float, help="The noise of Private; or give --epsilon.")
@click.option("--epsilon", type=float, help="Find the noise for this epsilon.")
@click.option(
    "--delta",
    type=float,
    default=1e-5,
    show_default=True,
    help="Well below one over the number of clients.",
)
@click.option("--parameters", type=click.IntRange(min=1), help="Of the model, to judge the noise.")
@click.option(
    "--cohort",
    type=click.Choice(["poisson", "uniform", "full"]),
    default="poisson",
    show_default=True,
    help="Each client by itself, a fixed number, or all.",
)
def privacy(
    spec: Path | None,
    clients: int | None,
    per_round: float | None,
    rounds: int | None,
    noise: float | None,
    epsilon: float | None,
    delta: float,
    parameters: int | None,
    cohort: str,
) -> None:
    """Plan the differential privacy of a run before training.

    Give --clients, --rounds and --noise or --epsilon; or a SPEC with a private method. Nothing is
    trained. An epsilon is about one client with all its data, over all rounds.

    \b
    Examples:
      evenhand privacy --clients 1000 --per-round 100 --rounds 200 --noise 1.0
      evenhand privacy --clients 1000 --per-round 100 --rounds 200 --epsilon 3 --parameters 10000
      evenhand privacy spec.toml
    """
    with stopping_cleanly(False):
        from evenhand.privacy import plan

        if spec is not None:
            given = (clients, per_round, rounds, noise, epsilon, parameters)
            if any(value is not None for value in given):
                raise click.UsageError("a spec says all of this; give SPEC or options, not both")
            _of_spec(spec)
            return
        if clients is None or rounds is None:
            raise click.UsageError("give --clients and --rounds, or a spec")
        found = plan(
            clients,
            rounds,
            per_round=per_round,
            noise=noise,
            epsilon=epsilon,
            delta=delta,
            parameters=parameters,
            cohort=cohort,
        )
        _print(found)


def _of_spec(path: Path) -> None:
    """Print the plan of every private method of a spec."""
    from evenhand.studies.planning import plans
    from evenhand.studies.specs.spec import Spec

    found = plans(Spec.load(path))
    for label, one in found.items():
        click.echo(f"{label}:")
        if isinstance(one, str):
            click.echo(one)
        else:
            _print(one)


def _print(found: Plan) -> None:
    for line in found.lines:
        click.echo(line)
