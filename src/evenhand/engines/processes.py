"""One run on several processes, each with a GPU or a few cores of its own, on one machine or on
several.

Every process runs the same program on the same federation and holds the same state. The clients of
an exchange are divided among them; sums are added over all processes in float64, and what is seen
client by client is gathered, so that everyone gets the same replies and takes the same next step.
``torchrun`` starts the processes, :func:`join` makes them know each other; without it nothing here
does anything.

A cohort is dealt by size, so that everyone gets about as many clients and samples. Clients with
memories stay with one process.

Compared with one process, totals are added in another order: each process adds its own clients,
then these sums are added. Both are sums in float64, so with float64 models they differ by about
1e-16 of their size in each round, and with float32 models most often not at all, since the addends
leave bits to spare. What is seen client by client has the same bits, except in evaluation, where
samples of other clients in a block may change the last one. With dropout the vmap engine draws
other random numbers. Two runs with the same number of processes on the same machines are equal to
the bit.

Nothing may hang. So processes meet before every message, to hear whether all of them are well and
at the same point of the program; an error of one is then an error of all.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from evenhand import tree
from evenhand.data.federation import Federation
from evenhand.engines.base import Exchange
from evenhand.engines.work import Evaluate, Work
from evenhand.errors import EvenhandError, RunError, first_line
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.tree import Tree

Given = ParamSpec("Given")
Found = TypeVar("Found")

# a process that dies takes the others along, as torchrun sees to it; one that is slow may be
# downloading data
PATIENCE = timedelta(hours=12)


class ProcessError(RunError):
    """Something went wrong at one process, and all of them stop; or they cannot reach each other
    any more."""


# ---- who is there


def launched() -> bool:
    """Whether torchrun, or something that sets the same variables, started this process as one of
    several."""
    return {"RANK", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ.get("WORLD_SIZE", 1)) > 1


def several() -> bool:
    """Whether this process works together with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_first() -> bool:
    """Whether this is the process that writes files and speaks; true where there is one process."""
    return not several() or dist.get_rank() == 0


@contextmanager
def join() -> Iterator[None]:
    """Work together with the other processes that torchrun has started; they part in the end, also
    after an error.

    Does nothing where torchrun has started none. Inside, device "cuda" is a GPU of this process's
    own, as long as there are enough of them.

    >>> with join():
    ...     is_first()
    True
    """
    if several() or not launched():
        yield
        return
    # loaded later, as torch.func and torch.compile do, its functions would keep the group as a
    # default argument, and with it threads that may still be at work when Python ends, which aborts
    # the process
    import torch.distributed.nn.functional

    gpus, own = torch.cuda.device_count(), False
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % gpus)
        # nccl refuses processes that share a GPU
        own = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) <= gpus
    dist.init_process_group("cpu:gloo,cuda:nccl" if own else "gloo", timeout=PATIENCE)
    try:
        with _all_or_none("the end"):
            yield
    finally:
        dist.destroy_process_group()


# ---- doing things together


