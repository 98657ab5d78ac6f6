"""Output, errors and signals, for all commands."""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from evenhand.errors import first_line, is_expected, is_out_of_memory

if TYPE_CHECKING:
    from rich.console import Console

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
DEBUG = "EVENHAND_DEBUG"  # in the environment, so that child processes see it, too
BUG = 70  # the exit code of an unexpected error, EX_SOFTWARE of sysexits
# columns of output that goes to a file or a pipe: rich would cut tables to fit 80
WIDTH_IN_FILES = 110
WITH_INTERVALS = 130  # for tables with intervals
SHORT = 80  # for the short form of results


@dataclass
class Begun:
    """What an interrupted command leaves behind."""

    directory: Path | None = None
    speaks: bool = True  # only the first of several processes prints

    @property
    def resume(self) -> str:
        """How to resume the run, in words; empty if none was begun."""
        if self.directory is None or not (self.directory / "spec.toml").exists():
            return ""
        return f"continue with: evenhand resume {shlex.quote(str(self.directory))}"


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def stopping_cleanly(quiet: bool = False) -> Iterator[Begun]:
    """Turn errors, Ctrl-C, SIGTERM and SIGHUP into one line on standard error and an exit code."""
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
    except BrokenPipeError:  # the reader of the pipe has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        end_with(error, begun.speaks)
    finally:
        log.setLevel(level)


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python from looking for cycles of unused objects: for a short command that mostly
    imports and reads, whose many objects are nearly all in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def end_with(error: Exception, speaks: bool = True) -> NoReturn:
    """Print one line about the error and exit: with 1 if the user can fix it, also in a method of
    their own, and with 70 if it is a bug. With --debug the traceback comes first.

    Args:
        speaks: whether this process prints; only the first of several does.
    """
    if isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
        raise error  # click prints these itself
    if speaks and debugging():
        traceback.print_exception(error)
    if is_out_of_memory(error):
        line, code = f"not enough memory: {first_line(error)}", 1
    elif is_expected(error):
        line, code = str(error) or type(error).__name__, 1
    elif (blamed := failing_method(error)) is not None:
        way = "" if debugging() else ", or rerun with --debug"
        line, code = (
            f"{blamed}: {type(error).__name__}: {first_line(error)}; check it with"
            f" evenhand.testing.check_algorithm{way}",
            1,
        )
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


def failing_method(error: Exception) -> str | None:
    """Say which method of the user's own failed, and in which function; None if there is none.

    The innermost function of such a method is blamed, also one that it inherits; if there is none,
    the method that was being trained.
    """
    base = sys.modules.get("evenhand.algorithm")
    if base is None:
        return None  # nothing was trained yet
    trained = ""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        acting = frame.f_locals.get("self")
        for method in (acting, getattr(acting, "algorithm", None)):
            kind = type(method)
            if not isinstance(method, base.Algorithm) or kind.__module__.startswith("evenhand."):
                continue
            name = f"the method {kind.__module__}:{kind.__qualname__} failed"
            if method is acting and not frame.f_code.co_name.startswith("<"):
                return f"{name} in {frame.f_code.co_name}"
            trained = trained or name
    return trained or None


def debugging() -> bool:
    """Whether --debug or EVENHAND_DEBUG=1 is set."""
    return os.environ.get(DEBUG, "") not in ("", "0")


class Commands(click.Group):
    """Commands in named sections. They print any text in any terminal, report every error in one
    line, and accept --debug anywhere.

    Args:
        sections: names of commands by the heading that ``--help`` lists them under.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in self.sections.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for heading, names in self.sections.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name.ljust(width), command.get_short_help_str(limit=formatter.width))
                for name, command in commands
                if command is not None
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        never_unprintable()
        return super().main(*args, **kwargs)

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
def _signals_as_exceptions() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, unless they are ignored (nohup) or have
    a handler already."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
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
    """Add how to resume to the error about a file that cannot be written."""
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
    """Join the processes that torchrun has started; all but the first are silent."""
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
    """Print "?" for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def results_console(quiet: bool = False, width: int = WIDTH_IN_FILES) -> Console:
    """Standard output, with ``width`` columns if it is a file or a pipe."""
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


def open_page(page: Path) -> None:
    """Open a page in the user's browser, or say that there is none."""
    from webbrowser import open_new_tab

    if not open_new_tab(page.resolve().as_uri()):
        click.echo(f"evenhand: found no browser; open {page} yourself", err=True)
