"""Sums of clients' replies, for one or several runs that are trained together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenhand import tree
from evenhand.tree import Tree


class Fold:
    """Adds replies up in float64 and keeps the rows of single clients.

    On a CPU it adds one client after another, so that chunk sizes change no bit; on a GPU it adds a
    chunk at a time.
    """

    def __init__(self, runs: int, rows: int) -> None:
        self._runs, self._rows = runs, rows
        self._total: Tree | None = None
        self._each: Tree | None = None

    def add(
        self,
        total: Tree,
        each: Tree,
        rows: Tensor,
        run: Tensor,
        good: Tensor,
        known: Tree | None = None,
    ) -> None:
        """One chunk: stacked replies of cohort ``rows`` (k,), which belong to ``run`` (k,).

        Only replies that are ``good`` (k,) count. ``known`` has the sums of total over these, if
        they have been computed already, all for one run; total is then empty.
        """
        if self._total is None or self._each is None:
            shapes = tree.map(lambda leaf: leaf[0], total) if known is None else known
            self._total = tree.map(
                lambda leaf: torch.zeros(
                    self._runs, *leaf.shape, dtype=torch.float64, device=leaf.device
                ),
                shapes,
            )
            self._each = tree.map(lambda leaf: leaf.new_zeros(self._rows, *leaf.shape[1:]), each)
        for table, stacked in zip(tree.leaves(self._each), tree.leaves(each), strict=True):
            table[rows.to(table.device)] = stacked
        if known is not None:
            for sums, more in zip(tree.leaves(self._total), tree.leaves(known), strict=True):
                sums[int(run[0])].add_(more)
            return
        kept = None if bool(good.all()) else good
        for sums, stacked in zip(tree.leaves(self._total), tree.leaves(total), strict=True):
            if stacked.is_cuda:
                _add_chunk(sums, stacked, run, kept)
            elif kept is None:
                add_in_turn(sums, stacked, run)
            else:
                add_in_turn(sums, stacked[kept], run[kept])

    def sums(self) -> tuple[Tree, Tree]:
        """total (R, ...) and each (M, ...), a row for every member of the cohort."""
        return self._total or {}, self._each or {}


def add_in_turn(sums: Tensor, stacked: Tensor, run: Tensor) -> None:
    """Add stacked values (k, ...) to the sums of their runs (R, ...), row after row."""
    sums.index_add_(0, run, stacked.double())


def _add_chunk(sums: Tensor, stacked: Tensor, run: Tensor, good: Tensor | None) -> None:
    """Add stacked values (k, ...) to the sums of their runs (R, ...), as one product or sum."""
    if good is not None:
        stacked = torch.where(
            good.to(stacked.device).reshape(-1, *[1] * (stacked.ndim - 1)), stacked, 0
        )
    if len(sums) == 1:
        sums[0].add_(stacked.sum(0, dtype=torch.float64))
        return
    belongs = torch.zeros(len(sums), len(run), dtype=torch.float64)
    belongs[run, torch.arange(len(run))] = 1
    sums.view(len(sums), -1).add_(belongs.to(sums.device) @ stacked.reshape(len(run), -1).double())


def summed(out: Tree, must_be_finite: bool) -> Tree:
    """Sums of a chunk's totals over the clients that count, and (k,) which do.

    With ``must_be_finite``, everything a client sends and remembers must be finite.
    """
    leaves = (
        [leaf.reshape(len(leaf), -1) for leaf in tree.leaves(out) if leaf.is_floating_point()]
        if must_be_finite
        else []
    )
    if not leaves:
        first = tree.leaves(out)[0]
        good = torch.ones(len(first), dtype=torch.bool, device=first.device)
        return {
            "total": tree.map(lambda leaf: leaf.sum(0, dtype=torch.float64), out["total"]),
            "good": good,
        }
    # a value that is not finite shows in the sum
    good = torch.stack([leaf.sum(1, dtype=torch.float64) for leaf in leaves]).sum(0).isfinite()

    def over_good(leaf: Tensor) -> Tensor:
        return torch.where(good.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0).sum(
            0, dtype=torch.float64
        )

    return {"total": tree.map(over_good, out["total"]), "good": good}


def summed_in_turn(total: Tree) -> Tree:
    """The sums of a chunk of one run, over all its clients, as :class:`Fold` adds them up."""

    def over_clients(leaf: Tensor) -> Tensor:
        sums = torch.zeros(1, *leaf.shape[1:], dtype=torch.float64)
        add_in_turn(sums, leaf, torch.zeros(len(leaf), dtype=torch.int64))
        return sums[0]

    return tree.map(over_clients, total)


def finite(out: Tree, clients: int) -> Tensor:
    """(k,) for each client of a chunk, whether everything it sends and remembers is finite."""
    if math.isfinite(number_of(out)):
        return torch.ones(clients, dtype=torch.bool)
    ends = torch.stack(
        [end.double() for leaf in _numbers(out) for end in leaf.reshape(clients, -1).aminmax(dim=1)]
    )
    return torch.isfinite(ends).all(0).cpu()


def number_of(out: Tree) -> Tensor:
    """A number that is finite only if everything that clients send and remember is."""
    sums = [leaf.sum().double() for leaf in _numbers(out)]
    return torch.stack(sums).sum() if sums else torch.zeros(())


def _numbers(out: Tree) -> list[Tensor]:
    return [leaf for leaf in tree.leaves(out) if leaf.is_floating_point() and leaf.numel()]
