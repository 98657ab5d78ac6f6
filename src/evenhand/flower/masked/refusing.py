"""What a run with masked sums cannot have, and the way out."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, visible
from evenhand.algorithms.sums_only import refusal
from evenhand.cohort import Full, Uniform
from evenhand.data.population import Census
from evenhand.engines.work import Ask, Train
from evenhand.errors import RunError
from evenhand.flower.admission import Admission
from evenhand.flower.masked.totals import HiddenPopulation
from evenhand.flower.proportion import BOUND
from evenhand.flower.roster import Roster
from evenhand.secure import SecureSums, effective
from evenhand.studies.methods import always_seen
from evenhand.training.settings import Settings
from evenhand.tree import Tree

ROUNDING = 1e-6  # relative


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


def refuse_counted(settings: Settings, admission: Admission) -> None:
    """Raise a ValueError for what needs each client's number of samples, if these are hidden."""
    cohort, way_out = settings.cohort, 'or SecureSums(counts="visible")'
    fits = type(cohort) is Full or (type(cohort) is Uniform and not cohort.unbiased)
    if settings.weights == "data" and not fits:
        raise ValueError(
            f'{cohort} with weights="data" needs each client\'s number of samples, which masked'
            f' sums hide; use weights="uniform", Full(), Uniform(k), {way_out}'
        )
    if settings.local.dp is not None:
        raise ValueError(
            "SampleDP needs each client's number of samples for its epsilon, which masked sums"
            f" hide; drop it, {way_out}"
        )
    if admission.samples is not None or admission.cap not in (None, Admission().cap):
        raise ValueError(
            "Admission(samples=..., cap=...) compares single clients' numbers of samples, which"
            f' masked sums hide; use weights="uniform", {way_out}'
        )


def counted_by_size(
    method: Algorithm, params: Tree, roster: Roster, settings: Settings
) -> tuple[str, ...]:
    """The kinds of work in which clients must multiply their coefficients by their sizes, because
    the server does not know them.

    Raises a RunError if a method needs more of the sizes than totals. Its functions are tried with
    the same totals, dealt out in two ways: what differs depends on whose samples they are.
    """
    population, weights = roster.population, settings.weights
    if not isinstance(population, HiddenPopulation):
        return ()
    states, kept, fixed = [], [], []
    for known in (population, population.otherwise):
        census, weighting = known.census(weights), method.weighting()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = method.init(params, census)
        draw = Full().draw(census, settings.seed, 0)
        if weighting is not None:
            draw = weighting.reweigh(state, draw)
        states.append(tree.flatten(state))
        fixed.append(torch.stack([draw.weight, draw.share]))
        kept.append(fixed[-1] / census.weight[draw.ids])
    for name, value in states[0].items():
        _require_same(value, states[1][name], method, name, weights)
    if weights == "uniform":
        return ()
    if torch.allclose(kept[0], kept[1], rtol=ROUNDING):
        return (Ask.name, Train.name)
    _require_same(
        fixed[0], fixed[1], method, "weights", weights
    )  # the method has its own, such as equal ones
    return (Ask.name,)


def _require_same(one: Tensor, other: Tensor, method: Algorithm, what: str, weights: str) -> None:
    if not torch.allclose(one.double(), other.double(), rtol=ROUNDING):
        way_out = "" if weights == "uniform" else ' weights="uniform",'
        raise RunError(
            f"{type(method).__name__} needs each client's number of samples (for {what!r}), which"
            f" masked sums hide; use another method,{way_out} or"
            ' SecureSums(counts="visible")'
        )


def _effective(roster: Roster, census: Census) -> float:
    """The number of clients by their weights, as far as it is known."""
    squares = math.fsum(one.squares for one in roster.counted)
    if not squares:
        return effective(census.weight.tolist())
    counted = [client for one in roster.counted for client in one.clients]
    return float(census.sizes[counted].sum()) ** 2 / squares


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
    found = _effective(roster, census)
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
