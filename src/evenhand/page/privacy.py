"""The report's section on differential privacy."""

from __future__ import annotations

from evenhand.page.markup import text
from evenhand.studies.analysis.privacy_in_words import about_privacy, privacy_of
from evenhand.studies.runs.study import Study


def privacy(study: Study) -> str:
    """HTML: what each private method may claim; empty if there is none."""
    parts = []
    for label in study.labels:
        found = privacy_of(study, label)
        if found is not None:
            lines = [about_privacy(study, label), *found.lines[1:]]
            parts.append("<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>")
    others = [label for label in study.labels if privacy_of(study, label) is None]
    if parts and others:
        parts.append(
            f"<p>Not private at all: {text(', '.join(others))}. A run that is published beside a"
            " private one tells what it tells.</p>"
        )
    return "".join(parts)
