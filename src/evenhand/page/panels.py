"""What the page shows in figures: each with a caption, words for those who do not see it, and its
numbers as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page import figures
from evenhand.page.markup import table, text
from evenhand.page.series import client_merits, curve, learning, thinned, weights
from evenhand.studies.analysis import HEADINGS
from evenhand.studies.analysis import front as front_points
from evenhand.studies.findings import Findings
from evenhand.studies.study import Study

FAIRNESS = ("worst10", "min", "std", "gini", "jain")  # what the mean can be set against
MOST_METHODS = 8  # that the words about a figure name
MOST_ROWS = 40  # of the table of a figure
GAPS = {
    "accuracy parity": "of right predictions",
    "demographic parity": "of samples predicted as the label",
    "equal opportunity": "of true positives",
    "false-positive parity": "of false positives",
    "equalised odds": "the larger one of these two",
    "predictive parity": "of predictions of the label that are right",
    "calibration": "of the distance between stated and actual probabilities",
}
PERCENTILES = (0, 5, 10, 25, 50, 75, 90, 95, 100)


class Variant(NamedTuple):
    """One of the figures of a panel."""

    name: str  # what it is chosen by, where there are several
    figure: Any
    finding: str  # what is seen, in words
    table: str  # HTML


@dataclass(frozen=True)
class Panel:
    """A figure of the page, or several that take turns."""

    key: str
    caption: str  # HTML
    variants: tuple[Variant, ...]
    choice: str = ""  # what is chosen


def distribution(findings: Findings) -> Panel:
    """How accuracy is spread over clients."""
    study = findings.study
    merits = {label: client_merits(study, label) for label in study.labels}
    levels = (
        (100 - np.array(PERCENTILES))
        if study.measure.column != "accuracy"
        else np.array(PERCENTILES)
    )
    at = {label: _percentiles(values, levels) for label, values in merits.items()}
    quarters = [PERCENTILES.index(level) for level in (50, 25, 75)]
    named = [
        f"{label}: median {findings.number(at[label][quarters[0]])}, middle half"
        f" {study.measure.show(at[label][quarters[1]])} to"
        f" {findings.number(at[label][quarters[2]])}"
        for label in study.labels
    ]
    what = (
        "each client's mean over seeds"
        if study.same_data and len(study.seeds) > 1
        else "each client"
    )
    what = (
        what
        if study.same_data
        else "each client of each seed, since the data were dealt anew with each"
    )
    fewest = min(int((~np.isnan(values)).sum()) for values in merits.values())
    drawn = "The bar is the middle half of the clients with their median, a point a client."
    if fewest >= figures.FEW:
        drawn = (
            "A curve shows where clients are many, the bar below it the middle half of the clients"
            " and their median."
        )
    caption = f"{figures.merit_words(study)} of {findings.clients}: {text(what)}. {drawn}"
    rows = [[label, *(study.measure.show(value) for value in at[label])] for label in study.labels]
    headings = ["method", *(f"{level} %" for level in PERCENTILES)]
    title = (
        f"{figures.merit_words(study)}{text(study.measure.unit)}: so many percent of the clients"
        " have a smaller one"
    )
    numbers = table(headings, rows, title, study.labels)
    return Panel(
        "distribution",
        caption,
        (Variant("", figures.distribution(study), _listed(named), numbers),),
    )


def sorted_clients(findings: Findings) -> Panel:
    """Clients from the worst to the best served."""
    study = findings.study
    curves = {label: curve(study, label) for label in study.labels}
    first = max(curves.values(), key=lambda found: len(found.percent))
    rows = [
        [
            f"{first.percent[i]:.0f} %",
            *(
                study.measure.show(found.merit[i]) if i < len(found.merit) else "-"
                for found in curves.values()
            ),
        ]
        for i in thinned(len(first.percent), 21).tolist()
    ]
    ends = [
        f"{label}: from {findings.number(found.merit[0])} to {findings.number(found.merit[-1])}"
        for label, found in curves.items()
        if len(found.merit)
    ]
    seeds = (
        " Clients are sorted for each seed, and those of one rank averaged."
        if len(study.seeds) > 1
        else ""
    )
    caption = (
        "A line that starts higher serves its worst clients better; a flatter one serves clients"
        f" more alike.{seeds}"
    )
    if study.measure.column != "accuracy":
        caption = (
            "A line that starts lower serves its worst clients better; a flatter one serves"
            f" clients more alike.{seeds}"
        )
    numbers = table(
        ["clients served worse", *study.labels],
        rows,
        f"{figures.merit_words(study)}{text(study.measure.unit)}",
    )
    return Panel(
        "sorted", caption, (Variant("", figures.sorted_clients(study), _listed(ends), numbers),)
    )


def front(findings: Findings) -> Panel:
    """The mean against a number about fairness."""
    study, comparison = findings.study, findings.comparison
    variants = []
    for fairness in FAIRNESS:
        points = front_points(study, fairness)
        if any(np.isnan(point.y) or np.isnan(point.x) for point in points):
            continue
        kept, beaten = (
            [point.label for point in points if bool(point.dominated) == sign]
            for sign in (False, True)
        )
        finding = f"Mean against {HEADINGS[fairness]}. Not dominated: {', '.join(kept)}."
        finding += f" Dominated: {', '.join(beaten)}." if beaten else ""
        rows = [
            [
                point.label,
                statistic(study, "mean", point.x),
                statistic(study, fairness, point.y),
                "yes" if point.dominated else "no",
            ]
            for point in points
        ]
        title = (
            f"Mean and {text(HEADINGS[fairness])} of {study.measure.part}"
            f" {text(study.measure.name)}"
        )
        numbers = table(
            ["method", "mean over clients", HEADINGS[fairness], "dominated"],
            rows,
            title,
            study.labels,
        )
        variants.append(
            Variant(
                HEADINGS[fairness],
                figures.front(study, points, comparison, fairness),
                finding,
                numbers,
            )
        )
    caption = (
        "Every method by its mean over clients and by how it serves those who are served worst, or"
        " how evenly. A hollow marker is dominated: another method is at least as good in both"
        " numbers and better in one. The dotted line joins the others. "
        + (
            f"Bars are {comparison.level:.0%} intervals {text(over_words(study, comparison.over))}."
            if comparison.over != "nothing"
            else ""
        )
    )
    return Panel("front", caption, tuple(variants), "Set the mean against")


def gaps(findings: Findings, by: str) -> list[Panel]:
    """How groups or teams are served, and the gaps between them."""
    study, found = findings.study, findings.gaps.get(by, {})
    names = study.names(by)
    panels = []
    if any(kinds for kinds in found.values()):
        kinds = [kind for kind in GAPS if any(kind in row for row in found.values())]
        rows = [
            [label, *(points(row[kind]) if kind in row else "-" for kind in kinds)]
            for label, row in found.items()
        ]
        kind = kinds[0]
        named = [f"{label}: {points(row[kind])}" for label, row in found.items() if kind in row]
        about = (
            f"The label is {text(findings.positive)}."
            if findings.positive is not None
            else "The label is the one that differs most."
        )
        caption = (
            f"Largest minus smallest rate over the {len(names)} {by}s, with"
            f" {findings.comparison.level:.0%} intervals under resampling of test"
            f" samples{' (means over seeds)' if len(study.seeds) > 1 else ''}; {by}s with fewer"
            f" than {findings.least} samples are left out."
            f" {'; '.join(f'{kind}: {GAPS[kind]}' for kind in kinds).capitalize()}. {about}"
        )
        numbers = table(
            ["method", *kinds], rows, f"Gaps between {by}s, points, with intervals", list(found)
        )
        panels.append(
            Panel(
                f"gaps-{by}",
                caption,
                (
                    Variant(
                        "",
                        figures.gaps(study, found, by, kinds),
                        f"Gap in {kind}. {_listed(named)}",
                        numbers,
                    ),
                ),
            )
        )
    merits = {
        label: np.mean([study.merits(label, seed, by) for seed in study.seeds], 0)
        for label in study.labels
    }
    named = [
        f"{label}: lowest {names[int(np.nanargmin(found))]} with"
        f" {findings.number(float(np.nanmin(found)))}"
        for label, found in merits.items()
        if not np.isnan(found).all()
    ]
    rows = [
        [name, *(study.measure.show(float(found[i])) for found in merits.values())]
        for i, name in enumerate(names[:MOST_ROWS])
    ]
    numbers = table(
        [by, *study.labels],
        rows,
        f"{figures.merit_words(study)} of each {by}{text(study.measure.unit)}",
    )
    seeds = " Means over seeds." if len(study.seeds) > 1 else ""
    caption = f"{figures.merit_words(study)} over all samples of each {by}.{seeds}"
    panels.append(
        Panel(
            f"members-{by}",
            caption,
            (Variant("", figures.members(study, by), _listed(named), numbers),),
        )
    )
    return panels


def learning_curves(findings: Findings) -> Panel:
    """Mean and worst 10 % over rounds."""
    study = findings.study
    columns = figures.learning_columns(study)
    names = {column: figures.LEARNING.get(column, "mean loss") for column in columns}
    curves = {
        label: {column: learning(study, label, column) for column in columns}
        for label in study.labels
    }
    ends, tables = [], ""
    for label, found in curves.items():
        told = [
            f"{names[column]} {_curve_number(study, column, one.mean[-1])}"
            for column, one in found.items()
            if one
        ]
        if told:
            ends.append(f"{label}: {', '.join(told)}")
    for column, name in names.items():
        lines = {label: found[column] for label, found in curves.items()}
        rounds = max(
            (line.rounds for line in lines.values() if line), key=len, default=np.empty(0, np.int64)
        )
        rows = []
        for at in rounds[thinned(len(rounds), 21)].tolist() if len(rounds) else []:
            there = [
                line.mean[line.rounds == at].tolist() if line else [] for line in lines.values()
            ]
            rows.append(
                [str(at), *(_curve_number(study, column, one[0]) if one else "-" for one in there)]
            )
        tables += table(
            ["round", *study.labels], rows, f"{name.capitalize()} over rounds, means over seeds"
        )
    band = (
        f" Bands reach from the lowest to the highest of {len(study.seeds)} seeds."
        if len(study.seeds) > 1
        else ""
    )
    what = (
        f"{figures.merit_words(study)} at the evaluated rounds."
        if columns != ["loss"]
        else "Mean loss over clients at the evaluated rounds."
    )
    return Panel(
        "learning",
        what + band,
        (Variant("", figures.learning_curves(study), f"At the end. {_listed(ends)}", tables),),
    )


def client_weights(findings: Findings) -> Panel | None:
    """How much each client counted over rounds, for one method at a time; None where no method's
    runs have weights."""
    study = findings.study
    variants = []
    served_by = ""
    plain = [label for label in (study.reference, study.alone) if label is not None]
    # what differs from the rule is seen first
    for label in (*(label for label in study.labels if label not in plain), *plain):
        found = weights(study, label)
        if found is None:
            continue
        served_by = found.served_by
        tenth = max(1, len(found.rows) // 10)
        last, worst = found.share[:, -1], float(found.share[:tenth, -1].mean())
        most = found.rows[int(np.argmax(last))]
        finding = (
            f"With {label}, at round {found.rounds[-1]} the tenth of the clients that {served_by}"
            f" serves worst count {worst:.2f} times an equal share in the mean; {most} most,"
            f" {float(last.max()):.2f} times."
        )
        at = thinned(len(found.rounds), 6)
        rows = [
            [found.rows[i], *(f"{value:.2f}" for value in found.share[i, at])]
            for i in thinned(len(found.rows), MOST_ROWS).tolist()
        ]
        numbers = table(
            ["client", *(f"round {found.rounds[i]}" for i in at)],
            rows,
            f"Weights with {text(label)}, times an equal share",
        )
        variants.append(Variant(label, figures.client_weights(study, label), finding, numbers))
    if not variants:
        return None
    several = (
        "; of many clients, those that are served alike are averaged"
        if len(study.names("client")) > len(rows)
        else ""
    )
    caption = (
        "What a client's training loss counts for in a round, of weights that sum to one, in"
        " multiples of an equal share: 1 for everybody would be an equal voice. Clients are in the"
        f" order in which {text(served_by)} serves them, the worst on top{several}."
    )
    return Panel("weights", caption, tuple(variants), "Method")


def verdicts(findings: Findings) -> Panel | None:
    """How many clients gain and how many are harmed; None without a reference."""
    study, variants = findings.study, []
    for against in dict.fromkeys(entry.against for entry in findings.entries):
        counted: dict[str, Counter[str]] = {}
        for entry in findings.entries:
            if entry.against == against and entry.by == "client":
                counted.setdefault(entry.method, Counter())[entry.verdict] += 1
        named = [
            f"{label}: {found['gains']} gain, {found['harmed']} are harmed"
            for label, found in counted.items()
        ]
        headings = ["method", *figures.VERDICT_WORDS.values()]
        rows = [
            [label, *(str(found[verdict]) for verdict in figures.VERDICT_WORDS)]
            for label, found in counted.items()
        ]
        numbers = table(headings, rows, f"Clients against {text(against)}", list(counted))
        variants.append(
            Variant(
                against,
                figures.verdicts(study, findings.entries, against),
                f"Against {against}. {_listed(named)}",
                numbers,
            )
        )
    if not variants:
        return None
    caption = (
        f"Clients whose {text(study.measure.words[0])} differs significantly from what the"
        " reference gives them (after Holm's correction), in both directions; clients with fewer"
        f" than {findings.least} samples are not judged."
    )
    return Panel("verdicts", caption, tuple(variants), "Against")


def all_panels(findings: Findings) -> Iterator[Panel]:
    """The figures of the page, in its order. Those of single clients are left out where single
    clients shared nothing."""
    if not findings.study.sums_only:
        yield distribution(findings)
        yield sorted_clients(findings)
    yield front(findings)
    for by in ("group", "team"):
        if len(findings.study.names(by)) > 1 and by in findings.study.kinds:
            yield from gaps(findings, by)
    yield learning_curves(findings)
    for panel in (
        None if findings.study.sums_only else client_weights(findings),
        verdicts(findings),
    ):
        if panel is not None:
            yield panel


def statistic(study: Study, name: str, value: float) -> str:
    """A statistic as it is written: merits in their unit, indices with three digits."""
    if np.isnan(value):
        return "-"
    return f"{figures.written(study, name, value):.{digits(study, name)}f}"


def digits(study: Study, name: str) -> int:
    """Digits after the point of a statistic."""
    return study.measure.digits if name in (*figures.OF_MERITS, "std", "variance") else 3


def scale(study: Study, name: str) -> float:
    """What a difference of a statistic is multiplied with to be written."""
    return float(
        study.measure.scale
        ** {**dict.fromkeys((*figures.OF_MERITS, "std"), 1), "variance": 2}.get(name, 0)
    )


def points(interval: Interval) -> str:
    """A gap with its interval, in points."""
    if np.isnan(interval.value):
        return "-"
    return f"{100 * interval.value:.1f}" + (
        "" if np.isnan(interval.low) else f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    )


def over_words(study: Study, over: str) -> str:
    """What intervals are over."""
    return {
        "seeds": f"over {len(study.seeds)} seeds",
        "samples": "over other test samples of the same clients",
        "clients": "over other clients like these",
        "both": "over other clients like these and other test samples",
        "nothing": "",
    }[over]


def _percentiles(values: Any, at: Any) -> list[float]:
    kept = values[~np.isnan(values)]
    return (
        [float(value) for value in np.percentile(kept, at)]
        if len(kept)
        else [float("nan")] * len(at)
    )


def _curve_number(study: Study, column: str, value: float) -> str:
    return (
        f"{study.measure.scale * value:.{study.measure.digits}f}"
        if column in figures.LEARNING
        else f"{value:.4g}"
    )


def _listed(parts: Sequence[str]) -> str:
    more = f"; and {len(parts) - MOST_METHODS} more methods" if len(parts) > MOST_METHODS else ""
    return "; ".join(parts[:MOST_METHODS]) + more + "."
