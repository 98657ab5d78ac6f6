"""The states of a stack of runs, and the method's server functions, batched if possible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from evenhand import tree
from evenhand.algorithm import Algorithm, State
from evenhand.engines.graphs import Captured, GraphMemory
from evenhand.engines.replay import Replayed
from evenhand.errors import first_line
from evenhand.torch_private import TreeSpec, tree_flatten, tree_map, tree_unflatten
from evenhand.training.history import Rows
from evenhand.training.stacks.hyperparameters import numbers_of, with_numbers
from evenhand.tree import Tree

log = logging.getLogger(__name__)


class States:
    """States of several runs of one method, all on the model's device.

    Args:
        algorithms: the method with the hyper-parameters of each run.
        states: of each run.
        varying: names of the hyper-parameters that differ between runs, which become tensors.
        device: of the model.
    """

    def __init__(
        self,
        algorithms: Sequence[Algorithm],
        states: Sequence[State],
        varying: Sequence[str],
        device: torch.device,
    ) -> None:
        self.algorithms, self.device, self.runs = algorithms, device, len(algorithms)
        self.form = algorithms[0]
        values = [numbers_of(algorithm) for algorithm in algorithms]
        self.varying: Tree = {
            name: torch.tensor([v[name] for v in values], dtype=torch.float64, device=device)
            for name in varying
        }
        # stacked; a list if states differ in shape
        self.state: Tree | list[Tree] = joined(list(states), device)
        # server functions by name, one per form of arguments
        self.batched: dict[str, list[_Batched]] = {}
        self.apart: set[str] = set()  # those that are called run by run

    def call(self, name: str, rows: Rows, *rest: Any) -> Any:
        """Call one of the method's server functions for some runs: batched, or run by run if
        necessary.

        The answer has a row per run; it is a list if rows have different shapes.
        """
        if isinstance(self.state, dict) and name not in self.apart:
            try:
                return self._batched(name, rows, *rest)
            except Exception as error:
                self.apart.add(name)
                log.info(
                    "%s.%s is called run by run: %s",
                    type(self.form).__name__,
                    name,
                    first_line(error),
                )
        return joined(self._run_by_run(name, rows, *rest), self.device)

    def _batched(self, name: str, rows: Rows, *rest: Any) -> Any:
        assert isinstance(self.state, dict)
        given, form = tree_flatten((some_rows(rows, self.state), *rest))
        known = self.batched.setdefault(name, [])
        batched = next((one for one in known if one.form == form), None)
        if batched is None:
            known.append(batched := _Batched(self.form, name, form, self.device))
        return batched(
            some_rows(rows, self.varying), [tree.there(value, self.device) for value in given]
        )

    def _run_by_run(self, name: str, rows: Rows, *rest: Any) -> list[Any]:
        listed = range(self.runs) if rows is None else rows.tolist()
        rest = tuple(plain_to_cpu(argument) for argument in rest)
        states = self.plain()
        return [
            function(self.algorithms[row], name)(
                states(row),
                *(tree_map(lambda leaf, place=place: leaf[place], argument) for argument in rest),
            )
            for place, row in enumerate(listed)
        ]

    def one(self, name: str, row: int, *rest: Any) -> Any:
        """Call one of the method's server functions for one run."""
        return function(self.algorithms[row], name)(self.plain()(row), *rest)

    def put(self, rows: Rows, states: Any) -> None:
        """Store new states of some runs: stacked, or a list."""
        if isinstance(self.state, dict):
            together = states if isinstance(states, dict) else joined(states, self.device)
            if rows is None:
                self.state = together
                return
            if isinstance(together, dict) and _fits(together, self.state):
                place = rows.to(self.device)
                self.state = tree.map(
                    lambda old, new: old.index_copy(0, place, new), self.state, together
                )
                return
            self.state = list(map(self.plain(), range(self.runs)))
        new = (
            states
            if isinstance(states, list)
            else [
                tree.row(states, place) for place in range(self.runs if rows is None else len(rows))
            ]
        )
        for row, state in zip(
            range(self.runs) if rows is None else rows.tolist(), new, strict=True
        ):
            self.state[row] = state

    def plain(self) -> Callable[[int], Tree]:
        """Return a function from a run to its state: models where they are, the rest on the CPU."""
        if isinstance(self.state, list):
            return self.state.__getitem__
        plain = plain_to_cpu(self.state)
        return lambda row: tree.row(plain, row)

    def states(self) -> list[Tree]:
        """Return the states of all runs on the CPU, with separate memory."""
        if isinstance(self.state, list):
            return [tree.to(state, "cpu") for state in self.state]
        there = tree.to(self.state, "cpu")
        return [
            tree.map(lambda leaf, row=row: leaf[row].clone(), there) for row in range(self.runs)
        ]


