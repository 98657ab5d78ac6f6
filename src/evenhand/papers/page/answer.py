"""The top of the page: how many published numbers were reproduced."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.page.markup import Cell, table, text
from evenhand.papers.page.entry import DIVERGED, RUN, Entry, cited, once, total
from evenhand.papers.verdicts import NOT, ORDERING, SAME_DIGITS, VERDICTS, WITHIN

MEANING = {
    SAME_DIGITS: "our mean over seeds, rounded as the paper rounds, is the published number.",
    WITHIN: (
        "the two means differ by no more than the two standard deviations over runs together."
    ),
    ORDERING: (
        "our number is neither, but every row that the paper sets clearly apart from this one, by"
        " more than both published standard deviations together, is on the same side of it here."
    ),
    NOT: "none of these holds.",
}
MARKS = {SAME_DIGITS: "same", WITHIN: "within", ORDERING: "order", NOT: "not"}
NONE = "\u2013"
COUNTED = (*VERDICTS, DIVERGED)


def mark(verdict: str) -> str:
    """A verdict: its mark, whose shape tells it apart, and its words."""
    kind = MARKS.get(verdict, "none")
    return f'<span class="mark {kind}"></span>{text(verdict)}'


def opening(found: Sequence[Entry]) -> str:
    """The answer: sentences, a table by paper, and the rule."""
    return (
        f'<div class="answer"><ul>{"".join(f"<li>{text(one)}</li>" for one in _answer(found))}'
        f"</ul></div>{_by_paper(found)}{_rule()}"
    )


def _answer(found: Sequence[Entry]) -> list[str]:
    sums = total(once(found))
    if not found:
        return ["There are no experiments."]
    verdicts = [
        f"{sums[SAME_DIGITS]} {_have(sums[SAME_DIGITS])} the same digits",
        f"{sums[WITHIN]} {_lie(sums[WITHIN])} within both spreads",
        f"{sums[ORDERING]} {_have(sums[ORDERING])} the paper's ordering",
        f"{sums[NOT]} {_are(sums[NOT])} not reproduced",
        f"{sums[DIVERGED]} diverged" if sums[DIVERGED] else "",
    ]
    run = [entry for entry in found if entry.result is not None]
    plain = sum(not entry.note for entry in run)
    smaller = sum(entry.smaller for entry in run)
    other = sum(entry.substituted for entry in run)
    ways = [
        f"{plain} with the paper's settings as far as it states them",
        f"{smaller} with a smaller budget" if smaller else "",
        f"{other} on substitute data" if other else "",
    ]
    missing = len(found) - len(run)
    numbers = "number was" if sums["published"] == 1 else "numbers were"
    lead = f"{sums[RUN]} of {sums['published']} published {numbers} run"
    return [
        f"{lead}: {_listed(verdicts)}." if sums[RUN] else f"{lead}.",
        *([f"Of {_experiments(len(found))} {len(run)} ran: {_listed(ways)}."] if run else []),
        *([f"{_experiments(missing)} {_have(missing)} no result."] if missing else []),
    ]


def _by_paper(found: Sequence[Entry]) -> str:
    names = list(dict.fromkeys(entry.experiment.paper for entry in found))
    diverged = total(once(found))[DIVERGED] > 0
    shown = COUNTED if diverged else VERDICTS
    rows: list[list[Cell | str]] = []
    for paper in names:
        own = [entry for entry in once(found) if entry.experiment.paper == paper]
        sums = total(own)
        name = paper.short
        rows.append(
            [
                Cell(f'{text(name)}<span class="role">{text(cited(paper))}</span>', name),
                f"{sums['published']:,}",
                f"{sums[RUN]:,}",
                *(_count(sums[verdict], verdict, sums[RUN]) for verdict in shown),
            ]
        )
    made = table(
        ["paper", "published numbers", "run", *shown],
        rows,
        "How many numbers have which verdict. A figure with the runs of a table is not counted"
        " again.",
        identity="papers-table",
    )
    return f'<div class="counts papers">{made}</div>'


def _rule() -> str:
    items = "".join(
        f"<dt>{mark(verdict)}</dt><dd>{text(meaning)}</dd>" for verdict, meaning in MEANING.items()
    )
    return (
        f'<p>Each number has the first verdict that holds:</p><dl class="rule">{items}</dl>'
        "<p>The first two also ask that our standard deviation is at most five times the paper's,"
        " or five units of the last digit: runs that scatter more say nothing. The rule"
        " and the experiments were not fixed in advance: docs/results/reproduction.md says what was"
        " changed after test numbers had been seen.</p>"
    )


def overview(found: Sequence[Entry]) -> str:
    """Every part: how it was run, or why it was not, with its counts."""
    rows: list[list[Cell | str]] = []
    for entry in found:
        sums = entry.counts()
        link = f'<a href="#{entry.key}">{text(entry.heading)}</a>'
        counts = [_count(sums[verdict], verdict, sums[RUN]) for verdict in VERDICTS]
        rows.append(
            [
                Cell(link, entry.heading),
                Cell(f'<span class="how">{text(entry.how)}</span>', entry.how),
                f"{sums[RUN]} of {sums['published']}" if sums["published"] else NONE,
                *counts,
            ]
        )
    made = table(
        ["experiment", "how it was run", "numbers run", *VERDICTS],
        rows,
        "Every experiment; a table with several data sets has a row for each. A figure whose values"
        " are not printed has no verdicts.",
        identity="experiments-table",
    )
    return f'<div class="counts overview">{made}</div>'


def _count(count: int, verdict: str, run: int) -> Cell:
    if not run:
        return Cell(f'<span class="zero">{NONE}</span>', 0)
    if not count:
        return Cell('<span class="zero">0</span>', 0)
    kind = MARKS.get(verdict, "none")
    words = f'<span class="word"> {text(verdict)}</span>'  # where the heading is not seen
    return Cell(f'<span class="mark {kind}"></span>{count:,}{words}', count)


def _listed(words: Sequence[str]) -> str:
    there = [word for word in words if word]
    return there[0] if len(there) == 1 else f"{', '.join(there[:-1])} and {there[-1]}"


def _experiments(count: int) -> str:
    return f"{count} experiment" if count == 1 else f"{count} experiments"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _lie(count: int) -> str:
    return "lies" if count == 1 else "lie"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
