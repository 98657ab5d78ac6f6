"""Checks with extreme data, cohorts and losses, and checks that training learns."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.cohort import Cohort, Draw, Uniform
from evenhand.data.population import Census
from evenhand.losses import resolve
from evenhand.messages import Reply, Task
from evenhand.testing.compare import difference, expect, expect_alike, expect_sane, finite, skip
from evenhand.testing.subject import WHOLE, Subject, all_alike, rearranged
from evenhand.testing.watch import Hook, watched
from evenhand.tree import Tree


@dataclass(frozen=True)
class AllBut(Cohort):
    """Every client except one."""

    client: int

    def draw(self, census: Census, seed: int, round: int) -> Draw:
        ids = torch.arange(census.clients)
        ids = ids[ids != self.client]
        weight = census.weight[ids] / census.weight[ids].sum()
        return Draw(ids, weight, weight)


def one_client_alone_is_enough(subject: Subject) -> None:
    """A federation of one client can be trained, or is refused before training."""
    federation = rearranged(subject.federation, [[subject.clients - 1]])
    subject.skip_if_refused(federation)
    expect_sane(subject.fit(federation=federation))


def a_cohort_of_one_is_enough(subject: Subject) -> None:
    """Rounds with a single client work."""
    expect_sane(subject.fit(cohort=Uniform(1), rounds=6))


def a_client_that_is_never_drawn_has_a_model(subject: Subject) -> None:
    """A client that is never drawn ends with a finite model, and so do the others."""
    expect_sane(subject.fit(cohort=AllBut(subject.clients - 1)))


def a_client_whose_reply_is_not_finite_is_left_out(subject: Subject) -> None:
    """NaN from one client, in training or in answers, reaches no model; the others keep
    training."""
    if subject.clients < 2:
        skip("the federation has one client")
    factor = torch.ones(subject.clients, dtype=torch.float64)
    factor[1] = torch.nan
    result = subject.fit(poisoned(subject.algorithm, factor))
    expect_sane(result, lost=True)
    for row in result.history_rows:
        expect(
            0 < row["answered"] < subject.clients,
            f"{row['answered']} of {subject.clients} clients answered in round {row['round']}",
        )
        # a survey may have excluded it already
        named = row["left_out"] == subject.federation.name(1) or row["asked"] < subject.clients
        expect(named, f"round {row['round']} reports {row['left_out']!r} as skipped")


def a_round_without_replies_leaves_the_model_alone(subject: Subject) -> None:
    """NaN from every client makes the round void: models do not change."""
    result = subject.fit(
        poisoned(subject.algorithm, torch.full((subject.clients,), torch.nan, dtype=torch.float64))
    )
    expect(all(row["void"] for row in result.history_rows), "somebody answered")
    initial = copy.deepcopy(subject.module).double().state_dict()
    expect_alike(dict(result.params), dict(initial), what="the model after rounds without replies")


def losses_in_the_hundreds_leave_nobody_out(subject: Subject) -> None:
    """With large losses, nothing overflows in float32."""
    module = copy.deepcopy(subject.module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(300)
    expect_sane(
        subject.fit(module=module, dtype=torch.float32, local=dataclasses.replace(WHOLE, lr=0.01))
    )


def losses_of_zero_leave_nobody_out(subject: Subject) -> None:
    """With losses and gradients of zero, nothing is divided by them."""
    expect_sane(subject.fit(loss=_nothing, local=WHOLE))


def longer_training_stays_finite(subject: Subject) -> None:
    """After twenty rounds, models and state are finite."""
    result = subject.fit(local=WHOLE, rounds=20, engine="vmap")
    expect_sane(result)
    expect(finite(result.state), "the state is not finite")


def _nothing(output: Tensor, target: Tensor) -> Tensor:
    return 0.0 * output.reshape(len(output), -1).sum(1)


def poisoned(algorithm: Algorithm, factor: Tensor) -> Algorithm:
    """Return the method with all replies multiplied by a factor (n,) of the client, such as NaN."""

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


def training_changes_a_model(subject: Subject) -> None:
    """A round changes the shared model, or a client's own."""
    initial = dict(copy.deepcopy(subject.module).double().state_dict())
    result = subject.usual
    moved = [
        params
        for params in (result.params, *(result.personal or []))
        if difference(params, initial)
    ]
    expect(bool(moved), "no model has changed")


def training_lowers_losses(subject: Subject) -> None:
    """If all clients are alike, a few rounds with small steps on all data lower their loss."""
    federation = all_alike(subject.federation)
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
    """Return the mean loss of a model over all training data."""
    data = subject.federation.train.samples(torch.float64, torch.device("cpu"))
    return float(
        resolve(subject.loss)(torch.func.functional_call(module, params, (data.x,)), data.y)
        .mean()
        .detach()
    )


CHECKS = (
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
