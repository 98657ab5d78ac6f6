"""Messages as Flower records.

A message is a record "trees" with two arrays, the compartments of a task or a reply (see
:mod:`evenhand.flower.packing`), and a record "about" with a few plain values (round, work, client
...). A client that cannot do its task replies with only a record "fault".

Any fault in a received message raises a one-line ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from evenhand.flower.answering import TooLarge as TooLarge
from evenhand.flower.answering import fault_content as fault_content
from evenhand.flower.answering import text as text
from evenhand.flower.answering import whole as whole
from evenhand.flower.faults import FORMAT as FORMAT
from evenhand.flower.faults import LIMIT as LIMIT
from evenhand.flower.packing import byte_count, pack, unpack
from evenhand.messages import Reply, Task
from evenhand.tree import Tree

Scalar = bool | int | float | str | bytes
About = Mapping[str, Scalar | list[bool] | list[int] | list[float] | list[str] | list[bytes]]

_WHOLE = range(-(2**63), 2**64)  # what Flower can carry


def task_content(
    task: Task, about: About, shared: Array | None = None, limit: int = LIMIT
) -> RecordDict:
    """A task for one client.

    Args:
        about: plain values that go with it.
        shared: ``pack(task.shared)``, if it goes to many clients: it is then packed, hashed and
            uploaded once.
        limit: bytes of the whole message.
    """
    return _content(
        {"shared": pack(task.shared) if shared is None else shared, "own": pack(task.own)},
        about,
        limit,
    )


def read_task(content: RecordDict, limit: int = LIMIT) -> tuple[Task, dict[str, Any]]:
    """The task in a message, and its plain values."""
    (shared, own), about = _read(content, ("shared", "own"), limit)
    return Task(shared, own), about


def reply_content(reply: Reply, about: About, limit: int = LIMIT) -> RecordDict:
    """One client's reply."""
    return _content({"total": pack(reply.total), "each": pack(reply.each)}, about, limit)


def read_reply(content: RecordDict, limit: int = LIMIT) -> tuple[Reply, dict[str, Any]]:
    """The reply in a message, and its plain values."""
    (total, each), about = _read(content, ("total", "each"), limit)
    return Reply(total, each), about


def fault_in(content: RecordDict) -> str:
    """The reason in a reply of :func:`fault_content`; empty for any other reply."""
    record = content.get("fault")
    reason = record.get("reason") if isinstance(record, ConfigRecord) else None
    return "".join(filter(str.isprintable, reason))[:200] if isinstance(reason, str) else ""


def size_of(content: RecordDict) -> int:
    """Bytes of all names and values of a message, without Flower's envelope."""
    return sum(
        _length(name) + sum(_length(key) + _length(value) for key, value in record.items())
        for name, record in content.items()
    )


def check_size(content: RecordDict, limit: int) -> None:
    """Raise if a message has more bytes than ``limit``."""
    size = size_of(content)
    if size > limit:
        raise TooLarge(
            f"a message has {byte_count(size)}, the limit is {byte_count(limit)}; make the model"
            " smaller or raise the limit"
        )


def _content(trees: dict[str, Array], about: About, limit: int) -> RecordDict:
    if "format" in about:
        raise ValueError('"format" is a reserved name; use another')
    values = ConfigRecord({"format": FORMAT})
    for key, value in about.items():
        if any(
            type(number) is int and number not in _WHOLE
            for number in (value if isinstance(value, list) else [value])
        ):
            raise ValueError(
                f"{key} has a whole number of more than 64 bits, which Flower cannot carry; send it"
                " as text"
            )
        values[key] = value
    record = ArrayRecord()
    for key, array in trees.items():
        # the constructor would copy the Array, and forget what Flower has hashed already
        record[key] = array
    content = RecordDict({"trees": record, "about": values})
    check_size(content, limit)
    return content


def _read(
    content: RecordDict, names: tuple[str, ...], limit: int
) -> tuple[list[Tree], dict[str, Any]]:
    about = content.get("about")
    if not isinstance(about, ConfigRecord):
        raise ValueError('a message is not from evenhand: it has no record "about"')
    found = about.get("format")
    if found != FORMAT or type(found) is not int:
        shown = found if type(found) is int else "no number"
        raise ValueError(
            f"a message has format {shown}, this evenhand reads format {FORMAT}; install the same"
            " version everywhere"
        )
    check_size(content, limit)
    trees = content.get("trees")
    if not isinstance(trees, ArrayRecord) or trees.keys() != set(names) or len(content) != 2:
        raise ValueError(f"a message must hold the trees {' and '.join(names)}, and nothing else")
    return [unpack(trees[name]) for name in names], {
        key: value for key, value in about.items() if key != "format"
    }


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_length, value))
    if isinstance(value, Array):
        return sum(map(_length, (value.data, value.shape, value.dtype, value.stype)))
    return 8  # a number
