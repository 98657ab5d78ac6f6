"""The page about a study: one HTML file with everything in it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from evenhand.data.plots import graph_objects, looks, save_figures
from evenhand.errors import require_choice
from evenhand.files import write_atomic
from evenhand.report import figures, panels
from evenhand.report.ledger import ledger_data
from evenhand.report.markup import script_json, text
from evenhand.report.panels import Panel
from evenhand.report.sections import chooser, facts, sections
from evenhand.studies.directories import load_spec
from evenhand.studies.findings import Findings, analyse
from evenhand.studies.study import Study
from evenhand.studies.sweeping import Sweep


def write_report(
    paths: Sequence[Path | str],
    out: Path | str = "report.html",
    title: str | None = None,
    over: str = "auto",
    level: float = 0.95,
    least: int = 10,
    positive: str | None = None,
    pictures: Path | str | None = None,
    picture_format: str = "png",
) -> tuple[Findings, list[Path]]:
    """Write the page about run, comparison or sweep directories, and each of its figures as a file
    if ``pictures`` names a directory.

    The findings, and the paths that were written, the page first.
    """
    require_choice("picture_format", picture_format, ("png", "svg"))
    graph_objects()  # whatever is missing shows before the work is done
    given = [Path(path) for path in paths]
    study = Study.load(given)
    findings = analyse(study, over, level, least, positive)
    if len(given) == 1 and (spec := load_spec(given[0])).select:
        chosen = Sweep.of(study, spec)
        # the others are not to be chosen by test data
        of_choice = analyse(chosen.final, over, level, least, positive).sentences
        warning = (
            "Below, all points are shown on test data; to choose one of them by these numbers would"
            " make it look better than it is."
        )
        findings = dataclasses.replace(
            findings, sentences=[f"Chosen on validation data: {chosen.reason}", *of_choice, warning]
        )
    drawn = list(panels.all_panels(findings))
    written = [Path(out)]
    write_atomic(
        written[0], page(findings, drawn, title, _command(given, over, level, least)).encode()
    )
    if pictures is not None:
        written += save_pictures(drawn, Path(pictures), picture_format)
    return findings, written


def save_pictures(drawn: Sequence[Panel], directory: Path, picture_format: str) -> list[Path]:
    """Every figure as a file."""
    pictures: dict[Path, Any] = {}
    for panel in drawn:
        for variant in panel.variants:
            several = f"-{variant.name}" if len(panel.variants) > 1 else ""
            name = re.sub(r"[^\w.=+-]+", "-", f"{panel.key}{several}").strip("-")
            path, number = directory / f"{name}.{picture_format}", 1
            while path in pictures:  # names that differ only in what cannot be in a file's name
                number += 1
                path = directory / f"{name}-{number}.{picture_format}"
            pictures[path] = variant.figure
    return save_figures(pictures)


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
    return (resources.files("evenhand.report") / name).read_text(encoding="utf-8")


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
    themes |= {figures.EVEN: "#2A2F37", figures.VERDICTS["unclear"][0]: "#9AA0A8"}
    parts = [script_json("figures-data", "{" + shown + "}"), script_json("themes-data", themes)]
    if findings.entries:
        parts.append(script_json("ledger-data", ledger_data(findings)))
    return "\n".join(parts)


def _figure_json(figure: Any, finding: str) -> str:
    return f'{{"figure":{figure.to_json()},"finding":{json.dumps(finding)}}}'


def _command(paths: Sequence[Path], over: str, level: float, least: int) -> str:
    options = {
        "--over": (over, "auto"),
        "--level": (f"{level:g}", "0.95"),
        "--least": (str(least), "10"),
    }
    given = [
        part for name, (value, usual) in options.items() if value != usual for part in (name, value)
    ]
    return shlex.join(["evenhand", "report", *map(str, paths), *given])
