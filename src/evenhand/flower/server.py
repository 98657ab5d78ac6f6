"""The server side of a Flower app."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.errors import (
    RunError,
    require_kind,
    require_number,
    require_whole,
)
from evenhand.flower import records
from evenhand.flower.admission import Admission
from evenhand.flower.directory import Directory, run_name, run_spec
from evenhand.flower.exchange import Remote
from evenhand.flower.gathering import Gathering
from evenhand.flower.link import Limits, Link
from evenhand.flower.logs import log_as_json
from evenhand.flower.membership import ClientsJoined, Membership
from evenhand.flower.metrics import address_in, served
from evenhand.flower.modules import build_module, require_model
from evenhand.flower.proportion import BOUND
from evenhand.flower.reasons import in_one_line
from evenhand.flower.registration import Registration
from evenhand.flower.roster import Roster
from evenhand.flower.starting import FIXED, check_masks, check_sharing, checked
from evenhand.flower.watch import Watch
from evenhand.locks import hold
from evenhand.model import Model
from evenhand.secure.settings import SecureSums
from evenhand.training.callbacks import Callback, Hooks, require_callbacks
from evenhand.training.fit import train
from evenhand.training.protecting import protected
from evenhand.training.result import Result
from evenhand.training.settings import Options, Settings, takes_settings

if TYPE_CHECKING:
    from evenhand.flower.columns.wanted import Columns

flowers_log = logging.getLogger("flwr")  # shown from the level INFO on


@takes_settings(*FIXED, "keep_predictions")
def server_app(
    algorithm: Algorithm,
    model: nn.Module | Callable[..., nn.Module],
    *,
    clients: int,
    out: str | Path,
    settings: Settings | None = None,
    deadline: float = Limits.deadline,
    patience: float = Limits.patience,
    limit: int = records.LIMIT,
    by_client: bool = False,
    bound: float | None = BOUND,
    admission: Admission | None = None,
    quorum: float = Limits.quorum,
    grace: float = Limits.grace,
    finished: Callable[[Result], None] | None = None,
    columns: Columns | None = None,
    callbacks: Sequence[Callback] = (),
    secure: SecureSums | None = None,
    **options: Unpack[Options],
) -> ServerApp:
    """Build the server side: the rounds of :func:`evenhand.fit`, with Flower's nodes as clients.

    Start the app again with the same ``out`` to resume an interrupted run after its last round, or
    to extend a finished one with larger ``rounds``.

    Args:
        clients: how many nodes that fit and are approved to wait for before the first round; later
            nodes join from the next round on.
        out: the run directory, with a checkpoint of every round, the history, and finally model and
            scores; ``evenhand report`` reads it.
        settings: how to train; its fields can also be given as keywords.
        deadline: seconds that clients have to answer; clients that miss it are skipped.
        patience: seconds to wait for nodes at the start, and for one of them when all are gone.
        limit: largest message in bytes.
        by_client: ask for each client's scores, for a row per client and for the clients' weights;
            their owners must allow it with ``share="client"``. Otherwise evaluation sends only sums
            over clients and groups.
        bound: largest multiple of the round's median for a client's update or reported loss. Longer
            updates are scaled down, larger losses count as the median, and the log and faults.jsonl
            name the client. None for no bound.
        admission: what the operator approves: names, groups, and how much a client may count. By
            default no client counts for more than five times the median.
        quorum: share of the asked clients whose answers are enough; the others then get ``grace``
            more seconds. 1 waits for everyone until the deadline.
        finished: called with the result.
        columns: make a codebook from all nodes' tables before the first round; ``model`` is then a
            function of the codebook.
        callbacks: as in :func:`evenhand.fit`, called on the server; ``EarlyStopping`` asks nodes to
            evaluate on their validation data. When clients join, ``on_run_start`` is called again.
        secure: mask what clients send, so that the server learns the sum of a round and nothing of
            one client, such as ``SecureSums(threshold=2/3)``. Nodes then evaluate in the message
            that trains them (``evaluate="with training"``) unless you choose otherwise, and
            ``bound`` has no effect: nodes check their own values. Numbers of samples are masked,
            too; what needs each client's is refused, unless you set ``counts="visible"``.

    The other keywords are those of :func:`evenhand.fit`: rounds, loss (a name), local, cohort,
    seed, weights, eval_every, evaluate, metrics (which client_app gets, too), and track_weights,
    which needs ``by_client`` and one more message to every client for each evaluated round.
    """
    require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    require_model(model)
    if secure is not None:
        require_kind("secure", secure, SecureSums, "SecureSums(threshold=2/3)")
        if settings is None:
            options = {"evaluate": "with training", **options}
    settings = checked(Settings.of(settings, options), by_client)
    check_masks(secure, algorithm, settings, by_client, bound, columns, admission)
    require_whole("clients", clients, 1)
    require_whole("limit", limit, 1)
    for name, seconds in (("deadline", deadline), ("patience", patience)):
        require_number(name, seconds, "(0, inf)", "it is in seconds")
    if bound is not None:
        require_number("bound", bound, "[1, inf)", "None does not bound replies")
    if finished is not None and not callable(finished):
        raise TypeError(f"finished must be a function of the result, got {type(finished).__name__}")
    if not isinstance(out, str | Path):
        raise TypeError(f"out must be the path of a directory, got {type(out).__name__}")
    require_number("quorum", quorum, "(0, 1]", "it is a share of the clients that are asked")
    require_number("grace", grace, "[0, inf)", "it is in seconds")
    require_kind("admission", admission or Admission(), Admission, "Admission(cap=10)")
    require_callbacks(callbacks)
    limits = Limits(deadline=deadline, message=limit, patience=patience, quorum=quorum, grace=grace)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        log_as_json("server", str(context.run_config.get("log-json", "")))
        place, approved = Path(out), admission or Admission()
        with in_one_line(place), hold(place):
            reached, made = grid, model
            if columns is not None:
                from evenhand.flower.columns.agreeing import with_codebook

                reached, made = with_codebook(grid, limits, clients, place, columns, model)
            module, link = build_module(made, settings.seed), Link(reached, limits)
            run = _Run(
                *(algorithm, module, settings, link, place, by_client, bound, approved),
                *(callbacks, secure),
            )
            watch = Watch(place, run.directory.folder, settings.rounds, limits)
            with served(watch, address_in(context.run_config)):
                result = run.train(clients, watch)
        if finished is not None:
            finished(result)

    return app


@dataclass(frozen=True)
class _Run:
    """One run of a server app."""

    algorithm: Algorithm
    module: nn.Module
    settings: Settings
    link: Link
    out: Path
    by_client: bool
    bound: float | None
    admission: Admission
    callbacks: Sequence[Callback]
    secure: SecureSums | None = None

    @cached_property
    def directory(self) -> Directory:
        """The run directory."""
        spec = run_spec(self.out, self.algorithm, self.module, self.settings)
        return Directory(self.out, spec, self.algorithm, self.module, self.secure)

    def train(self, clients: int, watch: Watch) -> Result:
        """Wait for ``clients`` nodes and run all rounds."""
        directory = self.directory
        directory.check()
        watch.starts()
        found = (self.link, clients, self.out, self._accepts, self._suits, self.admission)
        masked = self._run_name if self.secure else ""
        membership = Gathering(*found, masked, self._hides_counts).wait()
        result = None
        while result is None:
            self._count(membership)
            self._check_clients(membership.roster)
            directory.begin(membership.roster, self.by_client)
            watch.begins(len(membership.roster.clients))
            # the run then resumes after its last round, with more clients
            with suppress(ClientsJoined):
                result = self._fit(membership, watch)
        if all(row["void"] for row in result.history_rows):
            raise RunError(
                "no client answered in any round, for the reasons logged above; nothing was learned"
            )
        membership.check_newest()
        directory.finish(result, membership.roster, self.by_client)
        watch.ends()
        return result

    def _fit(self, membership: Membership, watch: Watch) -> Result:
        remote = replace(self._remote(membership), by_size=self._by_size(membership.roster))

        def after(done: int, row: Mapping[str, Any]) -> None:
            watch.round(done, row)
            self._log_round(done, row)

        return train(
            self.module,
            membership.roster.population,
            self.algorithm,
            replace(self.settings, engine=watch.over(remote), checkpoint_every=1),
            out=self.directory.folder,
            resume=True,
            progress=after,
            guard=membership.check_newest,
            hooks=Hooks(self.callbacks),
        )

    def _remote(self, membership: Membership) -> Remote:
        name, loss = self._run_name, str(self.settings.loss)
        method, folder = self.algorithm, self.directory.folder
        return Remote(
            *(self.link, membership, method, name, loss, self.by_client, self.bound, folder),
            self.secure,
        )

    @property
    def _hides_counts(self) -> bool:
        return self.secure is not None and self.secure.counts == "masked"

    def _count(self, membership: Membership) -> None:
        """Ask for the sum of the counts that clients hide."""
        if self.secure is None or not membership.roster.uncounted:
            return
        from evenhand.flower.masked.counting import count

        asking = self._remote(membership).asking(
            self._model(), membership.roster.population, self.settings.seed
        )
        asking.begun()
        count(asking, self.secure, self.settings.weights)

    @property
    def _run_name(self) -> str:
        return run_name(self.out)

    def _check_clients(self, roster: Roster) -> None:
        """Raise if the run cannot have these clients."""
        if self.secure is None:
            check_sharing(roster, self.algorithm, self.settings, self.by_client)
            return
        from evenhand.flower.masked.refusing import refuse_clients

        refuse_clients(roster, self.algorithm, self.settings, self.secure)

    def _by_size(self, roster: Roster) -> tuple[str, ...]:
        """The kinds of work in which clients count by sizes that they hide."""
        if not self._hides_counts:
            return ()
        from evenhand.flower.masked.refusing import counted_by_size

        method = protected(self.algorithm, self.settings, roster.population.clients)
        return counted_by_size(method, self._model().init(), roster, self.settings)

    def _accepts(self, roster: Roster) -> None:
        """Raise a ValueError if the method cannot have these clients."""
        census = roster.population.census(self.settings.weights)
        method = protected(self.algorithm, self.settings, roster.population.clients)
        method.init(self._model().init(), census)

    def _suits(self, client: Registration) -> None:
        """Raise a ValueError if the model cannot take a client's samples."""
        self._model().check(Roster.of([client]).population)

    def _model(self) -> Model:
        chosen = self.settings
        return Model(self.module, chosen.loss, chosen.output, chosen.normalisation)

    def _log_round(self, done: int, row: Mapping[str, Any]) -> None:
        flowers_log.info(
            "round %d of %d: %d of %d clients have answered",
            done,
            self.settings.rounds,
            row["answered"],
            row["asked"],
        )
