"""Figures of results by client."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.page import figures
from evenhand.page.figures.clients import FEW
from evenhand.page.figures.methods import VERDICTS
from evenhand.page.markup import table, text
from evenhand.page.numbers import change, gain_unit, merit_words, served
from evenhand.page.panels.panel import MOST_ROWS, Panel, Variant, listed
from evenhand.page.series import client_merits, curve, thinned
from evenhand.studies.findings import Findings

PERCENTILES = (0, 5, 10, 25, 50, 75, 90, 95, 100)


def distribution(findings: Findings) -> Panel:
    """The distribution of the measure over clients."""
    study = findings.study
    merits = {label: client_merits(study, label) for label in study.labels}
    levels = (100 - np.array(PERCENTILES)) if not study.measure.percent else np.array(PERCENTILES)
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
        what if study.same_data else "each client of each seed, since the data differ between seeds"
    )
    fewest = min(int((~np.isnan(values)).sum()) for values in merits.values())
    drawn = "Each point is a client; equal values are stacked."
    if fewest > FEW:
        drawn = (
            "The curve shows the density of clients; the marker is their median, and the bar spans"
            " the middle half of them."
        )
    caption = f"{merit_words(study)} of {findings.clients}: {text(what)}. {drawn}"
    rows = [[label, *(study.measure.show(value) for value in at[label])] for label in study.labels]
    headings = ["method", *(f"{level} %" for level in PERCENTILES)]
    title = f"{merit_words(study)}{text(study.measure.unit)}: percentiles over clients"
    numbers = table(headings, rows, title, study.labels)
    return Panel(
        "distribution",
        caption,
        (Variant("", figures.distribution(study), listed(named), numbers),),
    )


def gains(findings: Findings) -> Panel | None:
    """The gain or loss of each client, with intervals; None without a reference."""
    study, variants = findings.study, []
    pairs = dict.fromkeys(
        (entry.method, entry.against) for entry in findings.entries if entry.by == "client"
    )
    for method, against in pairs:
        found = sorted(
            (
                entry
                for entry in findings.entries
                if (entry.method, entry.against, entry.by) == (method, against, "client")
                and not np.isnan(entry.gain.value)
            ),
            key=lambda entry: entry.gain.value,
        )
        if not found:
            continue
        scale, digits = study.measure.scale, study.measure.digits
        least, most = found[0], found[-1]
        up, down = (sum(sign * entry.gain.value > 0 for entry in found) for sign in (1, -1))
        finding = (
            f"With {method} compared with {against}, {up} of {len(found)}"
            f" client{'s' * (len(found) != 1)} {'is' if up == 1 else 'are'} better off and"
            f" {down} worse off; gains range from {change(least.gain, scale, digits)} for"
            f" {least.name} to {change(most.gain, scale, digits)} for {most.name}."
        )
        rows = [
            [
                entry.name,
                change(entry.gain, scale, digits),
                served(study, entry.merit, entry.samples),
                served(study, entry.reference, entry.samples),
                VERDICTS[entry.verdict].word,
            ]
            for entry in (found[i] for i in thinned(len(found), MOST_ROWS).tolist())
        ]
        some = f", {MOST_ROWS} of {len(found)} clients" if len(found) > MOST_ROWS else ""
        numbers = table(
            ["client", "gain", method, against, "verdict"],
            rows,
            f"Gains with {text(method)} compared with {text(against)}, {gain_unit(study)}{some}",
        )
        variants.append(
            Variant(
                f"{method} compared with {against}",
                figures.gains(study, findings.entries, method, against),
                finding,
                numbers,
            )
        )
    if not variants:
        return None
    caption = (
        "Gain (+) or loss (\u2212) of each client, largest loss first, with"
        f" {100 * findings.comparison.level:g} % intervals over its test samples. Harmed and gains:"
        " significant after Holm's correction over the clients."
    )
    return Panel("gains", caption, tuple(variants), "Method")


def sorted_clients(findings: Findings) -> Panel:
    """Clients from the worst-served to the best-served."""
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
        " Clients are sorted for each seed, then averaged by rank." if len(study.seeds) > 1 else ""
    )
    caption = (
        "A line that starts higher is better for the worst-served clients; a flatter line means"
        f" more equal results.{seeds}"
    )
    if not study.measure.percent:
        caption = (
            "A line that starts lower is better for the worst-served clients; a flatter line means"
            f" more equal results.{seeds}"
        )
    numbers = table(
        ["clients served worse", *study.labels],
        rows,
        f"{merit_words(study)}{text(study.measure.unit)}",
    )
    return Panel(
        "sorted", caption, (Variant("", figures.sorted_clients(study), listed(ends), numbers),)
    )


def _percentiles(values: Any, at: Any) -> list[float]:
    kept = values[~np.isnan(values)]
    return (
        [float(value) for value in np.percentile(kept, at)]
        if len(kept)
        else [float("nan")] * len(at)
    )
