"""What a server knows about its clients: who they are and how many samples they have.

Cohorts, methods and scores need no more. An ``evenhand.Federation`` is a population with samples;
the server of a real federation only has a population.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evenhand.data.fingerprints import Fingerprint
from evenhand.data.nested import Nested
from evenhand.data.samples import PARTS, Samples
from evenhand.data.texts import Texts
from evenhand.errors import require_choice


class Census(NamedTuple):
    """What a method may know about the clients before training.

    Attributes:
        sizes: (n,) training samples of each client.
        weight: (n,) base weights w_i in float64 with sum 1: the share of the data p_i, or 1/n.
        group_counts: (n, A) training samples of each group on each client.
        teams: (n,) code of each client's team.
        names: of the clients; None means their numbers.
        group_names: of the groups; those of several columns are joined by " & ".
        group_share: (A,) each group's share by the base weights, where the rows above are not the
            clients' own (a federation that hides them).
    """

    sizes: Tensor
    weight: Tensor
    group_counts: Tensor | None
    teams: Tensor | None
    names: tuple[str, ...] | None = None
    group_names: tuple[str, ...] = ()
    group_share: Tensor | None = None

    def name(self, client: int) -> str:
        """Return a client's name, or its number if it has none."""
        return str(client) if self.names is None else self.names[client]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.sizes)


class Extent(NamedTuple):
    """The numbers of clients, groups and teams."""

    clients: int
    groups: int
    teams: int

    @classmethod
    def of(cls, population: Population) -> Extent:
        """Return the extent of a population."""
        return population.extent


class Form(NamedTuple):
    """Shape and type of a sample."""

    x_shape: tuple[int, ...]
    x_dtype: torch.dtype
    y_shape: tuple[int, ...]
    y_dtype: torch.dtype
    inputs: str = ""  # of samples with several inputs, see Nested.form

    def zeros(self, count: int) -> Samples:
        """Return ``count`` samples that are all zero."""
        return Samples(
            Nested.zeros(self.inputs, count)
            if self.inputs
            else torch.zeros(count, *self.x_shape, dtype=self.x_dtype),
            torch.zeros(count, *self.y_shape, dtype=self.y_dtype),
            torch.zeros(count, dtype=torch.int64),
        )


