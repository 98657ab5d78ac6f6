"""Tables for people: how methods compare, and which clients and groups gained or lost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.encoding import Encoding
from evenhand.experiments.rundir import Outcome, Ready
from evenhand.metrics.scores import change, summary

MOST_ROWS = 40  # a table of more is no longer read

COLUMNS = {"mean": "mean", "worst10": "worst 10 %", "best10": "best 10 %", "worst": "worst", "std": "std"}


def show(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print the comparison, where FedAvg took part who gained and who lost against it, and who counted for how much."""
    reference = next((o for o in outcomes if o.method.name == "fedavg"), None)
    compared = reference is not None and len(outcomes) > 1
    console.print(comparison(outcomes, reference))
    if reference is not None:
        for by in ("client", "group"):
            count = len(reference.rows(by))
            if count > MOST_ROWS:
                console.print(f"{count} {by}s are too many for a table; scores.csv in each method's folder has them all.", highlight=False)
            elif count and (compared or by == "group"):
                console.print(changes(outcomes, reference, by))
    if any(outcome.weights for outcome in outcomes):
        console.print(effective_weights(outcomes))
    if reference is not None:
        for line in verdict(outcomes, reference):
            console.print(line, highlight=False, markup=False)


def show_data(console: Console, ready: Ready) -> None:
    """Print what was read where the data came as a table, and what was settled for them."""
    federation, spec = ready.federation, ready.spec
    if federation.encoding is None:
        return
    show_encoding(console, federation.encoding)
    sizes = [0 if part is None else len(part.x) for part in (federation.train, federation.val, federation.test)]
    split = f"{sizes[0]} samples to train with" + (f", {sizes[1]} to validate" if sizes[1] else "") + f", {sizes[2]} to test"
    groups = f", {federation.groups} groups" if federation.groups else ""
    model = f"model {spec.model['name']} with {sum(p.numel() for p in ready.module.parameters())} parameters, loss {spec.loss}"
    console.print(f"{federation.clients} clients{groups}; {split}; {model}", highlight=False)


def comparison(outcomes: Sequence[Outcome], reference: Outcome | None) -> Table:
    """A row per method: summary over clients of test accuracy, in percent, or of the error of a regression."""
    measure = outcomes[0].measure
    table = Table(title=f"{measure.part.capitalize()} {measure.name} across clients{measure.unit}", box=box.SIMPLE, title_justify="left")
    table.add_column("method")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    if reference:
        table.add_column("gained", justify="right")
        table.add_column("lost", justify="right")
    for outcome in outcomes:
        row = summary(outcome.merits("client"))
        cells = [measure.show(abs(row[key]) if key == "std" else row[key]) for key in COLUMNS]
        if reference:
            moved = change(outcome.merits("client"), reference.merits("client"))
            cells += ["", ""] if outcome is reference else [str(len(moved["gained"])), str(len(moved["lost"]))]
        table.add_row(outcome.method.label, *cells)
    return table


def changes(outcomes: Sequence[Outcome], reference: Outcome, by: str) -> Table:
    """A row per client or group: how FedAvg serves it, and what it gained or lost under each other method."""
    others = [outcome for outcome in outcomes if outcome is not reference]
    measure = reference.measure
    title = measure.gain.format(by) if others else f"{measure.part.capitalize()} {measure.name} of each {by}{measure.unit}"
    table = Table(title=title, box=box.SIMPLE, title_justify="left", padding=(0, 0, 0, 1))
    rows = reference.rows(by)
    teams = any(row.get("team") for row in rows)
    labels = (reference.method.label, *(outcome.method.label for outcome in others))
    for heading in (by, *(["team"] if teams else []), "samples", *labels):
        words = heading in (by, "team")
        table.add_column(heading, justify="left" if words else "right", no_wrap=words, overflow="fold")
    base = reference.merits(by)
    gains = [[measure.scale * (new - old) for new, old in zip(outcome.merits(by), base, strict=True)] for outcome in others]
    for index, row in enumerate(rows):
        names = [escape(str(row["name"])), *([escape(str(row.get("team", "")))] if teams else [])]
        cells = [*names, str(row["count"]), measure.show(base[index])]
        table.add_row(*cells, *(_signed(gain[index], measure.digits) for gain in gains))
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
        largest, smallest = (f"{row['weight'] / total:.3f} ({escape(str(row['name']))})" for row in (most, least))
        numbers = (f"{outcome.weights['objective']:.4f}", f"{outcome.weights['gap']:.1e}")
        table.add_row(outcome.method.label, largest, f"{most['base']:.3f}", smallest, *numbers)
    return table


