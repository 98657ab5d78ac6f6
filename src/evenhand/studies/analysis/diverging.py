"""Which methods diverged, in words, and what to try instead."""

from __future__ import annotations

from evenhand.studies.analysis.writing import listed
from evenhand.studies.runs.divergence import Diverged
from evenhand.studies.runs.study import Study

SMALLER = (0.001, 0.01, 0.1)  # factors of the step size, or of 1 if that is smaller


def diverged_sentence(study: Study) -> str:
    """Which methods diverged, from which round, and what to do; "" if none did."""
    if not study.diverged:
        return ""
    who = listed([_shown(study, one) for one in study.diverged], 6)
    one = len(study.diverged) == 1
    rate = step_size(study)
    than = f" than lr = {rate:g}" if rate is not None else ""
    return (
        f"{who} diverged: {'its' if one else 'their'} loss exploded, so"
        f" {'it is' if one else 'they are'} excluded. Use a smaller step size{than}."
    )


def _shown(study: Study, one: Diverged) -> str:
    parts = []
    if one.of > 1:
        seeds = ", ".join(map(str, one.seeds))
        which = f"seed{'s' * (len(one.seeds) > 1)} {seeds} of {one.of} seeds"
        parts.append("all seeds" if len(one.seeds) == one.of else which)
    if one.round is not None:
        parts.append(f"from round {one.round}")
    name = "FedAvg" if study.method(one.label).name == "fedavg" else one.label
    return f"{name} ({', '.join(parts)})" if parts else name


def step_size(study: Study) -> float | None:
    """The smallest step size of any method that diverged; None if unknown."""
    found = [
        {**study.specs[0].local, **study.method(one.label).local}.get("lr")
        for one in study.diverged
    ]
    rates = [float(rate) for rate in found if isinstance(rate, int | float)]
    return min(rates, default=None)


def smaller_step_sizes(study: Study) -> str:
    """Step sizes to try, in the form that --grid takes."""
    rate = min(step_size(study) or 1.0, 1.0)
    return "local.lr=" + ",".join(f"{rate * factor:.3g}" for factor in SMALLER)
