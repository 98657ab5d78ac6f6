"""Directories that runs are written into: found free, and held by one process at a time."""

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
    """Work alone in directories, which are made where they are missing; of several processes the
    first holds them. A directory that was made here and stays empty is removed again."""
    with ExitStack() as held:

        def enter() -> None:
            for directory in map(Path, directories):
                _enter(held, directory, not directory.exists())

        processes.from_first(enter, "a directory of its own")
        yield


@contextmanager
def new_place(wanted: Path, numbered: bool, remedy: str) -> Iterator[Path]:
    """Work alone in a directory for a new run, never one that holds something.

    Args:
        numbered: make a directory, with -2, -3, ... after a name that is taken.
        remedy: what to do where ``wanted`` itself holds something.
    """
    with ExitStack() as held:
        yield processes.from_first(
            lambda: _made(held, wanted) if numbered else _taken(held, wanted, remedy),
            "a directory of its own",
        )


def is_free(directory: Path) -> bool:
    """Whether a directory holds nothing, or only what a process left that was killed before it had
    written its first file."""
    return all(
        files.is_partial(path) or path.name in (LOCK, HOLDER) for path in directory.iterdir()
    )


def _made(held: ExitStack, wanted: Path) -> Path:
    """A directory that was not there before."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            os.mkdir(path)  # of processes that start at the same moment, one succeeds
            _enter(held, path, made=True)
        except (FileExistsError, Held):
            continue
        return path
    raise AssertionError("numbers do not end")


def _taken(held: ExitStack, wanted: Path, remedy: str) -> Path:
    """The directory itself, which may be there if it is free."""
    there = wanted.exists()
    # somebody's files are not even touched, unless a run is perhaps at work among them
    if there and not is_free(wanted) and not (wanted / LOCK).exists():
        raise RunError(f"{wanted} is not empty; {remedy}")
    _enter(held, wanted, not there)
    if not is_free(wanted):  # now that nobody else writes
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
