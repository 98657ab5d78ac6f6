"""What the intervals of a study are about, in plain words."""

from __future__ import annotations

from evenhand.studies.analysis.comparison import Comparison
from evenhand.studies.runs.study import Study


def what_intervals_are(study: Study, comparison: Comparison) -> str:
    """One short paragraph."""
    samples, seeds = f"{study.measure.part} samples", len(study.seeds)
    if comparison.over == "nothing":
        if not study.sampled:
            return (
                "There is one seed, and the samples are with the nodes, so numbers over clients"
                " have no intervals; run more seeds to get them."
            )
        return (
            f"There is one seed, and {study.measure.name} has no intervals over samples; run more"
            " seeds to get them."
        )
    about = {
        "seeds+samples": f"other seeds ({seeds} were run) and other {samples} of the same clients",
        "splits": f"other splits of the data ({seeds} were run), corrected for what splits share",
        "seeds": f"other seeds ({seeds} were run, Student's t)",
        "samples": f"other {samples} of the same clients, for the models trained here",
        "clients": "other clients like these",
        "both": f"other clients like these and other {samples}",
    }[comparison.over]
    if study.folds:
        about += f" ({study.folds}-fold cross-validation: each sample is tested once)"
    return (
        f"Intervals of numbers over clients are {100 * comparison.level:g} % intervals for {about}."
        " Intervals of differences to FedAvg hold for all methods at once, so a difference is"
        " significant where its interval excludes 0. Intervals of single clients, groups and teams"
        " hold one at a time; their arrows allow for all of them together (Holm)."
    )
