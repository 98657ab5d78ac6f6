"""The report on one study or several: one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evenhand.data.plots import REFERENCE, looks
from evenhand.page import panels
from evenhand.page.figures.methods import STANDINGS, VERDICTS
from evenhand.page.figures.rounds import EVEN, distinct
from evenhand.page.frame import framed
from evenhand.page.ledger import ledger_data
from evenhand.page.markup import script_json, text
from evenhand.page.panels.panel import Panel
from evenhand.page.sections import chooser, opening, overview_of_studies, sections
from evenhand.studies.findings import Findings

CHOOSER = (
    '<form class="chooser" aria-label="Methods to show">'
    "<fieldset><legend>Methods shown</legend><ul>{}</ul></fieldset>"
    '<p class="buttons"><button type="button" id="show-all">All methods</button>'
    '<button type="button" id="theme">Dark colours</button></p></form>'
)


class Chapter(NamedTuple):
    """A study in the report."""

    findings: Findings
    panels: Mapping[str, Panel]
    command: str
    prefix: str  # of the ids of its elements; empty in a report on one study


def chapters(
    studies: Sequence[tuple[Findings, str]], drawn: Sequence[Sequence[Panel]] | None = None
) -> list[Chapter]:
    """The chapters of a report, from studies and the commands that make a report on each."""
    if drawn is None:
        drawn = [list(panels.all_panels(findings)) for findings, _ in studies]
    return [
        Chapter(
            findings,
            {panel.key: panel for panel in found},
            command,
            "" if len(studies) == 1 else f"study-{number}-",
        )
        for number, ((findings, command), found) in enumerate(
            zip(studies, drawn, strict=True), start=1
        )
    ]


def page(parts: Findings | Sequence[Chapter], title: str | None = None) -> str:
    """The whole page as text."""
    told = chapters([(parts, "")]) if isinstance(parts, Findings) else parts
    one = len(told) == 1
    if title is None:
        title = (
            f"Who gains and who loses: {told[0].findings.study.name}"
            if one
            else f"{len(told)} studies side by side"
        )
    if one:
        body, entries = _parts(told[0], "h2")
        whole = f"<header><h1>{text(title)}</h1>{_opening(told[0])}</header>{body}"
    else:
        names = distinct([chapter.findings.study.name for chapter in told])
        found = {name: chapter.findings for name, chapter in zip(names, told, strict=True)}
        whole = f"<header><h1>{text(title)}</h1>{overview_of_studies(found)}</header>"
        entries = []
        for name, chapter in zip(names, told, strict=True):
            key = chapter.prefix.rstrip("-")
            entries.append((key, name))
            body, _ = _parts(chapter, "h3")
            whole += (
                f'<section class="study" id="{key}" aria-labelledby="{key}-h"><h2'
                f' id="{key}-h">{text(name)}</h2>{_opening(chapter)}{body}</section>'
            )
    return framed(
        "evenhand report",
        title,
        [(f"#{key}", heading) for key, heading in entries],
        whole,
        _data(told),
        CHOOSER.format(chooser([chapter.findings.study for chapter in told])),
        "Sections and methods",
    )


def _opening(chapter: Chapter) -> str:
    return opening(chapter.findings, chapter.panels, chapter.prefix)


def _parts(chapter: Chapter, level: str) -> tuple[str, list[tuple[str, str]]]:
    """HTML of a study's sections, and the id and heading of each."""
    whole, entries = "", []
    for key, heading, body in sections(*chapter):
        name = chapter.prefix + key
        entries.append((name, heading))
        # landmarks of several studies would share their names
        landmark = "" if chapter.prefix else f' aria-labelledby="{name}-h"'
        whole += (
            f'<section id="{name}"{landmark}><{level} id="{name}-h">{text(heading)}</{level}>'
            f"{body}</section>"
        )
    return whole, entries


def _data(told: Sequence[Chapter]) -> str:
    """The figures and ledgers for the page's script."""
    shown = ",".join(
        f"{json.dumps(chapter.prefix + key)}:"
        f"[{','.join(_figure_json(v.figure, v.finding) for v in panel.variants)}]"
        for chapter in told
        for key, panel in chapter.panels.items()
    )
    themes = {EVEN: "#2A2F37"}
    themes[REFERENCE["light"]] = REFERENCE["dark"]
    themes |= {look.line: look.dark for look in VERDICTS.values()}
    themes |= {colour: dark for colour, dark, _ in STANDINGS.values()}
    for chapter in told:
        study = chapter.findings.study
        for found in (
            looks(study.labels, study.reference).values(),
            looks(study.names("group")).values(),
        ):
            themes |= {look.colour: look.dark for look in found if look.colour != look.dark}
    parts = [script_json("figures-data", "{" + shown + "}"), script_json("themes-data", themes)]
    parts += [
        script_json(f"{chapter.prefix}ledger-data", ledger_data(chapter.findings))
        for chapter in told
        if chapter.findings.entries
    ]
    return "\n".join(parts)


def _figure_json(figure: Any, finding: str) -> str:
    """A figure without its template, which the page's own style replaces."""
    whole = figure.to_plotly_json()
    layout = {key: value for key, value in whole["layout"].items() if key != "template"}
    shown = {"figure": {"data": whole["data"], "layout": layout}, "finding": finding}
    return json.dumps(shown, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
