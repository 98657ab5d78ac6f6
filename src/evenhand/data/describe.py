"""Who holds what: sizes, labels and groups of every client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.data.samples import PARTS, Part
from evenhand.errors import require_choice

if TYPE_CHECKING:
    import pandas as pd


def balance(
    federation: Federation, by: str = "label", part: str | None = None
) -> tuple[tuple[str, ...], Tensor]:
    """Names of the labels or groups, and (n, C) how many samples of each every client holds.

    ``part``: "train", "val" or "test"; None counts all of them.
    """
    require_choice("by", by, ("label", "group"))
    if by == "label" and federation.train.y.is_floating_point():
        raise ValueError('labels of a regression cannot be counted; use by="group"')
    if by == "group" and not federation.groups:
        raise ValueError('these data have no groups; use by="label"')
    parts = _parts(federation, part)
    if by == "group":
        names = federation.group_names
    else:
        classes = max(
            len(federation.label_names),
            *(int(piece.y.max()) + 1 for piece in parts if len(piece.y)),
        )
        names = federation.label_names + tuple(
            str(label) for label in range(len(federation.label_names), classes)
        )
    counts = torch.zeros(federation.clients * len(names), dtype=torch.int64)
    for piece in parts:
        codes = piece.y if by == "label" else piece.group
        if codes is not None and len(codes):
            counts += torch.bincount(piece.owners * len(names) + codes, minlength=len(counts))
    return names, counts.reshape(federation.clients, len(names))


def describe(federation: Federation) -> pd.DataFrame:
    """A row per client: its name and team, its samples in each part, and the share of every label
    and group among them.

    >>> import evenhand as eh
    >>> table = describe(eh.datasets.digits(clients=4))
    >>> list(table.columns[:4]), len(table)
    (['client', 'team', 'train', 'test'], 4)
    """
    import pandas as pd

    columns: dict[str, object] = {
        "client": [federation.name(client) for client in range(federation.clients)]
    }
    if federation.teams is not None:
        columns["team"] = [federation.team_names[code] for code in federation.teams.tolist()]
    for name in PARTS:
        piece = getattr(federation, name)
        if piece is not None:
            columns[name] = piece.sizes.numpy()
    for by in ("label", "group"):
        if (by == "label" and federation.train.y.is_floating_point()) or (
            by == "group" and not federation.groups
        ):
            continue
        names, counts = balance(federation, by)
        share = counts / counts.sum(1, keepdim=True)
        columns |= {f"{by} {name}": share[:, code].numpy() for code, name in enumerate(names)}
    if federation.train.y.is_floating_point() and federation.train.y.ndim == 1:
        total = torch.zeros(federation.clients, dtype=torch.float64).index_add_(
            0, federation.train.owners, federation.train.y.double()
        )
        mean = total / federation.train.sizes
        columns["mean label"] = (
            mean if federation.encoding is None else federation.encoding.unscaled(mean)
        ).numpy()
    return pd.DataFrame(columns)


def _parts(federation: Federation, part: str | None) -> list[Part]:
    if part is not None:
        require_choice("part", part, PARTS)
    chosen = [getattr(federation, name) for name in PARTS if part in (None, name)]
    if not any(piece is not None for piece in chosen):
        raise ValueError(f"these data have no {part} part")
    return [piece for piece in chosen if piece is not None]
