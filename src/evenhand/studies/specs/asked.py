"""Whether results can be looked at as a person asks, before hours of training."""

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
    """Raise where results could not be analysed as asked for; before hours of training.

    ``labels``: names of the classes, where they are known; ``option``: what ``over`` is called.
    """
    if over in ("seeds", "seeds+samples") and len(spec.seeds) < 2:
        raise SpecError(
            f"intervals over seeds need at least two of them; leave {option} out, or give more"
            " seeds"
        )
    if spec.folds and over in ("seeds", "seeds+samples"):
        raise SpecError(
            f"folds are counted as one training on all samples; leave {option} {over} out"
        )
    if spec.resplit and over not in ("auto", "seeds"):
        raise SpecError(
            "data that are dealt anew with each seed have other samples with each; use"
            f" {option} seeds in place of {over}"
        )
    if positive is not None and labels and positive not in labels:
        raise SpecError(unknown("label", positive, labels))
    if measure is not None and labels and spec.loss != "auto":
        chosen_measure(measure_of(spec.loss, 1.0, True), measure, tuple(labels), positive)
