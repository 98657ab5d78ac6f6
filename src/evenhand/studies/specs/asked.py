"""Check the options of the analysis before hours of training."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.errors import SpecError, unknown
from evenhand.studies.specs.measure import chosen_measure, measure_of
from evenhand.studies.specs.spec import Spec


def check_numbers(
    spec: Spec,
    labels: Sequence[str] = (),
    over: str = "auto",
    positive: str | None = None,
    option: str = "over",
    measure: str | None = None,
) -> None:
    """Raise if the results could not be analysed with these options.

    ``labels``: names of the classes, if known; ``option``: the name of ``over`` in messages.
    """
    if over in ("seeds", "seeds+samples") and len(spec.seeds) < 2:
        raise SpecError(
            f"intervals over seeds need at least two seeds; leave out {option} or use more seeds"
        )
    if spec.folds and over in ("seeds", "seeds+samples"):
        raise SpecError(f"folds count as one run on all samples; leave out {option} {over}")
    if spec.resplit and over not in ("auto", "seeds"):
        raise SpecError(
            f"with resplit, each seed has its own samples; use {option} seeds instead of {over}"
        )
    if positive is not None and labels and positive not in labels:
        raise SpecError(unknown("label", positive, labels))
    if measure is not None and labels and spec.loss != "auto":
        chosen_measure(measure_of(spec.loss, 1.0, True), measure, tuple(labels), positive)
