"""All clients in this process: what the loop and the vmap engine have in common.

Both work on chunks of clients whose values are stacked; they differ in how large a chunk is and in how a function written for
one client is applied to a chunk (:class:`Batching`).

A client's result never depends on its neighbours: its padded shapes are fixed by its own size, a chunk's arithmetic runs on
one thread (chunks may run side by side), and sums are folded client by client in a fixed order, in float64. So chunk sizes,
the order in which a cohort is listed and the number of threads change no bit of the outcome (on a CPU).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Memory
from evenhand.data import Batch, Federation, Samples
from evenhand.engines.work import Work
from evenhand.errors import ClientError, first_line
from evenhand.local import LocalSGD, Schedule, fold_key
from evenhand.messages import Replies, Task
from evenhand.metrics.tally import BLOCK, Addend
from evenhand.model import Model
from evenhand.tree import Tree

ClientFunction = Callable[[Tree, Tree], Tree]  # (shared, one client's inputs) -> outputs
ChunkFunction = Callable[[Tree, Tree], Tree]  # (shared, stacked inputs) -> stacked outputs


class Chunk(NamedTuple):
    """Clients that are worked on together."""

    rows: Tensor  # (k,) which rows of the cohort
    width: int  # length that each client's data are padded to


class ChunkReply(NamedTuple):
    """Stacked replies and memories of a chunk, and which of its clients count."""

    rows: Tensor
    good: list[bool]
    total: Tree
    each: Tree
    memory: Memory


class Batching(ABC):
    """How a cohort is cut into chunks, how a client's function is applied to one, and how many run side by side."""

    hint = ""  # what a user can do when a client's work fails

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ThreadPoolExecutor | None = None

    @abstractmethod
    def plan(self, part: str, sizes: Tensor, all_sizes: Tensor, bytes_of: Callable[[int], int]) -> list[Chunk]:
        """Chunks for a cohort with ``sizes`` (K,), in the order in which they are folded.

        ``all_sizes`` (n,) are those of the whole federation in this part of the data, ``bytes_of`` estimates a client's memory
        from its width.
        """

    @abstractmethod
    def map(self, function: ClientFunction) -> ChunkFunction:
        """``function`` for a whole chunk."""

    @abstractmethod
    def gradient(self, objective: Callable[[Tree, Tree], Tensor]) -> ChunkFunction:
        """The gradient of ``objective(shared, inputs)`` with respect to ``inputs["variables"]``, for a whole chunk."""

    def run(self, jobs: Iterable[Callable[[], ChunkReply]], parallel: bool) -> Iterator[ChunkReply]:
        """Results of the jobs, in order. ``parallel``: they may run side by side."""
        if not parallel or self.workers == 1:
            yield from (job() for job in jobs)
            return
        if self._pool is None:  # kept: a new thread would copy the module anew
            self._pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
        running: deque[Future[ChunkReply]] = deque()
        for job in jobs:
            running.append(self._pool.submit(job))
            if len(running) > self.workers:  # a finished chunk waits for its turn; no more than a few may
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


class _Prepared(NamedTuple):
    """What is made once for a kind of work, so that an engine can trace its functions once."""

    work: Work
    start: ChunkFunction  # the variables where they start, and their step sizes
    gradient: ChunkFunction
    reply: ChunkFunction
    first_memory: Memory  # of a client that has not worked yet
    bytes: dict[int, int]  # estimated memory that a client needs, by width


