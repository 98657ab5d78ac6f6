"""A section of the page: one table or figure of a paper."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from evenhand.page.markup import hidden, text
from evenhand.papers.experiment import Experiment
from evenhand.papers.page.drawing import PUBLISHED, Drawing
from evenhand.papers.page.entry import Entry, cited, heading
from evenhand.papers.page.figures import against_published
from evenhand.papers.page.redrawn import figure_metrics, redrawn
from evenhand.papers.page.tables import chosen, compared, drawn_numbers, duration, source
from evenhand.papers.verdicts import NOT

POINTS = (
    "Every marker is one published number: on the dotted line ours is equal, above it ours is"
    " larger. Bars reach one standard deviation over runs."
)
REDRAWN = {
    "plane": ("Filled markers are ours.", "Hollow markers are published."),
    "bars": ("Bars are ours.", "Circles are published."),
    "against": (
        "Lines are ours, with one standard deviation over seeds. The values below are evenly"
        " spaced.",
        "Hollow markers are published.",
    ),
}
LEVELS = "Dotted horizontal lines are methods without this setting."


class Section(NamedTuple):
    """Of the page, with the figures that its script draws."""

    key: str
    heading: str
    body: str
    drawings: dict[str, Drawing]


def section(found: Sequence[Entry], homes: dict[str, str]) -> Section:
    """All parts of one experiment.

    Args:
        homes: where the page shows a part, by its title.
    """
    experiment = found[0].experiment
    key = experiment.name if any(entry.part.name for entry in found) else found[0].key
    body = f'<p class="role">{text(cited(experiment.paper))}.</p><p>{text(experiment.about)}</p>'
    settings = _settings(found)
    common = {words for words, values in settings.items() if len(set(values)) == 1}
    body += "".join(_stated(words, settings[words][0]) for words in settings if words in common)
    drawings: dict[str, Drawing] = {}
    own = [entry for entry in found if not _elsewhere(entry, homes)]
    again = redrawn(found)
    if again:
        keys = {f"{key}-redrawn-{place}": one for place, one in enumerate(again, start=1)}
        body += _figures(keys, _caption(experiment, again))
        body += drawn_numbers(found, figure_metrics(found))
        drawings |= keys
    points = against_published(own)
    if points:
        keys = {f"{key}-published-{place}": one for place, one in enumerate(points, start=1)}
        body += _figures(keys, POINTS)
        drawings |= keys
    for entry in found:
        body += _part(entry, key, homes, common)
    return Section(key, heading(experiment), body, drawings)


def _caption(experiment: Experiment, drawn: Sequence[Drawing]) -> str:
    """What markers and lines of a redrawn figure are, of those that are there."""
    traces = [trace for one in drawn for trace in one.figure["data"]]
    ours, theirs = REDRAWN[experiment.figure["kind"]]
    hollow = any(trace["name"] == PUBLISHED for trace in traces)
    levels = any(trace.get("mode") == "lines" for trace in traces)
    return " ".join([ours, *[theirs] * hollow, *[LEVELS] * levels])


def _elsewhere(entry: Entry, homes: dict[str, str]) -> str:
    """Where the page has the same numbers; "" where that is here."""
    home = homes.get(entry.part.home, "")
    return "" if home == entry.key else home


def _settings(found: Sequence[Entry]) -> dict[str, list[str]]:
    return {
        "The paper states": [entry.part.stated for entry in found],
        "It does not state": [entry.part.unknown for entry in found],
    }


def _stated(words: str, value: str) -> str:
    return f"<p><b>{words}:</b> {text(value)}.</p>" if value else ""


def _figures(drawings: dict[str, Drawing], caption: str) -> str:
    made = "".join(
        f'<figure id="figure-{key}"><figcaption class="over">{text(one.title)}</figcaption>'
        f'<div class="plot" id="plot-{key}" role="img" aria-label="{text(one.words)}"'
        f' style="min-height:{one.figure["layout"]["height"]}px"></div>'
        f'<button type="button" class="save" data-panel="{key}">Save picture'
        f"{hidden(': ' + (one.title or key))}</button></figure>"
        for key, one in drawings.items()
    )
    alone = " alone" if len(drawings) == 1 else ""
    return f'<div class="panels{alone}">{made}</div><p class="below">{text(caption)}</p>'


def _part(entry: Entry, key: str, homes: dict[str, str], common: Collection[str]) -> str:
    part, result = entry.part, entry.result
    body = ""
    if part.about:
        body += f"<p>{text(part.about[:1].upper() + part.about[1:])}.</p>"
    body += "".join(
        _stated(words, values[0])
        for words, values in _settings([entry]).items()
        if words not in common
    )
    if result is None:
        why = entry.why_not
        body += f'<p class="note"><b>Not run:</b> {text(why)}.</p>'
        if part.time:
            body += f"<p>It takes: {text(part.time)}.</p>"
    else:
        body += _facts(entry)
        if entry.note or entry.smaller:
            body += f'<p class="note"><b>Not as in the paper:</b> {text(entry.how)}.</p>'
    if part.same_as:
        there = homes.get(part.home, "")
        name = f'<a href="#{there}">{text(part.home)}</a>' if there else text(part.home)
        body += f"<p>The runs are those of {name}.</p>"
    if not _elsewhere(entry, homes):
        body += compared(entry) if entry.lines else ""
        body += _reason(entry)
    if result is not None:
        body += chosen(entry) + source(result)
    name = f"<h3>{text(part.name)}</h3>" if part.name else ""
    identity = "" if entry.key == key else f' id="{entry.key}"'
    return f'<div class="part"{identity}>{name}{body}</div>'


def _facts(entry: Entry) -> str:
    result = entry.result
    assert result is not None
    facts = [
        (result.rounds, "round", "rounds"),
        (len(result.seeds), "seed", "seeds"),
        (result.clients, "client", "clients"),
        (result.samples, "test sample", "test samples"),
    ]
    items = "".join(
        f"<li><b>{count:,}</b> {one if count == 1 else many}</li>" for count, one, many in facts
    )
    took = f"<li><b>{duration(result.seconds)}</b> to run</li>" if result.seconds else ""
    return f'<ul class="facts">{items}{took}</ul>'


def _reason(entry: Entry) -> str:
    """The likely reason for what was not reproduced."""
    missed = entry.counts()[NOT]
    if not missed or not entry.part.reason:
        return ""
    words = "number is" if missed == 1 else "numbers are"
    return (
        f'<p class="reason"><b>Likely reason why {missed} {words} not reproduced:</b>'
        f" {text(entry.part.reason)}.</p>"
    )
