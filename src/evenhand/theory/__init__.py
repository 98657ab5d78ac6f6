"""The theory behind the methods: objectives, dual weights of clients, and theorems as numbers."""

from __future__ import annotations

from evenhand.theory.aggregates import (
    Aggregate,
    LogMean,
    Maximum,
    Mean,
    PowerMean,
    TiltedMean,
)
from evenhand.theory.bounds import (
    fafl_bound,
    fafl_generalisation,
    fafl_mu,
    fafl_smoothness,
    fafl_step_size,
    fedavg_bound,
    fedavg_step_size,
    gifair_limit,
    propfair_bound,
    propfair_smoothness,
    propfair_step_size,
)
from evenhand.theory.checks import (
    client_fairness_is_group_fairness,
    pareto_residual,
    proportionally_fairer,
)
from evenhand.theory.constants import Constants, estimate
from evenhand.theory.hcvar import HCVaR, cvar, superquantile
from evenhand.theory.rademacher import (
    finite_class,
    linear_class,
    rademacher_linear,
    rademacher_monte_carlo,
    rademacher_vc,
)
from evenhand.theory.rank_spread import RankSpread

__all__ = [
    "Aggregate",
    "Constants",
    "HCVaR",
    "LogMean",
    "Maximum",
    "Mean",
    "PowerMean",
    "RankSpread",
    "TiltedMean",
    "client_fairness_is_group_fairness",
    "cvar",
    "estimate",
    "fafl_bound",
    "fafl_generalisation",
    "fafl_mu",
    "fafl_smoothness",
    "fafl_step_size",
    "fedavg_bound",
    "fedavg_step_size",
    "finite_class",
    "gifair_limit",
    "linear_class",
    "pareto_residual",
    "propfair_bound",
    "propfair_smoothness",
    "propfair_step_size",
    "proportionally_fairer",
    "rademacher_linear",
    "rademacher_monte_carlo",
    "rademacher_vc",
    "superquantile",
]
