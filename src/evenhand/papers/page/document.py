"""The page about published tables and figures beside ours: one HTML file, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenhand.files import write_atomic
from evenhand.page.frame import framed
from evenhand.page.markup import script_json, text
from evenhand.papers.experiment import Experiment, Part
from evenhand.papers.page.answer import opening, overview
from evenhand.papers.page.drawing import themes
from evenhand.papers.page.entry import Entry, entries
from evenhand.papers.page.sections import Section, section
from evenhand.papers.results import Result

TITLE = "Published numbers beside ours"
Results = Sequence[tuple[Experiment, Part, Result | None]]


def page(results: Results, title: str = TITLE) -> str:
    """The whole page as text.

    Args:
        results: every part as it was run, with its result; None where it was not run.
    """
    found = entries(results)
    grouped: dict[str, list[Entry]] = {}
    for entry in found:
        grouped.setdefault(entry.experiment.name, []).append(entry)
    homes: dict[str, str] = {}
    for entry in found:
        if not entry.part.same_as:
            homes.setdefault(entry.part.title, entry.key)
    made = [section(group, homes) for group in grouped.values()]
    body = (
        f"<header><h1>{text(title)}</h1>{opening(found)}</header>"
        '<section id="experiments" aria-labelledby="experiments-h"><h2 id="experiments-h">'
        f"All experiments</h2>{overview(found)}</section>"
    )
    body += "".join(
        f'<section id="{one.key}" aria-labelledby="{one.key}-h"><h2 id="{one.key}-h">'
        f"{text(one.heading)}</h2>{one.body}</section>"
        for one in made
    )
    figures = {
        key: [{"figure": drawing.figure, "finding": drawing.words}]
        for one in made
        for key, drawing in one.drawings.items()
    }
    data = [script_json("figures-data", figures), script_json("themes-data", themes())]
    return framed(
        "evenhand reproduce",
        title,
        _links(list(grouped.values()), made),
        body,
        "\n".join(data),
        summary="Experiments",
        styles=("papers.css",),
    )


def write_page(results: Results, out: Path, title: str = TITLE) -> Path:
    """Write the page; its path."""
    write_atomic(out, page(results, title).encode())
    return out


def _links(grouped: Sequence[Sequence[Entry]], made: Sequence[Section]) -> str:
    """All experiments, those of a paper together."""
    by_paper: dict[str, list[str]] = {}
    for group, one in zip(grouped, made, strict=True):
        paper = group[0].experiment.paper
        name = paper.short
        by_paper.setdefault(name, []).append(
            f'<li><a href="#{one.key}">{text(one.heading)}</a></li>'
        )
    return '<li><a href="#experiments">All experiments</a></li>' + "".join(
        f"<li><b>{text(name)}</b><ol>{''.join(links)}</ol></li>" for name, links in by_paper.items()
    )
