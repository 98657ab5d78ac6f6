"""The benchmark's page: one HTML file that opens from disk, without a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from evenhand.benchmarking.entry import Benchmark
from evenhand.benchmarking.standing import GROUP, HEADINGS, Standing
from evenhand.benchmarking.summary import COUNTED
from evenhand.benchmarking.tables import OUTSIDE, counted, shown_numbers, times
from evenhand.files import write_atomic
from evenhand.metrics.uncertainty import Interval
from evenhand.page.markup import Cell, hidden, table, text
from evenhand.page.plain import plain_page

FULL = 0.2  # a gain, as a share, that is coloured as strongly as colours go
WIDE, HIGH, LEFT, FOOT = 340, 250, 34, 30  # of a figure and its margins
Box = tuple[float, float, float, float]  # left, top, right, bottom
KINDS = {
    "reference": "FedAvg",
    "better": "significantly better for the worst 10 %",
    "worse": "significantly worse",
    "same": "no significant difference",
}


def benchmark_page(found: Benchmark, out: str | Path = "benchmark.html") -> Path:
    """Write a page about the benchmark; the path."""
    write_atomic(Path(out), page(found).encode())
    return Path(out)


def page(found: Benchmark) -> str:
    """The whole page as text."""
    standings = found.standings
    records = [record for one in standings for record in one.records.values()]
    budget = found.suite.budget
    facts = [
        f"{len(standings)} federations",
        f"{len({record.method for record in records})} methods",
        f"{budget.settings} settings tried for each, on validation data",
        f"{budget.seeds} seeds",
        f"{len(records) * (budget.settings + budget.seeds):,} training runs",
    ]
    sections = [
        ("worst10", "Gain for the worst 10 % of clients", _gains(found, "worst10")),
        ("mean", "Gain in the mean", _gains(found, "mean")),
        ("group", "Gain for the worst group", _gains(found, GROUP)),
        ("plane", "Mean and worst 10 %", _figures(found)),
        ("all", "All federations together, and costs", _scores(found)),
        ("numbers", "Numbers by federation", "".join(_numbers(found, one) for one in standings)),
        ("made", "How it was made", _made(found)),
    ]
    return plain_page(
        "evenhand benchmark",
        "Fair federated methods against a tuned FedAvg",
        facts,
        [text(one) for one in found.sentences],
        sections,
        "benchmark.css",
    )


def _gains(found: Benchmark, name: str) -> str:
    """Methods x federations: gains over FedAvg in one metric, coloured."""
    there = [one for one in found.standings if any(name in row for row in one.rows.values())]
    if not there:
        return ""
    headings = ["method", *(found.titles.get(one.federation, one.federation) for one in there)]
    rows: list[list[Cell | str]] = [["fedavg", *(_of_fedavg(one, name) for one in there)]]
    rows += [
        [score.label, *(_gain(one, score.label, name) for one in there)] for score in found.scores
    ]
    caption = (
        f"Gain over FedAvg in points of accuracy ({HEADINGS[name]}), mean over seeds; FedAvg's own"
        " accuracy in the first row. Bold and coloured: significant, with intervals that hold for"
        " all methods of a federation at once."
    )
    return f'<div class="gains">{table(headings, rows, caption)}</div>'


def _of_fedavg(one: Standing, name: str) -> Cell:
    return Cell(f"{100 * one.rows['fedavg'][name].value:.1f} %")


def _gain(one: Standing, label: str, name: str) -> Cell:
    against = one.to_fedavg.get(label, {}).get(name)
    if against is None:
        return Cell("diverged" if label in one.diverged else hidden("not run"))
    value, low, high = against.interval
    ends = f"<small>[{100 * low:+.1f}, {100 * high:+.1f}]</small>"
    if not against.verdict:
        return Cell(f"{100 * value:+.1f}{ends}")
    kind, words = ("up", "better") if against.verdict > 0 else ("down", "worse")
    share = 12 + 38 * min(1.0, abs(value) / FULL)
    return Cell(
        f'<span class="{kind}" style="--by:{share:.0f}%"><b>{100 * value:+.1f}</b>{ends}'
        f"{hidden(f'significantly {words}')}</span>"
    )


def _figures(found: Benchmark) -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="{kind}" cx="6"'
        f' cy="6" r="5"/></svg>{text(words)}</li>'
        for kind, words in KINDS.items()
    )
    drawn = "".join(
        plane(one, found.titles.get(one.federation, one.federation)) for one in found.standings
    )
    return (
        "<p>Each dot is a method, a mean over seeds. Up is fairer, right is better on average;"
        " methods that differ significantly from FedAvg are named, as far as there is room.</p>"
        f'<ul class="keys">{keys}</ul><div class="dots">{drawn}</div>'
    )


def plane(one: Standing, title: str) -> str:
    """A figure: every method by its mean and its worst 10 %."""
    points = {
        label: (100 * row["mean"].value, 100 * row["worst10"].value)
        for label, row in one.rows.items()
    }
    ends = [_ends([point[axis] for point in points.values()]) for axis in (0, 1)]

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x, y = (
            (value - low) / (high - low) for value, (low, high) in zip(point, ends, strict=True)
        )
        return LEFT + x * (WIDE - LEFT - 8), (1 - y) * (HIGH - FOOT - 8) + 8

    grid = []
    for share in (0.0, 0.5, 1.0):
        x, y = (low + share * (high - low) for low, high in ends)
        across, up = at((x, ends[1][0]))[0], at((ends[0][0], y))[1]
        grid.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDE - 8}" y1="{up:.1f}" y2="{up:.1f}"/>'
            f'<text x="{LEFT - 5}" y="{up + 4:.1f}" text-anchor="end">{y:.0f}</text>'
            f'<text x="{across:.1f}" y="{HIGH - FOOT + 14}" text-anchor="middle">{x:.0f}</text>'
        )
    dots, names = [], []
    taken: list[Box] = []
    order = sorted(points, key=lambda label: (_kind(one, label) != "same", label == "fedavg"))
    for label in order:
        kind, (x, y) = _kind(one, label), at(points[label])
        told = f"{label}: mean {points[label][0]:.1f} %, worst 10 % {points[label][1]:.1f} %"
        dots.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{text(told)}</title>'
            "</circle>"
        )
    for label in reversed(order):
        if _kind(one, label) == "same" and label != "localonly":
            continue
        x, y = at(points[label])
        for across, down, side in (
            (8, 4, "start"),
            (-8, 4, "end"),
            (0, -9, "middle"),
            (0, 17, "middle"),
        ):
            left = x + across - {"start": 0.0, "end": 1.0, "middle": 0.5}[side] * 6 * len(label)
            box = (left, y + down - 9, left + 6 * len(label), y + down + 2)
            if left > LEFT and box[2] < WIDE and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                names.append(
                    f'<text class="named" x="{x + across:.1f}" y="{y + down:.1f}"'
                    f' text-anchor="{side}">{text(label)}</text>'
                )
                break  # without a place its title has the name
    finding = f"Mean against worst 10 % of {len(points)} methods on {title}."
    return (
        f"<figure><figcaption>{text(title)}<small>worst 10 % of clients (up) and mean (right),"
        f' accuracy in %</small></figcaption><svg viewBox="0 0 {WIDE} {HIGH}" role="img"'
        f' aria-label="{text(finding)}">{"".join(grid)}{"".join(dots)}{"".join(names)}'
        "</svg></figure>"
    )


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _kind(one: Standing, label: str) -> str:
    if label == "fedavg":
        return "reference"
    return {1: "better", 0: "same", -1: "worse"}[one.to_fedavg[label]["worst10"].verdict]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Round ends around the values."""
    step = 5 if max(values) - min(values) > 8 else 2
    low, high = math.floor(min(values) / step) * step, math.ceil(max(values) / step) * step
    return float(low), float(high if high > low else low + step)


