"""Shakespeare's plays by role: predict the next character from 80."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.partitions import natural
from evenhand.data.pool import TEST, TRAIN, VAL, Partition, Pool
from evenhand.data.splits import part_sizes, shares_in_order
from evenhand.data.storage.file import File
from evenhand.data.storage.file import read as read_file
from evenhand.data.storage.locate import locate
from evenhand.data.text import LETTER_NAMES, letter_codes
from evenhand.data.views import View
from evenhand.errors import DataError, require, require_choice, require_whole

FILES = (
    File(
        "shakespeare_mit.json.gz",
        content="sha256:e54fefacdd88be81b88040de4db02e102ffad3f2d9e4e9a1e80f2b4e67c690e6",
        hint=("put your copy there, or use leaf_shakespeare, the same task made by LEAF's scripts"),
    ),
)
WINDOW = 80  # characters per sample
SEXES = {"M": "male", "F": "female", "U": "unknown"}
DROPPED = -1  # code of windows in a gap

Roles = int | Sequence[str] | Mapping[str, int]


def shakespeare(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | str | None = None,
    least: int = 64,
    roles: Roles | None = None,
    teams: str = "sex",
    order: str = "time",
    gap: bool = True,
) -> Federation:
    """Load 4,215,098 windows of 80 characters; the label is the next character; each role is a
    client.

    There are 1,153 roles in 37 plays; roles of the same name in different plays are different
    clients, as in LEAF. The text is stored once, one byte per character, and samples are
    overlapping views of it. Characters are numbered as in LEAF's alphabet of 80.

    Args:
        split: shares for "val" and "test", by default ``{"test": 0.2}``.
        least: the smallest number of windows of a role, not counting those lost to gaps; q-FFL uses
            64.
        roles: how many roles to draw (by ``seed``), such as 31; or how many of each team, such as
            ``{"male": 25, "female": 10}``; or their names, such as ``["hamlet/HAMLET"]``. None uses
            all.
        teams: "sex" ("male", "female", "unknown": crowds, servants, messengers), "play", or "none":
            methods that compare teams then compare roles.
        order: "time" trains on the first part of a role's text and tests on the last. "random"
            splits windows at random: nearly every test window then overlaps training windows, which
            mostly contain its label.
        gap: in time order, drop the 80 windows at each border whose text overlaps the training
            text, so that the splits share no character. Without it, the first test windows start in
            training text, but their labels are new.
    """
    require_choice("order", order, ("time", "random"))
    require(isinstance(gap, bool), "gap must be true or false, got {!r}", gap)
    require_whole("least", least, 1)
    if order == "random":
        return deal(read(root, least, roles, teams, seed), partition, split, seed, clients)
    val, test = shares_in_order(
        split, "time", "each role's windows", ', or order = "random" for other ways to split'
    )
    way_out = 'remove val or partition, or use order = "random"'
    require(val == 0 or partition is None, "val in time order needs roles as clients; {}", way_out)
    margin = WINDOW if gap else 0
    pool = read(root, least + margin * ((val > 0) + (test > 0)), roles, teams, seed)
    part = parts_in_time(pool, val, test, margin)
    if margin:
        pool, part = pool.select(part != DROPPED), part[part != DROPPED]
    if partition is None:
        return Federation.from_pool(pool, natural(pool, seed=seed, clients=clients), part)
    return deal(replace(pool, held_out=part == TEST), partition, "official", seed, clients)


def read(
    root: Path | str | None = None,
    least: int = 1,
    roles: Roles | None = None,
    teams: str = "sex",
    seed: int = 0,
) -> Pool:
    """Read all windows of the chosen roles, in the order of their text; see ``shakespeare``."""
    (path,) = locate("shakespeare", FILES, root)
    return parse(path, read_file(path, FILES[0]), least, roles, teams, seed)


def parse(
    path: Path,
    content: bytes,
    least: int = 1,
    roles: Roles | None = None,
    teams: str = "sex",
    seed: int = 0,
) -> Pool:
    """Parse and check the bytes of the file."""
    require_choice("teams", teams, ("sex", "play", "none"))
    try:
        table = json.loads(content)
        names: list[str] = table["users"]
        listed = table["hierarchies" if teams == "play" else "sex"]
        texts: list[str] = [table["user_data"][name]["raw"] for name in names]
        counts: list[int] = table["num_samples"]
    except (ValueError, KeyError, TypeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is not a file of roles and their texts: {problem}") from error
    windows = np.array([max(0, len(text) - WINDOW) for text in texts])
    for name, text, count, wanted in zip(names, texts, counts, windows.tolist(), strict=True):
        if count != wanted:
            raise DataError(
                f"{path}, role {name!r}: num_samples is {count}, but its {len(text)} characters"
                f" make {wanted} windows"
            )
    codes = _codes(path, names, texts)
    team_of = [_team(path, name, team, teams) for name, team in zip(names, listed, strict=True)]
    chosen = _choose(roles, names, team_of, np.flatnonzero(windows >= max(least, 1)), least, seed)

    starts = np.cumsum([0, *(len(text) for text in texts)])[:-1]
    sizes = windows[chosen]
    # position of a window in its role
    place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = torch.from_numpy(np.repeat(starts[chosen], sizes) + place)
    letters = torch.from_numpy(codes)
    team_names, team = np.unique([team_of[role] for role in chosen], return_inverse=True)
    named = teams != "none"
    return Pool(
        x=View(letters.unfold(0, WINDOW, 1), rows),
        y=letters[rows + WINDOW].long(),
        label_names=LETTER_NAMES,
        client=torch.from_numpy(np.repeat(np.arange(len(chosen)), sizes)),
        client_names=tuple(names[role] for role in chosen),
        team=torch.from_numpy(team.astype(np.int64)) if named else None,
        team_names=tuple(team_names.tolist()) if named else (),
    )


def _codes(path: Path, names: Sequence[str], texts: Sequence[str]) -> NDArray[np.uint8]:
    try:
        return letter_codes("".join(texts))
    except ValueError:
        for name, text in zip(names, texts, strict=True):
            try:
                letter_codes(text)
            except ValueError as error:
                raise DataError(f"{path}, role {name!r}: {error}") from error
        raise


def _team(path: Path, name: str, team: str, teams: str) -> str:
    if teams == "play":
        return team
    if team not in SEXES:
        raise DataError(
            f"{path}, role {name!r}: unknown sex {team!r}; it is one of {', '.join(SEXES)}"
        )
    return SEXES[team]


def _choose(
    roles: Roles | None,
    names: Sequence[str],
    team_of: Sequence[str],
    enough: NDArray[np.int64],
    least: int,
    seed: int,
) -> NDArray[np.int64]:
    """Return the numbers of the chosen roles, ascending; ``enough`` are those with enough
    windows."""
    require(len(enough) > 0, "no role has {} windows; lower least", least)
    if roles is None:
        return enough
    rng = np.random.default_rng([seed, WINDOW])

    def draw(number: int, among: NDArray[np.int64], what: str) -> NDArray[np.int64]:
        require_whole("roles", number, 1)
        require(
            number <= len(among),
            "cannot draw {} {}: only {} have at least {} windows",
            number,
            what,
            len(among),
            least,
        )
        return rng.choice(among, number, replace=False)

    if isinstance(roles, Mapping):
        drawn = []
        for team in sorted(roles):
            require(
                team in team_of,
                "roles: there is no team {!r}; teams are {}",
                team,
                ", ".join(sorted(set(team_of))),
            )
            drawn.append(
                draw(
                    roles[team], enough[[team_of[role] == team for role in enough]], f"{team} roles"
                )
            )
        require(bool(drawn), "roles must name at least one team")
        return np.sort(np.concatenate(drawn))
    if isinstance(roles, Sequence) and not isinstance(roles, str):
        number = {name: role for role, name in enumerate(names)}
        require(
            len(roles) > 0 and len(set(roles)) == len(roles),
            "roles must be different names, got {!r}",
            roles,
        )
        for name in roles:
            require(name in number, "there is no role {!r}; names look like {!r}", name, names[0])
            require(
                number[name] in enough,
                "role {} has fewer than {} windows; lower least, or set gap = false",
                name,
                least,
            )
        return np.sort([number[name] for name in roles])
    require_whole("roles", roles, 1)
    return np.sort(draw(int(roles), enough, "roles"))


def parts_in_time(pool: Pool, val: float, test: float, margin: int) -> Tensor:
    """Return (N,) the split of each window: training first, then validation and test.

    ``margin`` windows are dropped in between.
    """
    assert pool.client is not None
    sizes = torch.bincount(pool.client, minlength=len(pool.client_names)).tolist()
    borders = (val > 0) + (test > 0)
    codes: list[int] = []
    lengths: list[int] = []
    for size in sizes:
        train, middle, last = part_sizes(size - margin * borders, val, test)
        codes += [TRAIN, *([DROPPED, VAL] if val else []), *([DROPPED, TEST] if test else [])]
        lengths += [train, *([margin, middle] if val else []), *([margin, last] if test else [])]
    return torch.repeat_interleave(torch.tensor(codes), torch.tensor(lengths))
