"""Tables for people: how methods compare, and which clients gained or lost."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from evenhand.experiments.rundir import Outcome
from evenhand.metrics.scores import change, summary

MOST_CLIENTS = 40  # a table of more is no longer read

COLUMNS = {"mean": "mean", "worst10": "worst 10 %", "best10": "best 10 %", "worst": "worst", "std": "std"}


def show(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print the comparison, where FedAvg took part who gained and who lost against it, and who counted for how much."""
    reference = next((o for o in outcomes if o.method.name == "fedavg"), None)
    compared = reference is not None and len(outcomes) > 1
    console.print(comparison(outcomes, reference))
    if reference is not None and compared and len(reference.clients) <= MOST_CLIENTS:
        console.print(changes_by_client(outcomes, reference))
    if any(outcome.weights for outcome in outcomes):
        console.print(effective_weights(outcomes))
    if reference is not None and compared:
        console.print(headline(outcomes, reference), highlight=False)


def comparison(outcomes: Sequence[Outcome], reference: Outcome | None) -> Table:
    """A row per method: summary of test accuracy over clients, in percent."""
    table = Table(title="Test accuracy across clients, %", box=box.SIMPLE, title_justify="left")
    table.add_column("method")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    if reference:
        table.add_column("gained", justify="right")
        table.add_column("lost", justify="right")
    rows = [summary(outcome.accuracies) for outcome in outcomes]
    for outcome, row in zip(outcomes, rows, strict=True):
        cells = [f"{100 * row[key]:.1f}" for key in COLUMNS]
        if reference:
            moved = change(outcome.accuracies, reference.accuracies)
            cells += ["", ""] if outcome is reference else [str(len(moved["gained"])), str(len(moved["lost"]))]
        table.add_row(outcome.method.label, *cells)
    return table


def changes_by_client(outcomes: Sequence[Outcome], reference: Outcome) -> Table:
    """A row per client: its accuracy under FedAvg, and the points it gained or lost under each other method."""
    others = [outcome for outcome in outcomes if outcome is not reference]
    title = "Gain or loss of each client against FedAvg, points of accuracy"
    table = Table(title=title, box=box.SIMPLE, title_justify="left", padding=(0, 0, 0, 1))
    teams = any(row.get("team") for row in reference.clients)
    for heading in (
        "client",
        *(["team"] if teams else []),
        "samples",
        reference.method.label,
        *(outcome.method.label for outcome in others),
    ):
        words = heading in ("client", "team")
        table.add_column(heading, justify="left" if words else "right", no_wrap=words, overflow="fold")
    for index, row in enumerate(reference.clients):
        base = reference.accuracies[index]
        cells = [str(row["name"]), *([str(row.get("team", ""))] if teams else []), str(row["count"]), f"{100 * base:.1f}"]
        table.add_row(*cells, *(_signed(100 * (outcome.accuracies[index] - base)) for outcome in others))
    return table


def effective_weights(outcomes: Sequence[Outcome]) -> Table:
    """A row per method with an objective: who counted most and least at the end, and how well these weights explain it.

    Weights are what a change of each client's training loss counts for, scaled to sum one. The gap is what the objective has
    more than the weights explain: zero where they are its gradient, positive where a dual variable has not caught up.
    """
    table = Table(title="Effective weight of clients at the end", box=box.SIMPLE, title_justify="left")
    table.add_column("method")
    for heading in ("largest", "its base weight", "smallest", "objective", "gap"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        if outcome.weights is None:
            continue
        rows = outcome.weights["clients"]
        total = sum(row["weight"] for row in rows) or 1.0
        most, least = (choose(rows, key=lambda row: row["weight"]) for choose in (max, min))
        largest, smallest = (f"{row['weight'] / total:.3f} ({row['name']})" for row in (most, least))
        numbers = (f"{outcome.weights['objective']:.4f}", f"{outcome.weights['gap']:.1e}")
        table.add_row(outcome.method.label, largest, f"{most['base']:.3f}", smallest, *numbers)
    return table


def headline(outcomes: Sequence[Outcome], reference: Outcome) -> str:
    """Which method did most for the worst tenth, by how much, and what it cost."""
    base = summary(reference.accuracies)
    best = max((o for o in outcomes if o is not reference), key=lambda o: summary(o.accuracies)["worst10"])
    row, moved = summary(best.accuracies), change(best.accuracies, reference.accuracies)
    gain, cost = (100 * (row[key] - base[key]) for key in ("worst10", "mean"))
    if not gain > 0:
        return "No method lifted the worst 10 % of clients above FedAvg's."
    return (
        f"{best.method.label} lifts the worst 10 % of clients by {gain:.1f} points and {'raises' if cost >= 0 else 'lowers'} the mean by "
        f"{abs(cost):.1f}; {len(moved['gained'])} clients gain, {len(moved['lost'])} lose."
    )


def _signed(points: float) -> str:
    if points != points:  # NaN: no test data
        return "-"
    colour = "green" if points > 0 else "red" if points < 0 else "dim"
    return f"[{colour}]{points:+.1f}[/]"
