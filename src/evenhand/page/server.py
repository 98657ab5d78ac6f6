"""The report's section on what the server of a federation learns about single clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenhand.metrics.tallies import accuracy_of
from evenhand.page.markup import table, text
from evenhand.studies.methods import NOTHING
from evenhand.studies.runs.study import Study

MOST_ROWS = 40  # of the table of clients
# without a classifier, and with one
SUMS = (
    "nothing client by client: sums",
    "nothing client by client: sums, and how many clients have which accuracy",
)
MASKED = (
    "Replies were masked: the server got sums over clients and no single reply. No cryptographer"
    " from outside has examined the protocol, and sums tell something about people, too."
)
SIMULATED = (
    "Replies were summed as masked sums do it: in a federation with masks, the server gets these"
    " sums over clients and no single reply. No cryptographer from outside has examined the"
    " protocol, and sums tell something about people, too."
)
SCORES = (
    "its scores: losses by group",
    "its scores: counts of predictions by label and group, and losses",
)


def heading(study: Study) -> str:
    return (
        f"What the server {'learned' if _federations(study) else 'would learn'} about single"
        " clients"
    )


def masking(study: Study) -> str:
    """What masked sums hid, if all runs had them; otherwise empty."""
    if study.about and all("masked" in run.get("federation", {}) for run in study.about):
        return MASKED
    return (
        SIMULATED
        if study.about and all(run.get("engine") == "masked" for run in study.about)
        else ""
    )


def learned(study: Study, prefix: str = "") -> str:
    """HTML; empty if runs do not record it."""
    rows = {label: row for label in study.labels if (row := row_of(study, label))}
    if not rows:
        return ""
    federations = _federations(study)
    hidden = bool(federations) and all(run.get("counted") for run in federations)
    told = (
        "its name, its team (if any), the names of its groups and classes,"
        f" {'the names of its splits' if hidden else 'its number of samples by group and split'},"
        " the shape and type of a sample and of a label, and how much its owner shares"
    )
    if federations:
        start = f"At the start, each client told the server {told}." + (
            " Numbers of samples came as a masked sum." if hidden else ""
        )
    else:
        start = (
            "This was a simulation in one process. In a real federation, each client would first"
            f" tell the server {told}."
        )
    headings = [
        "method",
        "seen of one client in training",
        "seen in evaluation",
        "stored only by the client",
        "works with masked sums",
    ]
    caption = (
        "From each method's messages. A method works with masked sums if training needs only sums"
        " over clients. "
    ) + (
        masking(study)
        or "Without masked sums, messages reach the server one by one, so whoever runs it could"
        " read them."
    )
    if _classifies(study):
        caption += (
            " With few clients, the numbers of samples may reveal which client has which accuracy."
        )
    body = f'<p>{start}</p><div class="words-table">' + table(
        headings, list(rows.values()), caption, list(rows), identity=f"{prefix}server-table"
    )
    body += "</div>"
    return body + (_census(federations[-1]) if federations else "")


def _classifies(study: Study) -> bool:
    """Whether the model is a classifier, as far as is known."""
    tally = study.first.tally
    return bool(accuracy_of(tally)) or not tally


def row_of(study: Study, label: str) -> list[str]:
    """What the server sees of one client with a method; [] if runs do not record it."""
    trial = study.trials[label, study.seeds[0]]
    runs = dict(zip(study.directories, study.about, strict=True))
    if trial.folder in runs:  # a run of one method has its files in the directory itself
        run = runs[trial.folder]
        known = next(iter(run.get("server", {}).values()), None)
    else:
        run = runs.get(trial.folder.parent, {})
        known = run.get("server", {}).get(trial.folder.name)
    if known is None:
        return []
    by_client = "federation" in run and trial.by_client
    fit = "no" if known["sees"] else "yes, but not its evaluation by client" if by_client else "yes"
    return [
        label,
        ", ".join(known["sees"]) or NOTHING,
        (SCORES if by_client else SUMS)[_classifies(study)],
        ", ".join(known["stays"]) or "-",
        fit,
    ]


def _federations(study: Study) -> list[Mapping[str, Any]]:
    return [run["federation"] for run in study.about if "federation" in run]


def _census(federation: Mapping[str, Any]) -> str:
    """What clients told the server at the start: each by itself, or many together."""
    clients: list[Mapping[str, Any]] = federation["clients"]
    sums: list[Mapping[str, Any]] = [
        {**one, "name": f"{len(one['clients'])} clients together", "team": ""}
        for one in federation.get("counted", ())
    ]
    told = _samples(sums or clients)
    who = "clients told the server together" if sums else "each client told the server"
    return f"<details><summary>What {who} at the start</summary>{told}</details>"


def _samples(clients: list[Mapping[str, Any]]) -> str:
    """Numbers of samples, a row for each client or sum of clients."""
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
    return table(headings, rows, f"Numbers of samples by split and group{text(more)}")
