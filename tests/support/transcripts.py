"""Compare what a program printed with what a page shows of it."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import cache

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_PIECE = re.compile(rf"(?P<any>\.\.\.)|(?P<number>{_NUMBER.pattern})|(?P<space>\s+)|(?P<rule>─+)")


def matches(shown: str, printed: str) -> bool:
    """Whether a transcript fits: a line ``...`` stands for any lines, ``...`` in a line for any
    characters, white space may differ, and numbers may be off by rounding.

    >>> matches("mean 84.2\\n...\\ndone", "mean  84.3\\nworst 54.0\\nstd 3\\ndone")
    True
    >>> matches("mean 84.2\\ndone", "mean 86.2\\ndone")
    False
    """
    expected, actual = shown.strip("\n").splitlines(), printed.strip("\n").splitlines()

    @cache
    def fits(i: int, j: int) -> bool:
        if i == len(expected):
            return j == len(actual)
        if expected[i].strip() == "...":
            return fits(i + 1, j) or (j < len(actual) and fits(i, j + 1))
        return j < len(actual) and line_matches(expected[i], actual[j]) and fits(i + 1, j + 1)

    return fits(0, 0)


def line_matches(shown: str, printed: str) -> bool:
    """Whether one line fits.

    >>> line_matches("worst 10 %: 54.0 [44.2, 66.1]", "worst 10 %: 54.1 [44.2, 66.0]")
    True
    >>> line_matches("4 clients", "5 clients"), line_matches("took ... s", "took 12.3 s")
    (False, True)
    """
    pattern, numbers = _pattern(shown.strip())
    found = re.fullmatch(pattern, printed.strip())
    return found is not None and all(map(_close, numbers, found.groups()))


def _pattern(shown: str) -> tuple[str, list[str]]:
    pattern, numbers, at = "", [], 0
    for piece in _PIECE.finditer(shown):
        pattern += re.escape(shown[at : piece.start()])
        at = piece.end()
        if piece["any"]:
            pattern += ".*?"
        elif piece["number"]:
            pattern += f"({_NUMBER.pattern})"
            numbers.append(piece["number"])
        else:
            pattern += r"\s+" if piece["space"] else "─+"
    return pattern + re.escape(shown[at:]), numbers


def _close(shown: str, printed: str) -> bool:
    """Equal up to 2 % or two units of the last digit; small whole numbers are counts, and equal."""
    a, b = (float(text.replace(",", "")) for text in (shown, printed))
    if a == b:
        return True
    if "." not in shown and "e" not in shown:
        return min(a, b) >= 100 and abs(a - b) <= 0.02 * max(a, b)
    digits = len(shown.split("e")[0].partition(".")[2])
    power = int(shown.partition("e")[2] or 0)
    return abs(a - b) <= max(2.0001 * 10 ** (power - digits), 0.02 * max(abs(a), abs(b)))


def refreshed(shown: str, printed: str) -> str:
    """What was printed, cut at the ``...`` lines of what a page has shown so far.

    >>> refreshed("mean 84.2\\n...\\ndone", "mean 86.2\\nworst 54.0\\ndone")
    'mean 86.2\\n...\\ndone'
    """
    expected, actual = shown.strip("\n").splitlines(), printed.strip("\n").splitlines()
    if all(line.strip() != "..." for line in expected):
        return "\n".join(_kept(expected, actual))
    chunks: list[list[str]] = [[]]
    for line in expected:
        if line.strip() == "...":
            chunks.append([])
        else:
            chunks[-1].append(line)
    kept: list[str] = []
    at = 0
    for number, chunk in enumerate(chunks):
        if number:
            kept.append("...")
        if not chunk:
            continue
        if number == 0:
            start = 0
        elif number == len(chunks) - 1:
            start = max(at, len(actual) - len(chunk))
        else:
            start = _likely(chunk[0], actual, at)
        lines = actual[start : start + len(chunk)]
        kept += _kept(chunk, lines)
        at = start + len(lines)
    return "\n".join(kept)


def _kept(shown: list[str], printed: list[str]) -> list[str]:
    """The printed lines; those with ``...`` in them stay where they still fit."""
    if len(shown) != len(printed):
        return printed
    return [
        old if "..." in old and line_matches(old, new) else new
        for old, new in zip(shown, printed, strict=True)
    ]


def _likely(line: str, lines: list[str], first: int) -> int:
    """Where among ``lines`` one like ``line`` is."""
    ratio = SequenceMatcher(autojunk=False)
    ratio.set_seq2(line)
    best, where = -1.0, first
    for at in range(first, len(lines)):
        ratio.set_seq1(lines[at])
        if ratio.ratio() > best:
            best, where = ratio.ratio(), at
    return where
