"""Checks that compare whole runs: again, elsewhere, in another order, and where data and cohorts
are odd."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.cohort import Cohort, Draw, Proportional, Uniform
from evenhand.data.federation import Federation
from evenhand.data.population import Census
from evenhand.data.samples import Part
from evenhand.engines import Loop, Vmap
from evenhand.losses import resolve
from evenhand.messages import Reply, Task
from evenhand.testing.subject import (
    SEED,
    WHOLE,
    Hook,
    Recorder,
    Sent,
    Subject,
    difference,
    everything,
    expect,
    expect_alike,
    finite,
    rearranged,
    skip,
    watched,
)
from evenhand.training.result import Result
from evenhand.tree import Tree

CLOSE = 1e-9  # between runs that differ in the order of sums, in float64
CLOSE32 = 1e-4  # in float32


# ---- again


def the_same_seed_gives_the_same_bits(subject: Subject) -> None:
    """A second run with the same arguments is the same, in models, state, history and scores."""
    _expect_same_bits(subject.fit(), subject.usual)


def another_seed_gives_another_run(subject: Subject) -> None:
    """With other cohorts and batches comes another model: nothing fixes its own random numbers."""
    other = subject.fit(cohort=subject.some, seed=SEED + 1)
    expect(
        bool(difference(everything(other), everything(subject.partial))),
        "two seeds give the same models and state",
    )


def a_resumed_run_ends_with_the_same_bits(subject: Subject) -> None:
    """A run that stops after its first round and goes on from its checkpoint ends like one that did
    not stop."""

    def stop(done: int, row: dict[str, Any]) -> None:
        raise InterruptedError

    with tempfile.TemporaryDirectory() as directory:
        kept: dict[str, Any] = {"cohort": subject.some, "out": directory, "checkpoint_every": 1}
        with suppress(InterruptedError):
            subject.fit(progress=stop, **kept)
        _expect_same_bits(subject.fit(resume=True, **kept), subject.partial)


def evaluating_more_often_changes_no_bit(subject: Subject) -> None:
    """A run that is evaluated after every round ends like one that is evaluated once."""
    expect_alike(everything(subject.fit(eval_every=1)), everything(subject.usual))


def a_shorter_run_is_the_beginning_of_a_longer_one(subject: Subject) -> None:
    """The first round does not depend on how many follow."""
    states = subject.observed.witness.answers("server")
    expect_alike(
        subject.fit(local=WHOLE, rounds=1).state,
        states[0][0],
        what="the state after the first of one and of two rounds",
    )


def _expect_same_bits(found: Result, wanted: Result) -> None:
    expect_alike(everything(found), everything(wanted))
    expect_alike(found.history_rows, wanted.history_rows, what="history")
    expect_alike(found.score_rows, wanted.score_rows, what="scores")


# ---- elsewhere


def loop_and_vmap_agree_in_float64(subject: Subject) -> None:
    """Both engines end with the same models and state, to 1e-9: everyone, in batches, with
    momentum."""
    expect_alike(everything(subject.stacked), everything(subject.usual), CLOSE)


def loop_and_vmap_agree_in_float32(subject: Subject) -> None:
    """Both engines end with the same models and state in float32, to 1e-4."""
    stacked = subject.fit(dtype=torch.float32, engine="vmap")
    expect_alike(everything(stacked), everything(subject.observed32.result), CLOSE32)


def engines_agree_for_a_partial_cohort(subject: Subject) -> None:
    """Both engines agree where half of the clients take part, with normalised coefficients."""
    expect_alike(
        everything(subject.fit(cohort=subject.some, engine="vmap")),
        everything(subject.partial),
        CLOSE,
    )


def engines_agree_for_draws_with_replacement(subject: Subject) -> None:
    """Both engines agree where a client may be drawn twice."""
    _expect_engines_agree(subject, cohort=Proportional(2 * subject.clients))


def engines_agree_for_draws_without_replacement(subject: Subject) -> None:
    """Both engines agree where clients are drawn by weight, each at most once."""
    _expect_engines_agree(
        subject, cohort=Proportional(subject.clients - subject.clients // 3, replacement=False)
    )


def engines_agree_for_unbiased_coefficients(subject: Subject) -> None:
    """Both engines agree where coefficients do not sum to one."""
    _expect_engines_agree(subject, cohort=Uniform(subject.some.k, unbiased=True))


def engines_agree_for_whole_batches(subject: Subject) -> None:
    """Both engines agree where clients take steps on all their data."""
    expect_alike(
        everything(subject.fit(local=WHOLE, engine="vmap")), everything(subject.whole), CLOSE
    )


def engines_agree_for_uniform_base_weights(subject: Subject) -> None:
    """Both engines agree where every client counts alike."""
    _expect_engines_agree(subject, weights="uniform")


def engines_agree_without_teams(subject: Subject) -> None:
    """Both engines agree where clients have no teams."""
    subject.skip_if_refused(subject.teamless)
    stacked = subject.fit(federation=subject.teamless, engine="vmap")
    expect_alike(everything(stacked), everything(subject.observed_teamless.result), CLOSE)


def splitting_a_cohort_into_chunks_changes_no_bit(subject: Subject) -> None:
    """Clients side by side get the same bits whether two or all of them are worked on at once."""
    expect_alike(everything(subject.fit(engine=Vmap(chunk=2))), everything(subject.stacked))


def the_number_of_workers_changes_no_bit(subject: Subject) -> None:
    """Clients taken by two threads get the same bits as one after another."""
    expect_alike(everything(subject.fit(engine=Loop(workers=2))), everything(subject.usual))


def _expect_engines_agree(subject: Subject, **changes: Any) -> None:
    loop, stacked = (
        everything(subject.fit(engine=engine, **changes)) for engine in ("loop", "vmap")
    )
    expect_alike(stacked, loop, CLOSE)


# ---- in another order


def renumbering_clients_renumbers_the_answer(subject: Subject) -> None:
    """With clients in another order come the same shared model, and personal models, scores and
    weights in that order."""
    subject.skip_if_clients_differ()
    order = [*range(1, subject.clients, 2), *range(0, subject.clients, 2)]
    other = subject.fit(
        federation=rearranged(subject.federation, ([i] for i in order)), local=WHOLE
    )
    expect_alike(other.params, subject.whole.params, CLOSE, "the shared model")
    expect_alike(
        _by_client(other, range(subject.clients)),
        _by_client(subject.whole, order),
        CLOSE,
        "what clients have",
    )


def the_order_of_samples_does_not_matter(subject: Subject) -> None:
    """With every client's samples backwards comes the same model, where steps are on whole data."""
    other = subject.fit(
        federation=rearranged(subject.federation, _alone(subject), lambda rows: rows.flip(0)),
        local=WHOLE,
    )
    expect_alike(other.params, subject.whole.params, CLOSE, "the shared model")
    expect_alike(other.personal, subject.whole.personal, CLOSE, "personal models")


