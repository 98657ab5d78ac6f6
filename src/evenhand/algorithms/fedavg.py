"""FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from evenhand.algorithm import Algorithm, Certificate, Reporting, State
from evenhand.data.population import Census
from evenhand.theory.aggregates import Mean


@dataclass(frozen=True)
class FedAvg(Algorithm, Reporting):
    """Average the clients' local models: good on average, blind to clients that are left behind.

        minimise  sum_i w_i f_i(theta)    (McMahan et al., AISTATS 2017)

    The server only needs sums: each client sends a_i * (received model - local model). All defaults
    of ``Algorithm`` are FedAvg's.
    """

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        return Certificate.of(Mean(), losses, census.weight)
