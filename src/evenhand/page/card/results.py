"""The sections of a card with results: overall, by client, by group, compared, thresholds."""

from __future__ import annotations

import math

import numpy as np

from evenhand.metrics.threshold_words import shown
from evenhand.metrics.uncertainty import Interval, over_seeds, wilson
from evenhand.page import numbers
from evenhand.page.card.blocks import Block, Bullets, Paragraph, Section, Table
from evenhand.page.card.subject import Subject
from evenhand.page.comparison import TENTHS
from evenhand.page.panels.groups import ABOUT, GAPS, OF_ALL_LABELS
from evenhand.page.rates import extremes, rates
from evenhand.studies.analysis.statistics import HEADINGS
from evenhand.studies.analysis.writing import count_of
from evenhand.studies.findings import left_out
from evenhand.studies.runs.trial import Floats

OVERALL = ("mean", "pooled", "worst10", "best10", "min", "max", "std", "gini")
MOST_CLIENTS = 30  # with more, the card has percentiles
PERCENTILES = (0, 10, 25, 50, 75, 90, 100)
CHANGES = ("mean", "pooled", "worst10", "min")


def overall(subject: Subject) -> Section:
    """Metrics across clients with intervals."""
    findings, study = subject.findings, subject.study
    row = findings.comparison.rows[subject.label]
    few = TENTHS if study.clients < 10 else ()
    rows = [
        [HEADINGS[name].capitalize(), numbers.ends_words(study, name, row[name])]
        for name in OVERALL
        if name not in few and not math.isnan(row[name].value)
    ]
    over = numbers.over_words(study, findings.comparison.over)
    level = f"{100 * findings.comparison.level:g} %"
    ends = f"{level} intervals {over} in brackets" if over else "one run, so no intervals"
    caption = f"{_what(subject)} over {findings.clients}; {ends}"
    caption += "." if study.measure.percent else ". Smaller is better."
    return Section("results", "Results", [Table(["metric", "value"], rows, caption)])


def by_client(subject: Subject) -> Section:
    """Each client, worst first; percentiles if there are many."""
    study = subject.study
    blocks: list[Block] = []
    if study.sums_only:
        text = "The server got scores as sums over clients, so results by client are unknown."
        return Section("clients", "Results by client", [Paragraph(text)])
    names, sizes = study.names("client"), study.sizes()
    found = intervals(subject, "client")
    merits = np.array([one.value for one in found])
    there = [k for k in np.argsort(merits, kind="stable").tolist() if not np.isnan(merits[k])]
    seeds = "" if study.same_data or study.same_clients else f", with seed {study.seeds[0]}"
    means = "; means over seeds" if len(study.judged_seeds) > 1 else ""
    what = _what(subject)
    if len(there) <= MOST_CLIENTS:
        rows = [[names[k], f"{sizes[k]:,}", _value(subject, found[k])] for k in there]
        ends = f"; {_level(subject)} intervals over each client's samples"
        ends = ends if any(not math.isnan(one.low) for one in found) else ""
        caption = f"{what} of each client{seeds}, worst first{means}{ends}."
        blocks.append(Table(["client", "samples", study.measure.name], rows, caption))
    else:
        shares = [
            _value(subject, Interval(np.percentile(merits[there], p), math.nan, math.nan))
            for p in PERCENTILES
        ]
        rows = [[_percentile(p), one] for p, one in zip(PERCENTILES, shares, strict=True)]
        caption = f"{what} of {len(there):,} clients{seeds}, from the worst to the best{means}."
        blocks.append(Table(["clients", study.measure.name], rows, caption))
        worst = [f"{names[k]} ({_value(subject, found[k])})" for k in there[:5]]
        blocks.append(Paragraph(f"The five worst-served clients are {', '.join(worst)}."))
    if len(there) < len(names):
        missing = count_of(len(names) - len(there), "client")
        blocks.append(Paragraph(f"Without {study.measure.part} samples: {missing}."))
    return Section("clients", "Results by client", blocks)


