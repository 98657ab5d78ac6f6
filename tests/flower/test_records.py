"""Messages as Flower records: what is sent is what arrives, to the bit, and what is malformed is
refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from evenhand.flower import records
from evenhand.flower.packing import pack
from evenhand.flower.records import (
    FORMAT,
    TooLarge,
    check_size,
    read_reply,
    read_task,
    reply_content,
    size_of,
    task_content,
    text,
    whole,
)
from evenhand.messages import Reply, Task
from tests.support.flower_carry import Carry, assert_same, every_way, refused

TASK = Task(
    {"model": {"w": torch.ones(2, 3)}, "lr": torch.tensor(0.1)},
    {"weight": torch.tensor(0.25, dtype=torch.float64)},
)
REPLY = Reply(
    {"delta": {"w": torch.ones(2, 3)}, "weight": torch.tensor(0.5)}, {"loss": torch.tensor(1.0)}
)
ABOUT: dict[str, Any] = {
    "round": 3,
    "work": "train",
    "seed": 2**64 - 1,
    "counted": -1,
    "evaluate": True,
    "lr": 0.1,
    "digest": b"\x00\xff",
    "parts": ["train", "test"],
    "ids": [1, -(2**63)],
    "flags": [True, False],
    "none": [],
    "key with π": float("inf"),
}


@every_way
def test_what_goes_with_a_message_arrives(carry: Carry) -> None:
    for content, read, sent in (
        (task_content(TASK, ABOUT), read_task, TASK),
        (reply_content(REPLY, ABOUT), read_reply, REPLY),
    ):
        found, about = read(carry(content))
        assert about == ABOUT
        assert [type(value) for value in about.values()] == [
            type(value) for value in ABOUT.values()
        ]
        assert type(found) is type(sent)
        for tree, expected in zip(found, sent, strict=True):
            assert_same(tree, expected)


def test_numbers_that_flower_cannot_carry_are_refused_before_sending() -> None:
    expected = (
        "seed has a whole number of more than 64 bits, which Flower cannot carry; send it as text"
    )
    for value in (2**64, -(2**63) - 1, [1, 2**64]):
        assert refused(lambda value=value: reply_content(REPLY, {"seed": value})) == expected  # type: ignore[misc]
    assert (
        refused(lambda: reply_content(REPLY, {"format": 1}))
        == '"format" is a reserved name; use another'
    )


def test_another_format_is_refused_and_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, "FORMAT", 2)
        newer = task_content(TASK, {})
    assert FORMAT == 1
    assert (
        refused(lambda: read_task(newer))
        == "a message has format 2, this evenhand reads format 1; install the same version"
        " everywhere"
    )


@pytest.mark.parametrize("value", [True, 1.0, "1", [1], None])
def test_a_format_that_is_no_number_is_refused(value: Any) -> None:
    content = reply_content(REPLY, {})
    if value is None:
        del content["about"]["format"]
    else:
        content["about"]["format"] = value
    assert refused(lambda: read_reply(content)).startswith(
        "a message has format no number, this evenhand reads format 1"
    )


BOTH = "a message must hold the trees total and each, and nothing else"
NOT_OURS = 'a message is not from evenhand: it has no record "about"'


def without(content: RecordDict, *path: str) -> RecordDict:
    inside: Any = content
    for name in path[:-1]:
        inside = inside[name]
    del inside[path[-1]]
    return content


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda content: RecordDict(), NOT_OURS),
        (lambda content: without(content, "about"), NOT_OURS),
        (
            lambda content: RecordDict(
                {"trees": content["trees"], "about": MetricRecord({"format": 1})}
            ),
            NOT_OURS,
        ),
        (
            lambda content: RecordDict({"trees": content["trees"], "about": content["trees"]}),
            NOT_OURS,
        ),
        (lambda content: without(content, "trees"), BOTH),
        (lambda content: without(content, "trees", "each"), BOTH),
        (lambda content: RecordDict({"trees": content["about"], "about": content["about"]}), BOTH),
        (lambda content: RecordDict({"more": ConfigRecord(), **content}), BOTH),
        (
            lambda content: RecordDict(
                {**content, "trees": ArrayRecord({**content["trees"], "more": pack({})})}
            ),
            BOTH,
        ),
        (lambda content: task_content(TASK, {}), BOTH),
    ],
)
def test_a_malformed_message_is_refused(
    spoil: Callable[[RecordDict], RecordDict], reason: str
) -> None:
    content = spoil(reply_content(REPLY, {}))
    assert refused(lambda: read_reply(content)) == reason


def test_a_reply_is_no_task() -> None:
    content = reply_content(REPLY, {})
    assert (
        refused(lambda: read_task(content))
        == "a message must hold the trees shared and own, and nothing else"
    )


def test_values_of_another_kind_are_refused() -> None:
    about = {"round": 3, "work": "train", "float": 3.0, "truth": True}
    assert whole(about, "round") == 3
    assert text(about, "work") == "train"
    for name in ("float", "truth", "work", "missing"):
        assert refused(lambda name=name: whole(about, name)) == f"a message has no {name}"  # type: ignore[misc]
    for name in ("round", "missing"):
        assert refused(lambda name=name: text(about, name)) == f"a message has no {name}"  # type: ignore[misc]


# sizes


def test_the_size_of_a_message_is_that_of_its_names_and_values() -> None:
    content = RecordDict(
        {
            # 5 + 2 + (5 + 16 + 5 + 1)
            "trees": ArrayRecord({"é": Array("uint8", (5, 1), "s", b"12345")}),
            # 5 + 9 + 5 + 6 + 17 + 9
            "about": ConfigRecord(
                {"a": 1, "bc": "def", "d": [b"12", b"345"], "e": [1.0, 2.0], "f": True}
            ),
            "m": MetricRecord({"x": [1, 2]}),  # 1 + 1 + 16
        }
    )
    assert size_of(content) == 34 + 51 + 18


def test_the_size_is_near_what_travels() -> None:
    content = task_content(Task({"w": torch.zeros(10_000)}), ABOUT)
    travels = sum(len(part.deflate()) for part in get_all_nested_objects(content).values())
    assert 40_000 < size_of(content) < travels < size_of(content) + 2000


def test_a_message_over_the_limit_is_not_sent() -> None:
    size = size_of(reply_content(REPLY, {}))
    reply_content(REPLY, {}, limit=size)
    with pytest.raises(TooLarge) as error:
        reply_content(REPLY, {}, limit=size - 1)
    reason = (
        f"a message has {size} bytes, the limit is {size - 1} bytes; make the model smaller or"
        " raise the limit"
    )
    assert str(error.value) == reason
    large = Task({"w": torch.zeros(10 * 1024 * 1024 // 4)})
    assert refused(lambda: task_content(large, {}, limit=1 << 20)).startswith(
        "a message has 10.0 MiB, the limit is 1.0 MiB;"
    )


def test_a_message_over_the_limit_is_refused_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = reply_content(REPLY, {})
    size = size_of(content)
    read_reply(content, limit=size)
    monkeypatch.setattr(records, "unpack", lambda array: pytest.fail("decoded"))
    for read in (read_reply, read_task):
        with pytest.raises(
            TooLarge, match=rf"^a message has {size} bytes, the limit is {size - 1} bytes"
        ):
            read(content, limit=size - 1)


def test_bytes_beside_the_trees_count_as_well() -> None:
    content = reply_content(REPLY, {})
    content["more"] = ConfigRecord({"x": [b"1" * 1000] * 1000})
    with pytest.raises(
        TooLarge, match=r"^a message has 1000\d\d\d bytes, the limit is 100000 bytes"
    ):
        check_size(content, 100_000)
