"""The sections of the page, its first facts and the choice of methods."""

from __future__ import annotations

from collections.abc import Mapping

from evenhand.data.plots import looks
from evenhand.page import server
from evenhand.page.comparison import methods_compared
from evenhand.page.ledger import ledger
from evenhand.page.markup import hidden, text
from evenhand.page.panels.panel import Panel
from evenhand.page.reproduce import reproduce
from evenhand.studies.findings import Findings
from evenhand.studies.study import Study

KEYS = {  # SVG paths of plotly's symbols, 12 x 12
    "circle": "M6 1.5a4.5 4.5 0 1 0 .01 0z",
    "square": "M2 2h8v8h-8z",
    "diamond": "M6 .5 11.5 6 6 11.5 .5 6z",
    "triangle-up": "M6 1.5 11 10.5H1z",
    "cross": "M4.2 1h3.6v3.2H11v3.6H7.8V11H4.2V7.8H1V4.2h3.2z",
    "x": "M3.2 1 6 3.8 8.8 1 11 3.2 8.2 6 11 8.8 8.8 11 6 8.2 3.2 11 1 8.8 3.8 6 1 3.2z",
    "triangle-down": "M6 10.5 11 1.5H1z",
    "star": "M6 .5l1.5 3.7 4 .3-3 2.6 1 3.9L6 8.9l-3.5 2.1 1-3.9-3-2.6 4-.3z",
}
DASHES = {
    "solid": "",
    "dash": "5 3",
    "dot": "2 2",
    "dashdot": "5 2 2 2",
    "longdash": "8 3",
    "longdashdot": "8 2 2 2",
}


def sections(
    findings: Findings, found: Mapping[str, Panel], command: str
) -> list[tuple[str, str, str]]:
    """(id, heading, HTML) of every section of the page."""
    study = findings.study

    def drawn(*keys: str) -> str:
        return "".join(_figure(found[key]) for key in keys if key in found)

    sections = [
        ("methods", "Methods compared", methods_compared(findings)),
        ("distribution", "How clients are served", drawn("distribution") or _not_shared(study)),
        ("sorted", "From the worst to the best served", drawn("sorted")),
        (
            "front",
            f"{study.measure.words[0].capitalize()} and fairness",
            drawn("front"),
        ),
        ("groups", "Groups", drawn("gaps-group", "members-group")),
        ("teams", "Teams of clients", drawn("gaps-team", "members-team")),
        ("learning", "Learning curves", drawn("learning")),
        (
            "weights",
            "Who counted for how much",
            drawn("weights") or _not_shared(study) or "<p>The runs kept no weights.</p>",
        ),
        ("ledger", "Harm ledger", drawn("verdicts") + ledger(findings)),
        ("server", server.heading(study), server.learned(study)),
        ("reproduce", "How to reproduce", reproduce(study, command)),
    ]
    return [section for section in sections if section[2]]


def facts(findings: Findings) -> str:
    study = findings.study
    rounds = sorted({spec.rounds for spec in study.specs})
    groups, teams = (len(study.names(by)) for by in ("group", "team"))
    facts = [
        (len(study.labels), "method", "methods"),
        (len(study.seeds), "seed", "seeds"),
        (study.clients, "client", "clients"),
        (groups, "group", "groups"),
        (teams, "team", "teams"),
        (rounds[-1], "round", "rounds"),
        (study.samples, f"{study.measure.part} sample", f"{study.measure.part} samples"),
    ]
    return "".join(
        f"<li><b>{count:,}</b> {one if count == 1 else many}</li>"
        for count, one, many in facts
        if count
    )


def chooser(study: Study) -> str:
    """A box for each method, which also says how it is drawn."""
    items = []
    for number, (label, look) in enumerate(looks(study.labels, study.reference).items()):
        dash = f' stroke-dasharray="{DASHES[look.dash]}"' if DASHES[look.dash] else ""
        key = (
            '<svg class="key" viewBox="0 0 32 12" width="32" height="12" aria-hidden="true"'
            f' style="color:light-dark({look.colour},{look.dark})"><path d="M0 6h32"'
            f' stroke="currentColor" stroke-width="2"{dash}/><path transform="translate(10)"'
            f' d="{KEYS[look.symbol]}" fill="currentColor"/></svg>'
        )
        box = f'<input type="checkbox" id="method-{number}" data-method="{text(label)}" checked>'
        items.append(
            f'<li><label for="method-{number}">{box}{key}<span>{text(label)}</span></label></li>'
        )
    return "".join(items)


def _not_shared(study: Study) -> str:
    """Why there are no figures of single clients; empty where there can be."""
    if not study.sums_only:
        return ""
    several = len(study.sums_only) < len(study.labels)
    other = " A page about the other methods alone has these figures." if several else ""
    return (
        f"<p>Not shared: with {text(', '.join(study.sums_only))} the server saw sums over clients,"
        f" nothing of single ones.{other}</p>"
    )


def _figure(panel: Panel) -> str:
    if not panel.variants:
        return ""
    first = panel.variants[0]
    control = ""
    if len(panel.variants) > 1:
        options = "".join(
            f'<option value="{place}">{text(variant.name)}</option>'
            for place, variant in enumerate(panel.variants)
        )
        select = f'<select id="choose-{panel.key}" data-panel="{panel.key}">{options}</select>'
        control = f'<label for="choose-{panel.key}">{text(panel.choice)}</label>{select}'
    tables = "".join(
        '<div class="numbers"'
        f' data-variant="{place}"{" hidden" if place else ""}>{variant.table}</div>'
        for place, variant in enumerate(panel.variants)
    )
    height = first.figure.layout.height
    controls = f'<div class="controls">{control}</div>' if control else ""
    return (
        f'<figure id="figure-{panel.key}">{controls}<div class="plot" id="plot-{panel.key}"'
        f' role="img" aria-label="{text(first.finding)}"'
        f' style="min-height:{height}px"></div><figcaption>{panel.caption}</figcaption><button'
        f' type="button" class="save" data-panel="{panel.key}">Save'
        f" picture{hidden(': ' + panel.key)}</button><details><summary>Data of this"
        f" figure</summary>{tables}</details></figure>"
    )
