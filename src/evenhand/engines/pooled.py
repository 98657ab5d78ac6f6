"""Evaluate models that all clients share, in blocks of samples; sum by client and group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from evenhand import tree
from evenhand.data.samples import Batch, Part, Samples
from evenhand.engines.threads import one_thread
from evenhand.engines.tracing import TreeFunction
from evenhand.engines.work import Work
from evenhand.messages import Replies, Reply, Task
from evenhand.metrics.tallies import BLOCK, Addend
from evenhand.model import Model
from evenhand.tree import Tree

# samples evaluated at once on a GPU: enough to hide the time it takes to start a kernel
GPU_BLOCK = 8192
# samples without groups whose order is kept for the next evaluation on a CPU; for more, that would
# cost memory and save a tenth of the time
KEPT = 1 << 20
# before it is replayed: some evaluations at the end of a run happen only once
TIMES_AS_IT_IS = 2
MOST_AT_ONCE = 1 << 16  # samples times runs, there


class _Order(NamedTuple):
    """Samples of some clients, by client and group, and where they are counted."""

    ids: Tensor  # (K,) the clients
    groups: int
    samples: Tensor  # (N,) their numbers, on the device
    group: Tensor  # (N,)
    cell: Tensor  # (N,) client and group in one number, ascending
    counts: Tensor  # (K * groups,) samples of each cell, on a GPU; empty on a CPU


class Pooled:
    """Sums over samples of one part of the data by run, client and group."""

    def __init__(
        self,
        model: Model,
        part: Part,
        samples: Samples,
        replayed: Callable[[TreeFunction], TreeFunction],
    ) -> None:
        self._model, self._part, self._samples, self._replayed = model, part, samples, replayed
        self._last: _Order | None = None
        self._judges: dict[int, _Judge] = {}  # by the work's identity

    def sums(self, work: Work, shared: Tree, ids: Tensor) -> Replies:
        """The sums over the samples of clients ``ids`` (R, K) under each run's ``shared``."""
        runs, groups = len(ids), max(work.groups, 1)
        if bool((ids == ids[:1]).all()):
            found = self._of_clients(work, shared, self._ordered(ids[0], groups), groups)
        else:
            each_run = [
                self._of_clients(work, _only(shared, run), self._ordered(ids[run], groups), groups)
                for run in range(runs)
            ]
            found = tree.map(lambda *pieces: torch.cat(pieces), *each_run)
        return Replies(ids, found["total"], found["each"])

    def _of_clients(self, work: Work, shared: Tree, order: _Order, groups: int) -> Tree:
        runs, clients = len(tree.leaves(shared)[0]), len(order.ids)
        sums = _Sums(runs)
        with torch.no_grad(), one_thread():
            for found, group, cell in self._judged(work, shared, order):
                sums.add("total", found.total, group, groups)
                sums.add("each", found.each, cell, clients * groups)
        shapes = {"total": (runs, groups), "each": (runs, clients, groups)}
        return {kind: sums.tables(kind, shape, order.counts) for kind, shape in shapes.items()}

    def _ordered(self, ids: Tensor, groups: int) -> _Order:
        last = self._last
        if last is not None and last.groups == groups and torch.equal(last.ids, ids):
            return last
        self._last = None  # it need not be in memory beside the next one
        part, device, cells = self._part, self._model.device, len(ids) * groups
        sizes = part.sizes[ids]
        # half the memory, with millions of samples; a GPU's kernels are made for int64
        small = device.type == "cpu" and max(len(part.x), cells) < 2**31
        whole = torch.int32 if small else torch.int64
        behind = part.offsets[ids] - (sizes.cumsum(0) - sizes)
        index = torch.repeat_interleave(behind.to(whole), sizes)  # (N,)
        index += torch.arange(len(index), dtype=whole)
        cell = torch.repeat_interleave(torch.arange(0, cells, groups, dtype=whole), sizes)
        group = torch.zeros(1, dtype=torch.int64).expand(len(index))
        if part.group is not None:
            group = part.group[index]
            cell += group.to(whole)
            by_cell = cell.argsort(stable=True)
            index, group, cell = index[by_cell], group[by_cell], cell[by_cell]
        counts = torch.bincount(cell, minlength=cells) if device.type == "cuda" else cell[:0]
        order = _Order(ids, groups, index.to(device), group, cell, counts.to(device))
        if device.type == "cuda" or part.group is not None or len(index) <= KEPT:
            self._last = order
        return order

    def _judged(
        self, work: Work, shared: Tree, order: _Order
    ) -> Iterator[tuple[Reply, Tensor, Tensor]]:
        """Blocks of samples: what each adds under every run's model (R, B), its group and cell."""
        model, runs = self._model, len(tree.leaves(shared)[0])
        block = BLOCK
        # on a CPU the size of a block would change bits, and runs must not depend on each other
        if model.device.type == "cuda":
            block = min(GPU_BLOCK, max(BLOCK // 4, MOST_AT_ONCE // runs))
        if id(work) not in self._judges:
            self._judges[id(work)] = _Judge(work, model, self._samples, self._replayed)
        judge = self._judges[id(work)]
        judge.times += 1
        for index, group, cell in zip(
            *(torch.split(v, block) for v in (order.samples, order.group, order.cell)), strict=True
        ):
            yield judge(shared, index.long()), group, cell


class _Judge:
    """What samples add under every run's model (R, B), for one kind of work."""

    def __init__(
        self,
        work: Work,
        model: Model,
        samples: Samples,
        replayed: Callable[[TreeFunction], TreeFunction],
    ) -> None:
        self.work, self._model, self._samples = work, model, samples
        self._form = Reply()
        self._replayed = replayed(self._stacked) if work.traceable else self._stacked
        self.times = 0  # that all clients were evaluated

    def __call__(self, shared: Tree, index: Tensor) -> Reply:
        judge = self._replayed if self.times > TIMES_AS_IT_IS else self._stacked
        values, runs = judge(shared, {"index": index}), len(tree.leaves(shared)[0])
        # a graph's next replay writes to the same memory
        keep = torch.clone if index.is_cuda else lambda value: value
        parts = []
        for kind, addends in zip(Reply._fields, self._form, strict=True):
            found = {
                name: {key: keep(value) for key, value in values[kind][name].items()}
                for name in addends
            }
            parts.append(
                {
                    name: Addend(
                        v["value"].expand(runs, *v["value"].shape[1:]),
                        v.get("place"),
                        addends[name].shape,
                    )
                    for name, v in found.items()
                }
            )
        return Reply(*parts)

    def _stacked(self, shared: Tree, inputs: Tree) -> Tree:
        index = inputs["index"]
        batch = Batch(
            self._samples,
            index,
            torch.ones(len(index), dtype=self._model.dtype, device=index.device),
        )

        def one(shared: Tree) -> Tree:
            self._form = self.work.by_sample(self._model, Task(shared, {}), batch)
            return {
                kind: {
                    name: {"value": a.value, **({} if a.place is None else {"place": a.place})}
                    for name, a in addends.items()
                }
                for kind, addends in zip(Reply._fields, self._form, strict=True)
            }

        if len(tree.leaves(shared)[0]) > 1:
            stacked: Tree = torch.func.vmap(one)(shared)
            return stacked
        return tree.map(lambda leaf: leaf[None], one(tree.row(shared, 0)))


class _Sums:
    """Sums by run and cell.

    Plain numbers on a GPU are summed there, cell by cell; tables, and everything on a CPU, sample
    by sample.
    """

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._tables: dict[str, Tree] = {"total": {}, "each": {}}
        self._waiting: dict[str, dict[str, list[Tensor]]] = {"total": {}, "each": {}}

    def add(self, kind: str, addends: Mapping[str, Addend], cell: Tensor, cells: int) -> None:
        for name, addend in addends.items():
            plain = addend.place is None and not addend.shape
            if addend.value.is_cuda and plain and kind == "each":
                self._waiting[kind].setdefault(name, []).append(addend.value)
                continue
            if name not in self._tables[kind]:
                self._tables[kind][name] = torch.zeros(
                    self._runs, cells, *addend.shape, dtype=torch.float64
                )
            first = torch.arange(self._runs)[:, None] * cells  # (R, 1) of each run
            place = None if addend.place is None else addend.place.flatten()
            Addend(addend.value.flatten(0, 1), place, addend.shape).add_to(
                self._tables[kind][name], (first + cell).flatten()
            )

    def tables(self, kind: str, shape: tuple[int, ...], counts: Tensor) -> Tree:
        """By name, (*shape, ...)."""
        found = {
            name: table.reshape(*shape, *table.shape[2:])
            for name, table in self._tables[kind].items()
        }
        waiting = self._waiting[kind]
        if waiting:
            # (names * R, N), cells in order
            values = torch.cat([torch.cat(blocks, dim=1) for blocks in waiting.values()])
            # unsafe: without checks of the lengths, each of which would wait for the GPU
            summed = torch.segment_reduce(
                values.T.contiguous(), "sum", lengths=counts, axis=0, unsafe=True, initial=0.0
            )
            tables = summed.T.cpu().reshape(len(waiting), *shape)
            found |= dict(zip(waiting, tables, strict=True))
        return found


def _only(shared: Tree, run: int) -> Tree:
    return tree.map(lambda leaf: leaf[run : run + 1], shared)
