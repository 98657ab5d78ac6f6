"""Evaluation: how the models that clients would use perform for each client and group."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Certificate, Reporting, State
from evenhand.algorithms.local_norms import of_shared_model, unwrapped
from evenhand.data.federation import Federation
from evenhand.data.population import Census, Population
from evenhand.data.samples import PARTS
from evenhand.engines import Exchange
from evenhand.engines.base import Look
from evenhand.engines.threads import one_thread
from evenhand.engines.work import Evaluate
from evenhand.errors import RunError, require_choice
from evenhand.messages import Replies, Task
from evenhand.metrics.client_sums import CELLS, from_client_sums
from evenhand.metrics.measuring import warn_of_nan
from evenhand.metrics.outcomes import Outcomes, sample_outcomes
from evenhand.metrics.scores import Columns, Row, counts_of, score_columns
from evenhand.metrics.tallies import Tally, dense
from evenhand.model import Model
from evenhand.training.over_clients import gaps, over_clients, split_off
from evenhand.training.result import Result
from evenhand.tree import Tree


class Judge:
    """Evaluates the models that clients would use; if training samples are ``hidden``, not on
    these."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        population: Population,
        census: Census,
        exchange: Exchange,
        hidden: bool = False,
    ) -> None:
        self.algorithm, self.model, self.population = algorithm, model, population
        self.census, self.exchange, self.hidden = census, exchange, hidden
        self.part = population.judged_part
        # of the histogram of accuracies; an exchange whose sums are masked has coarser ones
        self.cells: int = getattr(exchange, "cells", CELLS)
        self.work = Evaluate(
            algorithm,
            population.groups,
            self.part,
            by_client=exchange.by_client,
            by_label=True,
            metrics=model.metrics,
            cells=self.cells,
        )
        # created once, because engines prepare each kind of work once
        self._training_work = Evaluate(of_shared_model(algorithm), population.groups, "train")
        self._parts: dict[str, Evaluate] = {}  # to evaluate on other parts, for callbacks
        # the last training losses, and the state they belong to
        self._losses: tuple[State, Tensor] | None = None
        # full tallies of the last model, and its state
        self._tallied: tuple[State, Replies] | None = None

    def result(
        self, state: State, rounds: int, history: list[Row], tracked: dict[int, Tensor]
    ) -> Result:
        """Return the result of a run that ends with ``state`` after so many rounds."""
        population, certificate = self.population, self.certificate(state, rounds)
        params = self.model.state_dict(self.algorithm.result(state))
        personal = self.personal(state, params)
        tally = self.tally(state, rounds)
        over_clients = None if self.exchange.by_client else split_off(tally)
        validated = self.tally(state, rounds, "val") if population.has("val") else None
        warn_of_nan(tally)
        return Result(
            algorithm=unwrapped(self.algorithm),
            params=params,
            personal=personal,
            state=tree.to(state, "cpu"),
            history_rows=history,
            score_columns=score_columns(tally, population) | self.shared_columns(state, rounds),
            tally=tally,
            outcomes=self.outcomes(params, personal),
            counts=counts_of(tally, population),
            validation=None if validated is None else score_columns(validated, population),
            certificate=certificate,
            over_clients=over_clients,
            weight_columns=(
                {} if certificate is None else self.weight_columns(certificate, state, rounds)
            ),
            weight_rounds=list(tracked),
            weight_history=torch.stack(list(tracked.values())).numpy() if tracked else None,
            judged_on="test" if self.part == "test" else "training",
            scored=self.scored(state, rounds, tally, validated),
            target=self.model.target,
        )

    def scored(
        self, state: State, round: int, tally: Tally, validated: Tally | None
    ) -> dict[str, NDArray[np.int64]]:
        """Return the score histograms to find thresholds on, with two classes: those of
        validation data, or of training data if there are none.

        Nodes of a real federation are not asked about training data again.
        """
        if "confusion" not in tally or tally["confusion"].shape[2] != 2:
            return {}
        if validated is not None:
            return {"validation": validated["scored"].astype(np.int64, copy=False)}
        if self.part == "train":
            return {"training": tally["scored"].astype(np.int64, copy=False)}
        if self.hidden or not isinstance(self.population, Federation):
            return {}
        of_training = self.tally(state, round, "train")["scored"]
        return {"training": of_training.astype(np.int64, copy=False)}

    def numbers(self, state: State, round: int, last: bool = False) -> Row:
        """Return loss, accuracy over clients and gaps between groups, for the history.

        ``last`` says that this is the run's last model, whose tallies will be needed.
        """
        if not last:
            return self.read(self._judged(self.work, state, round))
        replies = self._judged(self._full(self.part), state, round)
        if len(replies.ids):
            self._tallied = (state, replies)
        return self.read(replies)

    def numbers_on(self, part: str, state: State, round: int) -> Row:
        """Return the same numbers on one part of the clients' data."""
        require_choice("part", part, PARTS)
        if not self.population.has(part):
            raise ValueError(f"no client has {part} data to evaluate on")
        if self.hidden and part == "train":
            raise ValueError("SampleDP hides training samples; evaluate on other parts")
        if part == self.part:
            return self.numbers(state, round)
        work = self._parts.setdefault(part, replace(self.work, part=part))
        return self.read(self._judged(work, state, round))

    def look(self, state: State, ids: Tensor) -> Look | None:
        """Return an evaluation by those of clients ``ids`` that have data for it, to send with
        other work."""
        ids = ids[self.population.sizes(self.part)[ids] > 0]
        return Look(self.work, self._task(state), ids) if len(ids) else None

    def read(self, replies: Replies) -> Row:
        """Return metrics over the clients that have evaluated."""
        if not len(replies.ids):  # in a real federation, all clients can be offline
            return {"loss": math.nan}
        if not self.work.by_client:
            return {**from_client_sums(replies.total), **gaps(replies)}
        numbers = over_clients(replies.each)
        return {name: float(value) for name, value in numbers.items()} | gaps(replies)

    def tally(self, state: State, round: int, part: str | None = None) -> Tally:
        """Return full tallies of all clients on one split, by default the one used in the
        history."""
        if part is None and self._tallied is not None and self._tallied[0] is state:
            replies, self._tallied = self._tallied[1], None  # not held beside the tally
        else:
            replies = self._judged(self._full(part or self.part), state, round)
        if not len(replies.ids):
            raise RunError(
                "no client answered the last evaluation; start the run again to resume it from its"
                " last round"
            )
        return dense(replies, self.population.clients)

    def _full(self, part: str) -> Evaluate:
        return Evaluate(
            self.algorithm,
            self.population.groups,
            part,
            True,
            self.population.clients,
            self.exchange.by_client,
            metrics=self.model.metrics,
            cells=self.cells,
        )

    def shared_columns(self, state: State, round: int) -> Columns:
        """Return accuracy and loss of the shared model, if clients use their own models besides
        it."""
        shared = self.algorithm.result(state)
        if (
            not unwrapped(self.algorithm).personal
            or not self.exchange.by_client
            or all(map(torch.equal, tree.leaves(shared), tree.leaves(self.model.init())))
        ):
            return {}
        clients = self.population.clients
        plain, groups = of_shared_model(self.algorithm), self.population.groups
        work = Evaluate(plain, groups, self.part, full=True, clients=clients)
        columns = score_columns(dense(self._judged(work, state, round), clients), self.population)
        return {f"shared_{name}": columns[name] for name in ("accuracy", "loss") if name in columns}

    def outcomes(self, params: Tree, personal: list[dict[str, Tensor]] | None) -> Outcomes:
        """Return (N,) the outcome of each evaluated sample; empty if the samples are elsewhere, or
        the server sees only sums."""
        if not isinstance(self.population, Federation) or not self.exchange.by_client:
            return {"value": np.zeros(0)}
        with one_thread():  # like the evaluation
            return sample_outcomes(self.model, self.population.judged, params, personal)

    def _judged(self, work: Evaluate, state: State, round: int) -> Replies:
        # clients with data to evaluate on
        ids = self.population.sizes(work.part).nonzero().flatten()
        return self.exchange.exchange(work, self._task(state), ids, round)

    def _task(self, state: State) -> Task:
        return Task(shared={"model": self.algorithm.result(state)})

    def certificate(self, state: State, round: int) -> Certificate | None:
        """Return each client's effective weight at its training loss; None if the method has
        none."""
        reporting = self.algorithm.reporting()
        if (
            reporting is None
            or type(reporting).certificate is Reporting.certificate
            or not self.exchange.by_client
            or self.hidden
        ):
            return None  # and skip the evaluation on training data
        losses = self.training_losses(state, round)
        if not bool(losses.isfinite().all()):
            return None
        found = reporting.certificate(state, losses, self.census)
        # weights that sum to zero do not say who counts how much
        total = 0.0 if found is None else float(found.weights.sum())
        return found if total and math.isfinite(total) else None

    def weight_columns(self, certificate: Certificate, state: State, round: int) -> Columns:
        """Return a row per client: its training loss, base weight and effective weight."""
        columns = {
            "loss": self.training_losses(state, round),
            "base": self.census.weight,
            "weight": certificate.weights,
        }
        return {
            "name": self.population.all_names,
            **{key: values.numpy() for key, values in columns.items()},
        }

    def training_losses(self, state: State, round: int) -> Tensor:
        """Return (n,) each client's training loss of the trained model, as methods compare it.

        For "hinge_sum" it is a sum. All are NaN if a client has not answered, because weights
        depend on all losses.
        """
        if self._losses is None or self._losses[0] is not state:
            clients = self.population.clients
            replies = self._trained_on(state, round)
            if len(replies.ids) < clients:
                self._losses = (state, torch.full((clients,), math.nan, dtype=torch.float64))
                return self._losses[1]
            total: Tensor = replies.each["loss"].sum(1)
            self._losses = (
                state,
                total if self.model.summed else total / replies.each["count"].sum(1),
            )
        return self._losses[1]

    def _trained_on(self, state: State, round: int) -> Replies:
        """Return everyone's losses of the shared model on training data: those of the tallies, if
        they are of the same model and data."""
        if self._tallied is not None and self._tallied[0] is state and self.part == "train":
            shared = self._task(state).shared
            plain = not self.algorithm.personal
            if plain and self.algorithm.deployed(shared, {}) is shared["model"]:
                return self._tallied[1]
        everyone = torch.arange(self.population.clients)
        return self.exchange.exchange(self._training_work, self._task(state), everyone, round)

    def personal(
        self, state: State, constants: dict[str, Tensor]
    ) -> list[dict[str, Tensor]] | None:
        """Return each client's own model, if the method has such models."""
        if not self.algorithm.personal or not self.exchange.here:
            return None
        shared = {"model": self.algorithm.result(state)}
        first = self.algorithm.memory(self.model.init())
        memories = self.exchange.memories
        return [
            self.model.state_dict(
                self.algorithm.deployed(shared, memories.get(client, first)), constants
            )
            for client in range(self.population.clients)
        ]
