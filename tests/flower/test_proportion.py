"""Bounds on the server, by hand: who is out of proportion, and what then counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand.flower.proportion import Change, Medians, changed, judge, measure
from evenhand.messages import Entries, Entry, Reply


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def stepping(weight: float) -> Entries:
    return {"delta": Entry(kind="update", per=number(weight))}


def step(length: float, weight: float) -> Reply:
    """An update of a length, times the coefficient, in two tensors."""
    return Reply(
        {
            "delta": {
                "w": number(0.6 * length * weight)[None],
                "b": number(0.8 * length * weight)[None],
            }
        }
    )


def judged(
    lengths: dict[int, float],
    bound: float = 5.0,
    steps: dict[int, float] | None = None,
    medians: Medians | None = None,
    round: int = 0,
) -> dict[int, Change]:
    found = {
        client: measure(
            step(length, 0.1 * (client + 1)),
            stepping(0.1 * (client + 1)),
            (steps or {}).get(client, 1.0),
            "cross_entropy",
        )
        for client, length in lengths.items()
    }
    return judge(found, bound, medians or Medians(None), "train", round)


def test_an_update_counts_as_five_times_the_median_at_most() -> None:
    changes = judged({0: 1.0, 1: 2.0, 2: 3.0, 3: 10.0, 4: 100.0})  # the median is 3
    assert list(changes) == [4]
    assert changes[4].words == [
        "total/delta is 33.3 times as long as the median; it counts as 5 times"
    ]
    reply = changed(step(100.0, 0.5), changes[4])
    leaves = [float(leaf) for leaf in reply.total["delta"].values()]
    assert sum(value**2 for value in leaves) ** 0.5 == pytest.approx(15.0 * 0.5)
    assert leaves[0] / leaves[1] == pytest.approx(0.75)  # its direction stays


def test_a_wrong_sign_does_not_help() -> None:
    assert list(judged({0: 1.0, 1: 1.0, 2: 1.0, 3: -10.0})) == [3]


def test_a_client_with_more_local_steps_may_go_further() -> None:
    lengths = {0: 1.0, 1: 1.0, 2: 1.0, 3: 20.0}
    assert list(judged(lengths)) == [3]
    assert list(judged(lengths, steps={3: 4.0})) == []
    changes = judged(lengths, steps={3: 2.0})
    assert changes[3].factors == {"total/delta": pytest.approx(0.5)}


def test_nothing_is_known_from_two_replies_and_then_from_the_last_round_that_had_three() -> None:
    medians = Medians(None)
    assert judged({0: 1.0, 1: 1000.0}, medians=medians) == {}
    assert judged({0: 1.0, 1: 2.0, 2: 3.0}, medians=medians, round=1) == {}
    assert list(judged({0: 1.0, 1: 1000.0}, medians=medians, round=2)) == [1]
    # clients that change nothing say nothing about lengths
    assert list(judged({0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0, 4: 100.0}, medians=medians, round=3)) == [4]


def test_medians_outlive_the_server(tmp_path: Path) -> None:
    judged({0: 1.0, 1: 2.0, 2: 3.0}, medians=Medians(tmp_path), round=4)
    with (tmp_path / "medians.jsonl").open("a") as file:
        file.write('{"round": 5, "ent')  # the server was killed
    again = Medians(tmp_path)
    assert again.last("train/total/delta", 4) == again.largest("train/total/delta", 9) == 2.0
    assert again.last("train/total/delta", 3) is None  # a round that is yet to come
    rows = (tmp_path / "medians.jsonl").read_text().splitlines()[:1]
    assert json.loads(rows[0]) == {"round": 4, "entry": "train/total/delta", "median": 2.0}


def test_a_coefficient_of_zero_allows_nothing() -> None:
    entries = stepping(0.0)
    quiet, loud = (measure(step(length, 1.0), entries, 1.0, "mse") for length in (0.0, 1.0))
    fine = {client: measure(step(1.0, 1.0), stepping(1.0), 1.0, "mse") for client in range(3)}
    changes = judge({**fine, 3: quiet, 4: loud}, 5.0, Medians(None), "train", 0)
    assert list(changes) == [4]
    assert changes[4].factors == {"total/delta": 0.0}


# losses


def told(
    losses: list[float], medians: Medians | None = None, round: int = 0, loss: str = "cross_entropy"
) -> dict[int, Change]:
    entries = {"loss": Entry(kind="loss")}
    found = {
        client: measure(Reply(each={"loss": number(value)}), entries, 1.0, loss)
        for client, value in enumerate(losses)
    }
    return judge(found, 5.0, medians or Medians(None), "survey", round)


def test_a_loss_that_is_not_believed_counts_as_the_median() -> None:
    changes = told([0.5, 0.7, 0.6, 9e29])  # the median is 0.65
    assert list(changes) == [3]
    assert changes[3].words == [
        "each/loss reports a loss 1.38e+30 times the median; it counts as the median"
    ]
    reply = changed(Reply(each={"loss": number(9e29)}), changes[3])
    assert float(reply.each["loss"]) == pytest.approx(0.65)


def test_late_in_training_a_client_that_fares_badly_is_still_heard() -> None:
    medians = Medians(None)
    told([0.7, 0.7, 0.7, 0.7], medians)
    assert told([0.01, 0.01, 0.01, 3.0], medians, round=1) == {}
    assert list(told([0.01, 0.01, 0.01, 3.6], medians, round=2)) == [3]


def test_two_losses_or_losses_around_zero_or_sums_over_samples_are_as_they_are() -> None:
    assert told([0.5, 9e29]) == {}
    assert told([-1.0, 0.0, -0.5, 9e29]) == {}
    assert told([1.0, 1.0, 1.0, 50.0], loss="hinge_sum") == {}


def test_a_groups_loss_is_held_against_all_groups_and_the_others_stay() -> None:
    def reply(losses: list[float], share: list[float]) -> tuple[Reply, Entries]:
        per = torch.tensor(share, dtype=torch.float64)
        value = torch.tensor(losses, dtype=torch.float64) * per
        return Reply({"group_loss": value}), {"group_loss": Entry(kind="loss", per=per)}

    # client 2 has nobody of the second group
    all_of_them = [
        reply([0.5, 0.6], [0.1, 0.2]),
        reply([0.7, 0.8], [0.1, 0.1]),
        reply([0.6, 0.0], [0.2, 0.0]),
        reply([50.0, 0.4], [0.3, 0.1]),
    ]
    found = {client: measure(*one, 1.0, "cross_entropy") for client, one in enumerate(all_of_them)}
    changes = judge(found, 5.0, Medians(None), "train", 0)
    assert list(changes) == [3]
    # the median of .5 .6 .7 .8 .6 50 .4
    after = changed(all_of_them[3][0], changes[3]).total["group_loss"]
    assert after.tolist() == pytest.approx([0.6 * 0.3, 0.4 * 0.1])


def test_an_update_shrinks_with_the_weight_that_it_is_multiplied_by() -> None:
    """q-FFL and TERM weigh an update by a loss: where the loss is not believed, both are less."""
    entries = {
        "delta": Entry(kind="update", per="weight"),
        "weight": Entry(kind="loss", to_loss=torch.log, from_loss=torch.exp),
    }

    def reply(loss: float, length: float) -> Reply:
        weight = torch.exp(number(loss))
        return Reply({"delta": {"w": length * weight[None]}, "weight": weight})

    replies = [reply(1.0, 1.0), reply(1.0, 1.0), reply(1.0, 1.0), reply(8.0, 10.0)]
    found = {client: measure(one, entries, 1.0, "mse") for client, one in enumerate(replies)}
    changes = judge(found, 5.0, Medians(None), "train", 0)
    after = changed(replies[3], changes[3])
    assert float(after.total["weight"]) == pytest.approx(float(torch.exp(number(1.0))))
    assert float(after.total["delta"]["w"] / after.total["weight"]) == pytest.approx(5.0)


def test_what_is_not_in_proportion_in_one_thing_keeps_the_others_to_the_bit() -> None:
    reply = Reply(
        {"delta": {"w": torch.rand(3)}, "other": {"v": torch.rand(2)}, "weight": torch.tensor(0.3)}
    )
    entries = {"delta": Entry(kind="update")}
    after = changed(reply, Change({"total/delta": 0.5}, {}, entries, ["long"]))
    assert torch.equal(after.total["delta"]["w"], reply.total["delta"]["w"] * 0.5)
    assert after.total["other"] is reply.total["other"]
    assert after.total["weight"] is reply.total["weight"]
