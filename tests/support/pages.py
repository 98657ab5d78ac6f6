"""Run the code of a documentation page and compare its output with what the page shows.

    python -m tests.support.pages docs/how-to/run.md [--update] [--slow]

The blocks of a page run in order in one temporary directory: ``python`` blocks share a namespace,
``sh`` blocks each have a shell. A ``text`` block after a code block is its output. An HTML comment
before a block changes that; ``DIRECTIVES`` has all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sklearn

from tests.support.transcripts import matches, refreshed
from tests.support.warm import commands

DIRECTIVES = {
    "file": "write the block to this file instead of running it",
    "not run": "show the block and do not run it, for this reason",
    "slow": "run it in the slow tests only",
    "shown": "a text block that is no output",
    "exits": "the shell block ends with this exit status",
    "setup": "hidden shell lines",
}
RUNNABLE = ("python", "sh")
LANGUAGES = {*RUNNABLE, "text", "toml", "json", "yaml", "nginx", "markdown", "html", "dockerfile"}
_FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*([\w-]*)[^`]*$")
_COMMENT = re.compile(r"^\s*<!--\s*(.*?)\s*-->\s*$", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block, or hidden setup lines, of a page."""

    language: str
    text: str
    first: int  # line numbers of its content, from 0; `last` is the one after
    last: int
    indent: str = ""
    directive: str = ""
    argument: str = ""

    @property
    def runs(self) -> bool:
        """Whether it is executed, at least by the slow tests."""
        return self.language in RUNNABLE and self.directive not in ("not run", "file")


class PageError(AssertionError):
    """A block failed, or printed something other than the page shows."""


def front_matter(text: str) -> dict[str, str]:
    """The ``key: value`` lines between ``---`` at the top of a page."""
    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    lines = found[1].splitlines() if found else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def blocks(text: str) -> list[Block]:
    """The blocks of a page in order."""
    found: list[Block] = []
    lines = text.splitlines()
    directive = argument = ""
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = at + 1
            while end < len(lines) and lines[end].strip() != fence[2]:
                end += 1
            content = [line.removeprefix(fence[1]) for line in lines[at + 1 : end]]
            found.append(
                Block(fence[3], "\n".join(content), at + 1, end, fence[1], directive, argument)
            )
            directive, at = "", end
        elif lines[at].lstrip().startswith("<!--"):
            end = at
            while "-->" not in lines[end]:
                end += 1
            comment = _COMMENT.match("\n".join(lines[at : end + 1]))
            directive, argument = _directive(comment[1] if comment else "")
            if directive == "setup":
                found.append(Block("sh", argument, at, at, directive="setup"))
                directive = ""
            at = end
        elif lines[at].strip():
            directive = ""
        at += 1
    return found


def _directive(comment: str) -> tuple[str, str]:
    for name in DIRECTIVES:
        if re.match(rf"{name}\b", comment):
            return name, comment.removeprefix(name).lstrip(":").strip()
    return "", ""


def faults(text: str) -> Iterator[str]:
    """What no run would notice: blocks without a language, outputs of nothing, missing reasons."""
    before: Block | None = None
    for block in blocks(text):
        at = f"line {block.first}"
        if block.language not in LANGUAGES:
            yield f"{at}: give the block a language of {', '.join(sorted(LANGUAGES))}"
        if block.directive in ("not run", "file", "exits") and not block.argument:
            yield f'{at}: after "{block.directive}:" say more: {DIRECTIVES[block.directive]}'
        output = block.language == "text" and block.directive != "shown"
        if output and (before is None or before.language not in RUNNABLE):
            yield f"{at}: this text block follows no code; mark it <!-- shown -->"
        before = block


