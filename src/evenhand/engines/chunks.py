"""The work of a chunk of clients; their data are in this process."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Memory
from evenhand.data.federation import Federation
from evenhand.data.samples import Samples
from evenhand.engines.ahead import Ahead
from evenhand.engines.batching import Batching, ChunkFunction, ChunkReply
from evenhand.engines.descent import descend
from evenhand.engines.fold import finite
from evenhand.engines.pooled import Pooled
from evenhand.engines.prepared import Prepared
from evenhand.engines.randomness import randomness
from evenhand.engines.visits import Members, Visits
from evenhand.engines.work import Work
from evenhand.errors import ClientError, first_line
from evenhand.local.order import Batches
from evenhand.messages import Replies
from evenhand.model import Model
from evenhand.tree import Tree


class Chunks:
    """Runs the work of clients, one chunk at a time.

    Args:
        seed: of a single run, whose exchanges may be known ahead.
        numbers: (n,) the clients' numbers in the whole federation, on which the order of their
            samples and their random numbers depend; None counts from 0.
    """

    def __init__(
        self,
        model: Model,
        federation: Federation,
        batching: Batching,
        seed: int = 0,
        numbers: Tensor | None = None,
    ) -> None:
        self.model, self.federation, self.batching = model, federation, batching
        self._numbers = numbers
        self._samples: dict[str, Samples] = {}
        # by identity: a method may have fields that cannot be hashed
        self._prepared: dict[int, Prepared] = {}
        self._pooled: dict[str, Pooled] = {}
        self.ahead = Ahead(partial(self._foreseen, seed=seed), self._visits)

    @property
    def on_gpu(self) -> bool:
        return self.model.device.type == "cuda"

    def prepare(self, work: Work) -> Prepared:
        """The functions of ``work``, made once."""
        if id(work) not in self._prepared:
            self._prepared[id(work)] = Prepared(
                work, self.model, self._samples_of(work.part), self.batching
            )
        return self._prepared[id(work)]

    def members(
        self, work: Work, ids: Tensor, run: Tensor, memory: Tensor, seed: Tensor
    ) -> Members:
        """Clients ``ids`` and everything their work depends on; see :class:`Members`."""
        part = getattr(self.federation, work.part)
        sizes = part.sizes[ids]
        widths = self.batching.widths(work.part, sizes, part.sizes)
        numbers = ids if self._numbers is None else self._numbers[ids]
        return Members(ids, numbers, run, memory, seed, sizes, widths)

    def kinds(self, work: Work, members: Members) -> Tensor:
        """Padded widths of the clients' data; only clients of the same width can be stacked."""
        if work.local is None or work.local.batch_size is None or work.whole_data:
            return members.widths
        # steps are on batches: clients of all sizes can be stacked
        return members.widths.clamp(max=work.local.batch_size)

    def pooled(self, work: Work, shared: Tree, ids: Tensor) -> Replies:
        """Replies to work that is a sum over samples; see :class:`Pooled`."""
        if work.part not in self._pooled:
            # not replayed on a CPU, so that all engines evaluate with the same bits; too rare to be
            # compiled on a GPU
            replayed = self.batching.replayed if self.on_gpu else lambda function: function
            self._pooled[work.part] = Pooled(
                self.model,
                getattr(self.federation, work.part),
                self._samples_of(work.part),
                replayed,
            )
        return self._pooled[work.part].sums(work, shared, ids)

    def reply(
        self,
        prepared: Prepared,
        shared: Tree,
        own: Tree,
        memory: Memory,
        members: Members,
        round: int,
        summed: bool = False,
    ) -> ChunkReply:
        """The replies and new memories of the clients of a chunk.

        Args:
            shared: one row for all, or a row for each client.
            own, memory: a row for each client.
            summed: return totals as sums instead of a row for each client, where that is as fast.
        """
        work, count = prepared.work, len(members.ids)
        stage = "start"
        try:
            with (
                torch.no_grad(),
                randomness(self.model, members.seed[0], round, members.numbers[0]),
            ):
                shared, own = self.batching.fixed(shared, "shared"), self.batching.fixed(own, "own")
                inputs = {"own": own, "memory": memory}
                start: Tree = {}
                end: Tree = {}
                if work.local is not None:
                    visits = self.ahead.take(work, members.ids, round)
                    visits = visits or self._visits(work, members, round)
                    batches = visits.alike() if self._is_brief(prepared) else None
                    if batches is not None:
                        out = prepared.whole(shared, {**inputs, "batches": batches})
                        check, sums = out.pop("check"), out.pop("sums")
                        if summed and math.isfinite(check):
                            good = torch.ones(count, dtype=torch.bool)
                            return ChunkReply(good, {}, out["each"], out["memory"], sums)
                        return self._counted(prepared, out, count)
                    begin = prepared.start(shared, inputs)
                    start = begin["variables"]
                    stage = "training"
                    end = self._descended(prepared, shared, own, begin, members, visits)
                stage = "reply"
                function = prepared.summed_reply if summed and self.on_gpu else prepared.reply
                out = self._replies(
                    prepared, function, shared, {**inputs, "start": start, "end": end}, members
                )
        except Exception as error:
            names = ", ".join(self.federation.name(int(i)) for i in members.ids[:5]) + (
                "..." if len(members.ids) > 5 else ""
            )
            raise ClientError(
                f"client {names}, round {round + 1}, {work.name} ({stage}):"
                f" {first_line(error)}{self.batching.hint}"
            ) from error
        sums = out.get("sums")
        if sums is not None:
            return ChunkReply(sums["good"], {}, out["each"], out["memory"], sums["total"])
        return self._counted(prepared, out, count)

    def _is_brief(self, prepared: Prepared) -> bool:
        """Whether a chunk's work can be one list of operations, which takes few and short steps."""
        work = prepared.work
        return (
            self.batching.is_brief(prepared.step)
            and not (work.whole_data or work.snapshot)
            and prepared.reads_data is False
        )

    def _counted(self, prepared: Prepared, out: Tree, count: int) -> ChunkReply:
        """Replies by client, and which of them count."""
        checked = prepared.work.must_be_finite
        good = finite(out, count) if checked else torch.ones(count, dtype=torch.bool)
        return ChunkReply(good, out["total"], out["each"], out["memory"])

    def _descended(
        self,
        prepared: Prepared,
        shared: Tree,
        own: Tree,
        begin: Tree,
        members: Members,
        visits: Visits,
    ) -> Tree:
        if not begin["variables"]:
            return {}
        whole = {"whole": self._data(members)} if prepared.work.whole_data else {}
        device = self.model.device
        return descend(prepared, self.batching, visits, shared, own, begin, whole, device)

    def _visits(
        self, work: Work, members: Members, round: int, batches: Batches | None = None
    ) -> Visits:
        """The samples that clients visit; ``batches`` if they are known."""
        if work.local is None:
            raise ValueError("there are no visits without local work")
        return Visits(
            work.local,
            members,
            getattr(self.federation, work.part),
            round,
            self.model.device,
            self.model.dtype,
            batches,
        )

    def _foreseen(self, work: Work, ids: Tensor, seed: int) -> tuple[Members, bool]:
        """Clients of the only run, and whether one chunk can hold them all."""
        nobody = torch.zeros_like(ids)
        members = self.members(work, ids, nobody, nobody, torch.full_like(ids, seed))
        kinds = self.kinds(work, members)
        return members, bool((kinds == kinds[0]).all())

    def _replies(
        self,
        prepared: Prepared,
        function: ChunkFunction,
        shared: Tree,
        inputs: Tree,
        members: Members,
    ) -> Tree:
        """Stacked replies; if they read the clients' data, one width after another."""
        part = prepared.work.part
        if prepared.reads_data is None:
            one = members.pick(torch.tensor([0])) if len(members.ids) > 1 else members
            data = self._data(one, part)
            prepared.probe(tree.row(shared, 0), tree.row(inputs, 0), tree.row(data, 0))
        if not prepared.reads_data:
            return function(shared, inputs)
        kinds = sorted(set(members.widths.tolist()))
        if len(kinds) == 1:
            return function(shared, {**inputs, "data": self._data(members, part)})
        groups = [(members.widths == kind).nonzero().flatten() for kind in kinds]
        answers = []
        count = len(members.ids)
        for rows in groups:
            here = rows.to(self.model.device)
            few, some = (
                tree.map(lambda leaf, here=here: leaf if leaf.shape[0] != count else leaf[here], t)
                for t in (shared, inputs)
            )
            answer = function(few, {**some, "data": self._data(members.pick(rows), part)})
            # the next one may take the same memory
            answers.append(tree.map(torch.clone, answer) if self.on_gpu else answer)
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
        index = torch.where(valid, position, 0) + offsets[:, None]
        return {
            "index": index.to(self.model.device),
            "weight": valid.to(self.model.device, self.model.dtype),
        }

    def _samples_of(self, part: str) -> Samples:
        if part not in self._samples:
            self._samples[part] = getattr(self.federation, part).samples(
                self.model.dtype, self.model.device
            )
        return self._samples[part]
