"""How the command line ends where something goes wrong that nobody has foreseen."""

from __future__ import annotations

import gc
from contextlib import suppress

import click
import pytest

from evenhand.cli import main
from evenhand.cli.terminal import stopping_cleanly, without_collector
from tests.support.commands import invoke

RAISES = {
    "bug": lambda: [][0],
    "type": lambda: len(3),  # type: ignore[arg-type]
    "memory": lambda: bytearray(1 << 60),
    "recursion": lambda: _endless(),
}


def _endless() -> None:
    _endless()


@main.command("test-only", hidden=True)
@click.argument("what")
@click.option("--wrapped", is_flag=True)
def _fails(what: str, wrapped: bool) -> None:
    if not wrapped:
        RAISES[what]()
    with stopping_cleanly():
        RAISES[what]()


WAY = "(this is a bug: rerun with --debug for the traceback and report it with that)\n"


@pytest.mark.parametrize("wrapped", [(), ("--wrapped",)])
def test_a_fault_of_the_program_ends_in_one_line_and_a_way_to_report_it(
    wrapped: tuple[str, ...],
) -> None:
    assert invoke("test-only", "bug", *wrapped) == (
        70,
        "",
        f"evenhand: unexpected error: IndexError: list index out of range {WAY}",
    )
    code, _, err = invoke("test-only", "type", *wrapped)
    assert (code, err) == (
        70,
        f"evenhand: unexpected error: TypeError: object of type 'int' has no len() {WAY}",
    )
    code, _, err = invoke("test-only", "recursion", *wrapped)
    assert code == 70
    assert err.startswith("evenhand: unexpected error: RecursionError: maximum recursion depth")
    assert err.count("\n") == 1


def test_too_little_memory_is_no_fault_of_the_program() -> None:
    code, _, err = invoke("test-only", "memory")
    assert (code, err) == (1, "evenhand: not enough memory: MemoryError\n")


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback_wherever_it_stands(place: int) -> None:
    arguments = ["test-only", "bug", "--wrapped"]
    code, _, err = invoke(*arguments[:place], "--debug", *arguments[place:])
    assert code == 70
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith(
        "evenhand: unexpected error: IndexError: list index out of range (this is a bug: report it"
        " with the traceback above)\n"
    )
    assert "Traceback" not in invoke(*arguments)[2]  # it holds for one command


def test_debug_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DEBUG", "1")
    assert "Traceback" in invoke("test-only", "bug")[2]
    monkeypatch.setenv("EVENHAND_DEBUG", "0")
    assert "Traceback" not in invoke("test-only", "bug")[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ("algorithms", "nothing"),
        ("data", "describe", "nothing"),
        ("data", "fetch", "nothing"),
        ("report", "/nowhere/at/all"),
        ("audit", "/nowhere.csv", "--label", "a", "--prediction", "b"),
        ("run", "--data", "nothing"),
    ],
)
def test_expected_errors_keep_their_line(arguments: tuple[str, ...]) -> None:
    code, _, err = invoke(*arguments)
    assert code in (1, 2)
    assert "bug" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_after_a_command_without_it(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with suppress(ValueError), without_collector():
            assert not gc.isenabled()
            raise ValueError
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