def together(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """A function that all processes call, and that all of them finish or none: an error of one is
    an error of all."""

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        if not several():
            return function(*args, **kwargs)
        with _all_or_none(f"the end of {function.__name__}"):
            return function(*args, **kwargs)

    return call


def on_first(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """A function that all processes call, that the first one alone carries out, and whose result or
    error they all get."""

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        return from_first(lambda: function(*args, **kwargs), function.__name__)

    return call


def from_first(function: Callable[[], Found], name: str = "a question") -> Found:
    """What ``function`` gives on the first process, where alone it is called. Tensors in it must be
    on the CPU."""
    if not several():
        return function()
    message: list[Any] = [None]
    failure: Exception | None = None
    if is_first():
        try:
            message = [pickle.dumps(function())]
        except Exception as error:
            failure = error
    _meet(name, failure)
    with _carried():
        dist.broadcast_object_list(message, src=0)
    # from a process of the same job, as everything that torch.distributed sends as an object
    found: Found = pickle.loads(message[0])
    return found


def split(exchange: Exchange, model: Model, federation: Federation) -> Exchange:
    """``exchange`` divided among the processes; itself where there is one. All must have the same
    model and the same data."""
    if not several():
        if launched():
            warnings.warn(
                f"torchrun has started {os.environ['WORLD_SIZE']} processes, but each of them"
                " trains alone; put the training inside `with evenhand.engines.processes.join():`",
                stacklevel=4,  # where fit is called
            )
        return exchange
    digest = hashlib.sha256(federation.fingerprint().encode())
    for name, value in model.state_dict(model.init()).items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    _meet("the start")
    if len(set(_hear(digest.hexdigest()))) > 1:
        raise ProcessError(
            "the processes do not start from the same model and data; call torch.manual_seed before"
            " making the module, and deal the data with the same seed everywhere"
        )
    return Split(exchange, model, federation)


class Split:
    """An exchange whose clients are divided among processes."""

    here, by_client = True, True

    def __init__(self, inner: Exchange, model: Model, federation: Federation) -> None:
        self.inner, self.model, self.federation = inner, model, federation
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.meanwhile: Callable[[], tuple[Work, Tensor, int] | None] | None = None
        # (n,) where a client with a memory works, also after a checkpoint is loaded
        self._home = deal(federation.train.sizes, self.world)
        # (n,) where it got its memory, if that was unforeseen; -1 for the others
        self._kept_at = torch.full((federation.clients,), -1)
        # by identity: whether a kind of work needs memories; None: not known
        self._remembering: dict[int, tuple[Work, bool | None]] = {}

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Let clients ``ids`` work on ``task``, each at its process; see
        :class:`evenhand.engines.base.Exchange`."""
        if not len(ids):
            return self.inner.exchange(work, task, ids, round)
        place = self._places(work, ids)
        mine = (place == self.rank).nonzero().flatten()
        unknown = self._remembers(work) is None
        replies, memories = Replies(ids[:0], {}, {}), 0
        failure: Exception | None = None
        try:
            if len(mine):
                self.inner.meanwhile = self._upcoming if self.meanwhile is not None else None
                replies = self.inner.exchange(
                    work, Task(task.shared, _rows(task.own, mine)), ids[mine], round
                )
            memories = len(self.inner.memories) if unknown else 0
        except Exception as error:
            failure = error
        total: Tree = replies.total
        rows: Tree = {"ids": replies.ids, "each": replies.each}
        at = f"{_words(work)}, round {round + 1}, clients {_digest(ids.numpy().tobytes()):x}"
        form = _Form.of(rows, total) if len(replies.ids) else None
        met = _meet(at, failure, form, len(replies.ids), memories)
        answered = int(met.rows.sum())
        if not answered:
            return replies
        if unknown:  # a work that starts without a memory may leave one
            self._remembering[id(work)] = (work, bool(met.memories.any()))
            if met.memories.any():
                self._kept_at[ids] = place
        form = _common(form, met)
        if not len(replies.ids):  # takes part with a zero for each sum and no rows
            total, rows = form.zeros(self.model.device), form.no_rows(self.model.device)
        total = _sum(total)
        if answered == len(ids):  # everyone knows who answered
            rows = _gather({"each": rows["each"]}, met.rows)
            found = torch.cat([ids[place == process] for process in range(self.world)])
        else:
            rows = _gather(rows, met.rows)
            found = rows["ids"]
        order = found.argsort()
        return Replies(found[order], total, _rows(rows["each"], order))

    def exchange_runs(
        self,
        work: Work,
        task: Task,
        ids: Tensor,
        round: int,
        seeds: Tensor,
        runs: Tensor | None = None,
    ) -> tuple[Replies, Tensor]:
        """The exchanges of several runs, whole runs at each process, so that their sums have the
        bits that they have on one process.

        Args:
            runs: (R,) which runs the rows are of; by default the first R.
        """
        numbers = torch.arange(len(ids)) if runs is None else runs
        place = numbers % self.world
        mine = (place == self.rank).nonzero().flatten()
        rows: Tree = {}
        failure: Exception | None = None
        try:
            if len(mine):
                inner: Any = self.inner
                own = Task(_rows(task.shared, mine), _rows(task.own, mine))
                which = () if runs is None else (numbers[mine] // self.world,)
                replies, good = inner.exchange_runs(
                    work, own, ids[mine], round, seeds[mine], *which
                )
                rows = {"total": replies.total, "each": replies.each, "good": good}
        except Exception as error:
            failure = error
        at = (
            f"{_words(work)} of {len(ids)} runs, round {round + 1}, clients"
            f" {_digest(ids.numpy().tobytes()):x}"
        )
        form = _Form.of(rows) if rows else None
        met = _meet(at, failure, form, len(mine))
        form = _common(form, met)
        rows = _gather(rows or form.no_rows(self.model.device), met.rows)
        order = torch.cat(
            [(place == process).nonzero().flatten() for process in range(self.world)]
        ).argsort()
        rows = _rows(rows, order)
        return Replies(ids, rows["total"], rows["each"]), rows["good"]

    @property
    def memories(self) -> dict[int, Tree]:
        """What clients remember, by id: those of all processes, on every process. All must ask."""
        return self._collected("memories", self.inner.memories)

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self._kept_at.fill_(-1)
        self.inner.memories = {
            client: memory
            for client, memory in memories.items()
            if int(self._home[client]) == self.rank
        }

    def memories_of(self, run: int) -> dict[int, Tree]:
        """What clients remember in one of several runs; all processes must ask."""
        inner: Any = self.inner
        place, mine = run % self.world, run // self.world
        return self._collected(
            f"memories of run {run}", inner.memories_of(mine) if place == self.rank else {}
        )

    def remember_runs(self, memories: list[dict[int, Tree]]) -> None:
        """Give each of several runs its memories."""
        inner: Any = self.inner
        if own := memories[self.rank :: self.world]:
            inner.remember_runs(own)

    def _upcoming(self) -> tuple[Work, Tensor, int] | None:
        """What comes next at this process."""
        upcoming, self.meanwhile = self.meanwhile() if self.meanwhile is not None else None, None
        if upcoming is None:
            return None
        work, ids, round = upcoming
        mine = ids[self._places(work, ids) == self.rank]
        return (work, mine, round) if len(mine) else None

    def _places(self, work: Work, ids: Tensor) -> Tensor:
        """(K,) at which process each client works."""
        dealt = deal(getattr(self.federation, work.part).sizes[ids], self.world)
        if work.pooled:  # memories play no part
            return dealt
        return torch.where(
            self._kept_at[ids] >= 0,
            self._kept_at[ids],
            self._home[ids] if self._remembers(work) else dealt,
        )

    def _remembers(self, work: Work) -> bool | None:
        """Whether clients need their memories for this work; None for training that starts without
        one and has not been seen yet."""
        if id(work) not in self._remembering:
            starts_with_one = bool(work.first_memory(self.model.init()))
            self._remembering[id(work)] = (
                work,
                starts_with_one or (None if work.local is not None else False),
            )
        return self._remembering[id(work)][1]

    def _collected(self, at: str, memories: dict[int, Tree]) -> dict[int, Tree]:
        """The memories of all processes."""
        rows: Tree = {}
        failure: Exception | None = None
        try:
            if memories:
                rows = {
                    "ids": torch.tensor(list(memories)),
                    "memory": tree.stack([tree.to(memory, "cpu") for memory in memories.values()]),
                }
        except Exception as error:
            failure = error
        form = _Form.of(rows) if rows else None
        met = _meet(at, failure, form, len(memories))
        if not met.rows.any():
            return {}
        form = _common(form, met)
        rows = _gather(rows or form.no_rows(self.model.device), met.rows)
        return {i: tree.row(rows["memory"], row) for row, i in enumerate(rows["ids"].tolist())}


def deal(sizes: Tensor, hands: int) -> Tensor:
    """(K,) who gets each client: from large to small, there and back again, so that all have as
    many clients and about as many samples.

    >>> deal(torch.tensor([5, 9, 1, 7]), 2)
    tensor([1, 0, 0, 1])
    """
    turn = torch.arange(len(sizes)) % (2 * hands)
    dealt = torch.empty_like(turn)
    dealt[sizes.argsort(descending=True, stable=True)] = torch.minimum(turn, 2 * hands - 1 - turn)
    return dealt


# ---- meeting


class _Met(NamedTuple):
    """What processes say when they meet: a number for each of them."""

    digest: Tensor  # (W,) of the form of what it has, 0 where it has nothing
    rows: Tensor  # (W,) how many rows it has
    memories: Tensor  # (W,) how many clients' memories it has, where that is asked


def _words(work: Work) -> str:
    return f"{work.name}, in full" if isinstance(work, Evaluate) and work.full else work.name


def _meet(
    at: str,
    failure: Exception | None = None,
    form: _Form | None = None,
    rows: int = 0,
    memories: int = 0,
) -> _Met:
    """Wait for all processes. Raises everywhere where one has failed, or is at another point of the
    program."""
    digest = 0 if form is None else _digest(repr(form).encode())
    mine = torch.tensor(
        [int(failure is not None), _digest(at.encode()), digest, rows, memories],
        device=_carrier(torch.device("cpu")),
    )
    heard = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    with _carried():
        dist.all_gather(heard, mine)
    failed, place, *numbers = torch.stack(heard).cpu().unbind(1)
    if failed.any():
        told = _hear("" if failure is None else _in_words(failure))
        if failure is not None and failed.all():
            raise failure  # what one process would raise
        process = int(failed.nonzero()[0])
        raise ProcessError(f"process {process}: {told[process]}") from failure
    if bool((place != place[0]).any()):
        points = "; ".join(
            f"process {process} at {point!r}" for process, point in enumerate(_hear(at))
        )
        raise ProcessError(
            f"the processes have lost each other: {points}. All must run the same program with the"
            " same arguments"
        )
    return _Met(*numbers)


@contextmanager
def _all_or_none(at: str) -> Iterator[None]:
    """All processes come out of this well, or none."""
    try:
        yield
    except ProcessError:
        raise
    except Exception as error:
        _meet(at, error)
        raise
    _meet(at)


def _hear(word: Any) -> list[Any]:
    """The words of all processes."""
    words: list[Any] = [None] * dist.get_world_size()
    with _carried():
        dist.all_gather_object(words, word)
    return words


def _in_words(error: Exception) -> str:
    return (
        first_line(error)
        if isinstance(error, EvenhandError)
        else f"{type(error).__name__}: {first_line(error)}"
    )


def _digest(content: bytes) -> int:
    """A positive number that stands for the content, the same on all processes."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big") + 1


# ---- messages


class _Leaf(NamedTuple):
    """The form of a tensor in a message."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str  # "cpu" or "cuda"

    def empty(self, own: torch.device, rows: tuple[int, ...]) -> Tensor:
        return torch.zeros(
            rows + self.shape,
            dtype=self.dtype,
            device=own if self.device == own.type else self.device,
        )


class _Form(NamedTuple):
    """The form of what a process has: sums, and rows of which each process has a few."""

    total: Tree
    rows: Tree

    @classmethod
    def of(cls, rows: Tree, total: Tree | None = None) -> _Form:
        whole: Any = tree.map(lambda leaf: _leaf(leaf, leaf.shape), total or {})
        return cls(whole, tree.map(lambda leaf: _leaf(leaf, leaf.shape[1:]), rows))

    def zeros(self, device: torch.device) -> Tree:
        return tree.map(lambda leaf: leaf.empty(device, ()), self.total)

    def no_rows(self, device: torch.device) -> Tree:
        return tree.map(lambda leaf: leaf.empty(device, (0,)), self.rows)


def _leaf(tensor: Tensor, shape: torch.Size) -> Any:
    return _Leaf(tuple(shape), tensor.dtype, tensor.device.type)


def _common(form: _Form | None, met: _Met) -> _Form:
    """The form of what all processes have; one that has nothing learns it from the others."""
    if form is not None and bool((met.digest == met.digest[0]).all()):
        return form
    forms: list[_Form] = [other for other in _hear(form) if other is not None]
    if len({repr(other) for other in forms}) > 1:  # as text: the order of names counts
        raise ProcessError(
            "the replies at different processes differ in form; a method must reply in the same"
            " form for every client"
        )
    return forms[0]


def _rows(stacked: Tree, rows: Tensor) -> Tree:
    return tree.map(lambda leaf: leaf[rows.to(leaf.device)], stacked)


def _carrier(device: torch.device) -> torch.device:
    """Where the processes can exchange tensors of this device: gloo carries those on the CPU, nccl
    those on a GPU."""
    backends = dict(pair.split(":") for pair in str(dist.get_backend_config()).split(","))
    if device.type == "cuda" and backends.get("cuda") == "nccl":
        return device
    return torch.device("cpu" if backends.get("cpu", "nccl") != "nccl" else "cuda")


@contextmanager
def _carried() -> Iterator[None]:
    """What fails in here cannot be told to the others, who wait for something else: this process
    stops, and they see that it is gone."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessError(f"cannot reach the other processes: {first_line(error)}") from error


@_carried()
def _sum(addend: Tree) -> Tree:
    """The sum over processes, in one message for each kind of device."""
    leaves = tree.leaves(addend)
    sums: dict[int, Tensor] = {}
    for kind in sorted({leaf.device.type for leaf in leaves}):
        here = [i for i, leaf in enumerate(leaves) if leaf.device.type == kind]
        device = leaves[here[0]].device
        message = torch.cat([leaves[i].reshape(-1).double() for i in here]).to(_carrier(device))
        dist.all_reduce(message)
        pieces = torch.split(message.to(device), [leaves[i].numel() for i in here])
        sums |= {i: piece.reshape(leaves[i].shape) for i, piece in zip(here, pieces, strict=True)}
    ordered = (sums[i] for i in range(len(leaves)))
    return tree.map(lambda _: next(ordered), addend)


@_carried()
def _gather(rows: Tree, counts: Tensor) -> Tree:
    """The rows of all processes, those of the first in front, in one message of bytes for each kind
    of device."""
    leaves = tree.leaves(rows)
    gathered: dict[int, Tensor] = {}
    for kind in sorted({leaf.device.type for leaf in leaves}):
        here = [i for i, leaf in enumerate(leaves) if leaf.device.type == kind]
        flat = [_as_bytes(leaves[i]) for i in here]
        mine = torch.cat(flat, dim=1)  # (k, B)
        message = mine.new_zeros(int(counts.max()), mine.shape[1], device=_carrier(mine.device))
        message[: len(mine)] = mine
        heard = [torch.empty_like(message) for _ in counts]
        dist.all_gather(heard, message)
        everyone = torch.cat(
            [part[:count] for part, count in zip(heard, counts.tolist(), strict=True)]
        ).to(mine.device)
        for i, piece in zip(
            here, torch.split(everyone, [part.shape[1] for part in flat], dim=1), strict=True
        ):
            gathered[i] = leaves[i].new_empty(len(everyone), *leaves[i].shape[1:])
            _as_bytes(gathered[i]).copy_(piece)
    ordered = (gathered[i] for i in range(len(leaves)))
    return tree.map(lambda _: next(ordered), rows)


def _as_bytes(rows: Tensor) -> Tensor:
    """(k, B) the bytes of each row; a view of rows that are contiguous."""
    return rows.contiguous().reshape(len(rows), math.prod(rows.shape[1:])).view(torch.uint8)
