"""Meetings of the processes of a run: all of them continue, or none.

Nothing may hang. So processes meet before every message to check that all are well and at the same
point of the program; an error on one is then an error on all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from evenhand.errors import EvenhandError, RunError, first_line


class ProcessError(RunError):
    """One process failed, so all stop; or they can no longer reach each other."""


class Met(NamedTuple):
    """The reports of the processes at a meeting, with one number for each process."""

    digest: Tensor  # (W,) digest of the form of its values, 0 if it has none
    rows: Tensor  # (W,) how many rows it has
    memories: Tensor  # (W,) how many clients' memories it has, if asked


def meet(
    at: str,
    failure: Exception | None = None,
    form: object = None,
    rows: int = 0,
    memories: int = 0,
) -> Met:
    """Wait for all processes; raise on all if one failed or is at another point.

    Args:
        at: the point of the program.
        form: of the values of this process, the same on all that have any.
    """
    mine = torch.tensor(
        [
            int(failure is not None),
            digest(at.encode()),
            0 if form is None else digest(repr(form).encode()),
            rows,
            memories,
        ],
        device=carrier(torch.device("cpu")),
    )
    received = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    with delivered():
        dist.all_gather(received, mine)
    failed, place, *numbers = torch.stack(received).cpu().unbind(1)
    if failed.any():
        messages = gather_objects("" if failure is None else _message(failure))
        if failure is not None and failed.all():
            raise failure  # what one process would raise
        process = int(failed.nonzero()[0])
        raise ProcessError(f"process {process}: {messages[process]}") from failure
    if bool((place != place[0]).any()):
        points = "; ".join(
            f"process {process} at {point!r}" for process, point in enumerate(gather_objects(at))
        )
        raise ProcessError(
            f"the processes have lost each other: {points}. All must run the same program with the"
            " same arguments"
        )
    return Met(*numbers)


@contextmanager
def all_or_none(at: str) -> Iterator[None]:
    """All processes leave this block without an error, or none does."""
    try:
        yield
    except ProcessError:
        raise
    except Exception as error:
        meet(at, error)
        raise
    meet(at)


def gather_objects(own: Any) -> list[Any]:
    """The objects of all processes."""
    found: list[Any] = [None] * dist.get_world_size()
    with delivered():
        dist.all_gather_object(found, own)
    return found


def _message(error: Exception) -> str:
    return (
        first_line(error)
        if isinstance(error, EvenhandError)
        else f"{type(error).__name__}: {first_line(error)}"
    )


def digest(content: bytes) -> int:
    """A positive number that identifies the content, the same on all processes."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big") + 1


@contextmanager
def delivered() -> Iterator[None]:
    """Stop this process if a message fails; the others then notice that it is gone."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessError(f"cannot reach the other processes: {first_line(error)}") from error


def carrier(device: torch.device) -> torch.device:
    """The device over which these tensors are exchanged: the CPU with gloo, a GPU with nccl."""
    backends = dict(pair.split(":") for pair in str(dist.get_backend_config()).split(","))
    if device.type == "cuda" and backends.get("cuda") == "nccl":
        return device
    return torch.device("cpu" if backends.get("cpu", "nccl") != "nccl" else "cuda")
