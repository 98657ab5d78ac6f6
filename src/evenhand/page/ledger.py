"""The harm ledger of the report: what every client, group and team gains or loses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from evenhand.page.figures.methods import VERDICTS
from evenhand.page.markup import text
from evenhand.page.numbers import gain_unit
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.findings import Findings

WORDS = ("team", "method", "against", "verdict")  # columns of text


def told(findings: Findings) -> list[Entry]:
    """Entries of clients, groups and teams; without teams if they are the same as groups."""
    kinds = findings.study.kinds
    return [entry for entry in findings.entries if entry.by in kinds]


def ledger(findings: Findings, prefix: str = "") -> str:
    """HTML: filters and an empty table, which the page's script fills."""
    study, entries = findings.study, told(findings)
    if not entries:
        why = (
            "There is only one method."
            if len(study.labels) < 2
            else "The runs include neither of them."
        )
        if any(trial.values is None for trial in study.trials.values()):
            why = (
                "Per-sample results were not shared, and without them gains cannot be tested for"
                " significance."
            )
        return (
            "<p>There is no ledger: it compares methods with FedAvg and with local-only training."
            f" {why}</p>"
        )
    seeds = (
        " and over seeds"
        if len(study.judged_seeds) > 1
        else f" with seed {study.seeds[0]}"
        if len(study.seeds) > 1
        else ""
    )
    caption = (
        "Gain (+) or loss (\u2212) of every client, group and team,"
        f" {gain_unit(study)}, with {100 * findings.comparison.level:g} % intervals over their"
        f" samples{seeds}. Harmed and gains: significant after Holm's correction over all clients"
        f" (or groups, or teams) of a method. Few samples: fewer than {findings.least}."
    )
    options: dict[str, Sequence[str]] = {
        "method": list(dict.fromkeys(entry.method for entry in entries)),
        "against": list(dict.fromkeys(entry.against for entry in entries)),
        "by": list(dict.fromkeys(entry.by for entry in entries)),
        "verdict": [
            verdict for verdict in VERDICTS if any(entry.verdict == verdict for entry in entries)
        ],
    }
    every = {
        "method": "all methods",
        "against": "both references",
        "by": "everyone",
        "verdict": "all verdicts",
    }
    labels = {"method": "Method", "against": "Compared with", "by": "Who", "verdict": "Verdict"}
    plural = {"client": "clients", "group": "groups", "team": "teams"}
    controls = ""
    for key, values in options.items():
        shown = "".join(
            f'<option value="{text(value)}">{text(plural.get(value, value))}</option>'
            for value in values
        )
        whole = f'<option value="">{every[key]}</option>' if len(values) > 1 else ""
        select = f'<select id="{prefix}ledger-{key}" data-filter="{key}">{whole}{shown}</select>'
        controls += f'<div><label for="{prefix}ledger-{key}">{labels[key]}</label>{select}</div>'
    controls += (
        f'<div><label for="{prefix}ledger-name">Name contains</label><input type="search"'
        f' id="{prefix}ledger-name" autocomplete="off"></div>'
    )
    headings = {
        "name": "name",
        "team": "team",
        "method": "method",
        "against": "compared with",
        "gain": "gain",
        "verdict": "verdict",
    }
    headings |= {
        "merit": study.measure.words[0],
        "reference": "reference",
        "samples": "samples",
        "adjusted": "p (Holm)",
    }
    if not any(entry.team for entry in entries):
        del headings["team"]
    head = ""
    for key, heading in headings.items():
        kind = ' class="words"' if key in WORDS else ""
        head += (
            f'<th scope="col" data-key="{key}"{kind}><button'
            f' type="button">{text(heading)}</button></th>'
        )
    buttons = "".join(
        f'<button type="button" id="{prefix}ledger-{key}">{word}</button>'
        for key, word in (("back", "Previous"), ("on", "Next"), ("all", "Show all"))
    )
    return (
        f'<div class="ledger" data-prefix="{prefix}"><div class="filters" role="group"'
        f' aria-label="Filter the ledger">{controls}</div><p class="state"'
        f' id="{prefix}ledger-state" role="status"></p><div class="wide" role="group" tabindex="0"'
        f' aria-label="Harm ledger"><table id="{prefix}ledger-table"><caption>'
        f"<span>{text(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody></tbody>"
        f'</table></div><div class="pages">{buttons}</div></div><noscript><p>The ledger needs'
        " JavaScript; evenhand compare also writes it to ledger.csv.</p></noscript>"
    )


def ledger_data(findings: Findings) -> dict[str, Any]:
    """The ledger by column: texts as codes into lists, numbers rounded as shown."""
    measure, entries = findings.study.measure, told(findings)

    def coded(values: list[str]) -> dict[str, Any]:
        place: dict[str, int] = {}
        codes = [place.setdefault(value, len(place)) for value in values]
        return {"texts": list(place), "codes": codes}

    def rounded(values: Sequence[float], digits: int) -> list[float | None]:
        return [None if math.isnan(value) else round(value, digits) for value in values]

    def merits(read: Callable[[Entry], float]) -> list[float | None]:
        sign = 1 if measure.percent else -1
        return rounded([sign * measure.scale * read(entry) for entry in entries], measure.digits)

    def gains(read: Callable[[Entry], float]) -> list[float | None]:
        return rounded([measure.scale * read(entry) for entry in entries], measure.digits)

    return {
        "digits": measure.digits,
        "columns": {
            **{
                key: coded([getattr(entry, key) for entry in entries])
                for key in ("by", "name", "team", "method", "against", "verdict")
            },
            "samples": [entry.samples for entry in entries],
            "merit": merits(lambda entry: entry.merit),
            "reference": merits(lambda entry: entry.reference),
            "gain": gains(lambda entry: entry.gain.value),
            "low": gains(lambda entry: entry.gain.low),
            "high": gains(lambda entry: entry.gain.high),
            "adjusted": rounded([entry.adjusted for entry in entries], 4),
        },
    }
