"""What the server of a federation learns about single clients: the section of the page, from what
runs say about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenhand.page.markup import table, text
from evenhand.studies.methods import NOTHING
from evenhand.studies.runs.study import Study

MOST_ROWS = 40  # of the table of clients
SUMS = "nothing by name: sums, and how many clients have which accuracy"
SCORES = "how it fares: its predictions counted by label and group, its losses"


def heading(study: Study) -> str:
    return (
        f"What the server {'learned' if _federations(study) else 'would learn'} about single"
        " clients"
    )


def learned(study: Study, prefix: str = "") -> str:
    """HTML; empty where runs do not say it."""
    rows = {label: row for label in study.labels if (row := _row(study, label))}
    if not rows:
        return ""
    federations = _federations(study)
    told = (
        "its name, its team if it has one, how many samples it has of each group and part, the"
        " shape of a sample, names of classes, and how much its owner shares"
    )
    if federations:
        start = f"At the start each client told {told}."
    else:
        start = (
            "This was a simulation, with everything in one process. In a real federation each"
            f" client would tell at the start {told}."
        )
    headings = [
        "method",
        "of one client, in training",
        "in evaluation",
        "remembered by the client alone",
        "fit for secure sums",
    ]
    caption = (
        "From each method's messages. Fit for secure sums: training needs nothing but sums over"
        " clients. Without secure sums the server adds up messages that reach it one by one, so"
        " whoever runs it could look at single ones. Of few clients, the numbers of samples may"
        " give away whose an accuracy is."
    )
    body = f'<p>{start}</p><div class="words-table">' + table(
        headings, list(rows.values()), caption, list(rows), identity=f"{prefix}server-table"
    )
    body += "</div>"
    return body + (_census(federations[-1]["clients"]) if federations else "")


def _row(study: Study, label: str) -> list[str]:
    trial = study.trials[label, study.seeds[0]]
    run = dict(zip(study.directories, study.about, strict=True)).get(trial.folder.parent, {})
    known = run.get("server", {}).get(trial.folder.name)
    if known is None:
        return []
    by_client = "federation" in run and trial.by_client
    fit = "no" if known["sees"] else "yes, but not its evaluation by client" if by_client else "yes"
    return [
        label,
        ", ".join(known["sees"]) or NOTHING,
        SCORES if by_client else SUMS,
        ", ".join(known["stays"]) or "-",
        fit,
    ]


def _federations(study: Study) -> list[Mapping[str, Any]]:
    return [run["federation"] for run in study.about if "federation" in run]


def _census(clients: list[Mapping[str, Any]]) -> str:
    """What each client told at the start."""
    cells = list(
        dict.fromkeys(
            (part, group)
            for client in clients
            for part, found in client["samples"].items()
            for group in found
        )
    )
    teams = any(client["team"] for client in clients)
    headings = [
        "client",
        *(["team"] if teams else []),
        *(f"{part}, {group}" if group else part for part, group in cells),
    ]
    rows = [
        [
            client["name"],
            *([client["team"]] if teams else []),
            *(str(client["samples"].get(part, {}).get(group, 0)) for part, group in cells),
        ]
        for client in clients[:MOST_ROWS]
    ]
    more = (
        f"; {len(clients) - MOST_ROWS} more are in about.json" if len(clients) > MOST_ROWS else ""
    )
    told = table(headings, rows, f"Samples of each client, by part and group{text(more)}")
    return f"<details><summary>What each client told at the start</summary>{told}</details>"
