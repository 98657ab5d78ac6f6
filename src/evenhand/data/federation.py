"""Clients and their samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evenhand.data.nested import Nested, shapes
from evenhand.data.population import Extent, Form, Population, check_codes
from evenhand.data.readers import Readers
from evenhand.data.samples import PARTS, Part, Samples, first_not_finite
from evenhand.errors import require_choice, require_number, require_whole

if TYPE_CHECKING:
    import pandas as pd

    from evenhand.data.tables.encoding import Encoding


@dataclass(frozen=True, repr=False)
class Federation(Readers, Population):
    """The data of all clients: training and, optionally, validation and test samples.

    Build one with ``from_arrays``, ``from_frame``, ``from_torch``, ``from_hf`` or ``from_leaf``, or
    directly from flat ``Part`` objects if there are very many clients.

    Attributes:
        train: training samples of all clients; ``test`` and ``val`` may be None.
        teams: (n,) int64 codes into ``team_names``, one per client.
        names: of the clients; None means "0", "1", ...
        label_names: of the classes, if they have names.
        encoding: how a table's columns became numbers, if the data came as a table.
    """

    train: Part
    test: Part | None = None
    val: Part | None = None
    teams: Tensor | None = None
    team_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    label_names: tuple[str, ...] = ()
    encoding: Encoding | None = None

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            if len(part.offsets) != len(self.train.offsets):
                raise ValueError(
                    f"{name} data are for {len(part.offsets) - 1} clients, training data for"
                    f" {self.clients}"
                )
            if shapes(part.x) != shapes(self.train.x):
                raise ValueError(
                    f"{name} samples have shape {shapes(part.x)}, training samples"
                    f" {shapes(self.train.x)}"
                )
            self._check_values(name, part)
            if len(part.x) and (part.group is None) != (self.train.group is None):
                having, lacking = ("training", name) if part.group is None else (name, "training")
                raise ValueError(
                    f"{having} data have groups but {lacking} data do not; give every sample a"
                    " group, or none"
                )
        self._check_clients()

    def _check_values(self, name: str, part: Part) -> None:
        for field, array in (("x", part.x), ("y", part.y)):
            sample = first_not_finite(array)
            if sample is not None:
                client = int(torch.searchsorted(part.offsets, sample, right=True)) - 1
                raise ValueError(
                    f"client {self.name(client)} has a value in {name} {field} that is not finite"
                    f" (row {sample - int(part.offsets[client])}); fill it or remove the row"
                )
        check_codes("group", part.group, self.group_names)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train.offsets) - 1

    @property
    def parts(self) -> dict[str, Part]:
        """The splits that exist, by name: "train", "val", "test"."""
        every = {"train": self.train, "val": self.val, "test": self.test}
        return {name: part for name, part in every.items() if part is not None}

    @property
    def form(self) -> Form:
        """Shape and type of a sample."""
        x, y = self.train.x, self.train.y
        inputs = x.form if isinstance(x, Nested) else ""
        return Form(x.shape[1:], x.dtype, y.shape[1:], y.dtype, inputs)

    @property
    def judged(self) -> Part:
        """The samples that models are evaluated on: test, or training samples if there are no
        test samples."""
        return self.test if self.test is not None and len(self.test.x) else self.train

    def counts(self, part: str) -> Tensor:
        """Return (n, A) samples per client and group in "train", "val" or "test"; (n, 1) without
        groups."""
        held = self._held(part)
        missing = torch.zeros(self.clients, max(1, self.groups), dtype=torch.int64)
        return missing if held is None else held.counts(self.groups)

    def sizes(self, part: str) -> Tensor:
        """Return (n,) samples per client in "train", "val" or "test"; zeros if there is no such
        split."""
        held = self._held(part)
        return torch.zeros(self.clients, dtype=torch.int64) if held is None else held.sizes

    def _held(self, part: str) -> Part | None:
        require_choice("part", part, PARTS)
        return self.parts.get(part)

    def _group_counts(self) -> Tensor | None:
        return None if self.train.group is None else self.counts("train")

    def probe(self, count: int) -> Samples:
        """Return the first training samples, at most ``count``."""
        return self.train.all().first(count)

    def examples(self) -> Iterator[Samples]:
        """Yield the samples of every split that has any."""
        for part in self.parts.values():
            if len(part.x):
                yield part.all()

    def first(self, extent: Extent) -> Federation:
        """Return the federation as it was with fewer clients, or itself if it cannot have been
        smaller."""
        if extent.clients >= self.clients:
            return self
        try:
            return replace(
                self,
                train=self.train.first(extent.clients),
                val=_first(self.val, extent.clients),
                test=_first(self.test, extent.clients),
                teams=None if self.teams is None else self.teams[: extent.clients],
                team_names=self.team_names[: extent.teams],
                group_names=self.group_names[: extent.groups],
                names=None if self.names is None else self.names[: extent.clients],
            )
        except ValueError:  # the remaining clients have more groups or teams
            return self

    def fingerprint(self) -> str:
        """Return a hash of the data: names, samples in order, groups, teams, and a table's
        encoding."""
        found = self._fingerprint_of_clients()
        for name, part in self.parts.items():
            found.array(f"{name}.x", part.x)
            found.array(f"{name}.y", part.y)
            found.array(f"{name}.group", part.group)
            found.array(f"{name}.offsets", part.offsets)
        if self.encoding is not None:
            found.plain("encoding", self.encoding.identity())
        return found.text()

    def balance(self, by: str = "label", part: str | None = None) -> tuple[tuple[str, ...], Tensor]:
        """Return the label or group names, and (n, C) how many samples of each a client holds.

        ``by`` is "label" or "group"; ``part`` is "train", "val" or "test", or None for all samples.
        """
        from evenhand.data.describe import balance

        if part is None:
            return balance(self, list(self.parts.values()), by)
        held = self._held(part)
        if held is None:
            raise ValueError(f"these data have no {part} split")
        return balance(self, [held], by)

    def describe(self) -> pd.DataFrame:
        """Return a row per client: name, team, samples in each split, and label and group shares.

        >>> import evenhand as eh
        >>> table = eh.datasets.digits(clients=4).describe()
        >>> list(table.columns[:4]), len(table)
        (['client', 'team', 'train', 'test'], 4)
        """
        from evenhand.data.describe import describe

        return describe(self, self.parts, self.encoding)

    def pooled(self) -> Federation:
        """Give all data to one client, for centralised baselines; FedMinMax is then minimax
        training."""
        parts: dict[str, Any] = {
            name: replace(part, offsets=torch.tensor([0, len(part.x)]))
            for name, part in self.parts.items()
        }
        return replace(self, **parts, teams=None, team_names=(), names=("everyone",))

    def with_validation(self, share: float, seed: int = 0) -> Federation:
        """Take floor(share * m) of each client's m training samples at random as a validation
        split.

        A federation that has validation samples is returned unchanged. Features are not copied.
        """
        from evenhand.data.splits import drawn_for_validation

        require_number("share", share, "[0, 1)", "it is a share of each client's training samples")
        if share == 0 or self.has("val"):
            return self
        require_whole("seed", seed, 0)
        held_out = drawn_for_validation(self.train.owners, self.train.sizes, share, seed)
        if not bool(held_out.any()):
            return self
        train, val = (self.train.select(chosen) for chosen in (~held_out, held_out))
        return replace(self, train=train, val=val)


def _first(part: Part | None, clients: int) -> Part | None:
    """Return the samples of the first clients, or None if they have none in this split."""
    few = None if part is None else part.first(clients)
    return few if few is not None and len(few.x) else None
