"""What the intervals of a study mean, in plain words."""

from __future__ import annotations

from evenhand.studies.analysis.comparison import Comparison
from evenhand.studies.runs.study import Study


def what_intervals_are(study: Study, comparison: Comparison) -> str:
    """One short paragraph."""
    samples, seeds = f"{study.measure.part} samples", len(study.seeds)
    if comparison.over == "nothing":
        if not study.sampled:
            return (
                "With one seed, and without results of single samples, metrics across clients have"
                " no intervals; run more seeds to get them."
            )
        return f"With one seed, {study.measure.name} has no intervals; run more seeds to get them."
    about = {
        "seeds+samples": f"seeds ({seeds} were run) and over {samples} of these clients",
        "splits": f"splits of the data ({seeds} were run), corrected for their overlap",
        "seeds": f"seeds ({seeds} were run, Student's t)",
        "samples": f"{samples} of these clients, for the models trained here",
        "clients": "clients like these",
        "both": f"clients like these and over {samples}",
    }[comparison.over]
    if study.folds:
        about += f" ({study.folds}-fold cross-validation: each sample is tested once)"
    return (
        f"The {100 * comparison.level:g} % intervals of metrics across clients cover the variation"
        f" over {about}. Intervals of differences from FedAvg hold for all methods at once, so a"
        " difference is significant where its interval excludes 0. Intervals of single clients,"
        " groups and teams hold one at a time; their arrows correct for testing all of them (Holm)."
    )