def verdict(outcomes: Sequence[Outcome], reference: Outcome) -> list[str]:
    """In plain words: whom FedAvg serves worst, who would do better alone, and what the best fair method changes."""
    alone = next((o for o in outcomes if o.method.name == "localonly"), None)
    lines = [_worst(reference, by) for by in ("client", "group") if sum(row["count"] > 0 for row in reference.rows(by)) > 1]
    if alone is not None:
        lines.append(_better_alone(alone, reference))
    fair = [outcome for outcome in outcomes if outcome not in (reference, alone)]
    if fair:
        lines.append(_best_for_the_worst(fair, reference))
    return lines


def _worst(reference: Outcome, by: str) -> str:
    measure, merits = reference.measure, reference.merits(by)
    counted = [(merit, row) for merit, row in zip(merits, reference.rows(by), strict=True) if not math.isnan(merit)]
    merit, row = min(counted, key=lambda pair: pair[0])
    best, served_best = max(counted, key=lambda pair: pair[0])
    if merit == best:
        return f"FedAvg serves all {by}s alike: {measure.name} {measure.show(merit)}{measure.percent}."
    samples = f"{row['count']} {measure.part} sample{'s' * (row['count'] != 1)}"
    text = (
        f"FedAvg serves {by} {row['name']} worst: {measure.name} {measure.show(merit)}{measure.percent} on {samples}, "
        f"{measure.show(best)}{measure.percent} for {served_best['name']}."
    )
    if measure.percent and 1 < row["count"] < 100:
        text += f" One sample is {100 / row['count']:.1f} points there."
    return text


def _better_alone(alone: Outcome, reference: Outcome) -> str:
    measure, names = reference.measure, [str(row["name"]) for row in reference.rows("client")]
    pairs = zip(names, alone.merits("client"), reference.merits("client"), strict=True)
    gains = {name: new - old for name, new, old in pairs if not math.isnan(new - old)}
    better = sorted((name for name in gains if gains[name] > 0), key=lambda name: -gains[name])
    if not better:
        return "No client does better alone than with FedAvg."
    shown = ", ".join(f"{name} ({_plain(measure.scale * gains[name], measure.digits)})" for name in better[:5])
    more = f" and {len(better) - 5} more" if len(better) > 5 else ""
    return f"{len(better)} of {len(gains)} clients {'does' if len(better) == 1 else 'do'} better alone than with FedAvg: {shown}{more}."


def _best_for_the_worst(fair: Sequence[Outcome], reference: Outcome) -> str:
    """Which method did most for the worst tenth, by how much, and what it cost."""
    measure, base = reference.measure, summary(reference.merits("client"))
    best = max(fair, key=lambda o: summary(o.merits("client"))["worst10"])
    row, moved = summary(best.merits("client")), change(best.merits("client"), reference.merits("client"))
    gain, cost = (measure.scale * (row[key] - base[key]) for key in ("worst10", "mean"))
    if not gain > 0:
        return "No method lifted the worst 10 % of clients above FedAvg's."
    what, better, worse = measure.words
    lift, price = (f"{abs(points):.{measure.digits}f}" for points in (gain, cost))
    return (
        f"{best.method.label} {better} the {what} of the worst 10 % of clients by {lift} and {better if cost >= 0 else worse} the mean "
        f"by {price}; {len(moved['gained'])} clients gain, {len(moved['lost'])} lose."
    )


def show_encoding(console: Console, encoding: Encoding) -> None:
    """Print how the columns of a table were read, and what of it was left out."""
    rows = encoding.rows()
    table = Table(title="Columns", box=box.SIMPLE, title_justify="left")
    shown = [heading for heading in rows[0] if any(row[heading] for row in rows)] if rows else []
    for heading in shown:
        table.add_column(heading, justify="right" if isinstance(rows[0][heading], int) else "left")
    for row in rows:
        table.add_row(*(escape(str(row[heading] or "")) for heading in shown))
    console.print(table)
    for note in encoding.notes():
        console.print(note, highlight=False, markup=False)


def _plain(gain: float, digits: int) -> str:
    return f"{gain:+.{digits}f}"


def _signed(gain: float, digits: int) -> str:
    if math.isnan(gain):  # no test data
        return "-"
    colour = "green" if gain > 0 else "red" if gain < 0 else "dim"
    return f"[{colour}]{_plain(gain, digits)}[/]"
