"""The server's side of a Flower app."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from evenhand.algorithm import Algorithm, visible
from evenhand.cohort import Cohort
from evenhand.errors import RunError, require_kind, require_number, require_whole
from evenhand.files import write_atomic
from evenhand.flower import records
from evenhand.flower.checks import label
from evenhand.flower.directory import Directory, run_spec
from evenhand.flower.exchange import Remote
from evenhand.flower.link import Limits, Link
from evenhand.flower.membership import ClientsJoined, wait_for_clients
from evenhand.flower.modules import build_module, require_model
from evenhand.flower.roster import Roster
from evenhand.local import LocalSGD
from evenhand.model import Model
from evenhand.training.fit import fit

if TYPE_CHECKING:
    from evenhand.training.result import Result

# the second is shown from the level INFO on
log, flowers_log = logging.getLogger(__name__), logging.getLogger("flwr")


def server_app(
    algorithm: Algorithm,
    model: nn.Module | Callable[[], nn.Module],
    *,
    clients: int,
    out: str | Path,
    rounds: int = 100,
    loss: str = "cross_entropy",
    local: LocalSGD | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    weights: str = "data",
    eval_every: int | None = None,
    evaluate: str = "after training",
    deadline: float = Limits.deadline,
    patience: float = Limits.patience,
    limit: int = records.LIMIT,
    by_client: bool = False,
    track_weights: bool = False,
    finished: Callable[[Result], None] | None = None,
) -> ServerApp:
    """The server's side: the rounds of :func:`evenhand.fit`, with Flower's nodes as clients.

    An interrupted run goes on from its last round when the app is started again with the same
    ``out``.

    Args:
        clients: nodes to wait for before the first round; nodes that come later join from the next
            round on.
        out: the run directory, with the checkpoint of every round, the history, and at the end
            model and scores; ``evenhand report`` reads it.
        deadline: seconds that clients have for an exchange; clients that miss it are left out of
            it.
        patience: seconds to wait for the nodes at the start, and for one of them when all are gone.
        limit: bytes of a message.
        by_client: ask how each client fares, for a row per client in the scores and for the
            clients' weights; their owners must allow it with ``share="client"``. Otherwise
            evaluation sends nothing but sums over clients and groups.
        track_weights: needs ``by_client``, and one more exchange with everyone for each evaluated
            round.
        finished: called with the result.

    The other arguments are those of :func:`evenhand.fit`.
    """
    if track_weights and not by_client:
        raise ValueError(
            "track_weights needs by_client=True: weights come of the losses of single clients"
        )
    require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    require_model(model)
    for name, number in (("clients", clients), ("rounds", rounds), ("limit", limit)):
        require_whole(name, number, 1)
    require_whole("seed", seed, 0)
    require_whole("eval_every", eval_every, 1, optional=True)
    for name, seconds in (("deadline", deadline), ("patience", patience)):
        require_number(name, seconds, "(0, inf)", "it is in seconds")
    if cohort is not None:
        require_kind("cohort", cohort, Cohort, "Uniform(10)")
    if local is not None:
        require_kind("local", local, LocalSGD, "LocalSGD(lr=0.1)")
    if finished is not None and not callable(finished):
        raise TypeError(f"finished must be a function of the result, got {type(finished).__name__}")
    if not isinstance(out, str | Path):
        raise TypeError(f"out must be the path of a directory, got {type(out).__name__}")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        link = Link(grid, Limits(deadline=deadline, message=limit, patience=patience))
        module = build_module(model, seed)
        settings = {
            "rounds": rounds,
            "seed": seed,
            "loss": loss,
            "weights": weights,
            "eval_every": eval_every,
            "track_weights": track_weights,
        }
        spec = run_spec(Path(out), algorithm, module, local=local, cohort=cohort, **settings)
        directory = Directory(Path(out), spec, algorithm, module)

        def accepts(roster: Roster) -> None:
            algorithm.init(Model(module, loss).init(), roster.population.census(weights))

        def progress(done: int, row: Mapping[str, Any]) -> None:
            flowers_log.info(
                "round %d of %d: %d of %d clients have answered",
                done,
                rounds,
                row["answered"],
                row["asked"],
            )

        directory.check()
        membership = wait_for_clients(link, clients, Path(out), accepts)
        directory.begin(membership.roster.population, by_client)
        result = None
        while result is None:
            _check_sharing(membership.roster, algorithm, weights, by_client)
            # the run then goes on from its last round, with more clients
            with suppress(ClientsJoined):
                result = fit(
                    module,
                    membership.roster.population,
                    algorithm,
                    loss=loss,
                    rounds=rounds,
                    local=local,
                    cohort=cohort,
                    seed=seed,
                    engine=Remote(
                        link, membership, algorithm, run_name(Path(out)), loss, by_client
                    ),
                    weights=weights,
                    eval_every=eval_every,
                    evaluate=evaluate,
                    track_weights=track_weights,
                    progress=progress,
                    out=directory.folder,
                    checkpoint_every=1,
                    resume=True,
                )
        if all(row["void"] for row in result.history_rows):
            raise RunError(
                "no client has answered in any round, for the reasons that are logged above;"
                " nothing was learned"
            )
        directory.finish(result, membership.roster.population, by_client)
        if finished is not None:
            finished(result)

    return app


def _check_sharing(roster: Roster, algorithm: Algorithm, weights: str, by_client: bool) -> None:
    """Warn of clients whose owners share less than the run will ask for; raise where no client
    would be left."""
    seen = visible(algorithm, roster.population.census(weights))
    unscored = roster.sharing_less("client") if by_client else []
    untrained = roster.sharing_less("method") if seen else []
    for clients, what, remedy in (
        (
            untrained,
            f"the method sees of each client: {', '.join(seen)}",
            'share="method", or a method that needs sums alone',
        ),
        (
            unscored,
            "the run sees how each client fares (by_client=True)",
            'share="client", or by_client=False',
        ),
    ):
        if len(clients) == len(roster.clients):
            raise RunError(f"{what}, and no client's owner shares that; it takes {remedy}")
        for client in clients:
            log.warning(
                "%s will be left out: %s, and its owner does not share that",
                label(client, roster.population.name),
                what,
            )


def run_name(out: Path) -> str:
    """A name for the run in ``out``: made once, and found there again when the run is resumed."""
    path = out / "run-name"
    if not path.exists():
        write_atomic(path, secrets.token_hex(8).encode())
    return path.read_text()
