"""Ways of a message from one side to the other, and what arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

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


every_way = pytest.mark.parametrize("carry", [as_it_is, through_protobuf, through_objects])


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
