"""The figure of a sweep's points on validation data."""

from __future__ import annotations

from evenhand.page import figures
from evenhand.page.markup import table, text
from evenhand.page.panels.panel import Panel, Variant
from evenhand.studies.analysis.sweeping import Sweep

ALL_POINTS = (
    "The sections below show all points on test data; do not choose a point by them, as it would"
    " look better than it is."
)
NUMBERS = {"mean": "mean", "worst10": "worst 10 %", "min": "worst client", "std": "std"}


def sensitivity(sweep: Sweep) -> Panel | None:
    """Validation metrics against each hyper-parameter with several values in the grid."""
    rows, measure = sweep.rows(), sweep.measure
    first = list(rows[0])
    keys = first[first.index("method") + 1 : first.index("validation_mean")]
    swept = [
        key for key in keys if len({str(row[key]) for row in rows if row[key] is not None}) > 1
    ]
    if not swept:
        return None
    names = [name for name in NUMBERS if name != "worst10" or sweep.study.clients >= 10]
    cells = [
        [
            row["label"],
            *(measure.show(row[f"validation_{name}"]) for name in names),
            ", ".join(
                ["chosen"] * row["chosen"]
                + ["reference"] * (row["label"] in (sweep.reference, sweep.study.alone))
                + ["dominated"] * row["dominated"]
            ),
        ]
        for row in rows
    ]
    seeds = f", means over {len(sweep.study.seeds)} seeds" if len(sweep.study.seeds) > 1 else ""
    numbers = table(
        ["point", *(NUMBERS[name] for name in names), ""],
        cells,
        f"Validation {text(measure.name)} across clients{text(measure.unit)}{seeds}",
        [row["label"] for row in rows],
    )
    variants = tuple(
        Variant(key, figures.sensitivity(sweep, key), f"{key}. {sweep.reason}", numbers)
        for key in swept
    )
    caption = (
        "Metrics on validation data, by which the point was chosen. The filled marker is the chosen"
        f" point; dotted lines are {text(sweep.reference)}. {ALL_POINTS}"
    )
    return Panel("sensitivity", caption, variants, "Hyper-parameter")
