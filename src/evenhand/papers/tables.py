"""Published numbers beside ours, for a terminal and for docs/results/reproduction.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.papers.availability import PAPERS, data_for
from evenhand.papers.choosing import DEFAULT, RULES
from evenhand.papers.experiment import Experiment, find_parts
from evenhand.papers.numbers import heading
from evenhand.papers.outcome import Outcome
from evenhand.papers.verdicts import NOT, ORDERING, SAME_DIGITS, WITHIN, Line, counted

TO = "\N{EN DASH}"
MARKS = {SAME_DIGITS: "=", WITHIN: "≈", ORDERING: "↕", NOT: "✗", "": ""}
COLOURS = {SAME_DIGITS: "bold green", WITHIN: "green", ORDERING: "yellow", NOT: "red", "": ""}
LEGEND = "= same digits, ≈ within both spreads, ↕ same ordering, ✗ not reproduced"


def title(outcome: Outcome) -> str:
    """What an outcome is about, in a line."""
    experiment, part = outcome.experiment, outcome.part
    return f"{experiment.paper.title}, {experiment.number}" + (
        f": {part.name}" if part.name else ""
    )


def show(console: Console, outcome: Outcome) -> None:
    """Print a part: the answer, then its numbers."""
    console.print(f"\n[bold]{escape(title(outcome))}[/bold]", highlight=False)
    if outcome.result is None:
        console.print(f"Not run: {escape(outcome.missing)}.", highlight=False)
        return
    for sentence in sentences(outcome):
        console.print(escape(sentence), highlight=False)
    if outcome.lines:
        console.print(numbers_table(outcome.lines))
    else:
        console.print(own_table(outcome))


def sentences(outcome: Outcome) -> list[str]:
    """What came out, how it was run, and which settings were chosen."""
    result, part = outcome.result, outcome.part
    if result is None:
        return [f"Not run: {outcome.missing}."]
    said = [verdict_sentence(outcome.lines)] if outcome.lines and part.judged != "nothing" else []
    if part.judged == "nothing":
        said.append("These runs are too small to compare with the published numbers.")
    if part.judged == "ordering":
        said.append("With other data, only the order of methods can be compared.")
    if not outcome.lines:
        said.append("The paper prints no values of this figure; these are ours.")
    if any(line.verdict == NOT for line in outcome.lines) and part.reason:
        said.append(f"Likely reason for what differs: {part.reason}.")
    if result.note:
        said.append(f"Not the paper's setting: {result.note}.")
    if result.diverged:
        said.append(f"Training diverged with every setting tried: {', '.join(result.diverged)}.")
    if result.chosen:
        said.append(chosen_sentence(outcome))
    seeds = len(result.seeds)
    took = f" {duration(result.seconds)} on" if result.seconds else ""
    said.append(
        f"{result.clients} clients, {result.samples:,} test samples, {result.rounds} rounds,"
        f" {seeds} seed{'s' * (seeds != 1)};{took} {result.about['processor']},"
        f" {result.about['date']}."
    )
    return said


def verdict_sentence(lines: Sequence[Line]) -> str:
    """How many numbers were reproduced, and how closely."""
    count = counted(lines)
    run = len(lines) - count[""]
    left = f"; without a counterpart: {count['']}" if count[""] else ""
    return (
        f"Of {run} published numbers, same digits: {count[SAME_DIGITS]}, within both spreads:"
        f" {count[WITHIN]}, same ordering: {count[ORDERING]}, not reproduced: {count[NOT]}{left}."
    )


def chosen_sentence(outcome: Outcome) -> str:
    """The settings that were chosen on validation data, by row."""
    result = outcome.result
    assert result is not None
    rules = {row.label: row.rule or DEFAULT for row in outcome.part.rows}
    by_rule: dict[str, list[str]] = {}
    for row, settings in result.chosen.items():
        values = ", ".join(
            f"{key} = {value}{' (edge)' if key in result.edges.get(row, ()) else ''}"
            for key, value in settings.items()
        )
        by_rule.setdefault(RULES[rules.get(row, DEFAULT)], []).append(f"{row} {values}")
    found = "; ".join(f"by {rule}: {'; '.join(rows)}" for rule, rows in by_rule.items())
    edge = " Edge: the smallest or largest value that was tried." if result.edges else ""
    return f"Settings the paper does not state, chosen on validation data, {found}.{edge}"


def numbers_table(lines: Sequence[Line]) -> Table:
    """A line per published number."""
    table = Table(box=box.SIMPLE, caption=LEGEND, caption_justify="left")
    for name in ("method", "number"):
        table.add_column(name, overflow="fold")
    for name in ("published", "ours", "95 % over seeds", "difference"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("verdict", overflow="fold")
    before = ""
    for line in lines:
        number, digits = line.published, line.published.digits
        interval = (
            "" if math.isnan(line.low) else f"{line.low:.{digits}f}{TO}{line.high:.{digits}f}"
        )
        table.add_row(
            "" if number.row == before else escape(number.row),
            f"{heading(number.metric)}{', ' + number.unit if number.unit != '%' else ''}",
            number.text,
            ours(line) if math.isfinite(line.mean) else TO,
            interval,
            f"{round(line.difference, digits) + 0.0:+.{digits}f}"
            if math.isfinite(line.mean)
            else "",
            f"[{COLOURS[line.verdict]}]{MARKS[line.verdict]} {line.verdict}[/]"
            if line.verdict
            else "not run"
            if math.isnan(line.mean)
            else "not judged",
        )
        before = number.row
    return table


def own_table(outcome: Outcome) -> Table:
    """Our numbers of a figure whose values the paper does not print."""
    result = outcome.result
    assert result is not None
    metrics = outcome.experiment.figure.get("metrics") or ["mean", "worst10", "std"]
    table = Table(box=box.SIMPLE)
    table.add_column("method", no_wrap=True)
    for metric in metrics:
        table.add_column(heading(metric), justify="right", no_wrap=True)
    for row, values in result.values.items():
        cells = [values.get(metric, ()) for metric in metrics]
        table.add_row(
            escape(row), *(f"{sum(cell) / len(cell):.1f}" if cell else TO for cell in cells)
        )
    return table


def ours(line: Line) -> str:
    """Our number as the paper would print it."""
    digits = line.published.digits
    spread = "" if math.isnan(line.std) else f" ± {line.std:.{digits}f}"
    return f"{line.mean:.{digits}f}{spread}"


def duration(seconds: float) -> str:
    """
    >>> duration(42.4), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def list_table(known: Sequence[tuple[Experiment, Sequence[Outcome]]]) -> Table:
    """Every experiment: what it is, its data, the time it takes, and what came out here."""
    table = Table(box=box.SIMPLE, title="Experiments of papers", title_justify="left")
    table.add_column("name", no_wrap=True)
    for name in ("what it is", "data", "time", "result"):
        table.add_column(name, overflow="fold")
    for experiment, outcomes in known:
        several = len(outcomes) > 1
        if several:
            table.add_row(experiment.name, escape(experiment.about))
        for outcome in outcomes:
            part = outcome.part
            table.add_row(
                f"  :{part.name}" if several else experiment.name,
                escape(part.about if several else experiment.about),
                escape(_data(outcome)),
                escape(part.time),
                escape(brief(outcome)),
            )
    return table


def describe(experiment: Experiment, outcomes: Sequence[Outcome]) -> str:
    """What a paper states of an experiment, and what it leaves open."""
    lines = [f"[bold]{escape(experiment.name)}[/bold]: {escape(experiment.about)}"]
    said = dict.fromkeys((one.part.stated, one.part.unknown, one.part.reason) for one in outcomes)
    for stated, unknown, reason in said:
        lines += [
            f"Stated: {escape(stated)}.",
            f"Not stated: {escape(unknown)}.",
            f"Why numbers may differ: {escape(reason)}.",
        ]
    return "\n".join(lines) + "\n"


def _data(outcome: Outcome) -> str:
    data = data_for(find_parts([outcome.part.home])[0])
    return data.about if data.kind == PAPERS else f"{data.kind}: {data.about}"


def brief(outcome: Outcome) -> str:
    """An outcome in a few words."""
    if outcome.result is None:
        return "none"
    smaller = " (smaller budget)" if outcome.result.budget == "quick" else ""
    if not outcome.lines:
        return f"run{smaller}"
    count = counted(outcome.lines)
    marks = [f"{count[verdict]}{MARKS[verdict]}" for verdict in MARKS if verdict and count[verdict]]
    return f"{' '.join(marks)}{smaller}"
