"""Messages as Flower records: what is sent is what arrives, to the bit, and what is malformed is
refused in one line."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from evenhand.flower import records
from evenhand.flower.packing import STYPE, pack, unpack
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
from evenhand.tree import Tree

Carry = Callable[[RecordDict], RecordDict]
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def as_it_is(content: RecordDict) -> RecordDict:
    return content


def through_protobuf(content: RecordDict) -> RecordDict:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_run_id", "_task_id", "_node_id"):
            patch.setattr(TaskIdentity, name, 1)
        message = Message(content, dst_node_id=7, message_type="train")
    sent = message_to_proto(message).SerializeToString()
    return message_from_proto(ProtoMessage.FromString(sent)).content


def through_objects(content: RecordDict) -> RecordDict:
    """The way between processes: the parts of a message travel one by one, under their hashes."""
    parts = {name: part.deflate() for name, part in get_all_nested_objects(content).items()}
    arrived = inflate_object_from_contents(content.object_id, parts)
    assert isinstance(arrived, RecordDict)
    return arrived


@pytest.fixture(params=[as_it_is, through_protobuf, through_objects])
def carry(request: pytest.FixtureRequest) -> Carry:
    way: Carry = request.param
    return way


def assert_same(found: Any, sent: Any) -> None:
    """Equal to the bit, with the same keys in the same order."""
    if isinstance(sent, dict):
        assert isinstance(found, dict)
        assert list(found) == list(sent)
        for key in sent:
            assert_same(found[key], sent[key])
        return
    assert found.dtype == sent.dtype
    assert found.shape == sent.shape
    if sent.numel():
        bits, expected = (
            tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (found, sent)
        )
        assert bits.tolist() == expected.tolist()


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the text is what the test looks at)
        call()
    message = str(error.value)
    assert message
    assert "\n" not in message
    assert len(message) < 250
    return message


# trees


EVERY_KIND: Tree = {
    "zeta": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "alpha": {
        **{str(dtype): torch.tensor([[1.5, -2.25], [0.0, 3.0]], dtype=dtype) for dtype in TYPES},
        **{str(dtype): torch.tensor([1, 100], dtype=dtype) for dtype in WHOLE_TYPES},
        "least": torch.tensor([-(2**63), 2**63 - 1]),
        "truth": torch.tensor([True, False, True]),
    },
    "scalar": torch.tensor(0.1, dtype=torch.float64),
    "none": torch.zeros(0, 3),
    "no rows": torch.zeros(2, 0, 5, dtype=torch.int8),
    "special": torch.tensor(
        [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 5e-324], dtype=torch.float64
    ),
    # two other NaNs
    "payload": torch.tensor([0x7FC01234, -0x00400001], dtype=torch.int32).view(torch.float32),
    "empty": {},
    "deep": {"er": {"est": {}, "leaf": torch.ones(1)}},
    **{
        key: torch.tensor([number])
        for number, key in enumerate(
            ["", "/", ".", "~", "~0", "a/b.c", "\n", "\0", "π 漢 🙂", '"\\', "\ud800"]
        )
    },
}


def test_a_tree_arrives_as_it_was_sent(carry: Carry) -> None:
    task, about = read_task(carry(task_content(Task(EVERY_KIND, {"own": torch.tensor(3.0)}), {})))
    assert_same(task.shared, EVERY_KIND)
    assert_same(task.own, {"own": torch.tensor(3.0)})
    assert about == {}


@pytest.mark.parametrize(
    "tree", [{}, {"a": {}}, {"a": {"": {}}, "b": {}}, {"": torch.zeros(())}], ids=str
)
def test_trees_with_little_in_them_arrive(tree: Tree, carry: Carry) -> None:
    reply, _ = read_reply(carry(reply_content(Reply(tree, tree), {})))
    assert_same(reply.total, tree)
    assert_same(reply.each, tree)


def test_a_tensor_that_is_a_view_arrives() -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    views = {
        "turned": base.permute(2, 0, 1),
        "some": base[:, ::2, 1:3],
        "wide": torch.ones(1, 3).expand(4, 3),
        "odd": base.view(-1)[1:],
    }
    views["steps"] = base.view(-1)[::2]
    views["nothing"] = torch.from_numpy(np.empty(0))  # with stride 0
    assert_same(unpack(pack(views)), views)


def test_a_tensor_with_a_gradient_arrives_without() -> None:
    found = unpack(pack({"w": torch.ones(2, requires_grad=True)}))["w"]
    assert not found.requires_grad
    assert_same(found, torch.ones(2))


def test_tensors_that_arrive_can_be_changed_and_share_nothing() -> None:
    sent = {"a": torch.zeros(3), "b": torch.zeros(3)}
    array = pack(sent)
    found = unpack(array)
    found["a"] += 1
    assert found["b"].tolist() == sent["a"].tolist() == [0, 0, 0]
    assert unpack(array)["a"].tolist() == [0, 0, 0]
    # a small tensor that is kept does not keep a whole model
    assert found["a"].untyped_storage().nbytes() == 12


def test_packing_leaves_the_tree_as_it_was() -> None:
    tree = {"a": torch.zeros(3)}
    array = pack(tree)
    tree["a"] += 1
    assert unpack(array)["a"].tolist() == [0, 0, 0]


def any_bits(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
    size = int(np.prod(shape)) * dtype.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return (
        torch.from_numpy(bits).view(dtype).reshape(shape)
        if size
        else torch.empty(shape, dtype=dtype)
    )


keys = st.text(max_size=5)
tensors = st.builds(
    any_bits,
    st.sampled_from([*TYPES, *WHOLE_TYPES]),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(0, 9),
)


@given(
    st.dictionaries(
        keys,
        st.recursive(tensors, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=8),
        max_size=4,
    )
)
def test_any_tree_arrives(tree: Tree) -> None:
    assert_same(unpack(pack(tree)), tree)


def test_a_tree_is_a_single_array_in_few_parts() -> None:
    content = task_content(
        Task({"model": {str(i): torch.randn(10) for i in range(50)}}, {"weight": torch.ones(())}),
        {"round": 3},
    )
    # the message, two records, two arrays with one piece each
    assert len(get_all_nested_objects(content)) == 1 + 2 + 2 * 2


def test_what_is_shared_is_packed_once() -> None:
    task = Task({"model": torch.randn(5)}, {"weight": torch.ones(())})
    shared = pack(task.shared)
    contents = [task_content(task, {"client": client}, shared) for client in range(2)]
    first, second = (content["trees"]["shared"] for content in contents)
    assert first is second is shared
    assert_same(read_task(contents[1])[0].shared, task.shared)


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({1: torch.ones(1)}, "a tree has strings as keys, got 1"),
        ({"a": {"b": 1.5}}, "a tree holds tensors, got float in 'b'; wrap it with torch.tensor"),
        ({"a": np.array([object()])}, "a tree holds tensors, got ndarray in 'a'"),
        ({"z": torch.ones(1, dtype=torch.complex64)}, "'z' is a tensor of torch.complex64"),
        (
            {"s": torch.ones(2).to_sparse()},
            "'s' is a tensor of torch.float32, torch.sparse_coo; only dense ones",
        ),
        (
            {"x" * (1 << 24): torch.ones(1)},
            (
                "a tree of 1 tensors cannot be sent: the names take 16.0 MiB; use fewer or shorter"
                " keys"
            ),
        ),
    ],
    ids=["key", "number", "objects", "complex", "sparse", "long names"],
)
def test_what_cannot_be_sent_is_refused(tree: Tree, reason: str) -> None:
    assert refused(lambda: pack(tree)).startswith(reason)


def nested(depth: int) -> Tree:
    tree: Tree = {}
    for _ in range(depth):
        tree = {"a": tree}
    return tree


def test_depth_has_the_same_limit_on_both_sides() -> None:
    assert_same(unpack(pack(nested(64))), nested(64))
    assert (
        refused(lambda: pack(nested(65)))
        == "a tree with more than 64 branches inside each other cannot be sent"
    )
    header = '{"a":' * 65 + "{}" + "}" * 65
    assert refused(lambda: unpack(raw(header))) == "the header of an array does not describe a tree"


# what is malformed


def raw(header: object, body: bytes = b"", **changes: Any) -> Array:
    """An array as somebody else might make it."""
    coded = (
        header
        if isinstance(header, bytes)
        else (
            header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
        ).encode()
    )
    data = len(coded).to_bytes(8, "little") + coded + body
    return Array(
        **{"dtype": "uint8", "shape": (len(data),), "stype": STYPE, "data": data, **changes}
    )


def test_an_array_made_by_hand_is_read() -> None:
    array = raw({"w": ["float32", [2]]}, np.array([1, 2], "<f4").tobytes())
    assert_same(unpack(array), {"w": torch.tensor([1.0, 2.0])})
    assert pack({"w": torch.tensor([1.0, 2.0])}) == array


WRONG_HEADER = "the header of an array "


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (
            Array(np.arange(3.0)),
            f"an array is encoded as 'numpy.ndarray', expected 'evenhand.tree.{sys.byteorder}'",
        ),
        (raw({}, stype="x\ny" * 100), "an array is encoded as 'x\\nyx\\nyx"),
        (
            raw({}, stype="evenhand.tree." + {"little": "big", "big": "little"}[sys.byteorder]),
            "an array is encoded as",
        ),
        (raw({}, dtype="float32"), "an array of 10 bytes declares another type or length"),
        (raw({}, shape=(9,)), "an array of 10 bytes declares another type or length"),
        (raw({}, shape=(2, 5)), "an array of 10 bytes declares another type or length"),
        (Array("uint8", (0,), STYPE, b""), "an array ends before its header does"),
        (Array("uint8", (4,), STYPE, b"\x00" * 4), "an array ends before its header does"),
        (Array("uint8", (8,), STYPE, b"\xff" * 8), "an array ends before its header does"),
        (
            Array("uint8", (9,), STYPE, b"\x02" + b"\x00" * 7 + b"{"),
            "an array ends before its header does",
        ),
        (raw(b" " * ((1 << 24) + 1)), WRONG_HEADER + "has 16.0 MiB, the limit is 16.0 MiB"),
        (raw("{"), WRONG_HEADER + "is not the JSON it should be"),
        (raw(b"\xff\xfe{}"), WRONG_HEADER + "is not the JSON it should be"),
        (raw('{"a":{},"a":{}}'), WRONG_HEADER + "is not the JSON it should be"),
        (raw("[" * 100_000), WRONG_HEADER + "is not the JSON it should be"),
        (raw('{"a":["int8",[' + "9" * 5000 + "]]}"), WRONG_HEADER + "is not the JSON it should be"),
        (raw([]), WRONG_HEADER + "does not describe a tree"),
        (raw(None), WRONG_HEADER + "does not describe a tree"),
        (raw({"a": 1}), WRONG_HEADER + "does not describe a tree"),
        (raw({"a": ["int8"]}, b"1"), WRONG_HEADER + "does not describe a tree"),
        (
            raw({"a": ["object", [1]]}, b"12345678"),
            WRONG_HEADER + "names the type 'object'; known are float64,",
        ),
        (raw({"a": ["complex64", [1]]}, b"12345678"), WRONG_HEADER + "names the type 'complex64'"),
        (raw({"a": ["O\n" * 99, [1]]}, b"12345678"), WRONG_HEADER + "names the type 'O\\nO\\n"),
        (raw({"a": [["int8"], [1]]}, b"1"), WRONG_HEADER + "names the type 'list'"),
        (raw({"a": [None, [1]]}, b"1"), WRONG_HEADER + "names the type 'NoneType'"),
        (
            raw({"a": ["int8", 1]}, b"1"),
            WRONG_HEADER + "gives a shape that is not a short list of whole numbers >= 0",
        ),
        (raw({"a": ["int8", {"0": 1}]}, b"1"), WRONG_HEADER + "gives a shape that is not"),
        (raw({"a": ["int8", [-1]]}, b"1"), WRONG_HEADER + "gives a shape that is not"),
        (raw({"a": ["int8", [-1, -1]]}, b"1"), WRONG_HEADER + "gives a shape that is not"),
        (raw({"a": ["int8", [1.0]]}, b"1"), WRONG_HEADER + "gives a shape that is not"),
        (raw('{"a":["int8",[NaN]]}', b"1"), WRONG_HEADER + "gives a shape that is not"),
        (raw({"a": ["int8", [True]]}, b"1"), WRONG_HEADER + "gives a shape that is not"),
        (raw({"a": ["int8", ["1"]]}, b"1"), WRONG_HEADER + "gives a shape that is not"),
        (
            raw({"a": ["int8", [1] * 65]}, b"1"),
            WRONG_HEADER + "gives a shape that is not a short list",
        ),
        (
            raw({"a": ["int8", [2**62]]}, b"1"),
            WRONG_HEADER + "gives a shape that no machine can hold",
        ),
        (
            raw({"a": ["float64", [2**32, 2**32]]}, b"1"),
            WRONG_HEADER + "gives a shape that no machine can hold",
        ),
        (
            raw({"a": ["int8", [0, 2**62, 2**62]]}),
            WRONG_HEADER + "gives a shape that no machine can hold",
        ),
        (
            raw({"a": ["int8", [2**61]]}, b"1"),
            f"an array has 1 bytes of tensors, its header declares {2**61}",
        ),
        (
            raw({"a": ["float32", [2]]}, b"1234567"),
            "an array has 7 bytes of tensors, its header declares 8",
        ),
        (
            raw({"a": ["float32", [2]]}, b"123456789"),
            "an array has 9 bytes of tensors, its header declares 8",
        ),
        (
            raw({"a": ["float32", [2]], "b": ["int8", [2]]}, b"12345678"),
            "an array has 8 bytes of tensors, its header declares 10",
        ),
        (raw({}, b"x"), "an array has 1 bytes of tensors, its header declares 0"),
        (
            raw({"a": ["bool", [3]]}, b"\x00\x01\x02"),
            "an array has truth values that are neither 0 nor 1",
        ),
    ],
)
def test_a_malformed_array_is_refused(array: Array, reason: str) -> None:
    content = reply_content(Reply({}, {"loss": torch.ones(())}), {})
    content["trees"]["total"] = array
    assert refused(lambda: read_reply(content)).startswith(reason)


def test_an_array_of_objects_is_not_unpickled(capfd: pytest.CaptureFixture[str]) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("echo sprung",)

    buffer = io.BytesIO()
    np.save(buffer, np.array([Trap()], dtype=object), allow_pickle=True)
    data = buffer.getvalue()
    for stype in ("numpy.ndarray", STYPE):
        for dtype, shape in (("object", (1,)), ("uint8", (len(data),))):
            array = Array(dtype, shape, stype, data)
            refused(lambda array=array: unpack(array))  # type: ignore[misc]
    assert capfd.readouterr().out == ""


@given(st.data())
def test_a_damaged_array_is_read_or_refused(data: st.DataObject) -> None:
    """Whatever bytes change, no other error comes out."""
    content = bytearray(
        pack(
            {"a": torch.ones(2), "b": {"c": torch.tensor([True, False]), "": torch.zeros(0, 3)}}
        ).data
    )
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = (
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    try:
        unpack(Array("uint8", (len(content),), STYPE, bytes(content)))
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 (it may also be read)


# messages

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
        == '"format" goes with every message by itself; use another name'
    )


def test_another_format_is_refused_and_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, "FORMAT", 2)
        newer = task_content(TASK, {})
    assert FORMAT == 1
    assert (
        refused(lambda: read_task(newer))
        == "a message has format 2, this evenhand reads format 1; install the same version on all"
        " sides"
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
        assert refused(lambda name=name: whole(about, name)) == f"a message does not say its {name}"  # type: ignore[misc]
    for name in ("round", "missing"):
        assert refused(lambda name=name: text(about, name)) == f"a message does not say its {name}"  # type: ignore[misc]


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
