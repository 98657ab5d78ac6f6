"""Checks that the order of clients, samples and groups does not matter."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from evenhand import tree
from evenhand.data.federation import Federation
from evenhand.data.samples import Part
from evenhand.testing.compare import CLOSE, expect_alike, expect_sane, skip
from evenhand.testing.subject import WHOLE, Subject, all_alike, rearranged
from evenhand.testing.watch import Recorder, Sent
from evenhand.training.result import Result
from evenhand.tree import Tree


def renumbering_clients_renumbers_the_answer(subject: Subject) -> None:
    """With clients in another order, the shared model is the same, and all else follows that
    order."""
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
    """With every client's samples reversed, the model is the same if steps use all data."""
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
    """If all losses are equal, a tie for every ranking, clients end alike and everything is
    finite."""
    subject.skip_if_clients_differ()
    result = subject.fit(federation=all_alike(subject.federation), local=WHOLE)
    expect_sane(result)
    for client in range(1, subject.clients):
        expect_alike(
            _by_client(result, [client]),
            _by_client(result, [0]),
            CLOSE,
            f"what clients {client} and 0 have",
        )


def an_empty_group_or_team_changes_nothing(subject: Subject) -> None:
    """An additional group and team without members do not change the models."""
    federation = subject.federation
    if federation.train.group is None and federation.teams is None:
        skip("the federation has no groups and no teams")
    other = subject.fit(federation=_with_nobody(federation), local=WHOLE)
    expect_alike(other.params, subject.whole.params, CLOSE, "the shared model")
    expect_alike(other.personal, subject.whole.personal, CLOSE, "personal models")


def _alone(subject: Subject) -> list[list[int]]:
    return [[i] for i in range(subject.clients)]


def _by_client(result: Result, clients: Any) -> Tree:
    """Return what clients have at the end, in the given order."""
    rows = [row for row in result.score_rows if row["by"] == "client"]
    scores = torch.tensor(
        [[rows[i]["loss"], rows[i].get("accuracy", 0.0)] for i in clients], dtype=torch.float64
    )
    certified = None if result.certificate is None else result.certificate.weights[list(clients)]
    return {
        "score": scores,
        "weight": certified,
        "personal": [result.personal[i] for i in clients] if result.personal else None,
    }


def _with_nobody(federation: Federation) -> Federation:
    """Return the federation with an empty first group and an empty first team."""

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


CHECKS = (
    renumbering_clients_renumbers_the_answer,
    the_order_of_samples_does_not_matter,
    twins_are_treated_alike,
    clients_that_are_all_alike_stay_alike,
    an_empty_group_or_team_changes_nothing,
)
