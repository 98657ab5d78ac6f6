"""The probability simplex: nearest points, min-norm weights, weighted quantiles.

Vectors are float64; an answer has the type of what was given. Entries that are not finite, as after
a run that diverged, give NaN.
"""

from evenhand.simplex.min_norm import min_norm_weights
from evenhand.simplex.projections import project_box, project_capped, project_simplex
from evenhand.simplex.quantile import weighted_quantile

__all__ = [
    "min_norm_weights",
    "project_box",
    "project_capped",
    "project_simplex",
    "weighted_quantile",
]