class Simulator:
    """Exchanges with clients whose data and memories are in this process."""

    def __init__(self, model: Model, federation: Federation, seed: int, batching: Batching) -> None:
        self.model, self.federation, self.seed, self.batching = model, federation, seed, batching
        self.memories: dict[int, Tree] = {}
        self._training_model = model.training()
        self._samples: dict[str, Samples] = {}
        self._prepared: dict[int, _Prepared] = {}  # by identity: a method may have fields that cannot be hashed

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Let clients ``ids`` work on ``task``; see :class:`evenhand.engines.base.Exchange`."""
        part = getattr(self.federation, work.part)
        sizes = part.sizes
        if work.part not in self._samples:
            self._samples[work.part] = part.samples(self.model.dtype, self.model.device)
        shared, own = (tree.floating(t, self.model.dtype, self.model.device) for t in task)
        if work.pooled:
            return self._pooled(work, Task(shared, own), ids)
        run = self._prepare(work)
        chunks = self.batching.plan(work.part, sizes[ids], sizes, lambda width: self._bytes_of_a_client(run, width))
        jobs = [lambda chunk=chunk: self._chunk(run, shared, own, ids, sizes[ids], chunk, round) for chunk in chunks]
        fold = _Fold()
        with one_thread():
            for result in self.batching.run(jobs, parallel=len(jobs) > 1 and not self.model.stochastic):
                fold.add(result, ids)
                if work.local is not None:
                    self._remember(ids[result.rows], result)
        return fold.replies()

    def _pooled(self, work: Work, task: Task, ids: Tensor) -> Replies:
        """Sums over samples by client and group, taken in blocks that do not care whose samples they hold."""
        part, cells = getattr(self.federation, work.part), max(work.groups, 1)
        sizes = part.sizes[ids]
        owner = torch.repeat_interleave(torch.arange(len(ids)), sizes)  # (N,)
        index = torch.arange(len(owner)) - (sizes.cumsum(0) - sizes)[owner] + part.offsets[ids][owner]
        group = torch.zeros_like(index) if part.group is None else part.group[index]
        total: Tree = {}
        each: Tree = {}
        with torch.no_grad(), one_thread():
            for rows, groups, places in zip(*(torch.split(v, BLOCK) for v in (index, group, owner * cells + group)), strict=True):
                batch = Batch(self._samples[work.part], **self._indices(rows, torch.ones_like(rows)))
                found = work.by_sample(self.model, task, batch)
                _add_samples(total, found.total, (cells,), groups)
                _add_samples(each, found.each, (len(ids), cells), places)
        return Replies(ids, total, each)

    def _chunk(self, run: _Prepared, shared: Tree, own: Tree, ids: Tensor, sizes: Tensor, chunk: Chunk, round: int) -> ChunkReply:
        work, (rows, width) = run.work, chunk
        stage = "start"
        try:
            with torch.no_grad(), self._randomness(round, int(ids[rows[0]])):
                inputs = {"own": tree.map(lambda leaf: leaf[rows.to(leaf.device)], own), "memory": self._recall(run, ids[rows])}
                offsets = getattr(self.federation, work.part).offsets[ids[rows]]
                position = torch.arange(width)
                valid = position < sizes[rows][:, None]  # (k, W)
                data = self._indices(torch.where(valid, position, 0) + offsets[:, None], valid)
                start: Tree = {}
                end: Tree = {}
                if work.local is not None:
                    begin = run.start(shared, inputs)
                    start = begin["variables"]
                    stage = "training"
                    schedule = work.local.schedule(ids[rows], sizes[rows], width, round, self.seed)
                    given = {**inputs, "whole": data} if work.whole_data else inputs
                    end = self._descend(work.local, run, shared, given, begin, schedule, offsets)
                stage = "reply"
                out = run.reply(shared, {**inputs, "start": start, "end": end, "data": data})
        except Exception as error:
            names = ", ".join(self.federation.name(int(i)) for i in ids[rows][:5]) + ("..." if len(rows) > 5 else "")
            raise ClientError(
                f"client {names}, round {round + 1}, {work.name} ({stage}): {first_line(error)}{self.batching.hint}"
            ) from error
        good = _finite(out, len(rows)) if work.must_be_finite else [True] * len(rows)
        return ChunkReply(rows, good, out["total"], out["each"], out["memory"])

    def _descend(
        self, local: LocalSGD, run: _Prepared, shared: Tree, inputs: Tree, begin: Tree, schedule: Schedule, offsets: Tensor
    ) -> Tree:
        """Where the clients' variables are after their local steps, and, where wanted, at one moment of them."""
        if not begin["variables"]:
            return {}
        variables = tree.map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), begin["variables"])
        velocity = tree.zeros_like(variables)
        positions, valid, steps = schedule
        batches = [self._indices(positions[:, s] + offsets[:, None], valid[:, s]) for s in range(positions.shape[1])]
        fewest, most = int(steps.min()), int(steps.max())
        steps = steps.to(self.model.device)
        snapshot: Tree = {}
        if run.work.snapshot:
            moment = 1 + (shared["moment"] * steps).floor().clamp(max=steps - 1)  # (k,) after how many steps
            snapshot = {"snapshot": tree.map(torch.clone, variables)}
        for s in range(most):
            gradient = run.gradient(shared, {**inputs, "variables": variables, "batch": batches[s if len(batches) > 1 else 0]})
            local.update(variables, velocity, gradient, begin["rates"], None if s < fewest else s < steps)
            if snapshot and bool((now := moment == s + 1).any()):
                for kept, value in zip(tree.leaves(snapshot["snapshot"]), tree.leaves(variables), strict=True):
                    kept[now] = value[now]
        return {**variables, **snapshot}

    def _prepare(self, work: Work) -> _Prepared:
        if id(work) not in self._prepared:
            samples, model, training_model = self._samples[work.part], self.model, self._training_model

            def batch(inputs: Tree) -> Batch:
                return Batch(samples, inputs["index"], inputs["weight"])

            def start(shared: Tree, inputs: Tree) -> Tree:
                task = Task(shared, inputs["own"])
                variables = work.start(task, inputs["memory"])
                return {"variables": variables, "rates": {**dict.fromkeys(variables, shared["lr"]), **work.rates(task)}}

            def objective(shared: Tree, inputs: Tree) -> Tensor:
                whole = batch(inputs["whole"]) if "whole" in inputs else None
                here = Batch(samples, inputs["batch"]["index"], inputs["batch"]["weight"], whole)
                return work.objective(training_model, inputs["variables"], here, Task(shared, inputs["own"]))

            def reply(shared: Tree, inputs: Tree) -> Tree:
                task, data = Task(shared, inputs["own"]), batch(inputs["data"])
                answer, memory = work.reply(model, inputs["start"], inputs["end"], data, task, inputs["memory"])
                return {"total": answer.total, "each": answer.each, "memory": memory}

            first_memory = tree.to(work.first_memory(model.init()), "cpu")
            batched = (self.batching.map(start), self.batching.gradient(objective), self.batching.map(reply))
            self._prepared[id(work)] = _Prepared(work, *batched, first_memory, {})
        return self._prepared[id(work)]

    def _indices(self, index: Tensor, valid: Tensor) -> Tree:
        return {"index": index.to(self.model.device), "weight": valid.to(self.model.device, self.model.dtype)}

    def _recall(self, run: _Prepared, ids: Tensor) -> Memory:
        return tree.to(tree.stack([self.memories.get(i, run.first_memory) for i in ids.tolist()]), self.model.device)

    def _remember(self, ids: Tensor, result: ChunkReply) -> None:
        if not result.memory:
            return
        for row, (i, good) in enumerate(zip(ids.tolist(), result.good, strict=True)):
            if good:
                self.memories[i] = tree.map(lambda leaf, row=row: leaf[row].to("cpu", copy=True), result.memory)

    @contextmanager
    def _randomness(self, round: int, client: int) -> Iterator[None]:
        """Random numbers of the module (dropout) from (seed, round, client); the caller's generators stay untouched."""
        if not self.model.stochastic:
            yield
            return
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            key = fold_key(fold_key(torch.tensor(self.seed), torch.tensor(round)), torch.tensor(client))
            torch.manual_seed(int(key))
            yield

    def _bytes_of_a_client(self, run: _Prepared, width: int) -> int:
        """Estimated memory that one client of a chunk needs: its variables and what backpropagation saves for a batch."""
        if width not in run.bytes:
            run.bytes[width] = self._measure_bytes(run.work, width)
        return run.bytes[width]

    def _measure_bytes(self, work: Work, width: int) -> int:
        model, samples, local = self._training_model, self._samples[work.part], work.local
        batch_width = width if local is None or local.batch_size is None else min(width, local.batch_size)
        probe = min(batch_width, len(samples.x))
        saved = [0]

        def count(tensor: Tensor) -> Tensor:
            saved[0] += tensor.numel() * tensor.element_size()
            return tensor

        params = tree.map(lambda leaf: leaf.requires_grad_(), model.init())
        index, ones = torch.arange(probe, device=model.device), torch.ones(probe, device=model.device, dtype=model.dtype)
        with self._randomness(0, 0), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), suppress(Exception):
            model.loss(params, Batch(samples, index, ones))  # where it fails, training will say so, and of which client
        parameters = sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(params))
        sample = samples.x[:1].numel() * samples.x.element_size()
        # start, end, gradient, step, velocity and reply of each variable; twice the saved values for backpropagation itself
        return 8 * parameters + 2 * saved[0] * batch_width // probe + 2 * sample * width


