"""What is checked before a reply counts: every fault is found, named with the client, and told
without a value of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand.flower.checks import (
    NotFinite,
    RollCall,
    check_reply,
    label,
    require_finite,
)
from evenhand.messages import Reply
from evenhand.tree import Tree

INF, NAN = float("inf"), float("nan")
WHO = "client 3"


def good() -> Reply:
    return Reply(
        total={
            "delta": {"weight": torch.tensor([[-1.0, 2.0, 0.0]]), "bias": torch.zeros(3)},
            "weight": torch.tensor(0.5, dtype=torch.float64),
        },
        each={"loss": torch.tensor(0.7), "count": torch.tensor([4, 0])},
    )


def changed(part: str, *path: str, to: Any) -> Reply:
    reply = good()
    branch: Tree = getattr(reply, part)
    for key in path[:-1]:
        branch = branch[key]
    if to is None:
        del branch[path[-1]]
    else:
        branch[path[-1]] = to
    return reply


def test_a_reply_as_expected_is_good() -> None:
    assert check_reply(good(), good(), WHO) == []
    other = Reply(
        {
            "delta": {"weight": torch.full((1, 3), 1e29), "bias": torch.full((3,), -1e29)},
            "weight": torch.tensor(0.0).double(),
        },
        good().each,
    )
    assert check_reply(other, good(), WHO) == []
    assert check_reply(Reply(), Reply(), WHO) == []
    assert (
        check_reply(Reply({"none": torch.zeros(0, 3)}), Reply({"none": torch.zeros(0, 3)}), WHO)
        == []
    )


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        # names and their order
        (changed("total", "weight", to=None), "missing: total/weight"),
        (changed("total", "delta", to=None), "missing: total/delta/weight and 1 more"),
        (changed("each", "secret name", to=torch.zeros(1)), "1 unexpected entry"),
        (
            Reply({**good().total, "a": {"b": torch.zeros(1), "c": {}}}, good().each),
            "2 unexpected entries",
        ),
        (
            Reply({"weight": good().total["weight"], "delta": good().total["delta"]}, good().each),
            "entries in an unexpected order",
        ),
        (
            Reply(
                {**good().total, "delta": dict(reversed(good().total["delta"].items()))},
                good().each,
            ),
            "entries in an unexpected order",
        ),
        # shapes, also those that would be broadcast
        (
            changed("total", "delta", "bias", to=torch.zeros(1)),
            "shape (1,), expected shape (3,): total/delta/bias",
        ),
        (
            changed("total", "delta", "bias", to=torch.zeros(())),
            "shape (), expected shape (3,): total/delta/bias",
        ),
        (
            changed("total", "delta", "bias", to=torch.zeros(3, 1)),
            "shape (3, 1), expected shape (3,): total/delta/bias",
        ),
        (
            changed("total", "weight", to=torch.zeros(1).double()),
            "shape (1,), expected shape (): total/weight",
        ),
        (
            changed("total", "delta", "bias", to=torch.zeros([1] * 64)),
            "a shape of 64 dimensions, expected shape (3,): total/delta/bias",
        ),
        (
            changed("total", "delta", to={"weight": torch.zeros(1), "bias": torch.zeros(2)}),
            "shape (1,), expected shape (1, 3): total/delta/weight and 1 more",
        ),
        # types
        (
            changed("total", "weight", to=torch.tensor(0.5)),
            "type float32, expected type float64: total/weight",
        ),
        (
            changed("total", "delta", "bias", to=torch.zeros(3, dtype=torch.bfloat16)),
            "type bfloat16, expected type float32: total/delta/bias",
        ),
        (
            changed("each", "count", to=torch.zeros(2)),
            "type float32, expected type int64: each/count",
        ),
        # values
        (
            changed("total", "delta", "bias", to=torch.tensor([0, NAN, 0])),
            "not finite: total/delta/bias",
        ),
        (
            changed("total", "delta", "bias", to=torch.tensor([0, INF, 0])),
            "not finite: total/delta/bias",
        ),
        (
            changed("total", "delta", "bias", to=torch.tensor([0, -INF, 0])),
            "not finite: total/delta/bias",
        ),
        (
            changed(
                "total",
                "delta",
                to={"weight": torch.full((1, 3), NAN), "bias": torch.full((3,), INF)},
            ),
            "not finite: total/delta/weight and 1 more",
        ),
        (changed("each", "loss", to=torch.tensor(NAN)), "not finite: each/loss"),
        (
            changed("total", "delta", "bias", to=torch.tensor([0, 1e38, 0])),
            "values beyond 1e+30: total/delta/bias",
        ),
        (
            changed("total", "delta", "bias", to=torch.tensor([0, -1e38, 0])),
            "values beyond 1e+30: total/delta/bias",
        ),
        (
            changed("total", "weight", to=torch.tensor(1e300, dtype=torch.float64)),
            "values beyond 1e+30: total/weight",
        ),
        (
            changed("each", "count", to=torch.tensor([0, 2**53 + 1])),
            "values beyond 9.0072e+15: each/count",
        ),
        (changed("each", "count", to=torch.tensor([0, -1])), "negative: each/count"),
        (changed("each", "count", to=torch.tensor([-(2**63), 0])), "negative: each/count"),
    ],
)
def test_a_fault_is_found_and_named(reply: Reply, reason: str) -> None:
    assert check_reply(reply, good(), WHO) == [f"{WHO}: {reason}"]


def test_a_tensor_in_place_of_a_branch_is_found() -> None:
    assert check_reply(changed("total", "delta", to=torch.zeros(1)), good(), WHO) == [
        f"{WHO}: missing: total/delta/weight and 1 more",
        f"{WHO}: 1 unexpected entry",
    ]
    nothing = "a tensor on one side, an empty branch on the other"
    assert check_reply(Reply({"a": {}}), Reply({"a": torch.zeros(1)}), WHO) == [
        f"{WHO}: {nothing}: total/a"
    ]
    assert check_reply(Reply({"a": torch.zeros(1)}), Reply({"a": {}}), WHO) == [
        f"{WHO}: {nothing}: total/a"
    ]
    assert check_reply(Reply({"a": {}}), Reply({"a": {}}), WHO) == []
    assert check_reply(Reply({"a": {}}), Reply(), WHO) == [f"{WHO}: 1 unexpected entry"]


def test_every_kind_of_fault_has_a_line() -> None:
    reply = changed("each", "count", to=torch.tensor([-1, 0]))
    reply.total["delta"]["bias"][0] = NAN
    reply.total["delta"]["weight"][0, 0] = 2e30
    assert check_reply(reply, good(), WHO) == [
        f"{WHO}: values beyond 1e+30: total/delta/weight",
        f"{WHO}: not finite: total/delta/bias",
        f"{WHO}: negative: each/count",
    ]


def test_values_are_not_looked_at_where_the_structure_is_wrong() -> None:
    reply = changed("total", "weight", to=None)
    reply.total["delta"]["bias"][0] = NAN
    assert check_reply(reply, good(), WHO) == [f"{WHO}: missing: total/weight"]


def test_the_tensors_of_a_model_may_be_negative_whatever_their_names() -> None:
    model = {"weight": torch.tensor([-1.0]), "count": torch.tensor([-1.0])}
    assert check_reply(Reply({"delta": model}), Reply({"delta": model}), WHO) == []
    assert check_reply(Reply({"count": model["count"]}), Reply({"count": model["count"]}), WHO) == [
        f"{WHO}: negative: total/count"
    ]
    assert check_reply(Reply({"own": model["count"]}), Reply({"own": model["count"]}), WHO) == []


def test_the_losses_of_a_diverged_model_count_and_its_counts_are_checked() -> None:
    tally = {
        "count": torch.tensor([4.0]),
        "loss": torch.tensor([NAN]),
        "brier": torch.tensor([INF]),
    }
    assert check_reply(Reply(each=tally), Reply(each=tally), WHO, must_be_finite=False) == []
    for value, fault in (
        (NAN, "not finite"),
        (INF, "not finite"),
        (-1.0, "negative"),
        (1e38, "values beyond 9.0072e+15"),
    ):
        wrong = {**tally, "count": torch.tensor([value])}
        assert check_reply(Reply(each=wrong), Reply(each=tally), WHO, must_be_finite=False) == [
            f"{WHO}: {fault}: each/count"
        ]


def test_the_largest_value_is_a_setting() -> None:
    reply = Reply({"a": torch.tensor([2.0])})
    assert check_reply(reply, reply, WHO, largest=2) == []
    assert check_reply(reply, reply, WHO, largest=1.5) == [f"{WHO}: values beyond 1.5: total/a"]


def test_the_sum_of_the_largest_values_is_finite() -> None:
    assert torch.isfinite(torch.tensor(1e30) * 1e8)


def test_counts_are_those_of_the_census() -> None:
    reply = Reply(each={"count": torch.tensor([4.0, 2.0], dtype=torch.float64)})
    path = ("each", "count")
    assert check_reply(reply, reply, WHO, known={path: torch.tensor([4, 2])}) == []
    for census in (torch.tensor([4, 3]), torch.tensor([4]), torch.tensor([[4, 2]])):
        assert check_reply(reply, reply, WHO, known={path: census}) == [
            f"{WHO}: not what the node reported at the start: each/count"
        ]
    assert check_reply(reply, reply, WHO, known={("total", "count"): torch.tensor(4)}) == [
        f"{WHO}: not what the node reported at the start: total/count"
    ]


def test_nothing_of_the_client_is_told() -> None:
    reply = changed("each", "patient 123", to=torch.tensor(0.123))
    reply.each["loss"] = torch.tensor([0.456])
    reply.total["weight"] = torch.tensor(-789.0).double()
    told = " ".join(check_reply(reply, good(), WHO))
    assert not any(secret in told for secret in ("123", "456", "789", "patient"))


# who replies to what


def about(client: int = 3, round: int = 5, work: str = "train") -> dict[str, Any]:
    return {"client": client, "round": round, "work": work}


def roll(name: Callable[[int], str] | None = None) -> RollCall:
    return RollCall([1, 3, 2], 5, "train", name)


def test_those_who_answer_are_no_longer_missing() -> None:
    called = roll()
    assert called.missing == [1, 2, 3]
    assert called.answer(3, about()) == []
    assert called.missing == [1, 2]


def test_a_second_reply_is_left_out() -> None:
    called = roll()
    assert called.answer(3, about()) == []
    assert called.answer(3, about()) == [
        "client 3 has replied already; its second reply is ignored"
    ]
    assert called.answer(1, about(1)) == []


def test_a_second_reply_is_left_out_also_after_a_bad_one() -> None:
    called = roll()
    assert called.answer(3, about(round=4)) == [
        "client 3 replies to another round than 6; the reply is late"
    ]
    assert called.answer(3, about()) == [
        "client 3 has replied already; its second reply is ignored"
    ]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (about(client=2), "replies under another client's number"),
        (about(round=4), "replies to another round than 6; the reply is late"),
        (about(round=6), "replies to another round than 6; the reply is late"),
        (about(work="evaluate"), "replies to a task other than train"),
    ],
)
def test_a_reply_to_something_else_is_refused(values: dict[str, Any], reason: str) -> None:
    assert roll().answer(3, values) == [f"client 3 {reason}"]
    assert roll(lambda client: ["a", "b", "c", "north"][client]).answer(3, values) == [
        f"client 3 (north) {reason}"
    ]


def test_a_reply_that_says_nothing_is_refused() -> None:
    assert len(roll().answer(3, {})) == 3
    assert len(roll().answer(3, {"client": "3", "round": [5], "work": b"train"})) == 3


def test_a_client_that_was_not_asked_is_refused() -> None:
    called = roll()
    assert called.answer(9, about(9)) == ["client 9 replied without being asked"]
    assert called.missing == [1, 2, 3]


def test_a_client_has_its_number_and_its_name() -> None:
    assert label(3) == "client 3"
    assert label(3, str) == "client 3"
    assert label(3, lambda client: "north") == "client 3 (north)"


# on a client


@pytest.mark.parametrize("value", [NAN, INF, 1e29])
def test_a_client_that_got_a_spoilt_model_does_not_blame_the_learning_rate(value: float) -> None:
    bad = changed("each", "loss", to=torch.tensor(NAN))
    sent = {"model": {"w": torch.tensor([0.0, value])}, "lr": torch.tensor(0.1)}
    with pytest.raises(NotFinite) as error:
        require_finite(bad, received=sent)
    assert str(error.value) == (
        "nothing is sent, because it is not finite: each/loss; the model that the server sent has"
        " diverged: it has values beyond 1e+12; start a new run, or resume from an earlier"
        " checkpoint"
    )
    sent["model"] = {"w": torch.tensor([0.0, 5.0])}
    with pytest.raises(NotFinite, match="is the learning rate too large"):
        require_finite(bad, received=sent)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_client_sends_nothing_that_is_not_finite(value: float) -> None:
    end = "; is the learning rate too large?"
    require_finite(good(), {"personal": torch.ones(2)})
    with pytest.raises(NotFinite) as error:
        require_finite(changed("total", "delta", "bias", to=torch.tensor([0, value, 0])))
    assert str(error.value) == "nothing is sent, because it is not finite: total/delta/bias" + end
    with pytest.raises(NotFinite) as error:
        require_finite(
            changed("each", "loss", to=torch.tensor(value)),
            {"personal": {"w": torch.tensor([value])}},
        )
    assert (
        str(error.value) == "nothing is sent, because it is not finite: each/loss and 1 more" + end
    )
    with pytest.raises(NotFinite) as error:
        require_finite(
            good(),
            {
                "personal": {
                    "w": torch.tensor([value], dtype=torch.float16),
                    "n": torch.tensor([2**63 - 1]),
                }
            },
        )
    assert str(error.value) == "nothing is sent, because it is not finite: memory/personal/w" + end
