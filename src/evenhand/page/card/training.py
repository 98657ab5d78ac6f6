"""The sections of a card about how the model came about: purpose, data, method, settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.datasets.catalogue import CATALOGUE
from evenhand.datasets.entry import Entry
from evenhand.page import numbers
from evenhand.page.card.blocks import Block, Paragraph, Section, Table
from evenhand.page.card.subject import Subject
from evenhand.studies.analysis.writing import count_of
from evenhand.training.about import PYTHON
from evenhand.training.directory import MODEL

MOST_NAMES = 12


def summary(subject: Subject) -> list[str]:
    """What the model is, and how well it serves its clients, in a few sentences."""
    findings, study = subject.findings, subject.study
    row = findings.comparison.rows[subject.label]
    lines = [predicts(subject), trained(subject)]
    mean, worst = (numbers.ends_words(study, name, row[name]) for name in ("mean", "min"))
    what = f"{numbers.merit_words(study)}"
    if study.clients > 1:
        lines.append(f"{what} is {mean} on average over clients, and {worst} for the worst client.")
    else:
        lines.append(f"{what} is {mean}.")
    if study.folds or len(study.seeds) > 1:
        lines.append(f"Numbers are means over {subject.runs}; each of them gave its own model.")
    return lines


def predicts(subject: Subject) -> str:
    """What the model predicts."""
    label = subject.about.get("label", "")
    if not subject.classifies:
        return f"This model predicts {label or 'a number'}{', a number' if label else ''}."
    known = subject.labels
    classes = _listed(known) if known else ""
    if label:
        return f"This model predicts {label}" + (f" ({classes})." if classes else ".")
    return (
        f"This model predicts one of {len(known)} classes: {classes}."
        if known
        else ("This model is a classifier.")
    )


def trained(subject: Subject) -> str:
    """How it was trained, in a sentence."""
    clients = count_of(subject.study.clients, "client")
    own = "; each client has a model of its own" if subject.personal else ""
    if subject.real:
        return (
            f"It was trained by federated learning with {subject.label}: the samples stayed with"
            f" {clients}{own}."
        )
    return (
        f"It was trained with {subject.label}, a method of federated learning, over {clients}"
        f" simulated in one process{own}."
    )


def purpose(subject: Subject) -> Section:
    """What the model is for, as far as somebody said it."""
    lines = [
        subject.purpose or "The author of this card did not state what the model is for.",
        "Use the model only for samples like those it was trained on, from clients like these."
        " The results below say nothing about others.",
    ]
    if subject.personal:
        shared = (
            "until then it can use the shared model" if subject.shares else "there is no shared one"
        )
        lines.append(
            "A client uses its own model. A new client has none until it has trained one;"
            f" {shared}."
        )
    return Section("use", "Intended use", [Paragraph(line) for line in lines])


def data(subject: Subject) -> Section:
    """Clients, samples, groups, fingerprint and split."""
    study, spec = subject.study, subject.spec
    table = spec.data
    entry = catalogued(subject)
    rows = [["data", entry.about if entry else _data_name(table)]]
    if entry:
        rows.append(["source", entry.source])
    rows.append(["clients", _counted(study.clients, study.names("client"))])
    groups, teams = study.names("group"), study.names("team")
    rows.append(["groups", _counted(len(groups), groups) if len(groups) > 1 else "none"])
    if teams:
        rows.append(["teams of clients", _counted(len(teams), teams)])
    train = subject.trial.score_columns.get("train_count")
    by = "client" if subject.trial.by_client else "everyone"
    if train is not None:
        total = int(np.nansum(subject.trial.column("train_count", by)))
        rows.append(["training samples", f"{total:,}"])
    if subject.trial.validation is not None and by in subject.trial.validation["by"]:
        total = int(np.nansum(subject.trial.column("count", by, "validation")))
        rows.append(["validation samples", f"{total:,}"])
    rows.append([f"{study.measure.part} samples", f"{study.samples:,}"])
    if subject.encoding is not None:
        used = [column.name for column in subject.encoding.columns if column.kind != "left out"]
        rows.append(["columns used", _counted(len(used), used)])
    if subject.classifies and subject.labels:
        rows.append(["classes", _counted(len(subject.labels), subject.labels)])
    rows.append(["split", _split(subject)])
    prints = dict.fromkeys(str(run.get("data", "")) for run in study.about)
    rows.append(["fingerprint", "; ".join(list(prints)[:5])])
    caption = "The data that the model was trained and tested on."
    return Section("data", "Data", [Table(["what", "value"], rows, caption, words=True)])


def catalogued(subject: Subject) -> Entry | None:
    """The entry of a public data set."""
    return CATALOGUE.get(subject.spec.data.get("name", ""))


def _data_name(table: Mapping[str, Any]) -> str:
    name = str(table.get("name", ""))
    if name == PYTHON:
        return "samples of a Python program"
    if "path" in table:
        return f"the file {Path(str(table['path'])).name}"
    return {"nodes": "samples that stay with the nodes of a federation"}.get(name, name)


def _split(subject: Subject) -> str:
    study, table = subject.study, subject.spec.data
    parts = [
        f"{key} = {value}"
        for key, value in table.items()
        if key in ("client", "partition", "split", "held_out", "shift", "clients", "seed")
    ]
    if subject.spec.validation:
        parts.append(f"validation = {subject.spec.validation:g} of the training samples")
    if study.folds:
        parts.append(f"{study.folds} folds, each sample tested once")
    elif not study.same_data:
        parts.append("another split for each seed")
    return "; ".join(parts) or "as given by the program"


def method(subject: Subject) -> Section:
    """Name, sentence, paper and hyper-parameters."""
    sentence, paper = subject.method_in_words
    rows = [["method", subject.trial.method.name]]
    if paper:
        rows.append(["described in", paper])
    rows.append(["hyper-parameters", subject.settings or "none"])
    blocks: list[Block] = [Paragraph(sentence)] if sentence else []
    table = Table(["what", "value"], rows, "The method and its settings.", words=True)
    return Section("method", "Method", [*blocks, table])


def settings(subject: Subject) -> Section:
    """Rounds, local solver, cohort, seeds, device and versions."""
    study, spec, about = subject.study, subject.spec, subject.about
    local = {**spec.local, **subject.trial.method.local}
    rows = [
        ["network", str(spec.model.get("name", ""))],
        ["trained parameters", _size(subject)],
        ["loss", spec.loss],
        ["rounds", subject.rounds.removesuffix("s").removesuffix(" round")],
        ["local solver", _pairs({"solver": "sgd", **local})],
        ["cohort", _pairs(spec.cohort)],
        ["weights of clients", {"data": "their share of the samples"}.get(spec.weights, "equal")],
        ["training runs", subject.runs],
        ["device and precision", f"{about.get('device', spec.device)}, {spec.precision}"],
        ["engine", str(about.get("engine", spec.engine))],
        ["versions", ", ".join(f"{k} {v}" for k, v in about.get("versions", {}).items())],
    ]
    if study.tuned:
        rows.append(["tuning", "settings were chosen on validation data"])
    found = [row for row in rows if row[1]]
    caption = "How the model was trained."
    return Section(
        "settings", "Training", [Table(["setting", "value"], found, caption, words=True)]
    )


def _size(subject: Subject) -> str:
    if (subject.trial.folder / MODEL).exists():
        count = sum(leaf.numel() for leaf in subject.trial.params.values())
        return f"{count:,}" + (" for each client" if subject.personal else "")
    return ""


def _pairs(table: Mapping[str, Any]) -> str:
    shown = dict(table)
    first = [str(shown.pop(key)) for key in ("solver", "name") if key in shown][:1]
    return ", ".join([*first, *(f"{key} = {value}" for key, value in shown.items())])


def _counted(count: int, names: tuple[str, ...] | list[str]) -> str:
    numbered = all(name.isdigit() for name in names)
    return f"{count:,}" + ("" if numbered else f": {_listed(names)}")


def _listed(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
