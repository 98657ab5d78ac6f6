"""Samples in LEAF's JSON format (Caldas et al., 2018); every user is a client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.data.leaf_samples import ENCODERS, User, image_view, joined, kind_of, labels_of
from evenhand.data.pool import Pool
from evenhand.data.storage.file import File, read
from evenhand.data.text import LETTER_NAMES, glove
from evenhand.data.views import View
from evenhand.errors import DataError, brief, require, require_choice, require_whole

# folders that LEAF's scripts write before the split, the last step first
STAGES = ("rem_user_data", "sampled_data", "all_data")


def read_leaf(
    path: Path | str,
    kind: str = "auto",
    classes: Sequence[str] | None = None,
    least: int = 1,
    strangers: str = "error",
    root: Path | str | None = None,
    dimensions: int = 100,
    most: int | None = None,
    length: int = 25,
    file: File | None = None,
) -> Pool:
    """Read the samples of all users; each user is a natural client.

    Args:
        path: a folder with train/ and test/ (or data/train and data/test), with all_data/, or with
            *.json or *.json.gz files; or one such file.
        kind: what samples are. "numbers": feature vectors; "images": vectors of pixels in [0, 1],
            returned as (1, side, side); "characters": texts of one length over LEAF's alphabet,
            where the label is the next character; "tweets": rows whose fifth entry is the text.
            "auto" decides by the first sample (and takes images for numbers).
        classes: the names of classes 0, 1, ..., if they are known; any other label is an error.
        least: skip users with fewer samples.
        strangers: what to do with users who only have test data: "error", or "drop" them.
        root: for tweets, the folder of the word vectors.
        dimensions: for tweets, the size of the word vectors (see ``evenhand.data.text.glove``).
        most: for tweets, the number of word vectors.
        length: for tweets, how many words of a tweet are used.
        file: the expected checksum of the one file at ``path``.
    """
    require_choice("kind", kind, ("auto", *ENCODERS))
    require_choice("strangers", strangers, ("error", "drop"))
    require_whole("least", least, 1)
    training, test = leaf_files(Path(path))
    users, kind = _encoded(training, kind, file)
    visitors, kind = _encoded(test, kind)
    users, visitors = _check_users(users, [user for user in visitors if len(user.x)], strangers)
    if not users:
        raise DataError(f"{path}: no user has training samples")
    rows = users + visitors
    x: Tensor | View
    label_names: tuple[str, ...]
    if kind == "tweets":
        x = glove(root, dimensions, most).encode((text for user in rows for text in user.x), length)
        y = torch.tensor([label for user in rows for label in user.y])
        label_names = ("negative", "positive")
    elif kind == "characters":
        x, y = joined(rows), torch.from_numpy(np.concatenate([user.y for user in rows]))
        label_names = LETTER_NAMES
    else:
        x = image_view(rows) if kind == "images" else joined(rows)
        y, label_names = labels_of(rows, classes)
    codes = {user.name: code for code, user in enumerate(users)}
    sizes = torch.tensor([len(user.x) for user in rows])
    teams, team_names = _teams(users)
    pool = Pool(
        x=x,
        y=y,
        label_names=label_names,
        client=torch.repeat_interleave(torch.tensor([codes[user.name] for user in rows]), sizes),
        client_names=tuple(codes),
        team=teams,
        team_names=team_names,
        held_out=torch.arange(len(y)) >= int(sizes[: len(users)].sum()) if test else None,
    )
    return at_least(pool, least)


def leaf_files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the files with training data (or all data) and the files with test data."""
    if path.is_file():
        return [path], []
    if not path.is_dir():
        raise DataError(f"{path} does not exist; pass a folder or file in LEAF's JSON format")
    for base in (path, path / "data"):
        training, test = _json_files(base / "train"), _json_files(base / "test")
        if training:
            return training, test
        for folder in (*(base / stage for stage in STAGES), base):
            if found := _json_files(folder):
                return found, []
    raise DataError(
        f"{path} has no LEAF data: no *.json or *.json.gz files in it, in train/, in all_data/ or"
        " in the same folders of data/"
    )


def _json_files(folder: Path) -> list[Path]:
    return sorted(file for pattern in ("*.json", "*.json.gz") for file in folder.glob(pattern))