def twins_are_treated_alike(subject: Subject) -> None:
    """Two clients with the same data receive the same, and end with the same model, score and
    weight."""
    subject.skip_if_clients_differ()
    sent: list[Sent] = []
    last = subject.clients - 1
    result = subject.fit(
        federation=rearranged(subject.federation, [*_alone(subject), [last]]),
        local=WHOLE,
        engine=Recorder(sent),
    )
    twins = (last, last + 1)
    one, other = (_by_client(result, [twin]) for twin in twins)
    expect_alike(one, other, CLOSE, "what the twins have")
    for exchange in sent:
        one, other = (
            tree.map(lambda leaf, here=exchange.ids == twin: leaf[here], exchange.task.own)
            for twin in twins
        )
        expect_alike(one, other, CLOSE, "what the twins receive")


def clients_that_are_all_alike_stay_alike(subject: Subject) -> None:
    """Where all losses are equal, which is a tie for every ranking, clients end alike and
    everything is finite."""
    subject.skip_if_clients_differ()
    result = subject.fit(federation=_all_alike(subject), local=WHOLE)
    _expect_sane(result)
    for client in range(1, subject.clients):
        expect_alike(
            _by_client(result, [client]),
            _by_client(result, [0]),
            CLOSE,
            f"what clients {client} and 0 have",
        )


def an_empty_group_or_team_changes_nothing(subject: Subject) -> None:
    """With a group and a team that nobody belongs to come the same models."""
    federation = subject.federation
    if federation.train.group is None and federation.teams is None:
        skip("the federation has no groups and no teams")
    other = subject.fit(federation=_with_nobody(federation), local=WHOLE)
    expect_alike(other.params, subject.whole.params, CLOSE, "the shared model")
    expect_alike(other.personal, subject.whole.personal, CLOSE, "personal models")


def _alone(subject: Subject) -> list[list[int]]:
    return [[i] for i in range(subject.clients)]


def _all_alike(subject: Subject) -> Federation:
    """As many clients, each with everyone's data, in a team of its own: means over larger teams
    would break ties by rounding."""
    federation, everyone = subject.federation, range(subject.clients)
    teams = None if federation.teams is None else torch.arange(subject.clients)
    return dataclasses.replace(
        rearranged(federation, [everyone] * subject.clients),
        teams=teams,
        team_names=() if teams is None else tuple(map(str, everyone)),
    )


