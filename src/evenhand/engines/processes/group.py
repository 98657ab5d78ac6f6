"""The processes of a run, and functions that they call together."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist

from evenhand.engines.processes.meeting import all_or_none, delivered, meet

Given = ParamSpec("Given")
Found = TypeVar("Found")
# torchrun stops all processes when one dies; a slow one may be downloading data
PATIENCE = timedelta(hours=12)


def launched() -> bool:
    """Whether torchrun, or something like it, started this process as one of several."""
    return {"RANK", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ.get("WORLD_SIZE", 1)) > 1


def several() -> bool:
    """Whether this process works together with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_first() -> bool:
    """Whether this process writes files and prints; true if there is only one."""
    return not several() or dist.get_rank() == 0


@contextmanager
def join() -> Iterator[None]:
    """Work together with the other processes that torchrun has started, until the end of the block.

    Does nothing unless torchrun started this process. Inside, device "cuda" is a GPU of this
    process's own, if there are enough.

    >>> with join():
    ...     is_first()
    True
    """
    if several() or not launched():
        yield
        return
    # torch.func and torch.compile would load this later. Its functions would then keep the group as
    # a default argument, with threads that may still run when Python exits, which aborts it
    import torch.distributed.nn.functional

    gpus, own = torch.cuda.device_count(), False
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % gpus)
        # nccl refuses processes that share a GPU
        own = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) <= gpus
    dist.init_process_group("cpu:gloo,cuda:nccl" if own else "gloo", timeout=PATIENCE)
    try:
        with all_or_none("the end"):
            yield
    finally:
        dist.destroy_process_group()


def together(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Make a function that all processes call fail on all of them if it fails on one."""

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        if not several():
            return function(*args, **kwargs)
        with all_or_none(f"the end of {function.__name__}"):
            return function(*args, **kwargs)

    return call


def on_first(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Make a function that all call run on the first only; all get its result or error."""

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        return from_first(lambda: function(*args, **kwargs), function.__name__)

    return call


def from_first(function: Callable[[], Found], name: str = "a question") -> Found:
    """The result of ``function`` on the first process; the others do not call it.

    Its tensors must be on the CPU.
    """
    if not several():
        return function()
    message: list[Any] = [None]
    failure: Exception | None = None
    if is_first():
        try:
            message = [pickle.dumps(function())]
        except Exception as error:
            failure = error
    meet(name, failure)
    with delivered():
        dist.broadcast_object_list(message, src=0)
    # safe: it comes from a process of the same job, as all objects of torch.distributed
    found: Found = pickle.loads(message[0])
    return found