def by_group(subject: Subject) -> Section:
    """Rates of groups and teams with intervals, and the gaps between them."""
    blocks: list[Block] = []
    study = subject.study
    for by in ("group", "team"):
        if len(study.names(by)) > 1 and (by == "group" or by in study.kinds):
            blocks += _groups(subject, by)
    if not blocks:
        text = "The data name no groups, so this card says nothing about groups of people."
        blocks.append(Paragraph(text))
    return Section("groups", "Results by group", blocks)


def _groups(subject: Subject, by: str) -> list[Block]:
    findings, study = subject.findings, subject.study
    found = rates(findings, by)
    mine = found[subject.label]
    first = next(iter(mine))
    own = dict(zip(study.names(by), intervals(subject, by), strict=True))
    rows = []
    for name in study.names(by):
        cells = [f"{mine[first][name].of:,.0f}"]
        for rate in mine:
            interval = mine[rate][name].interval
            if rate == first and math.isnan(interval.low):
                cells.append(_value(subject, own[name]))
            else:
                unit = " %" if rate in ABOUT else study.measure.percent
                cells.append(_percent(interval, unit))
        rows.append([name, *cells])
    positive = f", label {findings.positive}" if findings.positive and len(mine) > 1 else ""
    caption = (
        f"{_what(subject)} of each {by}{positive}; {_level(subject)} intervals over its samples."
    )
    blocks: list[Block] = [Table([by, "samples", *mine], rows, caption)]
    view = findings.groups.get(by, {}).get(subject.label)
    gaps = {} if view is None else {kind: gap.interval for kind, gap in view.gaps.items()}
    gaps |= {
        kind: interval
        for kind, interval in findings.gaps.get(by, {}).get(subject.label, {}).items()
        if kind == "calibration"
    }
    listed = [
        [
            _gap_name(kind),
            numbers.points(gaps[kind]),
            extremes(findings, found, by, subject.label, kind) or "-",
        ]
        for kind in GAPS
        if kind in gaps
        and not math.isnan(gaps[kind].value)
        and (findings.positive is not None or kind in OF_ALL_LABELS)
    ]
    if listed:
        caption = (
            f"Largest gap between two {by}s in each rate, in points, with {_level(subject)}"
            f" intervals, and the two {by}s."
        )
        blocks.append(Table(["rate", "gap", f"{by}s"], listed, caption))
        blocks += [Paragraph(line) for line in left_out(findings, by)]
    return blocks


def compared(subject: Subject) -> Section:
    """What the study says about the method against FedAvg and local-only training."""
    findings, study, label = subject.findings, subject.study, subject.label
    there = [one for one in (study.reference, study.alone) if one is not None]
    answered = [] if study.reference is None else findings.answer.sentences  # about FedAvg
    said = [*answered, *_own_sentences(subject)] if there else []
    blocks: list[Block] = [Bullets(said)] if said else []
    row = findings.comparison.differences.get(label, {})
    names = [
        name
        for name in CHANGES
        if name in row
        and not math.isnan(row[name].interval.value)
        and not (study.clients < 10 and name in TENTHS)
    ]
    if names:
        rows = [
            [
                HEADINGS[name].capitalize(),
                numbers.change(
                    row[name].interval, numbers.scale(study, name), numbers.digits(study, name)
                ),
                "better" if row[name].better else "worse" if row[name].worse else "not significant",
            ]
            for name in names
        ]
        caption = (
            f"Gain (+) or loss (\u2212) of {label} compared with FedAvg,"
            f" {numbers.gain_unit(study)}; intervals hold for all methods of the run at once."
        )
        blocks.append(Table(["metric", "change", "verdict"], rows, caption))
    blocks += [Paragraph(line) for against in there if (line := _harm(subject, against))]
    if not blocks:
        text = (
            "This run has no baseline to compare with, so the card cannot say who gains or loses by"
            " this method. The command evenhand compare trains FedAvg and local-only training"
            " beside it."
        )
        blocks = [Paragraph(text)]
    return Section("compared", "Compared with a baseline", blocks)


def _own_sentences(subject: Subject) -> list[str]:
    """The details that name the method and are not in the answer."""
    findings, label = subject.findings, subject.label
    return [
        line
        for line in findings.sentences
        if line not in findings.answer.sentences
        and label != subject.study.reference
        and (line.startswith(f"{label} ") or f", {label} " in line or f"with {label} " in line)
    ]