class _Batched:
    """A server function for several runs at once, replayed without Python if it is called often."""

    def __init__(self, method: Algorithm, name: str, form: TreeSpec, device: torch.device) -> None:
        self.method, self.name, self.form = method, name, form
        # by shapes: the parts of an answer that are not tensors
        self._found: dict[Any, tuple[list[Any], TreeSpec]] = {}
        on_gpu = device.type == "cuda"
        self._replayed = (
            Captured(self._all, GraphMemory(), compile=False) if on_gpu else Replayed(self._all)
        )
        # a graph's next replay writes to the same memory
        self._keep = torch.clone if on_gpu else lambda value: value

    def __call__(self, varying: Tree, values: list[Tensor]) -> Any:
        """Return the answer to stacked, flat arguments, with a row per run."""
        inputs = {str(place): value for place, value in enumerate(values)}
        results = self._replayed(varying, inputs)
        leaves, form = self._found[self._shapes(inputs)]
        answer = [
            self._keep(results[str(place)]) if isinstance(leaf, Tensor) else leaf
            for place, leaf in enumerate(leaves)
        ]
        return tree_unflatten(answer, form)

    def _all(self, varying: Tree, inputs: Tree) -> Tree:
        key = self._shapes(inputs)

        def one(varying: Tree, inputs: Tree) -> Tree:
            answer = function(with_numbers(self.method, varying), self.name)(
                *tree_unflatten(list(inputs.values()), self.form)
            )
            leaves, form = tree_flatten(answer)
            self._found[key] = (
                [torch.empty(0) if isinstance(leaf, Tensor) else leaf for leaf in leaves],
                form,
            )
            something = torch.zeros((), device=inputs["0"].device)  # vmap needs a result
            return {
                str(place): leaf for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)
            } | {"": something}

        results: Tree = vmap(one)(varying, inputs)
        return results

    def _shapes(self, inputs: Tree) -> Any:
        return tuple(value.shape for value in inputs.values())


def function(method: Algorithm, name: str) -> Callable[..., Any]:
    """Return one of a method's functions; "question:review.learn" belongs to its question of this
    moment."""
    part, _, own = name.rpartition(".")
    accessor, _, moment = part.partition(":")
    owner = getattr(method, accessor)(*[moment] * bool(moment)) if part else method
    found: Callable[..., Any] = getattr(owner, own)
    return found


def some_rows(rows: Rows, stacked: Tree) -> Tree:
    """Return some rows of a stacked tree."""
    return stacked if rows is None else tree.map(lambda leaf: leaf[rows.to(leaf.device)], stacked)


def joined(answers: list[Any], device: torch.device) -> Any:
    """Stack the answers of several runs on ``device``; return the list if they cannot be
    stacked."""
    flat = [tree_flatten(answer) for answer in answers]
    if any(form != flat[0][1] for _, form in flat):
        return answers
    stacked: list[Any] = []
    for values in zip(*(leaves for leaves, _ in flat), strict=True):
        if all(
            isinstance(value, Tensor)
            and value.shape == values[0].shape
            and value.dtype == values[0].dtype
            for value in values
        ):
            stacked.append(torch.stack([value.to(device) for value in values]))
        elif not any(isinstance(value, Tensor) or value != values[0] for value in values):
            stacked.append(values[0])
        else:
            return answers
    return tree_unflatten(stacked, flat[0][1])


def plain_to_cpu(value: Any) -> Any:
    """Move a tree's own tensors, but not those of its branches (models), to the CPU."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {
            name: entry.cpu() if isinstance(entry, Tensor) else entry
            for name, entry in value.items()
        }
    return type(value)(*(plain_to_cpu(entry) for entry in value))


def _fits(rows: Tree, stacked: Tree) -> bool:
    """Whether stacked rows have the same form as others."""
    forms = [
        [(path, leaf.shape[1:], leaf.dtype) for path, leaf in tree.items(values)]
        for values in (rows, stacked)
    ]
    return forms[0] == forms[1]
