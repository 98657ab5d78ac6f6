"""Differential privacy of a run: its secret, what must hold before it starts, what it may claim."""

from __future__ import annotations

from pathlib import Path

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.engines import Exchange, processes
from evenhand.errors import require
from evenhand.privacy.protection import Facts, scheme_of
from evenhand.privacy.record import Privacy
from evenhand.training.checkpoints import Start
from evenhand.training.settings import Settings
from evenhand.tree import Tree

DECIDED = "a callback may stop the run or choose its model by exact scores"


def protected(algorithm: Algorithm, settings: Settings, clients: int) -> Algorithm:
    """Return the method for one run: with noise and a secret of its own, if it is private."""
    protection = algorithm.protection()
    if protection is None:
        return algorithm
    outermost: object = protection
    require(
        outermost is algorithm,
        "Private must be the outermost method, because what is around it would act on messages that"
        " it has bounded; write Private(inner={}(...))",
        type(algorithm).__name__,
    )
    scheme = scheme_of(settings.cohort, clients)
    steps = settings.local.reach(settings.local.steps) if settings.local.steps else None
    found: Algorithm = protection.for_run(Facts(scheme, settings.rounds, settings.weights, steps))
    return found


def keep_secret(method: Algorithm, out: str | Path | None, start: Start) -> None:
    """Write the secret of a private run next to its checkpoint, or read it if the run is resumed;
    all processes have the same."""
    protection = method.protection()
    if protection is None:
        return
    resumed, secret = bool(start.history), protection.source
    if resumed:
        protection.check_resumed(start.state)
    if out is not None:
        processes.from_first(lambda: secret.keep(Path(out), resumed), "the secret of the run")
    secret.key = processes.from_first(lambda: secret.key, "the secret of the run")


def require_masks(method: Algorithm, exchange: Exchange) -> None:
    """Raise if clients are to add noise and would then send it unmasked, or if epsilon counts on a
    secret cohort and masks show it."""
    masked, protection = getattr(exchange, "masked", False), method.protection()
    require(
        method.local_work().noise is None or masked,
        'noise_by="clients" needs masked sums: a part of the noise does not protect a total that'
        ' the server sees; use an engine with masked sums, or noise_by="server"',
    )
    require(
        not masked or protection is None or not protection.needs_secret_cohorts,
        "with masked sums every client gets the list of those who take part, so this epsilon, which"
        ' counts on a secret cohort, would be false; use noise_by="clients" or cohort=Full()',
    )


def privacy_of(method: Algorithm, params: Tree, rounds: int, watched: bool) -> Privacy | None:
    """Return what a run may claim after so many rounds; None if it is not private.

    ``watched`` means that a callback may have decided by what it saw.
    """
    protection = method.protection()
    if protection is None:
        return None
    size = sum(leaf.numel() for leaf in tree.leaves(params))
    return protection.record(rounds, size, (DECIDED,) if watched else ())
