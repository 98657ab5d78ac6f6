"""The parts of the page: tables of methods, figures with their captions, and how to reproduce all
of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evenhand.data.plots import looks
from evenhand.metrics.uncertainty import Interval
from evenhand.page import figures, panels, server
from evenhand.page.ledger import ledger
from evenhand.page.markup import Cell, hidden, table, text
from evenhand.page.panels import Panel
from evenhand.studies.analysis import STATISTICS, Comparison
from evenhand.studies.findings import Findings
from evenhand.studies.spec import Spec
from evenhand.studies.study import Study
from evenhand.training.directory import PYTHON

SHORT = {
    "mean": "mean",
    "pooled": "all samples",
    "worst10": "worst 10 %",
    "best10": "best 10 %",
    "min": "worst client",
    "max": "best client",
    "std": "std",
    "variance": "variance",
    "variation": "coefficient of variation",
    "jain": "Jain",
    "gini": "Gini",
    "entropy": "entropy",
    "cosine": "cosine",
}
FIRST = ("mean", "pooled", "worst10", "best10", "min", "std", "jain", "gini")
DIFFERENCES = ("mean", "pooled", "worst10", "best10", "min", "std", "gini")
KEYS = {  # SVG paths of plotly's symbols, 12 x 12
    "circle": "M6 1.5a4.5 4.5 0 1 0 .01 0z",
    "square": "M2 2h8v8h-8z",
    "diamond": "M6 .5 11.5 6 6 11.5 .5 6z",
    "triangle-up": "M6 1.5 11 10.5H1z",
    "cross": "M4.2 1h3.6v3.2H11v3.6H7.8V11H4.2V7.8H1V4.2h3.2z",
    "x": "M3.2 1 6 3.8 8.8 1 11 3.2 8.2 6 11 8.8 8.8 11 6 8.2 3.2 11 1 8.8 3.8 6 1 3.2z",
    "triangle-down": "M6 10.5 11 1.5H1z",
    "star": "M6 .5l1.5 3.7 4 .3-3 2.6 1 3.9L6 8.9l-3.5 2.1 1-3.9-3-2.6 4-.3z",
}
DASHES = {
    "solid": "",
    "dash": "5 3",
    "dot": "2 2",
    "dashdot": "5 2 2 2",
    "longdash": "8 3",
    "longdashdot": "8 2 2 2",
}


def sections(
    findings: Findings, found: Mapping[str, Panel], command: str
) -> list[tuple[str, str, str]]:
    """(id, heading, HTML) of every section of the page."""
    study = findings.study

    def drawn(*keys: str) -> str:
        return "".join(_figure(found[key]) for key in keys if key in found)

    sections = [
        ("methods", "Methods compared", _comparison(findings)),
        ("distribution", "How clients are served", drawn("distribution") or _not_shared(study)),
        ("sorted", "From the worst to the best served", drawn("sorted")),
        (
            "front",
            "Accuracy and fairness" if study.measure.column == "accuracy" else "Error and fairness",
            drawn("front"),
        ),
        ("groups", "Groups", drawn("gaps-group", "members-group")),
        ("teams", "Teams of clients", drawn("gaps-team", "members-team")),
        ("learning", "Learning curves", drawn("learning")),
        (
            "weights",
            "Who counted for how much",
            drawn("weights") or _not_shared(study) or "<p>The runs kept no weights.</p>",
        ),
        ("ledger", "Harm ledger", drawn("verdicts") + ledger(findings)),
        ("server", server.heading(study), server.learned(study)),
        ("reproduce", "How to reproduce", _reproduce(study, command)),
    ]
    return [section for section in sections if section[2]]


def facts(findings: Findings) -> str:
    study = findings.study
    rounds = sorted({spec.rounds for spec in study.specs})
    groups, teams = (len(study.names(by)) for by in ("group", "team"))
    facts = [
        (len(study.labels), "method", "methods"),
        (len(study.seeds), "seed", "seeds"),
        (study.clients, "client", "clients"),
        (groups, "group", "groups"),
        (teams, "team", "teams"),
        (rounds[-1], "round", "rounds"),
        (study.samples, f"{study.measure.part} sample", f"{study.measure.part} samples"),
    ]
    return "".join(
        f"<li><b>{count:,}</b> {one if count == 1 else many}</li>"
        for count, one, many in facts
        if count
    )


def chooser(study: Study) -> str:
    """A box for each method, which also says how it is drawn."""
    items = []
    for number, (label, look) in enumerate(looks(study.labels, study.reference).items()):
        dash = f' stroke-dasharray="{DASHES[look.dash]}"' if DASHES[look.dash] else ""
        key = (
            '<svg class="key" viewBox="0 0 32 12" width="32" height="12" aria-hidden="true"'
            f' style="color:light-dark({look.colour},{look.dark})"><path d="M0 6h32"'
            f' stroke="currentColor" stroke-width="2"{dash}/><path transform="translate(10)"'
            f' d="{KEYS[look.symbol]}" fill="currentColor"/></svg>'
        )
        box = f'<input type="checkbox" id="method-{number}" data-method="{text(label)}" checked>'
        items.append(
            f'<li><label for="method-{number}">{box}{key}<span>{text(label)}</span></label></li>'
        )
    return "".join(items)


def _comparison(findings: Findings) -> str:
    study, comparison = findings.study, findings.comparison
    measure, reference = study.measure, study.reference
    what = f"{figures.merit_words(study)}{measure.unit} over {findings.clients}"
    over = panels.over_words(study, comparison.over)
    intervals = f"{comparison.level:.0%} intervals {over} in brackets"
    if all(
        math.isnan(interval.low) for row in comparison.rows.values() for interval in row.values()
    ):
        intervals = "one seed and no values of single samples, so intervals cannot be told"
    marks = ""
    if comparison.over == "nothing":
        pass
    elif reference is not None and len(study.labels) > 1:
        marks = (
            f" ▲ and ▼: significantly better and worse than {text(reference)}, paired {text(over)},"
            " after Holm's correction over the methods, for each number by itself. Bold:"
            " significantly better than every other method."
        )
    elif len(study.labels) > 1:
        marks = " Bold: significantly better than every other method."
    smaller = (
        " Of errors, std and Gini, smaller is better."
        if measure.column != "accuracy"
        else " Of std and Gini, smaller is better."
    )
    caption = f"{text(what)}; {text(intervals)}.{marks}{smaller}"
    parts = [
        table(
            ["method", *(SHORT[name] for name in kept)],
            _rows(findings, kept),
            caption,
            study.labels,
            True,
        )
        for kept in _kept(comparison)
    ]
    body = parts[0]
    if comparison.differences:
        body += _differences(findings)
    if len(parts) > 1:
        body += f"<details><summary>Further numbers</summary>{parts[1]}</details>"
    return body


def _not_shared(study: Study) -> str:
    """Why there are no figures of single clients; empty where there can be."""
    if not study.sums_only:
        return ""
    several = len(study.sums_only) < len(study.labels)
    other = " A page about the other methods alone has these figures." if several else ""
    return (
        f"<p>Not shared: with {text(', '.join(study.sums_only))} the server saw sums over clients,"
        f" nothing of single ones.{other}</p>"
    )


def _kept(comparison: Comparison) -> list[list[str]]:
    """Columns of the first and of the second table: those that have numbers."""
    there = [
        name
        for name in STATISTICS
        if any(not math.isnan(row[name].value) for row in comparison.rows.values())
    ]
    first = [name for name in FIRST if name in there]
    rest = ["mean", *(name for name in there if name not in FIRST)]
    return [first, rest] if len(rest) > 1 else [first]


def _rows(findings: Findings, names: Sequence[str]) -> list[list[Cell | str]]:
    study, comparison = findings.study, findings.comparison
    rows: list[list[Cell | str]] = []
    for label in study.labels:
        row: list[Cell | str] = [Cell(_name(study, label), label)]
        for name in names:
            interval = comparison.rows[label][name]
            value = panels.statistic(study, name, interval.value)
            value = (
                "not shared" if label in study.sums_only and math.isnan(interval.value) else value
            )
            best = comparison.best.get(name) == label
            shown = f"<strong>{value}</strong>{hidden('significantly the best')}" if best else value
            written = figures.written(study, name, interval.value)
            row.append(
                Cell(
                    f"{shown}{_mark(findings, label, name)}{_ends(study, name, interval)}", written
                )
            )
        rows.append(row)
    return rows


def _name(study: Study, label: str) -> str:
    role = {study.reference: "reference", study.alone: "each client alone"}.get(label)
    return text(label) + (f' <small class="role">{role}</small>' if role else "")


def _mark(findings: Findings, label: str, name: str) -> str:
    difference = findings.comparison.differences.get(label, {}).get(name)
    if difference is None or not (difference.better or difference.worse):
        return ""
    sign, word = ("▲", "better") if difference.better else ("▼", "worse")
    meaning = hidden(f" significantly {word} than {findings.study.reference}")
    return f'<span class="{word}" aria-hidden="true">{sign}</span>{meaning}'


def _ends(study: Study, name: str, interval: Interval) -> str:
    if math.isnan(interval.low) or math.isnan(interval.high):
        return ""
    low, high = sorted(
        (figures.written(study, name, interval.low), figures.written(study, name, interval.high))
    )
    digits = panels.digits(study, name)
    return f" <small>[{low:.{digits}f}, {high:.{digits}f}]</small>"


def _differences(findings: Findings) -> str:
    """What each method changes against the reference."""
    study, comparison = findings.study, findings.comparison
    rows: list[list[Cell | str]] = []
    names = [
        name
        for name in DIFFERENCES
        if any(not math.isnan(row[name].interval.value) for row in comparison.differences.values())
    ]
    for label, row in comparison.differences.items():
        cells: list[Cell | str] = [Cell(text(label), label)]
        for name in names:
            interval, digits = row[name].interval, panels.digits(study, name)
            scale = panels.scale(study, name)
            if math.isnan(interval.value):
                cells.append(Cell("not shared" if study.sums_only else "-", math.nan))
                continue
            ends = (
                ""
                if math.isnan(interval.low)
                else (
                    f" <small>[{scale * interval.low:+.{digits}f},"
                    f" {scale * interval.high:+.{digits}f}]</small>"
                )
            )
            shown = f"{scale * interval.value:+.{digits}f}{_mark(findings, label, name)}{ends}"
            cells.append(Cell(shown, scale * interval.value))
        rows.append(cells)
    unit = (
        "in points of accuracy"
        if study.measure.percent
        else "decrease (+) or increase (-) of the error"
    )
    over = text(panels.over_words(study, comparison.over))
    intervals = f", with {comparison.level:.0%} intervals {over}" if over else ""
    caption = (
        f"Differences to {text(study.reference)}, {unit} (Gini as it is){intervals}: "
        "what each method gives the worst served, and what it costs."
    )
    headings = ["method", *(SHORT[name] for name in names)]
    return table(headings, rows, caption, list(comparison.differences), True)


def _figure(panel: Panel) -> str:
    if not panel.variants:
        return ""
    first = panel.variants[0]
    control = ""
    if len(panel.variants) > 1:
        options = "".join(
            f'<option value="{place}">{text(variant.name)}</option>'
            for place, variant in enumerate(panel.variants)
        )
        select = f'<select id="choose-{panel.key}" data-panel="{panel.key}">{options}</select>'
        control = f'<label for="choose-{panel.key}">{text(panel.choice)}</label>{select}'
    tables = "".join(
        '<div class="numbers"'
        f' data-variant="{place}"{" hidden" if place else ""}>{variant.table}</div>'
        for place, variant in enumerate(panel.variants)
    )
    height = first.figure.layout.height
    controls = f'<div class="controls">{control}</div>' if control else ""
    return (
        f'<figure id="figure-{panel.key}">{controls}<div class="plot" id="plot-{panel.key}"'
        f' role="img" aria-label="{text(first.finding)}"'
        f' style="min-height:{height}px"></div><figcaption>{panel.caption}</figcaption><button'
        f' type="button" class="save" data-panel="{panel.key}">Save'
        f" picture{hidden(': ' + panel.key)}</button><details><summary>Data of this"
        f" figure</summary>{tables}</details></figure>"
    )


def _reproduce(study: Study, command: str) -> str:
    """Commands, specs, versions and machine."""
    federation = any("federation" in run for run in study.about)
    groups: dict[str, tuple[Spec, list[int]]] = {}
    for spec in study.specs:
        known = dataclasses.replace(
            spec,
            seed=0,
            data={
                key: value for key, value in spec.data.items() if key != "seed" or study.same_data
            },
        )
        groups.setdefault(known.to_toml(), (spec, []))[1].append(spec.seed)
    parts = []
    for number, (spec, seeds) in enumerate(groups.values(), start=1):
        several = len(seeds) > 1
        whole = (
            dataclasses.replace(spec, seeds=tuple(seeds), resplit=not study.same_data)
            if several
            else spec
        )
        name = "spec.toml" if len(groups) == 1 else f"spec-{number}.toml"
        line = f"evenhand compare {name} --no-reference" if several else f"evenhand run {name}"
        how = (
            f"<p>Save the spec below as <code>{name}</code> and"
            f" run</p><pre><code>{text(line)}</code></pre>"
        )
        if spec.data.get("name") == PYTHON:
            how = (
                "<p>A Python program trained with these settings, on data and with a model of its"
                " own; run it again.</p>"
            )
        if federation:
            how = (
                "<p>A Flower app ran with these settings on nodes that keep their data; start it"
                " again with another directory.</p>"
            )
        parts.append(
            f"{how}<details><summary>{name}</summary><pre><code>{text(whole.to_toml())}</code></pre></details>"
        )
    if command:
        parts.append(f"<p>This page was made with</p><pre><code>{text(command)}</code></pre>")
    rows = [
        ["seeds", ", ".join(map(str, study.seeds))],
        ["data", "the same for all seeds" if study.same_data else "dealt anew with each seed"],
    ]
    about: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "data fingerprint": lambda run: str(run.get("data", "")),
        "machine": lambda run: str(run.get("machine", "")),
        "device": lambda run: str(run.get("device", "")),
        "versions": lambda run: ", ".join(
            f"{name} {version}" for name, version in run.get("versions", {}).items()
        ),
    }
    for name, read in about.items():
        values = list(dict.fromkeys(value for value in map(read, study.about) if value))
        if values:
            rows.append(
                [
                    name,
                    "; ".join(values[:5])
                    + (f" and {len(values) - 5} more" if len(values) > 5 else ""),
                ]
            )
    rows.append(
        [
            "directories",
            ", ".join(map(str, study.directories[:10]))
            + (" and others" if len(study.directories) > 10 else ""),
        ]
    )
    return "".join(parts) + table(["what", "value"], rows, "What the numbers come from")
