"""The page about a study: one HTML file with everything in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module, resources
from typing import Any

from evenhand.data.plots import looks
from evenhand.page import panels
from evenhand.page.figures.methods import VERDICTS
from evenhand.page.figures.rounds import EVEN
from evenhand.page.ledger import ledger_data
from evenhand.page.markup import script_json, text
from evenhand.page.panels.panel import Panel
from evenhand.page.sections import chooser, facts, sections
from evenhand.studies.findings import Findings


def page(
    findings: Findings,
    drawn: Sequence[Panel] | None = None,
    title: str | None = None,
    command: str = "",
) -> str:
    """The whole page as text."""
    study = findings.study
    found = {
        panel.key: panel for panel in (panels.all_panels(findings) if drawn is None else drawn)
    }
    title = title or f"Who gains and who pays: {study.name}"
    parted = sections(findings, found, command)
    parts = {
        "title": text(title),
        "facts": facts(findings),
        "sentences": "".join(f"<li>{text(sentence)}</li>" for sentence in findings.sentences),
        "links": "".join(
            f'<li><a href="#{key}">{text(heading)}</a></li>' for key, heading, _ in parted
        ),
        "methods": chooser(study),
        "sections": "".join(
            f'<section id="{key}" aria-labelledby="{key}-h"><h2'
            f' id="{key}-h">{text(heading)}</h2>{body}</section>'
            for key, heading, body in parted
        ),
        "style": _asset("style.css"),
        "data": _data(findings, found),
        "plotly": import_module("plotly.offline").get_plotlyjs(),
        "script": _asset("script.js"),
    }
    # one pass, so that nothing inside a part is taken for a place
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("evenhand.page") / name).read_text(encoding="utf-8")


def _data(findings: Findings, found: Mapping[str, Panel]) -> str:
    """The figures and the ledger for the page's script."""
    shown = ",".join(
        f"{json.dumps(key)}:[{','.join(_figure_json(v.figure, v.finding) for v in panel.variants)}]"
        for key, panel in found.items()
    )
    themes = {
        look.colour: look.dark
        for look in looks(findings.study.labels, findings.study.reference).values()
        if look.colour != look.dark
    }
    themes |= {EVEN: "#2A2F37", VERDICTS["unclear"][0]: "#9AA0A8"}
    parts = [script_json("figures-data", "{" + shown + "}"), script_json("themes-data", themes)]
    if findings.entries:
        parts.append(script_json("ledger-data", ledger_data(findings)))
    return "\n".join(parts)


def _figure_json(figure: Any, finding: str) -> str:
    return f'{{"figure":{figure.to_json()},"finding":{json.dumps(finding)}}}'
