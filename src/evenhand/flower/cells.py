"""Excludes groups that are too small to report.

A node reports how many samples of each group it has, and evaluations give sums for each group. The
sums of a group of one are that person's. So if a split has fewer than ``least`` samples of a group,
they are excluded from that split before anything is counted, trained or evaluated. The server never
sees them, and every method sees consistent data: those of a client without these samples. (Renaming
such groups to "other" would give minimax methods an artificial group to protect.)
"""

from __future__ import annotations

from dataclasses import replace

import torch

from evenhand.data.federation import Federation
from evenhand.data.samples import Part


def without_small_cells(data: Federation, least: int) -> tuple[Federation, dict[str, int]]:
    """Exclude samples of groups that are too small, and say how many from each split. Names of
    groups without samples go too."""
    kept, left_out = dict(data.parts), dict[str, int]()
    for name, part in data.parts.items():
        counts, size = part.counts(len(data.group_names))[0], len(part.x)
        chosen = torch.full((size,), size >= least)
        if part.group is not None:
            chosen = (counts >= least)[part.group]
        dropped = int((~chosen).sum())
        if dropped:
            left_out[name], kept[name] = dropped, part.select(chosen)
    if not left_out:
        return data, {}
    return _with_parts(data, kept), left_out


def _with_parts(data: Federation, parts: dict[str, Part]) -> Federation:
    """The data with other parts, and the names of the groups in them."""
    groups = len(data.group_names)
    counts = sum((part.counts(groups)[0] for part in parts.values()), torch.zeros(max(1, groups)))
    used = counts.nonzero().flatten().tolist() if groups else []
    place = torch.zeros(max(1, groups), dtype=torch.int64)
    place[used] = torch.arange(len(used))

    def renamed(name: str) -> Part | None:
        part = parts.get(name)
        if part is None or (name != "train" and not len(part.x)):
            return None
        return part if part.group is None else replace(part, group=place[part.group])

    train = renamed("train")
    assert train is not None, "a node has training data"
    return replace(
        data,
        train=train,
        val=renamed("val"),
        test=renamed("test"),
        group_names=tuple(data.group_names[code] for code in used),
    )
