"""Choose one point of a sweep on validation data, by a rule fixed beforehand.

Pure functions of merits: one value per client, larger is better (an accuracy, or minus an error).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require, require_choice, require_number
from evenhand.metrics import spread
from evenhand.studies.specs.measure import ACCURACY, Measure

Numbers = dict[str, float]  # metrics across clients, by the names in NUMBERS

NUMBERS = {
    "mean": spread.mean,
    "worst10": spread.worst,
    "min": spread.smallest,
    "std": spread.std,
    "variance": spread.variance,
}
RULES = {
    "qffl": "the largest drop of the variance over clients",
    "worst10": "the best worst 10 % of clients",
    "min": "the best worst client",
    "std": "the smallest standard deviation over clients",
    "mean": "the best mean over clients",
}
# what a rule trades against the mean
FAIRNESS = {"qffl": "std", "worst10": "worst10", "min": "min", "std": "std", "mean": "worst10"}


class Choice(NamedTuple):
    """The chosen point, and the points that qualified."""

    label: str
    qualified: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """How a point is chosen.

    rule: "qffl" is the rule by which the GIFAIR paper chose q for q-FFL: the largest drop of the
    variance over clients among points whose mean is not below FedAvg's; if there is none, FedAvg is
    kept. "worst10", "min", "std" and "mean" take the best point by that metric.

    tolerance: how far a point's mean may lie below FedAvg's, in the unit of the results: points of
    accuracy, or the label's unit. None: 0 for "qffl", no limit for the others.

    Metrics are means over seeds. Ties go to the larger mean, then to the first point.
    """

    rule: str = "qffl"
    tolerance: float | None = None

    def __post_init__(self) -> None:
        require_choice("rule", self.rule, tuple(RULES))
        if self.tolerance is not None:
            require_number(
                "tolerance",
                self.tolerance,
                "[0, inf)",
                "it is how far the mean may fall below FedAvg's",
            )
            require(
                self.rule != "mean",
                'the rule "mean" takes the largest mean; leave out tolerance = {:g}',
                self.tolerance,
            )

    def choose(
        self, points: Mapping[str, Numbers], reference: str, measure: Measure = ACCURACY
    ) -> Choice:
        """Choose one of ``points`` (see :func:`numbers`); ``reference`` is FedAvg's label among
        them."""
        sound = [label for label, point in points.items() if all(np.isfinite(list(point.values())))]
        require(
            reference in sound,
            "{} has no finite scores on validation data; is the step size too large?",
            reference,
        )
        least = -np.inf
        if self.limit is not None:
            # equal means may differ in the last bit
            least = points[reference]["mean"] - self.limit / measure.scale - 1e-12
        qualified = [label for label in sound if points[label]["mean"] >= least]
        if self.rule == "qffl":
            qualified = [
                label
                for label in qualified
                if _rounded(points[label]["variance"]) < _rounded(points[reference]["variance"])
            ]
        return Choice(
            max(qualified, key=lambda label: self._rank(points[label]), default=reference),
            tuple(qualified),
        )

    @property
    def stated(self) -> str:
        """The rule in words."""
        if self.limit is None:
            return RULES[self.rule]
        return (
            f"{RULES[self.rule]}, with a mean {f'at most {self.limit:g}' if self.limit else 'not'}"
            " worse than FedAvg's"
        )

    @property
    def limit(self) -> float | None:
        """How far the mean may lie below FedAvg's; None for no limit."""
        return 0.0 if self.rule == "qffl" and self.tolerance is None else self.tolerance

    def _rank(self, point: Numbers) -> tuple[float, float]:
        score = {"qffl": -point["variance"], "std": -point["std"]}.get(
            self.rule, point.get(self.rule, 0.0)
        )
        return _rounded(score), _rounded(point["mean"])

    def reason(
        self,
        choice: Choice,
        points: Mapping[str, Numbers],
        reference: str,
        measure: Measure = ACCURACY,
    ) -> str:
        """Why this point was chosen, in plain words."""
        what, below = measure.words[0], "below" if measure.percent else "above"
        mean = f"{measure.show(points[reference]['mean'])}{measure.percent}"
        unit = measure.points.removesuffix("s") if self.limit == 1 else measure.points
        slack = f"more than {self.limit:g} {unit} ".replace("  ", " ") if self.limit else ""
        limited = f" whose mean {what} is not {slack}{below} FedAvg's ({mean})"
        limited = limited if self.limit is not None else ""
        number = {
            "qffl": "variance over clients",
            "worst10": f"mean {what} of the worst 10 % of clients",
            "min": f"{what} of the worst client",
            "std": f"standard deviation of {what} over clients",
            "mean": f"mean {what}",
        }[self.rule]
        better, best = (
            ("smaller", "smallest") if self.rule in ("qffl", "std") else ("better", "best")
        )
        new, old = (self._shown(points[label], measure) for label in (choice.label, reference))
        if choice.label == reference:
            return (
                f"{reference} is kept: no point{limited} has a {better} {number} (FedAvg: {old})."
            )
        count = len([label for label in choice.qualified if label != reference])
        smaller = " and whose variance is below FedAvg's" if self.rule == "qffl" else ""
        among = f"{count} point{'s' * (count != 1)}{limited}{smaller}"
        return (
            f"{choice.label} is chosen: of {among}, it has the {best} {number}, {new} (FedAvg:"
            f" {old})."
        )

    def _shown(self, point: Numbers, measure: Measure) -> str:
        if self.rule == "qffl":
            return _variance(point, measure)
        return f"{measure.show(point[self.rule])}{measure.percent if self.rule != 'std' else ''}"


