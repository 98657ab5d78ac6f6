"""The papers' theorems as numbers: step sizes, error bounds, GIFAIR's limit.

A bound holds under the assumptions in its docstring and does not depend on data. Bounds are loose;
they show which term dominates and how it changes with a parameter.
"""

from evenhand.theory.bounds.fafl import (
    FAFLBound,
    fafl_bound,
    fafl_mu,
    fafl_smoothness,
    fafl_step_size,
)
from evenhand.theory.bounds.fedavg import FedAvgBound, fedavg_bound, fedavg_step_size
from evenhand.theory.bounds.generalisation import Generalisation, fafl_generalisation
from evenhand.theory.bounds.gifair import GIFAIRLimit, gifair_limit
from evenhand.theory.bounds.propfair import (
    PropFairBound,
    propfair_bound,
    propfair_smoothness,
    propfair_step_size,
)
from evenhand.theory.bounds.step_size import StepSize

__all__ = [
    "FAFLBound",
    "FedAvgBound",
    "GIFAIRLimit",
    "Generalisation",
    "PropFairBound",
    "StepSize",
    "fafl_bound",
    "fafl_generalisation",
    "fafl_mu",
    "fafl_smoothness",
    "fafl_step_size",
    "fedavg_bound",
    "fedavg_step_size",
    "gifair_limit",
    "propfair_bound",
    "propfair_smoothness",
    "propfair_step_size",
]
