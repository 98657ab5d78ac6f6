"""What commands that train share: where they print, how they stop, and progress with the time that
is left."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from evenhand.errors import first_line, is_expected, is_out_of_memory

if TYPE_CHECKING:
    from rich.console import Console

    from evenhand.studies.specs.method import Method
    from evenhand.studies.specs.spec import Spec
    from evenhand.training.fit import Progress as AfterRound

DEBUG = "EVENHAND_DEBUG"  # of the environment, so that other processes see it, too
BUG = 70  # the exit code of an error that no user can mend, sysexits' EX_SOFTWARE
WIDTH_IN_FILES = 110  # a pipe has no width, and rich would cut columns to fit 80
WITH_INTERVALS = 130  # the same, for tables with intervals


@dataclass
class Begun:
    """What there is to resume after an interruption."""

    directory: Path | None = None
    speaks: bool = True  # of several processes, the first


@contextmanager
def stopping_cleanly(quiet: bool = False) -> Iterator[Begun]:
    """Turn errors and Ctrl-C into one line on standard error and an exit code."""
    begun, log = Begun(), logging.getLogger("evenhand")
    level = log.level
    if quiet:
        log.setLevel(logging.ERROR)
    try:
        with _among_others(begun):
            yield begun
    except KeyboardInterrupt:
        hint = (
            f"; continue with: evenhand resume {shlex.quote(str(begun.directory))}"
            if begun.directory
            else ""
        )
        if begun.speaks:
            click.echo(f"stopped{hint}", err=True)
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        end_with(error, begun.speaks)
    finally:
        log.setLevel(level)


def end_with(error: Exception, speaks: bool = True) -> NoReturn:
    """Say in one line what went wrong, and exit: 1 for what a user can mend, 70 for a fault of the
    program. With --debug the traceback comes first.

    Args:
        speaks: of several processes, whether this is the one that says it.
    """
    if isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
        raise error  # click has its own words for these
    if speaks and debugging():
        traceback.print_exception(error)
    if is_out_of_memory(error):
        line, code = f"not enough memory: {first_line(error)}", 1
    elif is_expected(error):
        line, code = str(error) or type(error).__name__, 1
    else:
        way = (
            "report it with the traceback above"
            if debugging()
            else ("rerun with --debug for the traceback and report it with that")
        )
        line, code = (
            f"unexpected error: {type(error).__name__}: {first_line(error)} (this is a bug: {way})",
            BUG,
        )
    if speaks:  # an error of one process is an error of all
        click.echo(f"evenhand: {line}", err=True)
    sys.exit(code)


def debugging() -> bool:
    """Whether --debug, or EVENHAND_DEBUG=1, asks for tracebacks."""
    return os.environ.get(DEBUG, "") not in ("", "0")


class Commands(click.Group):
    """A group of commands that end every error with one line, and take --debug at any place."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = args.index("--") if "--" in args else len(args)
        if "--debug" in args[:rest]:
            args = [arg for arg in args[:rest] if arg != "--debug"] + args[rest:]
            before = os.environ.get(DEBUG)
            os.environ[DEBUG] = "1"
            ctx.call_on_close(lambda: _restore(before))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click ends quietly
            raise
        except Exception as error:
            end_with(error)


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(DEBUG, None)
    else:
        os.environ[DEBUG] = before


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
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield


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
