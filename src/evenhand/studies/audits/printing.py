"""Print an audit: the answer, tables, and notes on the tables."""

from __future__ import annotations

from rich.console import Console

from evenhand.studies.audits import local, tables, words
from evenhand.studies.audits.local_table import local_table
from evenhand.studies.audits.numbers import Numbers
from evenhand.studies.audits.sweeping import steps
from evenhand.studies.audits.words import counted, enough, significant

MOST_ROWS = 40  # longer tables are not printed
MOST_PAIRS = 12


def show(audit: Numbers, console: Console) -> None:
    """Print the answer, then tables of clients, groups and gaps."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    for sentence in words.sentences(audit):
        say(sentence)
    say("")
    say(about(audit))
    console.print(tables.everyone_table(audit))
    _clients(audit, console)
    for one in _each(audit):
        _groups(one, console)
        _scores(one, console)
    for note in notes(audit):
        say(note)


def _each(audit: Numbers) -> list[Numbers]:
    """The audits by each group column, then by their combinations."""
    return [*audit.parts.values(), audit]


def about(audit: Numbers) -> str:
    """What was audited, in one line."""
    total, missing = int(audit.counts.table.sum()), int(audit.counts.table[..., -1].sum())
    unlabelled = int(audit.source.get("rows_without_label", 0))
    parts = [
        counted(total, "sample")
        + (f" ({counted(unlabelled, 'row')} without a label skipped)" if unlabelled else "")
        + (f", {missing:,} without a prediction" if missing else ""),
        counted(len(audit.counts.clients), "client") if len(audit.counts.clients) > 1 else "",
        f"labels {', '.join(audit.counts.labels)}",
    ]
    if audit.rows is not None and audit.rows.threshold is not None:
        parts.append(f"{audit.label} predicted for scores of {audit.rows.threshold:g} or more")
    if audit.weighted:
        parts.append("weighted")
    what = "clients and samples" if audit.over == "both" else audit.over
    parts.append(f"{100 * audit.level:g} % intervals over {what}")
    return "; ".join(filter(None, parts))


def _clients(audit: Numbers, console: Console) -> None:
    names = audit.counts.clients
    if len(names) < 2:
        return
    across = audit.across_clients()
    kept = [name for name in tables.ACROSS if name != "pooled" or audit.over != "samples"]
    if len(names) < 20:  # the worst 10 % are one client
        kept.remove("worst10")
    shown = {name: across[name] for name in kept}
    console.print(tables.scores_table(shown))
    if any(map(tables.outside, shown.values())):
        _say(
            console,
            "* Clients with few samples look more different than they are; the interval corrects"
            " for that.",
        )
    if len(names) > MOST_ROWS:
        _say(console, f"{len(names):,} clients are too many to print; --out writes them all")
    else:
        console.print(tables.clients_table(audit))
    if hidden := len(audit.suppressed("client")):
        _say(
            console,
            f"{counted(hidden, 'client')} with fewer than {enough(audit)} suppressed and excluded"
            " from metrics across clients.",
        )


def _groups(audit: Numbers, console: Console) -> None:
    names = audit.groups_named
    if not names:
        return
    if len(names) > MOST_ROWS:
        _say(console, f"{len(names)} groups are too many to print; --out writes them all")
    else:
        for table in tables.groups_tables(audit):
            console.print(table)
    if not audit.gaps:
        _say(
            console,
            f"No comparison by {audit.by}: fewer than two groups have {enough(audit)}.",
        )
        return
    console.print(tables.gaps_table(audit))
    for note in left_out(audit):
        _say(console, note)
    if audit.local:
        console.print(local_table(audit))
        told = local.sentence(audit)
        for line in (told, local.NOTE):
            if line and line not in words.sentences(audit):
                _say(console, line)
    if audit.ratios and len(audit.ratios) <= MOST_ROWS:
        console.print(tables.ratios_table(audit))
    rows = significant(audit)
    if len(names) > 2 and rows and not audit.parts:
        more = f"; {len(rows) - MOST_PAIRS} more in --out" if len(rows) > MOST_PAIRS else ""
        title = f"Significant differences between two groups, points{more}"
        console.print(tables.pairs_table(rows[:MOST_PAIRS], title))


def left_out(audit: Numbers) -> list[str]:
    """Which groups have too few samples for which gaps."""
    by_groups: dict[tuple[str, ...], list[str]] = {}
    for gap in audit.gaps.values():
        if gap.left_out:
            by_groups.setdefault(gap.left_out, []).append(gap.kind)
    return [
        f"Excluded from {what}, with fewer than {enough(audit)} in the denominator:"
        f" {', '.join(groups)}."
        for groups, kinds in by_groups.items()
        for what in ["all gaps" if len(kinds) == len(audit.gaps) else ", ".join(kinds)]
    ]


def _scores(audit: Numbers, console: Console) -> None:
    if not audit.scores:
        return
    if len(audit.groups_named) <= MOST_ROWS:
        console.print(tables.auc_table(audit))
    if audit.thresholds is not None:
        console.print(tables.steps_table(audit, steps(audit)))


def notes(audit: Numbers) -> list[str]:
    """Notes that explain the tables."""
    found = []
    if audit.gaps:
        found.append(
            "Detectable: the gap that would be detected with 80 % power."
            " Intervals of gaps, ratios and pairs hold for all pairs of groups at once"
            + (" (over samples, for ratios and pairs)." if audit.over != "samples" else ".")
        )
        test = "the score test" if audit.weighted else "Fisher's exact test"
        if any(len(one.groups_named) > 2 and significant(one) for one in _each(audit)):
            found.append(
                f"P-values of pairs are from {test}, with Holm's correction over all pairs of a"
                " rate."
            )
        if audit.ratios:
            found.append(
                f'The four-fifths rule is about a favourable prediction; if "{audit.label}" is'
                " unfavourable, pass --positive with the other label (with --score, pass its"
                " scores, too)."
            )
    if audit.scores and "bias" in audit.scores[0]:
        found.append(
            f'Score - share: mean score minus the share with label "{audit.label}"; + means scores'
            " are too high. Error: distance between scores and frequencies in ten bins, corrected"
            " for chance."
        )
    return found


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False)
