"""Checks whether a fairness claim holds for these data or this model."""

from evenhand.theory.checks.groups import Reach, client_fairness_is_group_fairness
from evenhand.theory.checks.pareto import Stationarity, pareto_residual
from evenhand.theory.checks.proportional import RelativeChange, proportionally_fairer

__all__ = [
    "Reach",
    "RelativeChange",
    "Stationarity",
    "client_fairness_is_group_fairness",
    "pareto_residual",
    "proportionally_fairer",
]
