"""Whether a method's objective is a mean over samples, so that each sample has a gradient."""

from __future__ import annotations

from evenhand.algorithm import Algorithm
from evenhand.algorithms.wrapper import Forwarding, Wrapper


def objective_kind(algorithm: Algorithm) -> str:
    """Return "mean" for a mean over the samples of a batch, "additive" if it has further terms
    without samples, and "other" for anything else, such as a function of the mean.

    >>> from evenhand import FAFL, FedAvg, FedProx
    >>> [objective_kind(method) for method in (FedAvg(), FedProx(), FAFL())]
    ['mean', 'additive', 'other']
    """
    own = type(algorithm).objective
    if own is Algorithm.objective:
        return "mean"
    if own is Forwarding.objective and isinstance(algorithm, Wrapper):
        return objective_kind(algorithm.inner)
    if type(algorithm).local_work is Forwarding.local_work:
        return "other"  # what is said there is said of the inner method
    return "additive" if algorithm.local_work().additive else "other"