def _load(path: Path, file: File | None) -> Iterator[User]:
    """Yield the users of one file, after checking its structure."""
    try:
        table = json.loads(read(path, file or File(path.name)))
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise DataError(
            f"{path} must hold an object with users, num_samples and user_data, got a"
            f" {type(table).__name__}"
        )
    for key, expected in (("users", list), ("num_samples", list), ("user_data", dict)):
        if not isinstance(table.get(key), expected):
            raise DataError(
                f"{path} has no {key!r}, or it is not a {'list' if expected is list else 'table'};"
                " LEAF's format needs it"
            )
    names, counts = [str(name) for name in table["users"]], table["num_samples"]
    data = table["user_data"]
    if len(names) != len(counts):
        raise DataError(
            f"{path} has {len(names)} users and {len(counts)} num_samples; they must be parallel"
        )
    teams = _hierarchies(path, table, names)
    for name, count in zip(names, counts, strict=True):
        user = User(path, name, teams.get(name), *_samples(path, name, data.get(name)))
        if len(user.x) != len(user.y):
            raise user.problem(f"{len(user.x)} x but {len(user.y)} y; there must be equally many")
        if len(user.x) != count:
            raise user.problem(
                f"num_samples is {brief(count)}, but there are {len(user.x)} samples"
            )
        yield user
    # LEAF's split leaves empty entries for users that it dropped
    for name in data.keys() - set(names):
        if any(_samples(path, name, data[name])):
            raise DataError(f"{path}, user {name!r}: has samples but is not listed in users")


def _samples(path: Path, name: str, entry: Any) -> tuple[list[Any], list[Any]]:
    if not isinstance(entry, dict) or not all(
        isinstance(entry.get(key), list) for key in ("x", "y")
    ):
        raise DataError(f"{path}, user {name!r}: user_data has no lists x and y for this user")
    return entry["x"], entry["y"]


def _hierarchies(path: Path, table: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Return what each user belongs to, such as the play of a role."""
    listed = table.get("hierarchies")
    if listed is None:
        return {}
    # LEAF's split keeps the entries of users that it dropped
    for owners in (names, list(table["user_data"])):
        if isinstance(listed, list) and len(listed) == len(owners):
            return {name: str(team) for name, team in zip(owners, listed, strict=True)}
    raise DataError(
        f"{path} has {len(names)} users but hierarchies that do not match them; they must be"
        " parallel"
    )


def _check_users(
    users: list[User], visitors: list[User], strangers: str
) -> tuple[list[User], list[User]]:
    """Return the users with training data, each once, and their test data."""
    for owners in (users, visitors):
        seen: dict[str, User] = {}
        for user in owners:
            if user.name in seen:
                raise user.problem(
                    f"this user is also in {seen[user.name].path}; each user must be listed once"
                )
            seen[user.name] = user
    tested = {user.name for user in visitors}
    for user in users:
        if not len(user.x) and user.name not in tested:
            raise user.problem("no samples; leave this user out of the file")
    trained = {user.name for user in users if len(user.x)}
    for user in visitors:
        if user.name not in trained and strangers == "error":
            way_out = 'create the data with -t sample, or skip such users with strangers="drop"'
            raise user.problem(f"this user has test data but no training data; {way_out}")
    users = [user for user in users if len(user.x)]
    return users, [user for user in visitors if user.name in trained]


def _encoded(paths: Sequence[Path], kind: str, file: File | None = None) -> tuple[list[User], str]:
    """Return all users with samples as arrays (texts for tweets), and the kind of the samples."""
    users: list[User] = []
    for path in paths:
        for user in _load(
            path, file
        ):  # file by file, since numbers in lists take eight times the space
            if kind == "auto" and user.x:
                kind = kind_of(user)
            users.append(ENCODERS[kind](user) if user.x else user)
    return users, kind


def _teams(users: Sequence[User]) -> tuple[Tensor | None, tuple[str, ...]]:
    if all(user.team is None for user in users):
        return None, ()
    for user in users:
        if user.team is None:
            raise user.problem(
                "no entry in hierarchies, but others have one; give all users one, or none"
            )
    names, codes = np.unique([str(user.team) for user in users], return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), tuple(names.tolist())


def at_least(pool: Pool, least: int) -> Pool:
    """Return the pool without natural clients that have fewer than ``least`` samples."""
    if pool.client is None or least <= 1:
        return pool
    sizes = torch.bincount(pool.client, minlength=len(pool.client_names))
    kept = sizes >= least
    require(
        bool(kept.any()),
        "no client has {} samples (the largest has {}); use a smaller least",
        least,
        int(sizes.max()),
    )
    rows, number = kept[pool.client], kept.cumsum(0) - 1
    names = tuple(name for name, keep in zip(pool.client_names, kept.tolist(), strict=True) if keep)
    smaller = replace(pool.select(rows), client=number[pool.client[rows]], client_names=names)
    if pool.team is None:
        return smaller
    # remove teams without clients
    left, team = np.unique(pool.team[kept].numpy(), return_inverse=True)
    return replace(
        smaller,
        team=torch.from_numpy(team.astype(np.int64)),
        team_names=tuple(pool.team_names[code] for code in left),
    )