def _by_client(result: Result, clients: Any) -> Tree:
    """What clients have at the end, in the order asked for."""
    rows = [row for row in result.score_rows if row["by"] == "client"]
    scores = torch.tensor(
        [[rows[i]["loss"], rows[i]["accuracy"]] for i in clients], dtype=torch.float64
    )
    certified = None if result.certificate is None else result.certificate.weights[list(clients)]
    return {
        "score": scores,
        "weight": certified,
        "personal": [result.personal[i] for i in clients] if result.personal else None,
    }


def _with_nobody(federation: Federation) -> Federation:
    """The federation with a first group and a first team that are empty."""

    def moved(part: Part | None) -> Part | None:
        return (
            part
            if part is None or part.group is None
            else dataclasses.replace(part, group=part.group + 1)
        )

    changes: dict[str, Any] = {
        name: moved(getattr(federation, name)) for name in ("train", "test", "val")
    }
    if federation.group_names:
        changes["group_names"] = ("nobody", *federation.group_names)
    if federation.teams is not None:
        changes |= {"teams": federation.teams + 1, "team_names": ("nobody", *federation.team_names)}
    return dataclasses.replace(federation, **changes)


# ---- where data and cohorts are odd


@dataclass(frozen=True)
class AllBut(Cohort):
    """Everyone but one client."""

    client: int

    def draw(self, census: Census, seed: int, round: int) -> Draw:
        ids = torch.arange(census.clients)
        ids = ids[ids != self.client]
        weight = census.weight[ids] / census.weight[ids].sum()
        return Draw(ids, weight, weight)


def one_client_alone_is_enough(subject: Subject) -> None:
    """A federation of one client trains, or is refused before training."""
    federation = rearranged(subject.federation, [[subject.clients - 1]])
    subject.skip_if_refused(federation)
    _expect_sane(subject.fit(federation=federation))


def a_cohort_of_one_is_enough(subject: Subject) -> None:
    """Rounds with a single client each work."""
    _expect_sane(subject.fit(cohort=Uniform(1), rounds=6))


def a_client_that_is_never_drawn_has_a_model(subject: Subject) -> None:
    """A client that no cohort holds ends with a finite model, and the others' models are finite."""
    _expect_sane(subject.fit(cohort=AllBut(subject.clients - 1)))


def a_client_whose_reply_is_not_finite_is_left_out(subject: Subject) -> None:
    """NaN from one client, in training and in surveys, reaches no model, and the others go on."""
    if subject.clients < 2:
        skip("the federation has one client")
    factor = torch.ones(subject.clients, dtype=torch.float64)
    factor[1] = torch.nan
    result = subject.fit(poisoned(subject.algorithm, factor))
    _expect_sane(result, lost=True)
    for row in result.history_rows:
        expect(
            0 < row["answered"] < subject.clients,
            f"{row['answered']} of {subject.clients} clients answered in round {row['round']}",
        )
        # a survey may have shut it out already
        named = row["left_out"] == subject.federation.name(1) or row["asked"] < subject.clients
        expect(named, f"round {row['round']} reports {row['left_out']!r} as left out")


def a_round_without_replies_leaves_the_model_alone(subject: Subject) -> None:
    """NaN from every client voids the round: models stay as they were."""
    result = subject.fit(
        poisoned(subject.algorithm, torch.full((subject.clients,), torch.nan, dtype=torch.float64))
    )
    expect(all(row["void"] for row in result.history_rows), "somebody answered")
    initial = copy.deepcopy(subject.module).double().state_dict()
    expect_alike(dict(result.params), dict(initial), what="the model after rounds without replies")


