"""The theory behind the methods, as functions: what they minimise, which weights clients get, what the theorems promise."""

from __future__ import annotations

from evenhand.theory.aggregates import Aggregate, LogMean, Maximum, Mean, PowerMean, RankSpread, TiltedMean
from evenhand.theory.bounds import (
    fafl_bound,
    fafl_generalisation,
    fafl_step_size,
    gifair_limit,
    propfair_step_size,
    rademacher_linear,
    rademacher_monte_carlo,
    rademacher_vc,
)
from evenhand.theory.checks import client_fairness_is_group_fairness, pareto_residual, proportionally_fairer
from evenhand.theory.hcvar import HCVaR, cvar, superquantile

__all__ = [
    "Aggregate",
    "HCVaR",
    "LogMean",
    "Maximum",
    "Mean",
    "PowerMean",
    "RankSpread",
    "TiltedMean",
    "client_fairness_is_group_fairness",
    "cvar",
    "fafl_bound",
    "fafl_generalisation",
    "fafl_step_size",
    "gifair_limit",
    "pareto_residual",
    "propfair_step_size",
    "proportionally_fairer",
    "rademacher_linear",
    "rademacher_monte_carlo",
    "rademacher_vc",
    "superquantile",
]
