"""All clients in this process: what the loop and the vmap engine have in common.

Both work on chunks of clients whose values are stacked; they differ in how large a chunk is and in
how a function written for one client is applied to a chunk (:class:`Batching`). Several runs can be
trained together: a run is one more property of a row, and what is shared is then shared by the rows
of a run.

A client's result never depends on its neighbours: its padded shapes are fixed by its own size, a
chunk's arithmetic runs on one thread (chunks may run side by side), and sums are folded client by
client in a fixed order, in float64. So chunk sizes, the order in which a cohort is listed and the
number of threads change no bit of the outcome (on a CPU).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Memory
from evenhand.data.federation import Federation
from evenhand.data.samples import Batch, Samples
from evenhand.engines.fold import Fold, finite, summed
from evenhand.engines.memory import Memories
from evenhand.engines.pooled import Pooled
from evenhand.engines.threads import one_thread
from evenhand.engines.underway import Underway, numbers_at_home
from evenhand.engines.visits import Members, Visits
from evenhand.engines.work import Work
from evenhand.errors import ClientError, first_line
from evenhand.local import fold_key
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.tree import Tree

ClientFunction = Callable[[Tree, Tree], Tree]  # (shared, one client's inputs) -> outputs
ChunkFunction = Callable[
    [Tree, Tree], Tree
]  # (shared, stacked inputs) -> stacked outputs; what is shared has one row, or one for each client


class ChunkReply(NamedTuple):
    """Stacked replies and memories of a chunk, and which of its clients count."""

    rows: Tensor  # of the cohort
    good: Tensor  # (k,), perhaps on the device
    total: Tree  # empty where there are sums
    each: Tree
    memory: Memory
    sums: Tree | None = None  # of what is summed, over those that count

    @property
    def nothing_but_sums(self) -> bool:
        return self.sums is not None and not self.each and not self.memory


class Batching(ABC):
    """How a cohort is cut into chunks, how a client's function is applied to one, and how many run
    side by side."""

    hint = ""  # what a user can do when a client's work fails

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ThreadPoolExecutor | None = None

    @abstractmethod
    def widths(self, part: str, sizes: Tensor, all_sizes: Tensor) -> Tensor:
        """To which lengths the data of clients with ``sizes`` are padded; ``all_sizes`` (n,) are
        those of the whole federation."""

    @abstractmethod
    def plan(self, kinds: Tensor, bytes_of: Callable[[int], int]) -> list[Tensor]:
        """Rows of a cohort that form a chunk, in the order in which chunks are folded.

        Only rows of the same of ``kinds`` (M,), widths, can be in one; ``bytes_of`` estimates a
        client's memory from its kind.
        """

    @abstractmethod
    def map(self, function: ClientFunction) -> ChunkFunction:
        """``function`` for a whole chunk."""

    @abstractmethod
    def gradient(self, objective: Callable[[Tree, Tree], Tensor]) -> ChunkFunction:
        """The gradient of ``objective(shared, inputs)`` with respect to ``inputs["variables"]``,
        for a whole chunk."""

    def replayed(self, function: ChunkFunction, often: bool = False) -> ChunkFunction:
        """``function``, in a form that costs less when it is called again. ``often``: it is what
        most calls are of."""
        return function

    def copy(self, values: Tree, name: str) -> Tree:
        """``values`` in memory that functions may change in place; it is used again for the next
        chunk with the same name."""
        return tree.map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), values)

    def repeat(
        self, step: ChunkFunction, shared: Tree, inputs: Tree, batches: Sequence[Tree]
    ) -> None:
        """Take a step, which changes ``inputs`` in place, on each of ``batches``."""
        for batch in batches:
            step(shared, {**inputs, "batch": batch})

    def fixed(self, values: Tree, name: str) -> Tree:
        """``values``, where a replayed function finds them without a copy."""
        return values

    def run(self, jobs: Iterable[Callable[[], ChunkReply]], parallel: bool) -> Iterator[ChunkReply]:
        """Results of the jobs, in order. ``parallel``: they may run side by side."""
        if not parallel or self.workers == 1:
            yield from (job() for job in jobs)
            return
        if self._pool is None:  # kept: a new thread would copy the module anew
            self._pool = ThreadPoolExecutor(
                self.workers, initializer=torch.set_num_threads, initargs=(1,)
            )
        running: deque[Future[ChunkReply]] = deque()
        for job in jobs:
            running.append(self._pool.submit(job))
            # a finished chunk waits for its turn; no more than a few may
            if len(running) > self.workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


class _Prepared:
    """What is made once for a kind of work, so that an engine can trace its functions once."""

    def __init__(self, work: Work, model: Model, samples: Samples, batching: Batching) -> None:
        self.work, self._model, self._samples = work, model, samples
        self.first_memory = work.first_memory(model.init())  # of a client that has not worked yet
        self.bytes: dict[int, int] = {}  # estimated memory that a client needs, by width
        # whether a reply looks at the client's data; found out with the first
        self.reads_data: bool | None = None
        training_model, local = model.training(), work.local

        def start(shared: Tree, inputs: Tree) -> Tree:
            task = Task(shared, inputs["own"])
            variables = work.start(task, inputs["memory"])
            return {
                "variables": variables,
                "rates": {**dict.fromkeys(variables, shared["lr"]), **work.rates(task)},
            }

        def objective(shared: Tree, inputs: Tree) -> Tensor:
            whole = self._batch(inputs["whole"]) if "whole" in inputs else None
            here = Batch(samples, inputs["batch"]["index"], inputs["batch"]["weight"], whole)
            return work.objective(
                training_model, inputs["variables"], here, Task(shared, inputs["own"])
            )

        gradient = batching.gradient(objective)

        def step(shared: Tree, inputs: Tree) -> Tree:
            if local is not None:
                local.update(
                    inputs["variables"],
                    inputs["velocity"],
                    gradient(shared, inputs),
                    inputs["rates"],
                    inputs.get("active"),
                )
            return {}

        # the variables where they start, and their step sizes
        self.start = batching.replayed(batching.map(start))
        self.step = batching.replayed(step, often=True)  # one step, in place
        replies = batching.map(
            lambda shared, inputs: self._reply(shared, inputs, self._batch(inputs.get("data")))
        )

        def with_sums(shared: Tree, inputs: Tree) -> Tree:
            out = replies(shared, inputs)
            return {
                "each": out["each"],
                "memory": out["memory"],
                "sums": summed(out, work.must_be_finite),
            }

        self.reply = batching.replayed(replies, often=True)  # stacked
        self.summed_reply = batching.replayed(
            with_sums, often=True
        )  # the same with sums in place of what is summed, for clients of one run

    def probe(self, shared: Tree, inputs: Tree, data: Tree) -> None:
        """Find out whether a reply looks at the client's data, by the reply of one client."""
        noticed = _Noticed(self._batch(data))
        self._reply(shared, inputs, noticed)
        self.reads_data = noticed.touched

    def _reply(self, shared: Tree, inputs: Tree, data: Any) -> Tree:
        task = Task(shared, inputs["own"])
        answer, memory = self.work.reply(
            self._model, inputs["start"], inputs["end"], data, task, inputs["memory"]
        )
        return {"total": answer.total, "each": answer.each, "memory": memory}

    def _batch(self, inputs: Tree | None) -> Batch | None:
        return None if inputs is None else Batch(self._samples, inputs["index"], inputs["weight"])


