"""Run directories: finding a free one, and locking it for one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from evenhand import files
from evenhand.engines import processes
from evenhand.errors import RunError
from evenhand.locks import HOLDER, LOCK, Held, hold


@contextmanager
def alone(*directories: str | Path) -> Iterator[None]:
    """Lock directories, creating those that are missing; with several processes, the first locks
    them.

    A directory that was created here and stays empty is removed again.
    """
    with ExitStack() as held:

        def enter() -> None:
            for directory in map(Path, directories):
                _enter(held, directory, not directory.exists())

        processes.from_first(enter, "a directory of its own")
        yield


@contextmanager
def new_place(wanted: Path, numbered: bool, remedy: str) -> Iterator[Path]:
    """Lock a directory for a new run, never one that contains anything.

    Args:
        wanted: the directory.
        numbered: create a new directory, with -2, -3, ... appended to a name that is taken.
        remedy: what to do if ``wanted`` itself is not empty, for the error message.
    """
    with ExitStack() as held:
        yield processes.from_first(
            lambda: _made(held, wanted) if numbered else _taken(held, wanted, remedy),
            "a directory of its own",
        )


def is_free(directory: Path) -> bool:
    """Whether a directory is empty, apart from leftovers of a process killed before its first
    file."""
    return all(
        files.is_partial(path) or path.name in (LOCK, HOLDER) for path in directory.iterdir()
    )


def _made(held: ExitStack, wanted: Path) -> Path:
    """Create a directory that did not exist."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            os.mkdir(path)  # if several processes start at once, one succeeds
            _enter(held, path, made=True)
        except (FileExistsError, Held):
            continue
        return path
    raise AssertionError("numbers do not end")


def _taken(held: ExitStack, wanted: Path, remedy: str) -> Path:
    """Return the directory itself, which may exist if it is free."""
    there = wanted.exists()
    # do not touch other files, not even to lock, unless a run may be active there
    if there and not is_free(wanted) and not (wanted / LOCK).exists():
        raise RunError(f"{wanted} is not empty; {remedy}")
    _enter(held, wanted, not there)
    if not is_free(wanted):  # check again, now that nobody else writes
        raise RunError(f"{wanted} is not empty; {remedy}")
    files.clear_partial(wanted)
    return wanted


def _enter(held: ExitStack, directory: Path, made: bool) -> None:
    try:
        held.enter_context(_held(directory, made))
    except OSError as error:
        raise files.cannot_write(directory, error) from error


@contextmanager
def _held(directory: Path, made: bool) -> Iterator[None]:
    try:
        with hold(directory):
            yield
    finally:
        if made:
            with suppress(OSError):
                directory.rmdir()
