"""What a reply claims: coefficients that the server has sent, ranges that a method declares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.engines.client import SingleClient
from evenhand.engines.work import Ask, Train
from evenhand.flower.claims import check_claims, divisor, entries_of, steps_of
from evenhand.messages import Asked, Entry, Reply, Task
from evenhand.model import Model
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import one_client

SIZES = (30, 7, 40, 12)
LOCAL = eh.LocalSGD(lr=0.05, epochs=2, batch_size=8, momentum=0.5)


class OneRound:
    """Honest replies of every client to a method's first training, and first question."""

    def __init__(self, method: eh.Algorithm, dtype: torch.dtype = torch.float32) -> None:
        self.federation = ragged(SIZES, dtype=float)
        module = network(dtype)
        self.model = Model(module, "cross_entropy")
        if dtype == torch.float32:
            self.federation = ragged(SIZES, dtype="float32")  # type: ignore[arg-type]
        self.method = method
        ids, census = torch.arange(len(SIZES)), self.federation.census()
        state = method.init(self.model.init(), census)
        weights = {"weight": census.weight, "share": census.weight}
        lr = {"lr": torch.tensor(LOCAL.lr, dtype=torch.float64)}
        moment = {"moment": torch.tensor(0.5, dtype=torch.float64)}
        task = method.task(state, ids)
        local = method.local_work().solver(LOCAL, 0)
        self.asked: list[tuple[Any, Task]] = []
        question = method.question()
        survey = None if question is None else question.ask(state)
        if survey is not None:
            self.asked.append(
                (Ask(method), Task({**survey.shared, **lr}, {**survey.own, **weights}))
            )
        extra = moment if method.local_work().snapshot else {}
        self.asked.append(
            (Train(method, local), Task({**task.shared, **lr, **extra}, {**task.own, **weights}))
        )

    def reply(self, work: Any, task: Task, client: int) -> Reply:
        alone = SingleClient(
            self.model, _with_all_groups(self.federation, client), seed=0, number=client
        )
        own = eh.tree.map(lambda leaf: leaf[client : client + 1], task.own)
        memory = work.first_memory(self.model.init())
        return alone.answer(work, Task(task.shared, own), 0, memory)[0]


