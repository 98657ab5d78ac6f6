"""What private methods may claim, in words."""

from __future__ import annotations

from evenhand.privacy.record import Privacy
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.spec import Spec
from evenhand.training.directory import SPEC


def privacy_of(study: Study, label: str) -> Privacy | None:
    """What the first run of a method may claim; None if it is not private."""
    return study.trials[label, study.seeds[0]].privacy


def about_privacy(study: Study, label: str) -> str:
    """Epsilon of a private method, or why there is none; empty for other methods."""
    found = privacy_of(study, label)
    if found is None:
        return ""
    if (study.tuned or _swept(study)) and found.epsilon is not None:
        return (
            f"{label}: no epsilon, because settings were chosen by results on these clients' data;"
            f" a single run with settings known beforehand would have {_lowered(found.sentence)}"
        )
    many = " for each of its runs" if len(study.seeds) > 1 or study.folds else ""
    return f"{label}{many}: {_lowered(found.sentence)}"


def _swept(study: Study) -> bool:
    """Whether a sweep has chosen among settings."""
    path = None if study.root is None else study.root / SPEC
    return path is not None and path.exists() and bool(Spec.load(path).select)


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
