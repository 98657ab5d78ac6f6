"""Converting the samples of LEAF's users from JSON lists to arrays; errors name file, user and
row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.text import letter_codes
from evenhand.data.views import View
from evenhand.errors import DataError

# LEAF writes 0 and 1; the original data and older scripts have 0 and 4
SENTIMENTS = {"0": 0, "1": 1, "4": 1}


class User(NamedTuple):
    """One user of one file."""

    path: Path  # of the file
    name: str
    team: str | None
    x: Any  # a list, later an array
    y: Any

    def problem(self, what: str, row: int | None = None) -> DataError:
        """Return an error that names file, user and row."""
        return DataError(
            f"{self.path}, user {self.name!r}"
            + ("" if row is None else f", row {row}")
            + f": {what}"
        )


def kind_of(user: User) -> str:
    """Return the kind of a user's samples, judging by the first one."""
    first = user.x[0]
    if isinstance(first, str):
        return (
            "characters"
            if isinstance(user.y[0], str) and len(user.y[0]) == 1 and not user.y[0].isdigit()
            else "tweets"
        )
    return (
        "tweets"
        if isinstance(first, list) and any(isinstance(entry, str) for entry in first)
        else "numbers"
    )


def _numbers(user: User) -> User:
    """Return x as (n, ...) float32, or raise an error that names the faulty row."""
    try:
        array = np.asarray(user.x)
    except ValueError:  # rows differ in length
        array = np.empty(0, dtype=object)
    # false for NaN
    if (
        array.dtype.kind in "iufb"
        and array.size
        and np.abs(array).max() <= np.finfo(np.float32).max
    ):
        return user._replace(
            x=array.astype(np.float32).reshape(len(array), *(array.shape[1:] or (1,)))
        )
    for row, values in enumerate(user.x):
        if not _is_numeric(values) or not np.size(values):
            raise user.problem("x must be numbers, in equally long lists", row)
        if np.shape(values) != np.shape(user.x[0]):
            raise user.problem(
                f"x has shape {list(np.shape(values))}, but row 0 has shape"
                f" {list(np.shape(user.x[0]))}",
                row,
            )
        if (
            not np.abs(np.asarray(values, dtype=np.float64)).max(initial=0)
            <= np.finfo(np.float32).max
        ):
            raise user.problem(
                "x has a value that is not finite (NaN or infinite); fill it or remove the row", row
            )
    raise AssertionError("some row is wrong")


def _is_numeric(values: Any) -> bool:
    try:
        return np.asarray(values).dtype.kind in "iufb"
    except ValueError:
        return False


def _pixels(user: User) -> User:
    """Return x as (n, 1, side, side): bytes if the pixels are multiples of 1/255, else float32."""
    values = _numbers(user).x
    side = round(values.shape[1] ** 0.5)
    if values.ndim != 2 or side**2 != values.shape[1]:
        raise user.problem(
            f"samples of shape {list(values.shape[1:])} are not the pixels of a square image", 0
        )
    outside = np.flatnonzero(((values < 0) | (values > 1)).any(axis=1))
    if len(outside):
        raise user.problem("a pixel is not in [0, 1]", int(outside[0]))
    shades = np.rint(values * 255)
    exact = np.abs(values * 255 - shades).max() < 1e-3
    return user._replace(
        x=(shades.astype(np.uint8) if exact else values).reshape(-1, 1, side, side)
    )


def _characters(user: User) -> User:
    """Return x as (n, length) uint8 letters and y as (n,) the letters that follow."""
    length = len(user.x[0]) if isinstance(user.x[0], str) else 0
    for row, (window, label) in enumerate(zip(user.x, user.y, strict=True)):
        if not isinstance(window, str) or not length or len(window) != length:
            raise user.problem(
                f"x must be a text of {length or 80} characters, got {window!r:.60}", row
            )
        if not isinstance(label, str) or len(label) != 1:
            raise user.problem(f"y must be one character, got {label!r:.60}", row)
    return user._replace(
        x=_letters(user, user.x).reshape(-1, length), y=_letters(user, user.y).astype(np.int64)
    )


