"""Trees as Flower arrays: what arrives is what was sent, and what is malformed is refused."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from evenhand.flower.packing import STYPE, pack, unpack
from evenhand.flower.records import (
    read_reply,
    read_task,
    reply_content,
    task_content,
)
from evenhand.messages import Reply, Task
from evenhand.tree import Tree
from tests.support.flower_carry import (
    TYPES,
    WHOLE_TYPES,
    Carry,
    assert_same,
    every_way,
    refused,
)

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


@every_way
def test_a_tree_arrives_as_it_was_sent(carry: Carry) -> None:
    task, about = read_task(carry(task_content(Task(EVERY_KIND, {"own": torch.tensor(3.0)}), {})))
    assert_same(task.shared, EVERY_KIND)
    assert_same(task.own, {"own": torch.tensor(3.0)})
    assert about == {}


@pytest.mark.parametrize(
    "tree", [{}, {"a": {}}, {"a": {"": {}}, "b": {}}, {"": torch.zeros(())}], ids=str
)
@every_way
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
