"""What a run with masked sums cannot have, and the way out."""

from __future__ import annotations

from evenhand.algorithm import Algorithm, visible
from evenhand.algorithms.sums_only import refusal
from evenhand.data.population import Census
from evenhand.errors import RunError
from evenhand.flower.proportion import BOUND
from evenhand.flower.roster import Roster
from evenhand.secure import SecureSums, effective
from evenhand.studies.methods import always_seen
from evenhand.training.settings import Settings


def refuse_settings(
    settings: Settings, by_client: bool, bound: float | None, columns: object
) -> None:
    """Raise a ValueError for what shows single clients, or checks them one by one."""
    if by_client:
        raise ValueError("by_client=True shows single clients, which secure=... hides; drop one")
    if settings.track_weights:
        raise ValueError(
            "track_weights needs the losses of single clients, which secure=... hides; drop one"
        )
    if columns is not None:
        raise ValueError(
            "columns=... asks each node for the names in its table, which secure=... would not"
            " hide; agree on a codebook.toml beforehand: evenhand flower new --table"
        )
    if bound not in (None, BOUND):
        raise ValueError(
            "bound compares single replies, which secure=... hides; Clipped(norm=..., inner=...)"
            " limits what each honest client adds"
        )


def refuse_method(algorithm: Algorithm, census: Census | None = None) -> None:
    """Raise a ValueError if the server of a method reads clients one by one; without a census, if
    it does so in every federation."""
    seen = always_seen(algorithm) if census is None else visible(algorithm, census)
    if seen:
        raise ValueError(refusal(algorithm, seen))


def refuse_clients(
    roster: Roster, algorithm: Algorithm, settings: Settings, secure: SecureSums
) -> None:
    """Raise a RunError if the nodes would refuse every round with these clients."""
    population = roster.population
    census = population.census(settings.weights)
    try:
        refuse_method(algorithm, census)
        secure.check(population.clients)
    except ValueError as error:
        raise RunError(str(error)) from error
    size = getattr(settings.cohort, "k", secure.least)
    if size < secure.least:
        raise RunError(
            f"a cohort of {size} clients is too small: masked sums need at least least ="
            f" {secure.least}; ask more clients in each round"
        )
    found = effective(census.weight.tolist())
    if found < secure.least - 1e-6:
        raise RunError(
            f"by their weights the {population.clients} clients count as {found:.3g}, and masked"
            f' sums need at least least = {secure.least}; use weights="uniform", a lower'
            " Admission(cap=...), or more clients"
        )
    judged = int((population.sizes(population.judged_part) > 0).sum())
    if judged < secure.least:
        raise RunError(
            f"only {judged} clients have {population.judged_part} data, and masked sums need at"
            f" least least = {secure.least} for an evaluation; give every client such a split"
        )
