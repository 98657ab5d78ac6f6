"""The report's section on differential privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenhand.page.markup import text
from evenhand.page.panels.panel import Panel
from evenhand.studies.analysis.privacy_in_words import about_privacy, privacy_of
from evenhand.studies.runs.study import Study


def costs(panels: Mapping[str, Panel]) -> str:
    """HTML: who pays most for privacy, a sentence for each method; empty without the figure."""
    panel = panels.get("privacy-costs")
    return "" if panel is None else _list([variant.finding for variant in panel.variants])


def privacy(study: Study) -> str:
    """HTML: what each private method may claim; empty if there is none."""
    found = {label: one for label in study.labels if (one := privacy_of(study, label)) is not None}
    others = [label for label in study.labels if label not in found]
    lines = {label: [about_privacy(study, label), *one.lines[1:]] for label, one in found.items()}
    # what holds for several methods is said once
    same = [
        line
        for line in next(iter(lines.values()), [])
        if len(lines) > 1 and all(line in told for told in lines.values())
    ]
    parts = [_list([line for line in told if line not in same]) for told in lines.values()]
    if same:
        parts.append(f"<p>For each of these methods:</p>{_list(same)}")
    if parts and others:
        parts.append(
            f"<p>Not private at all: {text(', '.join(others))}. A run that is published beside a"
            " private one tells what it tells.</p>"
        )
    return "".join(parts)


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{text(line)}</li>" for line in lines if line)
    return f"<ul>{items}</ul>" if items else ""
