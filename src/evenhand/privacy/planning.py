"""What a private run will be able to claim, before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenhand.errors import require, require_choice, require_number, require_whole
from evenhand.privacy.accounting import (
    EVERYONE,
    POISSON,
    WITHOUT_REPLACEMENT,
    Scheme,
    epsilon_of,
    noise_for,
)
from evenhand.privacy.record import shown

COHORTS = {"poisson": POISSON, "full": EVERYONE, "uniform": WITHOUT_REPLACEMENT}
USABLE = 1.0  # noise as long as the largest step: a model hardly learns


@dataclass(frozen=True)
class Plan:
    """What a private run can claim.

    Attributes:
        epsilon: after all rounds; infinite without noise.
        delta: the probability with which epsilon may fail.
        noise: the multiplier: the noise's standard deviation over the bound of one client.
        rounds: how many noisy sums are released.
        scheme: who takes part.
        ratio: the length of the noise on a round's mean step over the clipping length; None if the
            number of parameters is not known.
    """

    epsilon: float
    delta: float
    noise: float
    rounds: int
    scheme: Scheme
    ratio: float | None = None

    @property
    def lines(self) -> list[str]:
        """The plan in words, a line each."""
        found = [
            f"epsilon = {shown(self.epsilon)} at delta = {self.delta:g} after {self.rounds:,}"
            f" rounds with noise {self.noise:.4g}, when {self.scheme.neighbours}"
            if math.isfinite(self.epsilon)
            else "No epsilon: noise is 0, which protects nobody",
            f"{self.scheme.in_words[0].upper()}{self.scheme.in_words[1:]}",
        ]
        if self.ratio is not None:
            hint = (
                "a model will hardly learn: more clients per round, fewer parameters or a larger"
                " epsilon"
                if self.ratio > USABLE
                else "a step can be seen in it"
            )
            found.append(
                f"Noise on a round's mean step: {self.ratio:.2g} times the clipping length; {hint}"
            )
        if self.delta >= 1 / self.scheme.clients:
            found.append(
                f"delta is too large: choose it well below 1/{self.scheme.clients}, because it is"
                " the probability of telling everything about a client"
            )
        found += [
            "Visible to everyone: the trained model; epsilon covers it",
            "Visible to the server: every sum before the noise, unless clients add it to masked"
            " sums; who took part; exact evaluation scores, which epsilon does not cover",
            "False as soon as settings are chosen, or training is stopped, by results on these"
            " clients",
        ]
        return [f"{line}." for line in found]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def plan(
    clients: int,
    rounds: int,
    *,
    per_round: float | None = None,
    noise: float | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    parameters: int | None = None,
    cohort: str = "poisson",
) -> Plan:
    """Return what a private run will be able to claim.

    >>> import evenhand as eh
    >>> found = eh.privacy.plan(1000, 100, per_round=100, noise=1.0)
    >>> round(found.epsilon, 2)
    7.05

    Args:
        clients: the number of clients.
        rounds: the number of rounds.
        per_round: how many clients take part in a round, on average; by default all.
        noise: the multiplier of ``Private``; or give ``epsilon``.
        epsilon: find the smallest noise for this epsilon.
        delta: the probability with which epsilon may fail.
        parameters: of the model, to compare the noise with a step.
        cohort: "poisson" (each client by itself), "uniform" (a fixed number) or "full".
    """
    require_whole("clients", clients, 1)
    require_whole("rounds", rounds, 1)
    require_whole("parameters", parameters, 1, optional=True)
    require_choice("cohort", cohort, tuple(COHORTS))
    require((noise is None) != (epsilon is None), "give noise or epsilon, one of them")
    require_number("delta", delta, "(0, 1)", "choose it well below one over the number of clients")
    expected = float(clients if per_round is None else per_round)
    require_number("per_round", expected, f"(0, {clients}]", "at most the number of clients")
    if cohort == "full":
        whole = expected == clients
        require(whole, "with cohort full, all clients take part; remove per_round={:g}", expected)
    if cohort == "uniform":
        whole = expected == round(expected)
        require(whole, "cohort uniform needs a whole number per round, got {:g}", expected)
    everyone = cohort == "full" or (cohort == "poisson" and expected == clients)
    scheme = Scheme(EVERYONE if everyone else COHORTS[cohort], clients, expected)
    if epsilon is not None:
        noise = noise_for(scheme, epsilon, rounds, delta)
    assert noise is not None
    found = epsilon_of(scheme, float(noise), rounds, delta)
    ratio = None if parameters is None else noise * math.sqrt(parameters) / expected
    return Plan(found, delta, float(noise), rounds, scheme, ratio)
