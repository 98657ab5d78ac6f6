"""docs/results/reproduction.md, made from results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import groupby

from evenhand.papers.experiment import FOLDER, Paper
from evenhand.papers.numbers import heading
from evenhand.papers.outcome import Outcome
from evenhand.papers.tables import LEGEND, MARKS, ours, sentences, verdict_sentence
from evenhand.papers.verdicts import NOT, ORDERING, SAME_DIGITS, WITHIN, Line, counted


def document(outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    introduction = (resources.files(FOLDER) / "introduction.md").read_text(encoding="utf-8")
    parts = [introduction, _overview(outcomes)]
    for paper, found in groupby(outcomes, key=lambda outcome: outcome.experiment.paper):
        parts.append(f"## {_full(paper)}\n")
        parts += [_section(outcome) for outcome in found]
    return "\n".join(parts)


def _full(paper: Paper) -> str:
    return ", ".join(filter(None, [paper.title, paper.authors, paper.venue]))


def _overview(outcomes: Sequence[Outcome]) -> str:
    rows = ["| paper | numbers run | = | ≈ | ↕ | ✗ |", "|---|---|---|---|---|---|"]
    for paper, found in groupby(outcomes, key=lambda outcome: outcome.experiment.paper):
        # figures that show the runs of a table count once
        lines = [line for one in found if not one.part.same_as for line in one.lines]
        rows.append(_counts(paper.title, lines))
    every = [line for one in outcomes if not one.part.same_as for line in one.lines]
    rows.append(_counts("**all**", every))
    text = verdict_sentence([line for line in every if line.verdict]) + "\n\n"
    text += "\n".join(rows) + f"\n\n{LEGEND}. Cells in the sections below read: published / ours.\n"
    left: dict[str, list[str]] = {}
    for one in outcomes:
        if one.result is None:
            left.setdefault(one.missing, []).append(f"`{one.part.title}`")
    if left:
        text += "\n| not run | why |\n|---|---|\n"
        text += "".join(f"| {', '.join(names)} | {why} |\n" for why, names in left.items())
    return text


def _counts(name: str, lines: Sequence[Line]) -> str:
    count = counted(lines)
    run = len(lines) - count[""]
    verdicts = (SAME_DIGITS, WITHIN, ORDERING, NOT)
    return f"| {name} | {run} | {' | '.join(str(count[one]) for one in verdicts)} |"


def _section(outcome: Outcome) -> str:
    name = outcome.experiment.number + (f", {outcome.part.name}" if outcome.part.name else "")
    text = f"### {name}\n\n{outcome.experiment.about}"
    if outcome.part.name and outcome.part.about:
        text += f" {outcome.part.about[:1].upper()}{outcome.part.about[1:]}."
    text += f" `{_command(outcome)}`\n"
    text += "".join(f"\n{sentence}" for sentence in sentences(outcome)) + "\n"
    if outcome.lines:
        text += "\n" + "\n".join(_table(outcome.lines)) + "\n"
    return text


def _command(outcome: Outcome) -> str:
    if outcome.result is not None and not outcome.part.same_as:
        return str(outcome.result.about["command"])
    return f"evenhand reproduce {outcome.part.title}"


def _table(lines: Sequence[Line]) -> Iterator[str]:
    metrics = list(dict.fromkeys(line.published.metric for line in lines))
    heads = [heading(metric) for metric in metrics]
    yield f"| | {' | '.join(heads)} |"
    yield "|---" * (len(metrics) + 1) + "|"
    for row, found in groupby(lines, key=lambda line: line.published.row):
        by_metric = {line.published.metric: line for line in found}
        cells = [_cell(by_metric.get(metric)) for metric in metrics]
        yield f"| {row} | {' | '.join(cells)} |"


def _cell(line: Line | None) -> str:
    if line is None:
        return ""
    own = f"{ours(line)} {MARKS[line.verdict]}" if line.verdict else "not run"
    return f"{line.published.text} / {own}"