class _Fold:
    """Sums replies client by client, in the order they come, in float64; keeps what is seen one by one."""

    def __init__(self) -> None:
        self._total: Tree | None = None
        self._each: list[Tree] = []
        self._ids: list[Tensor] = []

    def add(self, result: ChunkReply, ids: Tensor) -> None:
        kept = [row for row, good in enumerate(result.good) if good]
        if not kept:
            return
        if self._total is None:
            self._total = tree.map(lambda leaf: torch.zeros(leaf.shape[1:], dtype=torch.float64, device=leaf.device), result.total)
        for total, stacked in zip(tree.leaves(self._total), tree.leaves(result.total), strict=True):
            rows = stacked.unbind(0)
            for row in kept:
                total.add_(rows[row])
        self._ids.append(ids[result.rows[kept]])
        self._each.append(tree.map(lambda leaf: leaf[kept], result.each))

    def replies(self) -> Replies:
        if self._total is None:
            return Replies(torch.empty(0, dtype=torch.int64), {}, {})
        ids = torch.cat(self._ids)
        order = ids.argsort()
        each = tree.map(lambda *parts: torch.cat(parts).cpu()[order], *self._each) if self._each[0] else {}
        return Replies(ids[order], tree.to(self._total, "cpu"), each)


def _add_samples(sums: Tree, addends: Mapping[str, Addend], shape: tuple[int, ...], cell: Tensor) -> None:
    """Add a block of samples to sums over cells of this shape; ``cell`` (B,) says to which of them each sample belongs."""
    for name, addend in addends.items():
        if name not in sums:
            sums[name] = torch.zeros(*shape, *addend.shape, dtype=torch.float64)
        addend.add_to(sums[name], cell)


def _finite(out: Tree, clients: int) -> list[bool]:
    """For each client of a chunk, whether all it sends and remembers is finite."""
    leaves = [leaf.reshape(len(leaf), -1) for leaf in tree.leaves(out) if leaf.is_floating_point() and leaf[0].numel()]
    if not leaves:
        return [True] * clients
    sums = torch.stack([leaf.sum(1).double() for leaf in leaves])
    if not bool(torch.isfinite(sums).all()):  # a sum of finite numbers can overflow: look at the numbers themselves
        sums = torch.stack([end.double() for leaf in leaves for end in leaf.aminmax(dim=1)])
    good: list[bool] = torch.isfinite(sums).all(0).tolist()
    return good


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for each operation: splitting one over threads changes the order of its sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