def numbers(merits: Mapping[str, ArrayLike]) -> dict[str, Numbers]:
    """Metrics across clients of each point's merits (seeds, clients), averaged over seeds.

    A client without a merit (NaN) in every point has no validation data and is excluded. A point
    that diverged, or that lacks a merit which other points have, has NaN for all metrics.

    >>> numbers({"a": [[0.5, 1.0]], "b": [[0.75, float("nan")]]})["a"]["mean"]
    0.75
    """
    given = {label: np.asarray(values, np.float64) for label, values in merits.items()}
    judged = (
        np.any([~np.isnan(values) for values in given.values()], axis=0)
        if given
        else np.zeros(0, bool)
    )
    found = {}
    for label, values in given.items():
        sound = bool(np.isfinite(values[judged]).all())
        found[label] = {
            name: float(np.mean(of(values))) if sound else np.nan for name, of in NUMBERS.items()
        }
    return found


def dominated(x: ArrayLike, y: ArrayLike) -> NDArray[np.bool_]:
    """(n,) whether another point is at least as good in both values and better in one; larger is
    better in both.

    Equal points do not dominate each other. A point with a NaN neither dominates nor is dominated.

    >>> dominated([1, 2, 2, 3], [3, 2, 2, 1]).tolist(), dominated([1, 2], [1, 1]).tolist()
    ([False, False, False, False], [True, False])
    """
    a, b = (np.asarray(values, np.float64) for values in (x, y))
    # [i, j]: j is at least as good as i
    as_good = (a[None, :] >= a[:, None]) & (b[None, :] >= b[:, None])
    better = (a[None, :] > a[:, None]) | (b[None, :] > b[:, None])
    return np.asarray((as_good & better).any(1))


def off_the_front(points: Mapping[str, Numbers], fairness: str) -> set[str]:
    """The labels of dominated points, by their mean and a fairness metric ("worst10", "min" or
    "std")."""
    side = -1.0 if fairness in ("std", "variance") else 1.0
    flags = dominated(
        [point["mean"] for point in points.values()],
        [side * point[fairness] for point in points.values()],
    )
    return {label for label, flag in zip(points, flags, strict=True) if flag}


def _rounded(value: float) -> float:
    return round(value, 12)  # sums in another order differ in the last bits; ties are ties


def _variance(point: Numbers, measure: Measure) -> str:
    return f"{measure.scale**2 * point['variance']:.{measure.digits}f}"
