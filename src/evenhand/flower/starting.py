"""What a server app checks before it asks anybody to train."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from evenhand.algorithm import Algorithm, visible
from evenhand.errors import RunError
from evenhand.flower.admission import Admission
from evenhand.flower.checks import label
from evenhand.flower.roster import Roster
from evenhand.local import solver_table
from evenhand.secure.settings import SecureSums
from evenhand.training.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from evenhand.flower.columns.wanted import Columns

log = logging.getLogger(__name__)

# settings that a server cannot choose
FIXED = ("engine", "device", "checkpoint_every", "precision")


def checked(settings: Settings, by_client: bool) -> Settings:
    """Return the settings; raise if a real federation cannot use them."""
    for name in FIXED:
        if getattr(settings, name) != DEFAULTS[name]:
            raise TypeError(
                f"server_app takes no {name}: nodes compute the way their owners set them up, and"
                " every round has a checkpoint"
            )
    if not isinstance(settings.loss, str):
        raise TypeError(
            "loss must be the name of a loss, since a function cannot be sent to nodes; give the"
            " function to client_app(loss=...) on every node"
        )
    solver_table(settings.local)  # raises if it cannot be sent to nodes
    if settings.track_weights and not by_client:
        raise ValueError(
            "track_weights needs by_client=True: weights come from the losses of single clients"
        )
    if settings.keep_predictions:
        raise ValueError("server_app takes no keep_predictions: the samples stay with the nodes")
    return settings


def check_masks(
    secure: SecureSums | None,
    algorithm: Algorithm,
    settings: Settings,
    by_client: bool,
    bound: float | None,
    columns: Columns | None,
    admission: Admission | None = None,
) -> None:
    """Raise if the run needs masked sums, or cannot have them."""
    if secure is None:
        if algorithm.local_work().noise is not None:
            raise ValueError(
                f"{type(algorithm).__name__} lets clients add noise in shares, which needs masked"
                " sums: server_app(..., secure=SecureSums())"
            )
        return
    from evenhand.flower.masked.refusing import refuse_counted, refuse_method, refuse_settings

    refuse_settings(settings, by_client, bound, columns)
    refuse_method(algorithm)
    if secure.counts == "masked":
        refuse_counted(settings, admission or Admission())


def check_sharing(
    roster: Roster, algorithm: Algorithm, settings: Settings, by_client: bool
) -> None:
    """Warn about clients whose owners share less than the run needs; raise if that is all of
    them."""
    seen = visible(algorithm, roster.population.census(settings.weights))
    unscored = roster.sharing_less("client") if by_client else []
    untrained = roster.sharing_less("method") if seen else []
    for clients, what, remedy in (
        (
            untrained,
            f"the method reads client by client: {', '.join(seen)}",
            'share="method", or a method that needs only sums',
        ),
        (
            unscored,
            "the run asks for each client's scores (by_client=True)",
            'share="client", or by_client=False',
        ),
    ):
        if len(clients) == len(roster.clients):
            raise RunError(f"{what}, and no client's owner shares that; use {remedy}")
        for client in clients:
            log.warning(
                "%s will be skipped: %s, and its owner does not share that",
                label(client, roster.population.name),
                what,
            )