def _with_all_groups(federation: eh.Federation, client: int) -> eh.Federation:
    from evenhand.flower.node_data import with_groups

    return with_groups(one_client(federation, client), federation.group_names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_declares_every_entry_and_honest_replies_pass(
    name: str, dtype: torch.dtype
) -> None:
    one = OneRound(METHODS[name], dtype)
    for work, task in one.asked:
        for client in range(len(SIZES)):
            reply = one.reply(work, task, client)
            entries = entries_of(work, task, client, one.federation, client)
            assert set(reply.total) | set(reply.each) <= set(entries), work.name
            assert check_claims(reply, entries, "client", "cross_entropy") == []


@pytest.mark.parametrize("name", METHODS)
def test_no_coefficient_can_be_changed(name: str) -> None:
    """Whatever a method multiplies by a coefficient, more of it than 1 part in 1000 is refused."""
    one = OneRound(METHODS[name])
    for work, task in one.asked:
        reply, entries = (
            one.reply(work, task, 2),
            entries_of(work, task, 2, one.federation, 2),
        )
        known = [key for key, entry in entries.items() if entry.known is not None]
        for part in ("total", "each"):
            for key in set(known) & set(getattr(reply, part)):
                told = {**getattr(reply, part), key: getattr(reply, part)[key] * 1.001 + 1e-9}
                lie = reply._replace(**{part: told})
                assert check_claims(lie, entries, "client 2", "cross_entropy") == [
                    f"client 2: not what the server sent: {part}/{key}"
                ]


def faults(reply: Reply, entries: dict[str, Entry], loss: str = "cross_entropy") -> list[str]:
    return check_claims(reply, entries, "client 3", loss)


def test_a_negative_loss_is_refused_unless_the_loss_is_the_users_own() -> None:
    entries = {"loss": Entry(kind="loss", per=torch.tensor(0.5))}
    assert faults(Reply({"loss": torch.tensor(-1e-9)}), entries) == []  # rounding
    lie = Reply({"loss": torch.tensor(-0.01)})
    assert faults(lie, entries) == ["client 3: a negative loss: total/loss"]
    assert faults(lie, entries, "my own") == []


def test_a_loss_of_a_group_without_samples_is_refused() -> None:
    entries = {"group_loss": Entry(kind="loss", per=torch.tensor([0.5, 0.0]))}
    assert faults(Reply({"group_loss": torch.tensor([0.3, 0.0])}), entries) == []
    assert faults(Reply({"group_loss": torch.tensor([0.3, 0.1])}), entries) == [
        "client 3: a loss without samples: total/group_loss"
    ]


def test_ranges_hold_within_rounding() -> None:
    entries = {"above": Entry(low=0.0, high=1.0), "eta": Entry(low=-2.0, high=1.0)}

    def told(above: float, eta: float) -> list[str]:
        return faults(Reply({"above": torch.tensor(above), "eta": torch.tensor(eta)}), entries)

    assert told(1.0, -2.0005) == []
    assert told(-0.5, 0.0) == ["client 3: negative: total/above"]
    assert told(1.5, 1.01) == ["client 3: out of range: total/above, total/eta"]


def test_the_shift_of_eta_is_what_its_steps_allow() -> None:
    """By hand: 3 steps of 0.1 with slopes from 0 to 1/alpha = 4 move eta by 0.3 (1 - s), so by -0.9
    to 0.3, times the coefficient 0.5."""
    number = lambda value: torch.tensor(value, dtype=torch.float64)  # noqa: E731
    own = {"weight": 0.5, "share": 0.5, "alpha": 0.25, "floor": 0.0}
    task = Task(
        {"lr": number(0.1), "eta": number(0.0)}, {key: number(value) for key, value in own.items()}
    )
    entries = eh.FAFL(alpha=0.25).entries(Asked(task, None, 3.0))
    assert float(entries["eta"].low) == pytest.approx(-0.45)
    assert float(entries["eta"].high) == pytest.approx(0.15)
    # eta moved by 0.5 * 0.3 * (1 - 2): the mean slope was 2
    part = {"eta": number(-0.15)}
    assert float(divisor(entries["delta"], part)) == pytest.approx(0.5 * 2)


def test_a_tilted_weight_tells_the_loss() -> None:
    """By hand: a_i e^(t (F - c)) with a_i = 0.25, t = 2, c = 0.5, F = 0.9."""
    number = lambda value: torch.tensor(value, dtype=torch.float64)  # noqa: E731
    task = Task({"shift": number(0.5)}, {"weight": number(0.25), "share": number(0.25)})
    entry = eh.TERM(t=2.0).entries(Asked(task))["weight"]
    assert entry.to_loss is not None
    assert entry.from_loss is not None
    weight = 0.25 * torch.exp(number(0.8))
    assert float(entry.to_loss(weight)) == pytest.approx(0.9)
    assert float(entry.from_loss(number(0.9))) == pytest.approx(float(weight))


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_q_ffls_weight_tells_a_loss_where_the_gradient_is_nothing(q: float) -> None:
    """h = L F^q then; for q < 1 its square root would exaggerate differences, and F^q is told."""
    number = lambda value: torch.tensor(value, dtype=torch.float64)  # noqa: E731
    task = Task({"lr": number(0.1)}, {"weight": number(0.25), "share": number(0.25)})
    entry = eh.QFFL(q=q).entries(Asked(task))["weight"]
    assert entry.to_loss is not None
    assert entry.from_loss is not None
    h = 0.25 * 10 * number(0.8) ** q
    assert float(entry.to_loss(h)) == pytest.approx(0.8 if q >= 1 else 0.8**q)
    assert float(entry.from_loss(entry.to_loss(h))) == pytest.approx(float(h))


@pytest.mark.parametrize(
    ("local", "samples", "steps"),
    [
        (eh.LocalSGD(lr=1, steps=7), 100, 7.0),
        (eh.LocalSGD(lr=1, epochs=3), 100, 3.0),
        (eh.LocalSGD(lr=1, epochs=2, batch_size=8), 30, 8.0),
        (eh.LocalSGD(lr=1, batch_size=8), 1, 1.0),
        (eh.LocalSGD(lr=1, steps=3, momentum=0.5), 5, 1 + 1.5 + 1.75),
    ],
)
def test_steps_are_counted_with_their_momentum(
    local: eh.LocalSGD, samples: int, steps: float
) -> None:
    assert steps_of(local, samples) == pytest.approx(steps)


# a method of the user's own


@dataclass(frozen=True)
class Doubled(eh.Algorithm):
    """Sends twice what FedAvg sends, weight included, and does not say so."""

    def reply(self, *arguments: Any) -> Any:
        reply, memory = super().reply(*arguments)
        return Reply(eh.tree.scale(reply.total, 2.0)), memory


def test_a_method_that_declares_nothing_is_not_refused_what_it_does() -> None:
    one = OneRound(Doubled())
    work, task = one.asked[0]
    reply, entries = one.reply(work, task, 0), entries_of(work, task, 0, one.federation, 0)
    assert faults(reply, entries) == []
    assert entries["delta"].kind == "update"
    lie = Reply({**reply.total, "weight": -reply.total["weight"]})
    assert faults(lie, entries) == ["client 3: negative: total/weight"]


def test_an_answer_of_the_users_own_is_not_refused() -> None:
    class Asking(eh.Question):
        """Asks for something."""

        def ask(self, state: Any) -> Any:
            return None

        def answer(self, *arguments: Any) -> Reply:
            return Reply(each={"loss": torch.tensor(-5.0)})

    assert Asking().answer_entries(Asked(Task({}))) == {}
    assert replace(eh.AFL(), order="before").answer_entries(Asked(Task({})))["loss"].kind == "loss"


def test_a_negative_entry_of_a_tree_is_refused_where_only_positive_ones_are_declared() -> None:
    entries = {"mask": Entry(kind="update", low=0.0), "delta": Entry(kind="update")}
    sent = {"w": torch.tensor([0.5, -0.1])}
    assert faults(Reply({"delta": sent}), entries) == []
    assert faults(Reply({"mask": sent}), entries) == ["client 3: negative: total/mask"]