class _Noticed:
    """A batch that remembers whether anyone looked at it."""

    def __init__(self, batch: Batch | None) -> None:
        self._batch, self.touched = batch, False

    def __getattr__(self, name: str) -> Any:
        self.touched = True
        return getattr(self._batch, name)


class Simulator:
    """Exchanges with clients whose data and memories are in this process."""

    here, by_client = True, True

    def __init__(self, model: Model, federation: Federation, seed: int, batching: Batching) -> None:
        self.model, self.federation, self.seed, self.batching = model, federation, seed, batching
        self._memories: Memories | None = None  # of all runs, see _keys
        self._samples: dict[str, Samples] = {}
        # by identity: a method may have fields that cannot be hashed
        self._prepared: dict[int, _Prepared] = {}
        self._pooled: dict[str, Pooled] = {}
        # tells, while clients work, what comes next
        self.meanwhile: Callable[[], tuple[Work, Tensor, int] | None] | None = None
        self._ahead: tuple[Work, int, Tensor, Visits] | None = None

    # ---- one run

    @property
    def memories(self) -> dict[int, Tree]:
        """What clients remember, by their number; a client not in it has its first memory."""
        return self.memories_of(0)

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self.remember_runs([memories])

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Let clients ``ids`` work on ``task``; see :class:`evenhand.engines.base.Exchange`."""
        lifted = Task(*(tree.map(lambda leaf: leaf[None], values) for values in task))
        replies, good = self.exchange_runs(
            work, lifted, ids[None], round, torch.tensor([self.seed]), wait=False
        )
        total, each = (tree.row(values, 0) for values in (replies.total, replies.each))
        kept = good[0]
        if kept.is_cuda:
            return Underway(ids, total, kept)
        total, each = numbers_at_home(total), numbers_at_home(each)
        if bool(kept.all()):
            return Replies(ids, total, each)
        if not bool(kept.any()):
            return Replies(ids[:0], {}, {})
        return Replies(ids[kept], total, tree.map(lambda leaf: leaf[kept.to(leaf.device)], each))

    # ---- several runs together

    def memories_of(self, run: int) -> dict[int, Tree]:
        """What clients remember in one of the runs."""
        clients = self.federation.clients
        return {} if self._memories is None else self._memories.one_by_one(run * clients, clients)

    def remember_runs(self, memories: list[dict[int, Tree]]) -> None:
        """Take over what clients remember in each of the runs."""
        clients = self.federation.clients
        self._memories = Memories(clients * len(memories), self.model.device)
        self._memories.load(
            {
                run * clients + client: kept
                for run, known in enumerate(memories)
                for client, kept in known.items()
            }
        )

    def exchange_runs(
        self,
        work: Work,
        task: Task,
        ids: Tensor,
        round: int,
        seeds: Tensor,
        numbers: Tensor | None = None,
        wait: bool = True,
    ) -> tuple[Replies, Tensor]:
        """The exchanges of R runs at once: every tensor has one more dimension in front, a row for
        each run.

        Args:
            task: shared (R, ...), own (R, K, ...).
            ids: (R, K), ascending for each run.
            seeds: (R,) the runs' seeds.
            numbers: (R,) which of all runs they are, for their memories; None for the first R.
            wait: for a GPU, to know which replies are finite. Otherwise, where there is nothing but
                sums, that may be still on the GPU.

        Returns:
            Replies with ids (R, K), total (R, ...) and each (R, K, ...), on the model's device, and
                which replies are finite (R, K):
            the others are not in the totals and are not remembered.
        """
        part, (runs, count) = getattr(self.federation, work.part), ids.shape
        if work.part not in self._samples:
            self._samples[work.part] = part.samples(self.model.dtype, self.model.device)
        shared, own = (tree.floating(t, self.model.dtype, self.model.device) for t in task)
        with self.model.arithmetic():
            if work.pooled:
                return self._judge(work, shared, ids), torch.ones(runs, count, dtype=torch.bool)
            run = torch.arange(runs).repeat_interleave(count)
            everyone = self._members(
                work, ids.reshape(-1), run, run if numbers is None else numbers[run], seeds[run]
            )
            own = tree.map(lambda leaf: leaf.reshape(runs * count, *leaf.shape[2:]), own)
            total, each, good = self._work(
                self._prepare(work), shared, own, everyone, round, runs, wait
            )
        each = tree.map(lambda leaf: leaf.reshape(runs, count, *leaf.shape[1:]), each)
        return Replies(ids, total, each), good.reshape(runs, count)

    def _judge(self, work: Work, shared: Tree, ids: Tensor) -> Replies:
        if work.part not in self._pooled:
            # on a CPU evaluation is not replayed: all engines judge alike, to the bit
            replayed = (
                partial(self.batching.replayed, often=True)
                if self._on_gpu
                else lambda function: function
            )
            self._pooled[work.part] = Pooled(
                self.model, getattr(self.federation, work.part), self._samples[work.part], replayed
            )
        return self._pooled[work.part].sums(work, shared, ids)

    def _work(
        self,
        run: _Prepared,
        shared: Tree,
        own: Tree,
        everyone: Members,
        round: int,
        runs: int,
        wait: bool,
    ) -> tuple[Tree, Tree, Tensor]:
        """Totals of each run, what is seen one by one, and who counts."""
        kinds, local = self._kinds(run.work, everyone), run.work.local
        fold, good = Fold(runs, len(everyone.ids)), torch.zeros(len(everyone.ids), dtype=torch.bool)
        chunks = self.batching.plan(kinds, lambda width: self._bytes_of_a_client(run, width))
        jobs = [
            lambda rows=rows: self._chunk(run, shared, own, everyone.pick(rows), rows, round, runs)
            for rows in chunks
        ]
        with one_thread():
            for result in self.batching.run(
                jobs, parallel=len(jobs) > 1 and not self.model.stochastic
            ):
                rows = result.rows
                if result.nothing_but_sums and len(jobs) == 1 and not wait:
                    return (
                        tree.map(lambda leaf: leaf[None].clone(), result.sums or {}),
                        {},
                        result.good.clone(),
                    )
                good[rows] = result.good.cpu()
                fold.add(
                    result.total, result.each, rows, everyone.run[rows], good[rows], result.sums
                )
                if local is not None and result.memory:
                    self._remember(everyone.pick(rows), result, good[rows], runs)
        return *fold.sums(), good

    def _members(
        self, work: Work, ids: Tensor, run: Tensor, memory: Tensor, seed: Tensor
    ) -> Members:
        part = getattr(self.federation, work.part)
        sizes = part.sizes[ids]
        return Members(
            ids, run, memory, seed, sizes, self.batching.widths(work.part, sizes, part.sizes)
        )

    def _kinds(self, work: Work, members: Members) -> Tensor:
        """Widths of what clients work on: only those of the same can be stacked."""
        if work.local is None or work.local.batch_size is None or work.whole_data:
            return members.widths
        # steps are on batches: clients of all sizes can be stacked
        return members.widths.clamp(max=work.local.batch_size)

    def _chunk(
        self,
        run: _Prepared,
        shared: Tree,
        own: Tree,
        members: Members,
        rows: Tensor,
        round: int,
        runs: int,
    ) -> ChunkReply:
        work = run.work
        stage = "start"
        try:
            with torch.no_grad(), self._randomness(round, members):
                if runs > 1:
                    shared = tree.map(lambda leaf: leaf[members.run.to(leaf.device)], shared)
                own = tree.map(
                    lambda leaf: leaf if leaf.shape[0] == len(rows) else leaf[rows.to(leaf.device)],
                    own,
                )
                shared, own = self.batching.fixed(shared, "shared"), self.batching.fixed(own, "own")
                inputs = {"own": own, "memory": self._recall(run, members, runs)}
                start: Tree = {}
                end: Tree = {}
                if work.local is not None:
                    begin = run.start(shared, inputs)
                    start = begin["variables"]
                    stage = "training"
                    end = self._descend(run, shared, inputs["own"], begin, members, round)
                stage = "reply"
                reply = run.summed_reply if self._on_gpu and runs == 1 else run.reply
                out = self._replies(
                    run, reply, shared, {**inputs, "start": start, "end": end}, members
                )
        except Exception as error:
            names = ", ".join(self.federation.name(int(i)) for i in members.ids[:5]) + (
                "..." if len(rows) > 5 else ""
            )
            raise ClientError(
                f"client {names}, round {round + 1}, {work.name} ({stage}):"
                f" {first_line(error)}{self.batching.hint}"
            ) from error
        self._look_ahead()
        sums = out.get("sums")
        if sums is not None:
            return ChunkReply(rows, sums["good"], {}, out["each"], out["memory"], sums["total"])
        good = (
            finite(out, len(rows))
            if work.must_be_finite
            else torch.ones(len(rows), dtype=torch.bool)
        )
        return ChunkReply(rows, good, out["total"], out["each"], out["memory"])

    def _descend(
        self, run: _Prepared, shared: Tree, own: Tree, begin: Tree, members: Members, round: int
    ) -> Tree:
        """Where the clients' variables are after their local steps, and, where wanted, at one
        moment of them."""
        local, work = run.work.local, run.work
        if local is None or not begin["variables"]:
            return {}
        visits, count = self._visits(work, members, round), len(members.ids)
        if visits.order is not None:
            order = visits.order.to(self.model.device)
            members = members.ordered(visits.order)
            shared, own, begin = (
                tree.map(lambda leaf: leaf if leaf.shape[0] != count else leaf[order], t)
                for t in (shared, own, begin)
            )
            shared = self.batching.fixed(shared, "shared in order")
            own = self.batching.fixed(own, "own in order")
        variables = self.batching.copy(begin["variables"], "variables")
        velocity = {} if self._on_gpu and not local.momentum else tree.zeros_like(variables)
        whole = {"whole": self._data(members)} if work.whole_data else {}
        inputs = self.batching.fixed(
            {"velocity": velocity, "rates": begin["rates"], **whole}, "inputs"
        ) | {
            "own": own,
            "variables": variables,
        }
        snapshot = _Snapshot(variables, shared["moment"], visits.steps) if work.snapshot else None
        part = {"shared": shared, "inputs": inputs}  # of the clients that are stacked, at first all
        for number, (batches, stacked, taking_part) in enumerate(
            visits.in_turn(one_by_one=snapshot is not None), 1
        ):
            if stacked != part["inputs"]["own"]["weight"].shape[0]:
                everything = {"shared": shared, "inputs": inputs}
                part = tree.map(
                    lambda leaf, stacked=stacked: (
                        leaf if leaf.shape[0] != count else leaf[:stacked]
                    ),
                    everything,
                )
            if stacked == taking_part:
                self.batching.repeat(run.step, part["shared"], part["inputs"], batches)
            else:
                active = (torch.arange(stacked) < taking_part).to(self.model.device)
                self.batching.repeat(
                    run.step, part["shared"], {**part["inputs"], "active": active}, batches
                )
            if snapshot is not None:
                snapshot.take(variables, number)
        end = variables if snapshot is None else {**variables, "snapshot": snapshot.values}
        if visits.back is None:
            return end
        back = visits.back.to(self.model.device)
        return tree.map(lambda leaf: leaf[back], end)

    def _visits(self, work: Work, members: Members, round: int) -> Visits:
        """The samples that clients visit, made ready while the GPU was at work on the round before,
        if that was to be foreseen."""
        ahead, self._ahead = self._ahead, None
        if (
            ahead is not None
            and ahead[0] is work
            and ahead[1] == round
            and torch.equal(ahead[2], members.ids)
        ):
            return ahead[3]
        if work.local is None:
            raise ValueError("there are no visits without local work")
        return Visits(
            work.local,
            members,
            getattr(self.federation, work.part),
            round,
            self.model.device,
            self.model.dtype,
        )

    def _look_ahead(self) -> None:
        """Get ready for the next exchange, while the GPU works on this one and the host would
        wait."""
        upcoming = self.meanwhile() if self.meanwhile is not None and self._on_gpu else None
        self.meanwhile = None
        if upcoming is not None:
            work, ids, round = upcoming
            members = self._members(
                work,
                ids,
                torch.zeros_like(ids),
                torch.zeros_like(ids),
                torch.full_like(ids, self.seed),
            )
            if len(set(self._kinds(work, members).tolist())) == 1:
                self._ahead = (work, round, ids, self._visits(work, members, round))

    def _replies(
        self, run: _Prepared, reply: ChunkFunction, shared: Tree, inputs: Tree, members: Members
    ) -> Tree:
        """Stacked replies; those that look at the clients' data by width."""
        if run.reads_data is None:
            one = self._data(
                members.pick(torch.tensor([0])) if len(members.ids) > 1 else members, run.work.part
            )
            run.probe(tree.row(shared, 0), tree.row(inputs, 0), tree.row(one, 0))
        if not run.reads_data:
            return reply(shared, inputs)
        kinds = sorted(set(members.widths.tolist()))
        if len(kinds) == 1:
            return reply(shared, {**inputs, "data": self._data(members, run.work.part)})
        groups = [(members.widths == kind).nonzero().flatten() for kind in kinds]
        answers = []
        count = len(members.ids)
        for rows in groups:
            here = rows.to(self.model.device)
            few, some = (
                tree.map(lambda leaf, here=here: leaf if leaf.shape[0] != count else leaf[here], t)
                for t in (shared, inputs)
            )
            answer = reply(few, {**some, "data": self._data(members.pick(rows), run.work.part)})
            # the next one may take the same memory
            answers.append(tree.map(torch.clone, answer) if self._on_gpu else answer)
        back = torch.cat(groups).argsort().to(self.model.device)
        totals = [answer["sums"].pop("total") for answer in answers if "sums" in answer]
        joined = tree.map(lambda *pieces: torch.cat(pieces)[back], *answers)
        if totals:
            joined["sums"]["total"] = tree.map(lambda *sums: torch.stack(sums).sum(0), *totals)
        return joined

    def _data(self, members: Members, part: str = "train") -> Tree:
        """All samples of clients that are padded to the same width."""
        position = torch.arange(int(members.widths[0]))
        valid = position < members.sizes[:, None]  # (k, W)
        offsets = getattr(self.federation, part).offsets[members.ids]
        return self._indices(torch.where(valid, position, 0) + offsets[:, None], valid)

    def _indices(self, index: Tensor, valid: Tensor) -> Tree:
        return {
            "index": index.to(self.model.device),
            "weight": valid.to(self.model.device, self.model.dtype),
        }

    @property
    def _on_gpu(self) -> bool:
        return self.model.device.type == "cuda"

    def _prepare(self, work: Work) -> _Prepared:
        if id(work) not in self._prepared:
            self._prepared[id(work)] = _Prepared(
                work, self.model, self._samples[work.part], self.batching
            )
        return self._prepared[id(work)]

    def _recall(self, run: _Prepared, members: Members, runs: int) -> Memory:
        if self._memories is None:
            if not run.first_memory:
                return {}
            self._memories = Memories(self.federation.clients * runs, self.model.device)
        return self._memories.recall(self._keys(members), run.first_memory)

    def _remember(self, members: Members, result: ChunkReply, good: Tensor, runs: int) -> None:
        if self._memories is None:
            self._memories = Memories(self.federation.clients * runs, self.model.device)
        self._memories.remember(self._keys(members), result.memory, good)

    def _keys(self, members: Members) -> list[int]:
        """A number for each client of each run."""
        keys: list[int] = (members.memory * self.federation.clients + members.ids).tolist()
        return keys

    @contextmanager
    def _randomness(self, round: int, members: Members) -> Iterator[None]:
        """Random numbers of the module (dropout) from (seed, round, first client); the caller's
        generators stay untouched."""
        if not self.model.stochastic:
            yield
            return
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            key = int(fold_key(fold_key(members.seed[0], torch.tensor(round)), members.ids[0]))
            # torch.manual_seed takes a millisecond, for kinds of devices that are not there
            torch.default_generator.manual_seed(key)
            if device.type == "cuda":
                torch.cuda.default_generators[
                    torch.cuda.current_device() if device.index is None else device.index
                ].manual_seed(key)
            yield

    def _bytes_of_a_client(self, run: _Prepared, width: int) -> int:
        """Estimated memory that one client of a chunk needs: its variables and what backpropagation
        saves for a batch."""
        if width not in run.bytes:
            run.bytes[width] = self._measure_bytes(run.work, width)
        return run.bytes[width]

    def _measure_bytes(self, work: Work, width: int) -> int:
        model, samples, local = self.model.training(), self._samples[work.part], work.local
        batch_width = (
            width if local is None or local.batch_size is None else min(width, local.batch_size)
        )
        probe = min(batch_width, len(samples.x))
        saved = [0]

        def count(tensor: Tensor) -> Tensor:
            saved[0] += tensor.numel() * tensor.element_size()
            return tensor

        params = tree.map(lambda leaf: leaf.requires_grad_(), model.init())
        index = torch.arange(probe, device=model.device)
        ones = torch.ones(probe, device=model.device, dtype=model.dtype)
        everyone = Members(*[torch.zeros(1, dtype=torch.int64)] * len(Members._fields))
        with (
            self._randomness(0, everyone),
            torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
            suppress(Exception),
        ):
            # where it fails, training will say so, and of which client
            model.loss(params, Batch(samples, index, ones))
        parameters = sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(params))
        sample = samples.x[:1].numel() * samples.x.element_size()
        # start, end, gradient, step, velocity and reply of each variable; twice the saved values
        # for backpropagation itself
        return 8 * parameters + 2 * saved[0] * batch_width // probe + 2 * sample * width


class _Snapshot:
    """Clients' variables at one moment: at the same share (1,) or (k,) of everyone's ``steps``
    (k,), after at least one."""

    def __init__(self, variables: Tree, share: Tensor, steps: Tensor) -> None:
        self.values = tree.map(torch.clone, variables)
        self._moments: list[int] = (
            (1 + (share.to(steps.device) * steps).floor().clamp(max=steps - 1)).long().tolist()
        )

    def take(self, variables: Tree, step: int) -> None:
        """Keep the variables of those whose moment it is after this step."""
        if step in self._moments:
            for kept, value in zip(tree.leaves(self.values), tree.leaves(variables), strict=True):
                now = torch.tensor(
                    [row for row, moment in enumerate(self._moments) if moment == step],
                    device=value.device,
                )
                kept[now] = value[now]
