"""FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from evenhand.algorithm import Algorithm, Certificate, Reporting, State
from evenhand.data.population import Census
from evenhand.theory.aggregates import Mean


@dataclass(frozen=True)
class FedAvg(Algorithm, Reporting):
    """Average the clients' local work: good for the mean, blind to who is left behind.

        minimise  sum_i w_i f_i(theta)    (McMahan et al., AISTATS 2017)

    Sums only: each client sends a_i * (received model - local model). Every default of
    ``Algorithm`` is FedAvg's.
    """

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        return Certificate.of(Mean(), losses, census.weight)