def _harm(subject: Subject, against: str) -> str:
    """How many clients and groups gain and lose, significantly."""
    told = []
    for by in ("client", "group"):
        mine = [
            entry.verdict
            for entry in subject.findings.entries
            if (entry.by, entry.method, entry.against) == (by, subject.label, against)
        ]
        if mine:
            gain, harmed, few = (mine.count(one) for one in ("gains", "harmed", "few"))
            untested = f" ({few} with too few samples to test)" if few else ""
            told.append(
                f"of {count_of(len(mine), by)}, {gain} gain{'s' * (gain == 1)} and {harmed}"
                f" lose{'s' * (harmed == 1)} significantly{untested}"
            )
    who = "local-only training" if against == subject.study.alone else "FedAvg"
    return f"Compared with {who}, {'; '.join(told)}." if told else ""


def thresholds(subject: Subject) -> Section:
    """The thresholds of the model's decisions; empty with 0.5."""
    found = subject.trial.decision
    if found is None:
        return Section("thresholds", "Thresholds", [])
    rows = [[name, shown(steps)] for name, steps in zip(found.names, found.rules, strict=True)]
    caption = f"Predictions are {found.positive} from this score on, by {found.by}."
    table = Table([found.by, "threshold"], rows, caption)
    return Section("thresholds", "Thresholds", [Bullets(list(found.sentences())), table])


def intervals(subject: Subject, by: str) -> list[Interval]:
    """The merit of each client, group or team; with an interval over its samples where the
    measure is accuracy or a squared error."""
    study, level = subject.study, subject.findings.comparison.level
    seeds = study.judged_seeds
    merits = np.mean([study.merits(subject.label, seed, by) for seed in seeds], 0)
    low = high = np.full(len(merits), np.nan)
    if not study.same_data and len(seeds) > 1:  # each seed has its own test samples
        pass
    elif study.measure.kind == "accuracy":
        sizes = study.sizes(by)
        low, high = wilson(merits * sizes, sizes, level)
    elif study.measure.squared:
        low, high = _of_squares(subject, by, len(merits))
    return [Interval(*map(float, ends)) for ends in zip(merits, low, high, strict=True)]


def _of_squares(subject: Subject, by: str, count: int) -> tuple[Floats, Floats]:
    """Ends of the intervals of minus the root of a mean square, by Student's t over samples; means
    over seeds, whose test samples are the same."""
    study, level = subject.study, subject.findings.comparison.level
    ends = np.full((len(study.judged_seeds), 2, count), np.nan)
    cell = study.cells(by)
    for place, seed in enumerate(study.judged_seeds):
        values = study.sample_merits(subject.label, seed, by)
        if cell is None or values is None:
            continue
        for k in range(count):
            mine = -values[(cell == k) & ~np.isnan(values)]
            _, low, high = over_seeds(mine.tolist(), level)
            ends[place, :, k] = -np.sqrt(np.maximum([high, low], 0.0))
    low_ends, high_ends = ends.mean(0)
    return low_ends, high_ends


def _value(subject: Subject, interval: Interval) -> str:
    return numbers.ends_words(subject.study, "mean", interval)


def _percent(interval: Interval, unit: str) -> str:
    if math.isnan(interval.value):
        return "-"
    ends = "" if math.isnan(interval.low) else f" [{interval.low:.1f}, {interval.high:.1f}]"
    return f"{interval.value:.1f}{unit}{ends}"


def _what(subject: Subject) -> str:
    """The measure and its split; values have their own percent signs."""
    measure = subject.study.measure
    unit = f"{measure.unit}," if measure.unit and not measure.percent else ""
    return f"{numbers.merit_words(subject.study)}{unit}"


def _level(subject: Subject) -> str:
    return f"{100 * subject.findings.comparison.level:g} %"


def _percentile(share: int) -> str:
    return {0: "worst", 50: "median", 100: "best"}.get(share, f"{share} % are worse served")


def _gap_name(kind: str) -> str:
    """The rate that a gap is in, and what the literature calls the gap."""
    if kind == "equalised odds":
        return "the larger of these two (equalised odds)"
    rate = GAPS[kind][0]
    return rate if rate == kind else f"{rate} ({kind})"
