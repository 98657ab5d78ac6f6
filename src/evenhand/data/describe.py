"""Who holds what: the size, labels and groups of every client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evenhand.data.population import Population
from evenhand.data.samples import Part
from evenhand.errors import require_choice

if TYPE_CHECKING:
    import pandas as pd

    from evenhand.data.tables.encoding import Encoding


def balance(
    population: Population, parts: Sequence[Part], by: str = "label"
) -> tuple[tuple[str, ...], Tensor]:
    """Return the label or group names, and (n, C) how many samples of each a client holds.

    ``parts`` are the splits to count.
    """
    require_choice("by", by, ("label", "group"))
    if by == "label" and population.form.y_dtype.is_floating_point:
        raise ValueError('labels of a regression cannot be counted; use by="group"')
    if by == "label" and population.form.y_shape:
        raise ValueError('samples with several labels cannot be counted by label; use by="group"')
    if by == "group" and not population.groups:
        raise ValueError('these data have no groups; use by="label"')
    if by == "group":
        names = population.group_names
    else:
        classes = max(
            len(population.label_names), *(int(part.y.max()) + 1 for part in parts if len(part.y))
        )
        names = population.label_names + tuple(
            str(label) for label in range(len(population.label_names), classes)
        )
    counts = torch.zeros(population.clients * len(names), dtype=torch.int64)
    for part in parts:
        codes = part.y if by == "label" else part.group
        if codes is not None and len(codes):
            counts += torch.bincount(part.owners * len(names) + codes, minlength=len(counts))
    return names, counts.reshape(population.clients, len(names))


def describe(
    population: Population, parts: Mapping[str, Part], encoding: Encoding | None
) -> pd.DataFrame:
    """Return a row per client: name, team, samples in each split, and label and group shares."""
    import pandas as pd

    columns: dict[str, object] = {
        "client": [population.name(client) for client in range(population.clients)]
    }
    if population.teams is not None:
        columns["team"] = [population.team_names[code] for code in population.teams.tolist()]
    columns |= {name: part.sizes.numpy() for name, part in parts.items()}
    train = parts["train"]
    regression = train.y.is_floating_point()
    for by in ("label", "group"):
        several = bool(population.form.y_shape)
        if (regression or several) if by == "label" else not population.groups:
            continue
        names, counts = balance(population, list(parts.values()), by)
        share = counts / counts.sum(1, keepdim=True)
        columns |= {f"{by} {name}": share[:, code].numpy() for code, name in enumerate(names)}
    if regression and train.y.ndim == 1:
        total = torch.zeros(population.clients, dtype=torch.float64).index_add_(
            0, train.owners, train.y.double()
        )
        mean = total / train.sizes
        columns["mean label"] = (mean if encoding is None else encoding.unscaled(mean)).numpy()
    return pd.DataFrame(columns)
