"""Files are UTF-8 whatever the locale, and no character ends a command."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import finish, start

ROOT = Path(__file__).parents[2]
ROUNDS = ("--rounds", "2", "-a", "afl")
TABLE = ("--data", "p.csv", "--client", "hospital", "--label", "ill", "--group", "sex")


@pytest.fixture(scope="module")
def latin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A locale whose encoding is Latin-1."""
    place = tmp_path_factory.mktemp("locales")
    made = place / "en_US.ISO-8859-1"
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(made)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("localedef cannot make a locale here")
    return {"LOCPATH": str(place), "LC_ALL": made.name, "PYTHONUTF8": "0"}


def table(path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["hospital,sex,age,ill"]
    for hospital in ("Köln", "Łódź", "Bonn"):
        for _ in range(30):
            age = rng.integers(20, 90)
            lines.append(f"{hospital},{'fm'[age % 2]},{age},{int(age + rng.normal(0, 20) > 55)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def check(environment: dict[str, str], tmp_path: Path) -> None:
    """A run and its page end well, and say "Köln" in UTF-8."""
    table(tmp_path / "p.csv")
    plain = {name: "" for name in os.environ if name.startswith(("LC_", "PYTHONIO", "PYTHONUTF"))}
    environment = {**plain, **environment}
    for command in (
        ("run", *TABLE, *ROUNDS, "--out", "one"),
        ("report", "one", "--out", "page.html"),
    ):
        code, out, err = finish(start(*command, cwd=tmp_path, env=environment))
        assert code == 0, (command, err)
        assert "Traceback" not in err
        assert out
    assert "Köln," in (tmp_path / "one/afl/scores.csv").read_text(encoding="utf-8")
    assert "Köln" in (tmp_path / "one/clients.csv").read_text(encoding="utf-8")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Köln" in page or "K\\u00f6ln" in page
    assert "KÃ" not in page
    assert "Łódź" in page or "\\u0141\\u00f3d\\u017a" in page


def test_a_locale_in_latin_1_with_a_terminal_in_windows_own_encoding(
    latin: dict[str, str], tmp_path: Path
) -> None:
    check({**latin, "PYTHONIOENCODING": "cp1252"}, tmp_path)


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    check({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, tmp_path)


def test_an_unprintable_character_is_replaced(tmp_path: Path) -> None:
    command = ["-c", "from evenhand.cli.terminal import never_unprintable as n; n(); print('a→Łb')"]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (0, b"a??b\n")


# ---- the source


# whose open() is of another kind
OTHERS = {"os", "tarfile", "zipfile", "packed", "Image"}


def unspecified(parsed: ast.AST) -> Iterator[int]:
    """Lines that read or write text in the locale's encoding."""
    for node in ast.walk(parsed):
        if isinstance(node, ast.Call):
            words = {word.arg for word in node.keywords}
            if words.isdisjoint({"encoding", None}) and _as_text(node):
                yield node.lineno


def _as_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text, as far as one can see."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    method = isinstance(call.func, ast.Attribute)
    whose = getattr(getattr(call.func, "value", None), "id", "")
    words = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
    if name in ("read_text", "write_text"):
        return method  # reading.read_text is ours
    if name in ("run", "Popen"):
        return words.get("text") is True
    if name == "fdopen" or (name == "open" and whose not in OTHERS):
        at = 0 if method and name == "open" else 1  # of the mode among the arguments
        given = getattr(call.args[at], "value", "") if len(call.args) > at else "r"
        return "b" not in str(words.get("mode", given))
    return False


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("open('name')", True),
        ("open('name', 'w')", True),
        ("open('name', mode='r')", True),
        ("open('name', 'rb')", False),
        ("open('name', encoding='utf-8')", False),
        ("path.open()", True),
        ("path.open(newline='')", True),
        ("path.open('w')", True),
        ("path.open('ab')", False),
        ("path.read_text()", True),
        ("path.write_text(a)", True),
        ("path.write_text(a, encoding='utf-8')", False),
        ("os.open(path, flags)", False),
        ("os.fdopen(1, 'w')", True),
        ("os.fdopen(1, 'wb')", False),
        ("subprocess.run(c, text=True)", True),
        ("subprocess.run(c, text=True, encoding='utf-8')", False),
    ],
)
def test_the_search_finds_what_it_should(line: str, found: bool) -> None:
    assert bool(list(unspecified(ast.parse(line)))) is found


def test_no_text_is_read_or_written_in_the_locales_encoding() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line in unspecified(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not places