class Population:
    """Clients, their names, teams and groups, and how many samples each has.

    Args:
        counts: (n, A) samples per client and group, by split: "train" and, optionally, "val" and
            "test". (n, 1) if samples have no groups.
        form: shape and type of a sample.
        teams: (n,) int64 codes into ``team_names``.
        team_names: of the teams.
        group_names: of the groups.
        names: of the clients; None means "0", "1", ...
        label_names: of the classes, if they have names.
    """

    teams: Tensor | None
    team_names: tuple[str, ...]
    group_names: tuple[str, ...]
    names: tuple[str, ...] | None
    label_names: tuple[str, ...]

    def __init__(
        self,
        counts: Mapping[str, Tensor],
        form: Form,
        teams: Tensor | None = None,
        team_names: tuple[str, ...] = (),
        group_names: tuple[str, ...] = (),
        names: tuple[str, ...] | None = None,
        label_names: tuple[str, ...] = (),
    ) -> None:
        self._counts, self._form = dict(counts), form
        self.teams, self.team_names, self.group_names = teams, team_names, group_names
        self.names, self.label_names = names, label_names
        shape = (len(self._counts["train"]), max(1, len(group_names)))
        for part, table in self._counts.items():
            require_choice("part", part, PARTS)
            if table.shape != shape or table.dtype != torch.int64 or bool((table < 0).any()):
                raise ValueError(
                    f"{part} counts must be integers >= 0 of shape {list(shape)}, one row per"
                    f" client and one column per group; got {table.dtype} {list(table.shape)}"
                )
        self._check_clients()

    def _check_clients(self) -> None:
        """Raise unless every client has training samples, a unique name and, if there are teams,
        a team."""
        empty = torch.nonzero(self.sizes("train") == 0)
        if len(empty):
            raise ValueError(
                f"client {self.name(int(empty[0]))} has no training samples; leave it out of the"
                " federation"
            )
        if self.teams is not None and self.teams.shape != (self.clients,):
            raise ValueError(
                f"teams must have one entry per client ({self.clients}), got"
                f" {list(self.teams.shape)}"
            )
        check_codes("team", self.teams, self.team_names)
        if self.names is None:
            return
        if len(self.names) != self.clients:
            raise ValueError(
                f"names must have one entry per client ({self.clients}), got {len(self.names)}"
            )
        name, uses = Counter(self.names).most_common(1)[0]
        if uses > 1:
            raise ValueError(f"client names must differ; {name!r} is used {uses} times")

    def __repr__(self) -> str:
        clients = f"{self.clients} client{'s' * (self.clients != 1)}"
        parts = [clients, f"{int(self.sizes('train').sum())} training samples"]
        named = {"groups": self.group_names, "teams": self.team_names}
        parts += [f"{len(names)} {kind}" for kind, names in named.items() if names]
        return f"<{type(self).__name__}: {', '.join(parts)}>"

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self._counts["train"])

    @property
    def groups(self) -> int:
        """Number of sample groups; 0 if the data have none."""
        return len(self.group_names)

    @property
    def extent(self) -> Extent:
        """The numbers of clients, groups and teams."""
        return Extent(self.clients, self.groups, len(self.team_names))

    @property
    def form(self) -> Form:
        """Shape and type of a sample."""
        return self._form

    def name(self, client: int) -> str:
        """Return a client's name, or its number if it has none."""
        return str(client) if self.names is None else self.names[client]

    @property
    def all_names(self) -> Sequence[str]:
        """The names of all clients."""
        return self.names or Texts(range(self.clients))

    def counts(self, part: str) -> Tensor:
        """Return (n, A) samples per client and group in "train", "val" or "test"; (n, 1) without
        groups."""
        require_choice("part", part, PARTS)
        missing = torch.zeros(self.clients, max(1, self.groups), dtype=torch.int64)
        return self._counts.get(part, missing)

    def sizes(self, part: str) -> Tensor:
        """Return (n,) samples per client in "train", "val" or "test"; zeros if there is no such
        split."""
        return self.counts(part).sum(1)

    def has(self, part: str) -> bool:
        """Whether any client has samples in this split: "train", "val" or "test"."""
        return bool(self.sizes(part).any())

    @property
    def judged_part(self) -> str:
        """The split that models are evaluated on: "test", or "train" if nobody has test samples."""
        return "test" if self.has("test") else "train"

    def census(self, weights: str = "data") -> Census:
        """Return what a method may know about the clients before training.

        Args:
            weights: "data" for base weights m_i / m, the share of the data; "uniform" for 1 / n.
        """
        if weights not in ("data", "uniform"):
            raise ValueError(f'weights must be "data" or "uniform", got {weights!r}')
        sizes = self.sizes("train")
        base = sizes.double() if weights == "data" else torch.ones(len(sizes), dtype=torch.float64)
        return Census(
            sizes=sizes,
            weight=base / base.sum(),
            group_counts=self._group_counts(),
            teams=self.teams,
            names=self.names,
            group_names=self.group_names,
        )

    def _group_counts(self) -> Tensor | None:
        """Return (n, A) training samples per client and group; None if samples have no groups."""
        return self.counts("train") if self.groups else None

    def fingerprint(self) -> str:
        """Return a hash of names, teams, counts and the form of a sample."""
        found = self._fingerprint_of_clients()
        form = self.form
        found.plain("x", [str(form.x_dtype), list(form.x_shape)])
        if form.inputs:
            found.plain("inputs", form.inputs)
        found.plain("y", [str(form.y_dtype), list(form.y_shape)])
        for part in PARTS:
            if self.has(part):
                found.array(part, self.counts(part))
        return found.text()

    def _fingerprint_of_clients(self) -> Fingerprint:
        """Return a fingerprint that already includes who the clients are."""
        found = Fingerprint()
        found.plain("clients", self.names)
        found.plain("groups", self.group_names)
        found.plain("labels", self.label_names)
        found.plain("team names", self.team_names)
        found.array("teams", self.teams)
        return found

    def probe(self, count: int) -> Samples:
        """Return at most ``count`` samples to try a module on: real ones, or zeros if there are
        none."""
        return self.form.zeros(min(count, int(self.sizes("train").sum())))

    def examples(self) -> Iterator[Samples]:
        """Yield the samples that a module must accept: real ones, or zeros if there are only
        counts."""
        yield self.probe(2)

    def first(self, extent: Extent) -> Population:
        """Return the population as it was with fewer clients, or itself if it cannot have been
        smaller."""
        if extent.clients >= self.clients:
            return self
        columns = max(1, extent.groups)
        counts = {part: table[: extent.clients] for part, table in self._counts.items()}
        outside = any(bool(table[:, extent.groups :].any()) for table in counts.values())
        if self.groups and outside:  # the remaining clients have more groups
            return self
        try:
            return Population(
                {part: table[:, :columns] for part, table in counts.items()},
                self.form,
                None if self.teams is None else self.teams[: extent.clients],
                self.team_names[: extent.teams],
                self.group_names[: extent.groups],
                None if self.names is None else self.names[: extent.clients],
                self.label_names,
            )
        except ValueError:  # the remaining clients have more teams
            return self


def check_codes(what: str, codes: Tensor | None, names: tuple[str, ...]) -> None:
    """Raise unless every code has a name."""
    if codes is None or not len(codes):
        return
    bad = int(codes.min()) if int(codes.min()) < 0 else int(codes.max())
    if not 0 <= bad < len(names):
        raise ValueError(f"{what} code {bad} has no name; there are {len(names)} {what} names")
