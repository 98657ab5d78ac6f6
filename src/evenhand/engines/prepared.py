"""The functions of a kind of work for a chunk, made once so that they are traced once."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evenhand import tree
from evenhand.data.samples import Batch, Samples
from evenhand.engines.batching import Batching, ChunkFunction
from evenhand.engines.by_sample import COPIES, held_at_once, hidden_gradient
from evenhand.engines.fold import number_of, summed, summed_in_turn
from evenhand.engines.randomness import randomness
from evenhand.engines.work import Work
from evenhand.messages import Task
from evenhand.model import Model
from evenhand.tree import Tree


class Prepared:
    """The functions of a kind of work for a whole chunk: start, local step and reply."""

    def __init__(self, work: Work, model: Model, samples: Samples, batching: Batching) -> None:
        self.work, self._model, self._samples = work, model, samples
        self.first_memory = work.first_memory(model.init())  # of a client that has not worked yet
        # whether a reply reads the client's data; the first reply shows it
        self.reads_data: bool | None = None
        self._bytes: dict[int, int] = {}  # of a client, by width
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

        if local is None or local.dp is None:
            gradient = batching.gradient(objective)
        elif work.whole_data:
            raise ValueError("SampleDP hides samples, and every step of this method reads them all")
        else:
            gradient = hidden_gradient(objective, local.dp, batching, work.has_more_terms)

        def step(shared: Tree, inputs: Tree) -> Tree:
            if local is not None:
                local.update(
                    inputs["variables"],
                    inputs["state"],
                    gradient(shared, inputs),
                    inputs["rates"],
                    inputs.get("active"),
                    inputs["batch"].get("numbers"),
                )
            return {}

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

        def whole(shared: Tree, inputs: Tree) -> Tree:
            assert local is not None
            known = {"own": inputs["own"], "memory": inputs["memory"]}
            begin = self.start(shared, known)
            variables = batching.copy(begin["variables"], "variables")
            state = {"state": local.state(variables), "rates": begin["rates"]}
            taking = {**state, "own": inputs["own"], "variables": variables}
            batching.repeat(self.step, shared, taking, inputs["batches"])
            out = self.reply(shared, {**known, "start": begin["variables"], "end": variables})
            return {**out, "sums": summed_in_turn(out["total"]), "check": number_of(out)}

        # the variables where they start, and their step sizes
        self.start = batching.replayed(batching.map(start))
        self.step = batching.replayed(step, often=True)  # one step, in place
        again = partial(batching.replayed, often=True) if work.traceable else _as_it_is
        self.reply = again(replies)  # stacked
        # the same with sums instead of rows, for clients of one run
        self.summed_reply = again(with_sums)
        # all of that in one, for clients who take the same few short steps
        self.whole = batching.outermost(whole) if work.traceable else whole

    def probe(self, shared: Tree, inputs: Tree, data: Tree) -> None:
        """Find out from one client's reply whether replies read the client's data."""
        noticed = _Noticed(self._batch(data))
        self._reply(shared, inputs, noticed)
        self.reads_data = noticed.touched
        if noticed.touched and self.work.local is not None and self.work.local.dp is not None:
            raise ValueError(
                "the reply has more than the step: it reads the client's samples, which SampleDP"
                " hides; use a method that does not, such as FedAvg"
            )

    def bytes_of_a_client(self, width: int) -> int:
        """Estimated memory of a client in a chunk: variables and what backpropagation saves."""
        if width not in self._bytes:
            self._bytes[width] = self._measured_bytes(width)
        return self._bytes[width]

    def _reply(self, shared: Tree, inputs: Tree, data: Any) -> Tree:
        task = Task(shared, inputs["own"])
        answer, memory = self.work.reply(
            self._model, inputs["start"], inputs["end"], data, task, inputs["memory"]
        )
        return {"total": answer.total, "each": answer.each, "memory": memory}

    def _batch(self, inputs: Tree | None) -> Batch | None:
        return None if inputs is None else Batch(self._samples, inputs["index"], inputs["weight"])

    def _measured_bytes(self, width: int) -> int:
        model, samples, local = self._model.training(), self._samples, self.work.local
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
        zero = torch.zeros((), dtype=torch.int64)
        with (
            randomness(model, zero, 0, zero),
            torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
            suppress(Exception),
        ):
            # if it fails, training will report it with the client
            model.loss(params, Batch(samples, index, ones))
        parameters = sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(params))
        sample = samples.x.shape[1:].numel() * samples.x.element_size()
        # start, end, gradient, reply and what a step of the solver needs of each variable; twice
        # the saved values for backpropagation itself
        copies = 7 + (1 if local is None else local.copies)
        if local is not None and local.dp is not None:
            numbers = sum(leaf.numel() for leaf in tree.leaves(params))
            batch_width += local.dp.batch_width(local.batch_size)  # Poisson batches may be larger
            once = held_at_once(local.dp, numbers, batch_width)
            return copies * parameters + once * (COPIES * numbers + 2 * saved[0] // probe)
        return copies * parameters + 2 * saved[0] * batch_width // probe + 2 * sample * width


def _as_it_is(function: ChunkFunction) -> ChunkFunction:
    return function


class _Noticed:
    """A batch that remembers whether anyone looked at it."""

    def __init__(self, batch: Batch | None) -> None:
        self._batch, self.touched = batch, False

    def __getattr__(self, name: str) -> Any:
        self.touched = True
        return getattr(self._batch, name)