class Page:
    """A page being run."""

    def __init__(self, path: Path, slow: bool = False, update: bool = False) -> None:
        self.path, self.slow, self.update = path, slow, update
        self.text = path.read_text(encoding="utf-8")
        self.module = types.ModuleType("page")
        self.module.__dict__["__name__"] = "page"

    def run(self) -> None:
        """Run the page; raise a :class:`PageError` at the first difference, or mend the page."""
        changed: list[tuple[Block, str]] = []
        with tempfile.TemporaryDirectory() as name, _inside(Path(name), self.module):
            output: str | None = None
            for block in blocks(self.text):
                if block.directive == "file":
                    target = Path(name) / block.argument
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(block.text + "\n", encoding="utf-8")
                elif block.runs:
                    skipped = block.directive == "slow" and not self.slow
                    output = None if skipped else self._output(block, Path(name))
                elif block.language != "text":
                    output = None
                elif block.directive != "shown" and output is not None:
                    if self.update:
                        changed.append((block, refreshed(block.text, output)))
                    elif not matches(block.text, output):
                        raise PageError(
                            f"{self.path}:{block.first}: the page shows\n{block.text}\n"
                            f"--- but this was printed:\n{output}"
                        )
                    output = None
        if self.update:
            self._rewrite(changed)

    def _output(self, block: Block, directory: Path) -> str:
        where = f"{self.path}:{block.first}"
        if block.language == "sh":
            text = self._shell(block, directory, where)
        else:
            text = self._python(block, directory, where)
        return text.replace(str(directory), "/home/me").strip("\n")

    def _shell(self, block: Block, directory: Path, where: str) -> str:
        bins = (
            f"{commands()}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
        root = Path(__file__).parents[2]
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", block.text],
            cwd=directory,
            env={
                **os.environ,
                "PATH": bins,
                "COLUMNS": "100",
                "NO_COLOR": "1",
                "CLONE": str(root),
                "PYTHONPATH": str(root / "src"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=1800 if self.slow else 300,
            check=False,
        )
        text = done.stdout.decode("utf-8", "replace")
        expected = int(block.argument) if block.directive == "exits" else 0
        if done.returncode != expected:
            raise PageError(f"{where}: exit status {done.returncode}\n{block.text}\n---\n{text}")
        return text

    def _python(self, block: Block, directory: Path, where: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                if block.text.startswith(">>> "):
                    _doctest(block.text, self.module, where)
                else:
                    source = directory / f"line{block.first}.py"  # for inspect and tracebacks
                    source.write_text(block.text, encoding="utf-8")
                    code = compile(block.text, str(source), "exec", dont_inherit=True)
                    exec(code, self.module.__dict__)
            except Exception as error:
                raise PageError(f"{where}:\n{block.text}\n---\n{traceback.format_exc()}") from error
        return printed.getvalue()

    def _rewrite(self, changed: list[tuple[Block, str]]) -> None:
        lines = self.text.splitlines()
        for block, text in reversed(changed):
            shown = [(block.indent + line).rstrip() for line in text.splitlines()]
            lines[block.first : block.last] = shown
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _doctest(text: str, module: types.ModuleType, where: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, module.__dict__, "page", where, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    if runner.run(test, out=sys.stdout.write, clear_globs=False).failed:
        raise PageError(sys.stdout.getvalue())  # type: ignore[attr-defined]


@contextlib.contextmanager
def _inside(directory: Path, module: types.ModuleType) -> Iterator[None]:
    """Work in a directory, with its modules importable, and leave nothing behind."""
    before, path, loaded = Path.cwd(), list(sys.path), set(sys.modules)
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    os.chdir(directory)
    sys.path.insert(0, str(directory))
    sys.modules["page"] = module
    try:
        with warnings.catch_warnings(), sklearn.config_context():
            warnings.simplefilter("default")
            yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - loaded:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if name == "page" or file.startswith(str(directory)):
                del sys.modules[name]
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns


def main() -> None:
    """Run or update pages from the command line."""
    parser = argparse.ArgumentParser(description="Run the code of documentation pages.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--update", action="store_true", help="write what was printed to the page")
    parser.add_argument("--slow", action="store_true", help="run slow blocks too")
    asked = parser.parse_args()
    failed = 0
    for path in asked.pages:
        for fault in faults(path.read_text(encoding="utf-8")):
            failed += 1
            print(f"{path}: {fault}")
        try:
            Page(path, asked.slow, asked.update).run()
            print(f"{path}: ok")
        except PageError as error:
            failed += 1
            print(error)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