def _letters(user: User, texts: Sequence[str]) -> NDArray[np.uint8]:
    try:
        return letter_codes("".join(texts))
    except ValueError:
        for row, text in enumerate(texts):
            try:
                letter_codes(text)
            except ValueError as error:
                raise user.problem(str(error), row) from error
        raise


def _tweets(user: User) -> User:
    """Return x as texts and y as sentiments, 0 negative and 1 positive."""
    texts, labels = [], []
    for row, (entry, label) in enumerate(zip(user.x, user.y, strict=True)):
        text = entry[4] if isinstance(entry, list) and len(entry) > 4 else entry
        if not isinstance(text, str):
            raise user.problem("x must be a text, or a row with the text as its fifth entry", row)
        if str(label) not in SENTIMENTS:
            raise user.problem(f"unknown label {label!r}; sentiments are 0 and 4, or 0 and 1", row)
        texts.append(text)
        labels.append(SENTIMENTS[str(label)])
    return user._replace(x=texts, y=labels)


ENCODERS: dict[str, Callable[[User], User]] = {
    "numbers": _numbers,
    "images": _pixels,
    "characters": _characters,
    "tweets": _tweets,
}


def joined(users: Sequence[User]) -> Tensor:
    """Return (N, ...) the samples of all users."""
    first = users[0]
    for user in users:
        if user.x.shape[1:] != first.x.shape[1:]:
            shapes = (
                f"{list(user.x.shape[1:])}, but user {first.name!r} has {list(first.x.shape[1:])}"
            )
            raise user.problem(f"samples of shape {shapes}; all users need the same", 0)
    return torch.from_numpy(np.concatenate([user.x for user in users]))


def image_view(users: Sequence[User]) -> Tensor | View:
    """Return (N, 1, side, side) all images in [0, 1]; bytes stay bytes and are scaled on use."""
    if all(user.x.dtype == np.uint8 for user in users):
        return View(joined(users), None, torch.tensor(1 / 255), torch.tensor(0.0))
    return joined(
        [
            user._replace(x=user.x / np.float32(255)) if user.x.dtype == np.uint8 else user
            for user in users
        ]
    )


def labels_of(
    users: Sequence[User], classes: Sequence[str] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Return (N,) classes with their names, or targets if some label is not a whole number."""
    flat = [
        [label[0] if isinstance(label, list) and len(label) == 1 else label for label in user.y]
        for user in users
    ]
    for user, labels in zip(users, flat, strict=True):
        for row, label in enumerate(labels):
            if isinstance(label, bool) or not isinstance(label, int | float | str):
                raise user.problem(f"y must be a number or a text, got {label!r}", row)
            if isinstance(label, float) and not np.isfinite(label):
                raise user.problem("y is not finite (NaN or infinite); remove the row", row)
            if isinstance(label, str) != isinstance(flat[0][0], str):
                raise user.problem(
                    f"y is {label!r}, but the first label is {flat[0][0]!r}; use only numbers or"
                    " only texts",
                    row,
                )
            if classes is not None and (isinstance(label, str) or label not in range(len(classes))):
                raise user.problem(
                    f"unknown label {label!r}; the classes are 0 to {len(classes) - 1}", row
                )
    values = np.array([label for labels in flat for label in labels])
    if classes is not None:
        return torch.from_numpy(values.astype(np.int64)), tuple(classes)
    if values.dtype.kind == "f" and (values != np.rint(values)).any():
        return torch.from_numpy(values.astype(np.float32)), ()
    if values.dtype.kind == "f":
        values = values.astype(np.int64)
    if values.dtype.kind in "iu" and values.min() >= 0:
        return torch.from_numpy(values.astype(np.int64)), ()
    distinct, codes = np.unique(values, return_inverse=True)  # texts, or labels such as -1 and 1
    return torch.from_numpy(codes.astype(np.int64)), tuple(
        str(label) for label in distinct.tolist()
    )
