"""The figure of what differential privacy costs whom."""

from __future__ import annotations

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page import figures
from evenhand.page.markup import table, text
from evenhand.page.numbers import change, ends_words, merit_words, over_words, signed, written
from evenhand.page.panels.panel import Panel, Variant
from evenhand.page.rates import Rates, rates
from evenhand.studies.analysis.privacy_costs import (
    Series,
    about_costs,
    costs,
    groups_of,
    privacy_series,
    worst_clients,
)
from evenhand.studies.findings import Findings
from evenhand.studies.runs.study import Study

EVERYONE = "mean over clients"
MOST = 6  # groups drawn; the table has all


def privacy_costs(findings: Findings) -> Panel | None:
    """Merits overall, of the worst clients and by group against epsilon, for each method that was
    trained at several levels of privacy; None if there is none."""
    study, comparison = findings.study, findings.comparison
    found = privacy_series(study)
    if not found:
        return None
    by = groups_of(study)
    served = {} if by is None else rates(findings, by)
    over = over_words(study, comparison.over)
    bars = f", with {100 * comparison.level:g} % intervals {text(over)}" if over else ""
    of_groups = f"; those of {by}s are over their test samples" if over and served else ""
    told = [about_costs(study, comparison, series, findings.least) for series in found]
    clipped = any(
        level.clipped and np.isinf(level.epsilon) for one in found for level in one.levels
    )
    without = " Without noise, contributions are only clipped." if clipped else ""
    caption = (
        f"{merit_words(study)} against epsilon{bars}{of_groups}.{without} Each epsilon is"
        " that of one run by itself: several runs on the same clients, published together or chosen"
        " by their results, tell more."
    )
    variants = tuple(
        _variant(findings, series, served, sentence)
        for series, sentence in zip(found, told, strict=True)
    )
    return Panel("privacy-costs", caption, variants, "Method", open=True)


def _variant(findings: Findings, series: Series, served: Rates, finding: str) -> Variant:
    study, measure = findings.study, findings.study.measure
    labels = [level.label for level in series.levels]
    lost = {
        entry.name: change(entry.gain, measure.scale, measure.digits)
        for entry in costs(study, series, findings.comparison.level, findings.least)
    }
    drawn: dict[str, list[Interval]] = {}
    rows = []
    statistic, worst = worst_clients(study)
    for party, name in ((EVERYONE, "mean"), (worst, statistic)):
        found = [findings.comparison.rows[label][name] for label in labels]
        if not np.isnan([one.value for one in found]).any():
            drawn[party] = [_shown(study, name, one) for one in found]
            moved = signed(measure.scale * (found[0].value - found[-1].value), measure.digits)
            rows.append([party, *(ends_words(study, name, one) for one in found), moved])
    groups = {} if not served else {name: _of_group(served, labels, name) for name in lost}
    for name, found in groups.items():
        rows.append([name, *(_words(study, one) for one in found), lost[name]])
    drawn |= dict(list(groups.items())[:MOST])
    levels = series.levels
    numbers = table(
        ["", *(level.name for level in levels), f"change at {levels[0].name}"],
        rows,
        f"{merit_words(study)}{text(measure.unit)} with {text(series.name)}, and the change"
        f" compared with {levels[-1].words}",
    )
    figure = figures.privacy_costs(study, series, drawn, EVERYONE)
    return Variant(series.name, figure, finding, numbers)


def _shown(study: Study, name: str, interval: Interval) -> Interval:
    value, *ends = (written(study, name, end) for end in interval)
    return Interval(value, *sorted(ends))


def _of_group(served: Rates, labels: list[str], name: str) -> list[Interval]:
    """The measure of a group with each method, as shown."""
    return [next(iter(served[label].values()))[name].interval for label in labels]


def _words(study: Study, interval: Interval) -> str:
    value, low, high = interval
    digits = study.measure.digits
    around = "" if np.isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return "-" if np.isnan(value) else f"{value:.{digits}f}{study.measure.percent}{around}"
