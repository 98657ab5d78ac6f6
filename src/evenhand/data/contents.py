"""The contents of a federation, as every reader of data returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from evenhand.data.samples import Part

if TYPE_CHECKING:
    from evenhand.data.tables.encoding import Encoding


class Contents(NamedTuple):
    """The fields of ``evenhand.Federation``, in order."""

    train: Part
    test: Part | None = None
    val: Part | None = None
    teams: Tensor | None = None  # (n,) int64 codes into team_names
    team_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None  # of the clients
    label_names: tuple[str, ...] = ()
    encoding: Encoding | None = None
