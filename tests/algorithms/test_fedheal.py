"""FedHEAL: three rounds by hand, special cases, and an implementation that sees every client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import evenhand as eh
from evenhand import tree
from tests.support import limits
from tests.support.by_hand import near

NOTHING: Any = None  # neither the model nor the data enter a reply


def tensors(vector: Any) -> dict[str, Tensor]:
    """Two tensors: the first two coordinates, and the third."""
    values = torch.as_tensor(vector, dtype=torch.float64)
    return {"a": values[:2], "b": values[2:]}


def steps_of(
    method: eh.FedHEAL, rounds: list[dict[int, Any]], lost: tuple[int, int] | None = None
) -> list[list[float]]:
    """The server's steps if clients 0 and 1 make these updates; the reply of a (round, client) may
    get lost."""
    state = method.init(tensors([0.0] * 3), limits.federation().census())
    memories = [method.memory(state["model"]) for _ in range(2)]
    steps = []
    for number, updates in enumerate(rounds):
        ids = torch.tensor(sorted(updates))
        equal = torch.full((len(ids),), 1 / len(ids), dtype=torch.float64)
        task = method.task(state, ids)
        own = {**task.own, "weight": equal, "share": equal}
        heard, total = [], {}
        for row, i in enumerate(ids.tolist()):
            mine = eh.Task(task.shared, tree.row(own, row))
            start = state["model"]
            end = tree.sub(start, tensors(updates[i]))
            reply, memories[i] = method.reply(
                NOTHING, {"model": start}, {"model": end}, NOTHING, mine, memories[i]
            )
            assert not reply.each
            if (number, i) != lost:
                heard.append(i)
                total = tree.add(total, reply.total) if total else reply.total
        after, _ = method.server(state, eh.Replies(torch.tensor(heard), total, {}))
        steps.append(torch.cat(tree.leaves(tree.sub(state["model"], after["model"]))).tolist())
        state = after
    return steps


def test_three_rounds_of_two_clients_by_hand() -> None:
    found = steps_of(
        eh.FedHEAL(tau=0.3, beta=0.4),
        [
            {0: [3, 4, 1], 1: [0, -2, 0]},
            {0: [-3, 4, 0], 1: [2, 1, -1]},
            {0: [-1, -1, 2], 1: [-1, 0, -4]},
        ],
    )
    # distances 5 + 1 and 2 + 0: v = .4 (1.5, .5), w = 1 + v
    w, other = 1.6, 1.2
    assert found[0] == near([3 * w / 2.8, (4 * w - 2 * other) / 2.8, w / 2.8])
    # client 0 turns round in the first coordinate, client 1 in the two others
    assert found[1] == near([2, 4, 0])
    # distances 4 and 2; now every sign was seen at least once in two rounds, except client 0's in
    # the second coordinate and client 1's in the first: distances 1 + 2 and 4
    v, increment = 0.6 * 0.6 + 0.4 * 4 / 3, 0.6 * 0.2 + 0.4 * 2 / 3
    w, other = w + v, other + increment
    w += 0.6 * v + 0.4 * 3 / 3.5
    other += 0.6 * increment + 0.4 * 4 / 3.5
    assert found[2] == near([-1, 0, (2 * w - 4 * other) / (w + other)])


def test_a_sign_seen_in_exactly_the_share_tau_of_rounds_is_masked() -> None:
    ups, down = [{0: [1, 1, 1]}] * 7, {0: [-1, 1, 1]}
    # 3 of 10 earlier updates are not more than 0.3; in the next round it is 4 of 11
    found = steps_of(eh.FedHEAL(tau=0.3), [*ups, *[down] * 5])
    assert [step[0] for step in found] == [1] * 7 + [0] * 4 + [-1]


def test_absent_clients_keep_counts_and_compare_with_their_last_cohort() -> None:
    # tau below 0: only the weights matter. Distances (3, 1): v = (.75, .25), w = (1.75, 1.25).
    # Client 0 alone: v = .375 + .5, w = 2.625. Distances (2, 6): w = 3.3125 and 2.125. A client at
    # the mean distance would have 1.5, 2.25, 3.125 after one, two, three rounds of its own
    found = steps_of(
        eh.FedHEAL(tau=-1, beta=0.5),
        [{0: [3, 0, 0], 1: [1, 0, 0]}, {0: [4, 0, 0]}, {0: [2, 0, 0], 1: [-6, 0, 0]}],
    )
    one, two = 3.3125 / 3.125, 2.125 / 2.25
    assert [step[0] for step in found] == near([6.5 / 3, 4, (2 * one - 6 * two) / (one + two)])
    # a newcomer that moves as far as the others counts as much
    late = steps_of(eh.FedHEAL(), [{0: [3, 4, 1]}] * 5 + [{0: [3, 4, 1], 1: [4, 3, 1]}])
    assert late[-1] == near([3.5, 3.5, 1])
    # signs are counted over its own rounds: 1 of 2 rounds of client 1, not 1 of 6
    sometimes: list[dict[int, Any]] = [{1: [1, 0, 0]}, *[{0: [1, 0, 0]}] * 4, {1: [-1, 0, 0]}]
    assert steps_of(eh.FedHEAL(), [*sometimes, {1: [1, 0, 0]}])[-1][0] == 1


def test_a_lost_reply_counts_as_a_mean_distance() -> None:
    # client 1's first reply is lost: v = .4, w = 1.4; then v = .6 x .4 + .4 x 4/3 and 2/3 of ...
    rounds = [{0: [1, 0, 0], 1: [9, 0, 0]}, {0: [2, 0, 0], 1: [4, 0, 0]}]
    found = steps_of(eh.FedHEAL(tau=-1), rounds, lost=(0, 1))
    w, other = 1.4 + 0.24 + 0.4 * 2 / 3, 1.4 + 0.24 + 0.4 * 4 / 3
    assert [step[0] for step in found] == near([1, (2 * w + 4 * other) / (w + other)])


def test_updates_of_zero_leave_the_model_and_the_weights_alone() -> None:
    still, moving = {0: [0, 0, 0], 1: [0, 0, 0]}, {0: [3, 0, 0], 1: [1, 0, 0]}
    found = steps_of(eh.FedHEAL(beta=0.5), [still, moving])
    assert found[0] == [0, 0, 0]
    # w = 1.5, v = .5 after the first round; then v = .25 + .5 x (1.5, .5)
    assert found[1][0] == near((2.5 * 3 + 2.0 * 1) / 4.5)


def literally(method: eh.FedHEAL, rounds: int) -> dict[str, Tensor]:
    """The published algorithm on a server that sees every update, one full step per client."""
    linear = limits.module()
    clients = len(limits.SIZES)
    weights, increments = [1 / clients] * clients, [0.0] * clients
    history: list[list[list[Tensor]]] = [[] for _ in range(clients)]
    for number in range(rounds):
        masked, masks = [], []
        for i, loss in enumerate(limits.client_losses(linear)):
            slopes = torch.autograd.grad(loss, list(linear.parameters()))
            delta = [limits.LR * slope for slope in slopes]
            mask = [torch.ones_like(d) for d in delta]
            if number:
                for j, d in enumerate(delta):
                    share = torch.stack([(past[j] >= 0).double() for past in history[i]]).mean(0)
                    mask[j] = (torch.where(d >= 0, share, 1 - share) > method.tau).double()
            history[i].append(delta)
            masked.append([d * m for d, m in zip(delta, mask, strict=True)])
            masks.append(mask)
        distances = [sum(float(d.norm()) for d in update) for update in masked]
        for i, distance in enumerate(distances):
            increments[i] = (1 - method.beta) * increments[i] + method.beta * (
                distance / sum(distances)
            )
            weights[i] += increments[i]
        with torch.no_grad():
            for j, parameter in enumerate(linear.parameters()):
                bottom = sum(w * mask[j] for w, mask in zip(weights, masks, strict=True))
                top = sum(w * update[j] for w, update in zip(weights, masked, strict=True))
                assert isinstance(bottom, Tensor)
                parameter -= torch.where(bottom > 0, top / bottom.clamp(min=1e-9), 0.0)
    return {name: tensor.detach() for name, tensor in linear.state_dict().items()}


@pytest.mark.parametrize("tau", [-1.0, 0.3, 0.7, 0.95])
def test_sums_give_what_a_server_that_sees_every_update_computes(engine: str, tau: float) -> None:
    method = eh.FedHEAL(tau=tau, beta=0.7)
    found = limits.train(method, engine, rounds=12).params
    limits.assert_same(found, literally(method, 12))


@limits.every_local
@pytest.mark.parametrize("cohort", [eh.Full(), eh.Uniform(2)], ids=["everyone", "two"])
def test_without_mask_and_distances_it_is_fedavg_with_uniform_weights(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    found = limits.train(eh.FedHEAL(tau=-1, beta=0), engine, cohort=cohort, local=local)
    expected = limits.train(eh.FedAvg(), engine, cohort=cohort, local=local, weights="uniform")
    limits.assert_same(found.params, expected.params)


def test_clients_with_the_same_data_are_one_client(engine: str) -> None:
    copies, alone = limits.copies(), eh.Federation.from_arrays([limits.samples()[2]])
    for tau, other in ((-1.0, eh.FedAvg()), (0.3, eh.FedHEAL(tau=0.3))):
        found = limits.train(eh.FedHEAL(tau=tau), engine, copies, rounds=8).params
        limits.assert_same(found, limits.train(other, engine, alone, rounds=8).params)


def test_from_tau_one_on_the_model_stops_after_the_first_round(engine: str) -> None:
    first = limits.train(eh.FedHEAL(tau=1.0), engine, rounds=1)
    assert limits.distance(first.params, dict(limits.module().state_dict())) > 1e-3
    longer = limits.train(eh.FedHEAL(tau=1.0), engine, rounds=4)
    limits.assert_identical(longer.params, first.params)
    assert list(longer.history["frozen"]) == [0, 1, 1, 1]


def test_the_mask_the_distances_and_uniform_weights_make_a_difference() -> None:
    methods = [eh.FedAvg(), eh.FedHEAL(), eh.FedHEAL(tau=-1), eh.FedHEAL(beta=0)]
    local = limits.MINI_BATCHES
    found = [limits.train(method, rounds=8, local=local).params for method in methods]
    for i, one in enumerate(found):
        assert all(limits.distance(one, other) > 1e-3 for other in found[:i])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"tau": float("nan")}, "tau must be a finite number"),
        ({"beta": -0.1}, r"beta must be in \[0, 1\], got -0.1; 0 gives equal weights"),
        ({"beta": 1.5}, r"beta must be in \[0, 1\]"),
    ],
)
def test_bad_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eh.FedHEAL(**setting)
