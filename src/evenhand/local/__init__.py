"""Local solvers: how a client descends, and the order in which it visits its samples."""

from evenhand.local.adam import LocalAdam, LocalAdamW
from evenhand.local.naming import SOLVERS, built_solver, described_solver, solver_table
from evenhand.local.order import Batches, fold_key, permutation
from evenhand.local.sample_dp import SampleDP, StepNoise
from evenhand.local.sgd import LocalSGD
from evenhand.local.solver import STATISTICS, LocalSolver

__all__ = [
    "SOLVERS",
    "STATISTICS",
    "Batches",
    "LocalAdam",
    "LocalAdamW",
    "LocalSGD",
    "LocalSolver",
    "SampleDP",
    "StepNoise",
    "built_solver",
    "described_solver",
    "fold_key",
    "permutation",
    "solver_table",
]
