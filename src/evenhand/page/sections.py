"""The sections of the report, its first screen and the choice of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenhand.data.plots import looks
from evenhand.page import server
from evenhand.page.comparison import clients_by_method, methods_compared
from evenhand.page.ledger import ledger
from evenhand.page.markup import hidden, table, text
from evenhand.page.numbers import ends_words
from evenhand.page.other_metrics import other_metrics
from evenhand.page.panels.panel import Panel
from evenhand.page.privacy import costs, privacy
from evenhand.page.reproduce import reproduce
from evenhand.studies.findings import Findings
from evenhand.studies.runs.study import Study

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


def answer(findings: Findings) -> tuple[list[str], list[str]]:
    """The sentences of the answer, and the other sentences."""
    first = list(findings.answer.sentences)
    return first, [sentence for sentence in findings.sentences if sentence not in first]


def opening(findings: Findings, found: Mapping[str, Panel], prefix: str = "") -> str:
    """The first screen: the answer, one figure, and key facts."""
    first, rest = answer(findings)
    told = "".join(f"<li>{text(sentence)}</li>" for sentence in first)
    more = "".join(f"<li>{text(sentence)}</li>" for sentence in rest)
    drawn = _figure(found["overview"], prefix) if "overview" in found else ""
    command = findings.answer.command
    after = f'<p class="next">Next: <code>{text(command)}</code></p>' if command else ""
    return (
        f'<div class="answer"><ul>{told}</ul>{after}</div>{drawn}'
        f'<ul class="facts">{facts(findings)}</ul>'
        + (
            '<details class="more"><summary>More details</summary><ul'
            f' class="sentences">{more}</ul></details>'
            if more
            else ""
        )
    )


def sections(
    findings: Findings, found: Mapping[str, Panel], command: str, prefix: str = ""
) -> list[tuple[str, str, str]]:
    """(key, heading, HTML) of every section of the report."""
    study = findings.study

    def drawn(*keys: str) -> str:
        return "".join(_figure(found[key], prefix) for key in keys if key in found)

    words = study.measure.words[0].capitalize()
    sections = [
        ("sweep", "How the point was chosen", drawn("sensitivity")),
        ("methods", "Comparison of methods", methods_compared(findings)),
        (
            "gains",
            "Who gains, who is harmed",
            drawn("verdicts", "gains") + clients_by_method(findings),
        ),
        ("metrics", "Other metrics", other_metrics(findings)),
        ("groups", "Groups", drawn("members-group", "gaps-group", "local-gaps")),
        ("teams", "Teams of clients", drawn("members-team", "gaps-team")),
        (
            "clients",
            "Results by client",
            drawn("distribution", "sorted") or _not_shared(study),
        ),
        ("front", f"{words} and fairness", drawn("front")),
        ("learning", "Learning curves", drawn("learning", "gap-rounds")),
        (
            "weights",
            "Effective weights",
            drawn("group-weights", "weights")
            or _no_weights(study)
            or "<p>The runs recorded no weights.</p>",
        ),
        ("ledger", "Harm ledger", ledger(findings, prefix)),
        ("privacy", "Differential privacy", costs(found) + drawn("privacy-costs") + privacy(study)),
        ("server", server.heading(study), server.learned(study, prefix)),
        ("reproduce", "How to reproduce", reproduce(study, command)),
    ]
    return [section for section in sections if section[2]]


def overview_of_studies(studies: Mapping[str, Findings]) -> str:
    """A table with a row for each method of each study; ``studies`` are given by name."""
    rows = []
    for title, findings in studies.items():
        study = findings.study
        for label in study.labels:
            found = findings.comparison.rows[label]
            rows.append(
                [
                    f"{title}: {label}",
                    f"{study.clients:,}",
                    f"{study.samples:,}",
                    f"{study.measure.part} {study.measure.name}",
                    *(ends_words(study, name, found[name]) for name in ("mean", "min")),
                ]
            )
    methods = [label for findings in studies.values() for label in findings.study.labels]
    return table(
        ["study and method", "clients", "samples", "measure", "mean", "worst client"],
        rows,
        "Every study and method, with intervals as in the study's own section. Studies differ in"
        " data or measure, so compare methods only within a study.",
        methods,
        identity="studies-table",
    )


def facts(findings: Findings) -> str:
    study = findings.study
    rounds = sorted({spec.rounds for spec in study.specs})
    groups, teams = (len(study.names(by)) for by in ("group", "team"))
    facts = [
        (len(study.trained), "method", "methods"),
        (len(study.seeds), "seed", "seeds"),
        (study.clients, "client", "clients"),
        (groups, "group", "groups"),
        (teams if "team" in study.kinds else 0, "team", "teams"),
        (rounds[-1], "round", "rounds"),
        (study.samples, f"{study.measure.part} sample", f"{study.measure.part} samples"),
    ]
    return "".join(
        f"<li><b>{count:,}</b> {one if count == 1 else many}</li>"
        for count, one, many in facts
        if count
    )


def chooser(studies: Sequence[Study]) -> str:
    """A checkbox for each method, with its line and marker if there is only one study."""
    items = []
    labels = list(dict.fromkeys(label for study in studies for label in study.labels))
    seen = looks(labels, studies[0].reference)
    for number, label in enumerate(labels):
        look, key = seen[label], ""
        if len(studies) == 1:
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
    """Why there are no figures of single clients; empty if there are."""
    if not study.sums_only:
        return ""
    several = len(study.sums_only) < len(study.labels)
    other = " A report on only the other methods has these figures." if several else ""
    return (
        f"<p>Not shared: with {text(', '.join(study.sums_only))} the server got scores as sums over"
        f" clients, not client by client.{other}</p>"
    )


def _no_weights(study: Study) -> str:
    """Why a federation has no figure of effective weights; empty if it may have one."""
    if not study.sums_only:
        return ""
    return (
        f"<p>Not recorded: with {text(', '.join(study.sums_only))} the server stored no effective"
        " weights. They are computed from each client's scores, so they need by_client=True and"
        " track_weights=True in server_app.</p>"
    )


def _figure(panel: Panel, prefix: str) -> str:
    if not panel.variants:
        return ""
    first, key = panel.variants[0], prefix + panel.key
    control = ""
    if len(panel.variants) > 1:
        options = "".join(
            f'<option value="{place}">{text(variant.name)}</option>'
            for place, variant in enumerate(panel.variants)
        )
        select = f'<select id="choose-{key}" data-panel="{key}">{options}</select>'
        control = f'<label for="choose-{key}">{text(panel.choice)}</label>{select}'
    elif panel.choice and first.name:
        control = f"<span>{text(panel.choice)}: {text(first.name)}</span>"
    tables = "".join(
        '<div class="numbers"'
        f' data-variant="{place}"{" hidden" if place else ""}>{variant.table}</div>'
        for place, variant in enumerate(panel.variants)
    )
    height, unfolded = first.figure.layout.height, " open" if panel.open else ""
    controls = f'<div class="controls">{control}</div>' if control else ""
    return (
        f'<figure id="figure-{key}">{controls}<div class="plot" id="plot-{key}"'
        f' role="img" aria-label="{text(first.finding)}"'
        f' style="min-height:{height}px"></div><figcaption>{panel.caption}</figcaption><button'
        f' type="button" class="save" data-panel="{key}">Save'
        f" figure{hidden(': ' + key)}</button><details{unfolded}><summary>Data"
        f" of this figure</summary>{tables}</details></figure>"
    )
