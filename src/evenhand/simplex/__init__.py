"""The probability simplex: nearest points, min-norm weights, weighted quantiles.

Computations are in float64; a result has the type of the input. Entries that are not finite, as
after a diverged run, give NaN.
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