def losses_in_the_hundreds_leave_nobody_out(subject: Subject) -> None:
    """Where losses are large, nothing overflows, in float32."""
    module = copy.deepcopy(subject.module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(300)
    _expect_sane(
        subject.fit(module=module, dtype=torch.float32, local=dataclasses.replace(WHOLE, lr=0.01))
    )


def losses_of_zero_leave_nobody_out(subject: Subject) -> None:
    """Where losses and gradients are zero, nothing is divided by them."""
    _expect_sane(subject.fit(loss=_nothing, local=WHOLE))


def longer_training_stays_finite(subject: Subject) -> None:
    """After twenty rounds models and state are finite."""
    result = subject.fit(local=WHOLE, rounds=20, engine="vmap")
    _expect_sane(result)
    expect(finite(result.state), "the state is not finite")


def _nothing(output: Tensor, target: Tensor) -> Tensor:
    return 0.0 * output.reshape(len(output), -1).sum(1)


def _expect_sane(result: Result, lost: bool = False) -> None:
    """All models are finite, and nobody was left out, unless somebody was meant to be ``lost``."""
    expect(finite(result.params), "the model is not finite")
    expect(finite(result.state["model"]), 'state["model"] is not finite')
    for client, params in enumerate(result.personal or []):
        expect(finite(params), f"the model of client {client} is not finite")
    for row in result.history_rows:
        expect(
            lost or not row["left_out"],
            f"round {row['round']} left out {row['left_out']}, whose replies were not finite",
        )


def poisoned(algorithm: Algorithm, factor: Tensor) -> Algorithm:
    """The same method, with replies to training and surveys multiplied by a factor (n,) of the
    client, such as NaN."""

    def spoil(values: Tree, task: Task) -> Tree:
        return tree.map(
            lambda leaf: (
                leaf * task.own["factor"].to(leaf.dtype) if leaf.is_floating_point() else leaf
            ),
            values,
        )

    def watch(name: str, hook: Hook, arguments: tuple[Any, ...]) -> Any:
        answer = hook(*arguments)
        if name == "task":
            return answer._replace(own={**answer.own, "factor": factor[arguments[1]]})
        if name == "ask" and answer is not None:
            return answer._replace(own={**answer.own, "factor": factor})
        if name == "answer":
            return Reply(*(spoil(part, arguments[2]) for part in answer))
        if name == "reply":
            return Reply(*(spoil(part, arguments[4]) for part in answer[0])), spoil(
                answer[1], arguments[4]
            )
        return answer

    return watched(algorithm, watch)


# ---- learning


def training_changes_a_model(subject: Subject) -> None:
    """After a round the shared model, or a client's own, is not what it was."""
    initial = dict(copy.deepcopy(subject.module).double().state_dict())
    result = subject.usual
    moved = [
        params
        for params in (result.params, *(result.personal or []))
        if difference(params, initial)
    ]
    expect(bool(moved), "no model has changed")


def training_lowers_losses(subject: Subject) -> None:
    """Where clients are all alike, a few rounds with small steps on whole data lower their loss."""
    federation = _all_alike(subject)
    subject.skip_if_refused(federation)
    result = subject.fit(
        federation=federation, local=dataclasses.replace(WHOLE, lr=0.05), rounds=5, engine="vmap"
    )
    initial = copy.deepcopy(subject.module).double()
    before = _loss(subject, initial, dict(initial.state_dict()))
    for params in result.personal or [result.params]:
        after = _loss(subject, initial, params)
        expect(after < before, f"the loss went from {before:.6g} to {after:.6g}")


def _loss(subject: Subject, module: nn.Module, params: dict[str, Tensor]) -> float:
    """The mean loss of a model over everyone's training data."""
    data = subject.federation.train.samples(torch.float64, torch.device("cpu"))
    return float(
        resolve(subject.loss)(torch.func.functional_call(module, params, (data.x,)), data.y)
        .mean()
        .detach()
    )


CHECKS = (
    the_same_seed_gives_the_same_bits,
    another_seed_gives_another_run,
    a_resumed_run_ends_with_the_same_bits,
    evaluating_more_often_changes_no_bit,
    a_shorter_run_is_the_beginning_of_a_longer_one,
    loop_and_vmap_agree_in_float64,
    loop_and_vmap_agree_in_float32,
    engines_agree_for_a_partial_cohort,
    engines_agree_for_draws_with_replacement,
    engines_agree_for_draws_without_replacement,
    engines_agree_for_unbiased_coefficients,
    engines_agree_for_whole_batches,
    engines_agree_for_uniform_base_weights,
    engines_agree_without_teams,
    splitting_a_cohort_into_chunks_changes_no_bit,
    the_number_of_workers_changes_no_bit,
    renumbering_clients_renumbers_the_answer,
    the_order_of_samples_does_not_matter,
    twins_are_treated_alike,
    clients_that_are_all_alike_stay_alike,
    an_empty_group_or_team_changes_nothing,
    one_client_alone_is_enough,
    a_cohort_of_one_is_enough,
    a_client_that_is_never_drawn_has_a_model,
    a_client_whose_reply_is_not_finite_is_left_out,
    a_round_without_replies_leaves_the_model_alone,
    losses_in_the_hundreds_leave_nobody_out,
    losses_of_zero_leave_nobody_out,
    longer_training_stays_finite,
    training_changes_a_model,
    training_lowers_losses,
)
