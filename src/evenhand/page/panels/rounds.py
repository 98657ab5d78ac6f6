"""Figures over rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from evenhand.page import figures
from evenhand.page.figures.rounds import GAPS, LEARNING, gap_columns, learning_columns
from evenhand.page.markup import table, text
from evenhand.page.numbers import merit_words
from evenhand.page.panels.panel import MOST_ROWS, Panel, Variant, listed
from evenhand.page.series import group_weights as weights_of_groups
from evenhand.page.series import learning, thinned, weights
from evenhand.studies.findings import Findings
from evenhand.studies.runs.study import Study


def learning_curves(findings: Findings) -> Panel:
    """Mean, worst clients and worst group over rounds."""
    study = findings.study
    columns = learning_columns(study)
    names = {column: LEARNING.get(column, "mean loss") for column in columns}
    finding, tables = _told(study, names, partial(_curve_number, study))
    what = (
        f"{merit_words(study)} at the evaluated rounds."
        if columns != ["loss"]
        else "Mean loss over clients at the evaluated rounds."
    )
    return Panel(
        "learning",
        what + _band(study),
        (Variant("", figures.learning_curves(study), finding, tables),),
    )


def gap_curves(findings: Findings) -> Panel | None:
    """Gaps between groups over rounds; None if no run recorded them."""
    study = findings.study
    names = {column: GAPS[column] for column in gap_columns(study)}
    if not names:
        return None
    finding, tables = _told(study, names, lambda _, gap: f"{100 * gap:.1f}")
    counts = study.first.counts
    about = f" Rates of label “{text(counts.labels[1])}”." if counts is not None else ""
    caption = (
        f"Difference between the largest and the smallest rate over the groups, in points, on the"
        f" {study.measure.part} samples of all clients at the evaluated rounds.{about}"
        f"{_band(study)}"
    )
    return Panel("gap-rounds", caption, (Variant("", figures.gap_curves(study), finding, tables),))


def _told(
    study: Study, names: Mapping[str, str], number: Callable[[str, float], str]
) -> tuple[str, str]:
    """The last values of each method, and a table for each column of the history."""
    curves = {
        label: {column: learning(study, label, column) for column in names}
        for label in study.labels
    }
    ends, tables = [], ""
    for label, found in curves.items():
        told = [
            f"{names[column]} {number(column, one.mean[-1])}"
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
            rows.append([str(at), *(number(column, one[0]) if one else "-" for one in there)])
        tables += table(
            ["round", *study.labels], rows, f"{name.capitalize()} over rounds, means over seeds"
        )
    return f"At the end. {listed(ends)}", tables


def _band(study: Study) -> str:
    return f" Bands span the {len(study.seeds)} seeds." if len(study.seeds) > 1 else ""


def client_weights(findings: Findings) -> Panel | None:
    """Effective weights of clients over rounds, one method at a time; None if no run recorded
    weights."""
    study = findings.study
    variants = []
    served_by = ""
    plain = [label for label in (study.reference, study.alone) if label is not None]
    # fair methods come before the references
    for label in (*(label for label in study.labels if label not in plain), *plain):
        found = weights(study, label)
        if found is None:
            continue
        served_by = found.served_by
        tenth = max(1, len(found.rows) // 10)
        last, worst = found.share[:, -1], float(found.share[:tenth, -1].mean())
        most = found.rows[int(np.argmax(last))]
        finding = (
            f"With {label}, at round {found.rounds[-1]}, the tenth of the clients that {served_by}"
            f" serves worst have {worst:.2f} times an equal share on average; {most} has the most,"
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
        "; clients with similar results are averaged"
        if len(study.names("client")) > len(rows)
        else ""
    )
    caption = (
        "The effective weight of each client's training loss in a round, in multiples of an equal"
        " share: 1 for all clients means equal weights. Clients are sorted by their results with"
        f" {text(served_by)}, the worst-served on top{several}."
    )
    return Panel("weights", caption, tuple(variants), "Method")


def group_weights(findings: Findings) -> Panel | None:
    """Weights of groups over rounds, for methods that weight groups; None without any."""
    study, variants = findings.study, []
    trained = study.first.column("train_count", "group")
    names, share = study.names("group"), 100 * trained / max(1.0, float(trained.sum()))
    for label in study.labels:
        found = weights_of_groups(study, label)
        if found is None:
            continue
        last = 100 * found.share[-1]
        told = [
            f"{name} {end:.1f} % ({part:.1f} % of the training samples)"
            for name, end, part in zip(names, last.tolist(), share.tolist(), strict=True)
        ]
        at = thinned(len(found.rounds), 6)
        rows = [
            [
                name,
                f"{share[place]:.1f}",
                *(f"{100 * value:.1f}" for value in found.share[at, place]),
            ]
            for place, name in enumerate(names)
        ]
        numbers = table(
            ["group", "share of training samples", *(f"round {found.rounds[i]}" for i in at)],
            rows,
            f"Weights of groups with {text(label)}, %",
        )
        finding = f"With {label}, at round {found.rounds[-1]}: {listed(told)}"
        variants.append(Variant(label, figures.group_weights(study, label), finding, numbers))
    if not variants:
        return None
    shares = "; ".join(
        f"{name} {part:.1f} %" for name, part in zip(names, share.tolist(), strict=True)
    )
    caption = (
        "The weight of each group's training loss. FedAvg weights groups by their shares of the"
        f" training samples: {text(shares)}."
    )
    return Panel("group-weights", caption, tuple(variants), "Method")


def _curve_number(study: Study, column: str, value: float) -> str:
    return (
        f"{study.measure.scale * value:.{study.measure.digits}f}"
        if column in LEARNING
        else f"{value:.4g}"
    )
