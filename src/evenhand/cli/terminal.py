"""What commands that train share: where they print, how they stop, and progress with the time that
is left."""

from __future__ import annotations

import errno
import io
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

import evenhand

if TYPE_CHECKING:
    from rich.console import Console

    from evenhand.studies.specs.method import Method
    from evenhand.studies.specs.spec import Spec
    from evenhand.training.fit import Progress as AfterRound

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
WIDTH_IN_FILES = 110  # a pipe has no width, and rich would cut columns to fit 80
WITH_INTERVALS = 130  # the same, for tables with intervals


@dataclass
class Begun:
    """What there is to resume after an interruption."""

    directory: Path | None = None
    speaks: bool = True  # of several processes, the first

    @property
    def resume(self) -> str:
        """How to go on with what was begun, in words; empty where nothing was."""
        if self.directory is None or not (self.directory / "spec.toml").exists():
            return ""
        return f"continue with: evenhand resume {shlex.quote(str(self.directory))}"


class Stopped(KeyboardInterrupt):
    """A signal asks the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def stopping_cleanly(quiet: bool = False) -> Iterator[Begun]:
    """Turn errors, Ctrl-C and the signals that end a process into one line on standard error and an
    exit code."""
    begun, log = Begun(), logging.getLogger("evenhand")
    level = log.level
    if quiet:
        log.setLevel(logging.ERROR)
    try:
        with _signals_as_exceptions(), _among_others(begun), _saying_how_to_go_on(begun):
            yield begun
    except KeyboardInterrupt as stop:
        hint = f"; {begun.resume}" if begun.resume else ""
        if begun.speaks:
            with suppress(OSError):  # the terminal may be gone
                click.echo(f"stopped{hint}", err=True)
        sys.exit(128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT))
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (
        ValueError,
        TypeError,
        OSError,
        RuntimeError,
        ImportError,
        evenhand.EvenhandError,
    ) as error:
        if begun.speaks:  # an error of one process is an error of all
            click.echo(f"evenhand: {error}", err=True)
        sys.exit(1)
    finally:
        log.setLevel(level)


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, unless they are ignored (nohup) or
    somebody else handles them."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough, and leaves time to clean up
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = (signal.SIGTERM, signal.SIGHUP)
    taken = [number for number in known if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _saying_how_to_go_on(begun: Begun) -> Iterator[None]:
    """Add to the error of a file that cannot be written how to go on once it can."""
    from evenhand.errors import WriteError

    try:
        yield
    except OSError as error:
        if not isinstance(error, WriteError) and error.errno not in NO_ROOM:
            raise
        from evenhand.files import cannot_write

        found = cannot_write(error.filename or "the output", error)
        raise WriteError(f"{found}; then {begun.resume}" if begun.resume else str(found)) from error


@contextmanager
def _among_others(begun: Begun) -> Iterator[None]:
    """Where torchrun has started several processes, join them; all but the first are silent."""
    if int(os.environ.get("WORLD_SIZE", 1)) < 2:
        yield
        return
    from evenhand.engines import processes

    with processes.join():
        begun.speaks = processes.is_first()
        if begun.speaks:
            yield
            return
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - closed in the next line
        with nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield


def never_unprintable() -> None:
    """Print characters that the terminal's encoding does not have as "?"."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def results_console(quiet: bool = False, width: int = WIDTH_IN_FILES) -> Console:
    """Standard output; ``width`` columns where it is a file."""
    from rich.console import Console

    console = Console(quiet=quiet)
    return (
        console
        if console.is_terminal or "COLUMNS" in os.environ
        else Console(quiet=quiet, width=width)
    )


@contextmanager
def warnings_as_lines(quiet: bool) -> Iterator[None]:
    """Warnings as one line on standard error, or not at all."""
    import warnings

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: (
            None if quiet else click.echo(f"warning: {message}", err=True)
        )
        yield


@contextmanager
def bars(spec: Spec, quiet: bool) -> Iterator[Callable[..., AfterRound]]:
    """Progress on standard error: a bar for all of it, with the time left, and one for the method,
    or the runs, being trained."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    times = (
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    columns = (TextColumn("{task.description}"), BarColumn(), *times)
    each, seeds = len(spec.methods), spec.seeds or (spec.seed,)
    total = len(seeds) * each * spec.rounds
    console = Console(stderr=True, quiet=quiet)
    hidden = quiet or not console.is_terminal  # bars in a file say nothing
    with Progress(*columns, console=console, disable=hidden) as shown, warnings_as_lines(quiet):
        counts = [
            f"{count} {what}{'s' * (count != 1)}"
            for count, what in ((each, "method"), (len(spec.seeds), "seed"))
            if count
        ]
        everything = shown.add_task(f"{' x '.join(counts)}, rounds", total=total, note="")
        current = shown.add_task("", total=spec.rounds, visible=False, note="")
        at = 0  # rounds done, of all

        def go_to(done: int, together: int) -> None:
            nonlocal at
            if done > at + together:  # finished earlier: no measure of this machine's speed
                shown.reset(everything, completed=done, total=total)
            shown.update(everything, completed=done)
            at = done

        def watch(
            seed: int, method: Method, together: int = 1, finished: int | None = None
        ) -> AfterRound:
            """For a run, the first of several that are trained ``together``, after so many that are
            ``finished``."""
            before = spec.runs_before(seed, method, finished) * spec.rounds
            go_to(before, together)
            one = f"seed {seed}: {method.label}" if spec.seeds else method.label
            shown.reset(
                current,
                total=spec.rounds,
                description=one if together == 1 else f"{together} runs together",
                visible=True,
            )

            def after_round(done: int, _: dict[str, Any]) -> None:
                go_to(before + together * done, together)
                shown.update(current, completed=done)

            return after_round

        with _engine_notes(lambda text: shown.update(current, note=text)):
            yield watch
        shown.update(current, visible=False)
        shown.update(everything, completed=total)


@contextmanager
def _engine_notes(show: Callable[[str], None]) -> Iterator[None]:
    """Show what engines log, such as that they compile, while it is the last that they said."""
    log, handler = logging.getLogger("evenhand.engines"), logging.Handler()
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    before = log.level
    log.addHandler(handler)
    log.setLevel(min(before or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