def _scores(found: Benchmark) -> str:
    headings = [
        "method",
        *(HEADINGS[name] for name in COUNTED),
        *("mean rank, mean", "mean rank, worst 10 %", "time", "numbers sent", "at the grid's edge"),
    ]
    rows = [
        [
            score.label,
            *(counted(score, name) for name in COUNTED),
            *(
                f"{score.ranks[name]:.1f}" if name in score.ranks else "-"
                for name in ("mean", "worst10")
            ),
            times(score.seconds),
            times(score.numbers),
            f"{score.edges} of {score.federations}",
        ]
        for score in found.scores
    ]
    caption = (
        "Federations where a method is significantly better than FedAvg, not significantly"
        " different, significantly worse; its rank among all methods, where methods that do not"
        " significantly differ share a rank; time of a training run and numbers sent per client"
        " and round, against FedAvg's (geometric means); on how many federations a chosen setting"
        " was the smallest or largest that was tried."
    )
    return table(headings, rows, caption)


def _numbers(found: Benchmark, one: Standing) -> str:
    names = shown_numbers(one)
    bench = found.suite.benches.get(one.federation)
    headings = ["method", *(HEADINGS[name] for name in names), "rank, worst 10 %", "chosen"]
    rows: list[list[Cell | str]] = [
        [
            label,
            *(Cell(_shown(one.rows[label][name])) for name in names),
            str(one.ranks["worst10"][label]),
            " ".join(f"{key}={value}" for key, value in one.records[label].settings.items()),
        ]
        for label in sorted(one.labels, key=lambda label: one.ranks["worst10"][label])
    ]
    about = text(f"{bench.title}. {bench.why}" if bench else one.federation)
    return table(headings, rows, f"{about} Test accuracy over clients, %, 95 % intervals.")


def _shown(found: Interval) -> str:
    value, low, high = (100 * end for end in found)
    return f"{value:.1f}<small>[{low:.1f}, {high:.1f}]</small>"


def _made(found: Benchmark) -> str:
    records = [record for one in found.standings for record in one.records.values()]
    places = sorted({(one.machine, one.device, one.versions.get("torch", "")) for one in records})
    dates = sorted({record.date for record in records})
    where = "; ".join(f"{machine}, {device}, torch {torch}" for machine, device, torch in places)
    rule = HEADINGS.get(found.suite.budget.rule, found.suite.budget.rule)
    return (
        f"<p>Every method is tried with {found.suite.budget.settings} settings, chosen by the"
        f" {text(rule)} on validation data with the first seed; then trained with"
        f" {found.suite.budget.seeds} seeds and tested once. Intervals are over other seeds and"
        f" other test samples of the same clients. {OUTSIDE} A difference is significant where p"
        " &lt; 0.05 / (methods - 1).</p>"
        f"<p>Made with <code>evenhand benchmark</code> on {text(where)};"
        f" {text(' to '.join(dict.fromkeys((dates[0], dates[-1]))) if dates else '')}.</p>"
    )
