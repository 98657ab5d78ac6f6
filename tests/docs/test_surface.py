"""Everything public is documented: names by a docstring, commands by an example."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import click

import evenhand as eh
from evenhand.cli import main
from tools.site import commands, told

MODULES = (
    *("algorithms", "datasets", "engines", "metrics", "models", "simplex", "testing", "theory"),
    *("data.partitions", "page.figures", "flower", "sklearn", "tree", "data.shifts", "data.plots"),
    *(f"metrics.{name}" for name in ("across", "calibration", "group_rates", "ledger", "parity")),
    *(f"metrics.{name}" for name in ("rates", "spread", "teams", "trials", "uncertainty")),
)


def undocumented(name: str, value: Any) -> Iterator[str]:
    """A function, class or public method without a docstring. A method that overrides another one
    has that one's."""
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        return
    if not _said(value):
        yield name
    if inspect.isclass(value):
        for key, member in vars(value).items():
            inner = member.fget if isinstance(member, property) else member
            inner = getattr(inner, "__func__", inner)
            own = getattr(inner, "__qualname__", "").startswith(value.__qualname__)
            public = inspect.isroutine(inner) and not key.startswith("_")
            if public and own and not _said(getattr(value, key) if inner is member else inner):
                yield f"{name}.{key}"


def _said(value: Any) -> bool:
    return bool((inspect.getdoc(value) or "").strip())


def public() -> Iterator[tuple[str, Any]]:
    for name in eh.__all__:
        yield f"evenhand.{name}", getattr(eh, name)
    for name in MODULES:
        module = importlib.import_module(f"evenhand.{name}")
        own = [key for key, value in vars(module).items() if _is_own(key, value, module)]
        for key in getattr(module, "__all__", own):
            yield f"evenhand.{name}.{key}", getattr(module, key)


def _is_own(key: str, value: Any, module: Any) -> bool:
    return not key.startswith("_") and getattr(value, "__module__", "") == module.__name__


def test_every_public_name_has_a_docstring() -> None:
    found = {place for name, value in public() for place in undocumented(name, value)}
    assert sorted(found) == []


def test_every_command_shows_an_example() -> None:
    found = [
        path
        for path, command in commands(main, "evenhand")
        if not isinstance(command, click.Group)
        and not any(f"{path} " in f"{line} " for line in told(command)[1])
    ]
    assert found == []


def test_every_command_and_option_has_a_help_text() -> None:
    for path, command in commands(main, "evenhand"):
        assert command.help, path
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.help, (path, option.name)


def test_what_is_missing_is_found() -> None:
    class Silent:
        def method(self) -> None: ...

        @property
        def value(self) -> int:
            return 1

        @classmethod
        def made(cls) -> None:
            """Said."""

    assert list(undocumented("x", Silent)) == ["x", "x.method", "x.value"]

    @click.command(help="Nothing is shown.")
    def command() -> None: ...

    assert told(command) == ("Nothing is shown.", [])
