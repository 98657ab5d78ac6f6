"""Progress bars for commands that train."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evenhand.cli.terminal import warnings_as_lines

if TYPE_CHECKING:
    from evenhand.studies.specs.method import Method
    from evenhand.studies.specs.spec import Spec
    from evenhand.training.fit import Progress as AfterRound


@contextmanager
def bars(spec: Spec, quiet: bool) -> Iterator[Callable[..., AfterRound]]:
    """Progress on standard error: one bar for the whole command, with the time left, and one for
    the current method or runs."""
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
    hidden = quiet or not console.is_terminal  # bars are useless in a file
    with Progress(*columns, console=console, disable=hidden) as shown, warnings_as_lines(quiet):
        counts = [
            f"{count} {what}{'s' * (count != 1)}"
            for count, what in ((each, "method"), (len(spec.seeds), "seed"))
            if count
        ]
        everything = shown.add_task(f"{' x '.join(counts)}, rounds", total=total, note="")
        current = shown.add_task("", total=spec.rounds, visible=False, note="")
        at = 0  # rounds done so far

        def go_to(done: int, together: int) -> None:
            nonlocal at
            if done > at + together:  # trained before a resume: says nothing about the speed now
                shown.reset(everything, completed=done, total=total)
            shown.update(everything, completed=done)
            at = done

        def watch(
            seed: int, method: Method, together: int = 1, finished: int | None = None
        ) -> AfterRound:
            """The progress of a run, the first of those trained ``together``, after ``finished``
            runs."""
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
    """Show the latest message of the engines, such as "compiling", beside the bar."""
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
