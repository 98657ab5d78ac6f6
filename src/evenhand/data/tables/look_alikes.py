"""Values of a column that may be spellings of the same thing: "Nord" and "nord", "M" and "male"."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from evenhand.data.tables.bad_cells import enumerated

MOST_NAMES = 5000  # a column with more is not checked
MOST_SETS, MOST_FORMS = 3, 4  # shown in a hint
_FEW = 10  # distinct values; in a column with more, a letter may well be a code of its own
_SHORTEST = 3  # letters of a word that one letter can abbreviate: A and AB are blood groups
_ROMAN = frozenset("ivxlc")
_BETWEEN_WORDS = re.compile(r"(?<=\w)[\s_-]+(?=\w)")


def look_alikes(names: Sequence[str]) -> list[list[int]]:
    """Return positions of names that may mean the same, a list for each meaning.

    Such names differ in capitals, in spaces, hyphens or underscores between words, or in how
    Unicode writes an accent. If there are few names, a single letter also matches the only word
    that starts with it.

    >>> look_alikes(["M", "f", "male", "m", "other"]), look_alikes(["A+", "A-", "no", "normal"])
    ([[0, 2, 3]], [])
    """
    if len(names) > MOST_NAMES:
        return []
    meanings: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        meanings.setdefault(_plain(name), []).append(position)
    if len(meanings) <= _FEW:
        for letter in [plain for plain in meanings if len(plain) == 1 and plain.isalpha()]:
            words = [plain for plain in meanings if plain[0] == letter and plain != letter]
            if len(words) == 1 and _is_word(words[0]):
                meanings[words[0]] = sorted(meanings[words[0]] + meanings.pop(letter))
    return [positions for positions in meanings.values() if len(positions) > 1]


def _plain(name: str) -> str:
    return _BETWEEN_WORDS.sub(" ", unicodedata.normalize("NFC", name).casefold()) or name


def _is_word(plain: str) -> bool:
    return len(plain) >= _SHORTEST and plain.isalpha() and not _ROMAN.issuperset(plain)


def about_look_alikes(
    column: str, names: Sequence[str], counts: Sequence[int], kept: str
) -> str | None:
    """Return the hint; ``counts`` are the rows of each name, ``kept`` is such as "different
    clients"."""
    found = look_alikes(names)
    if not found:
        return None
    sets = [_forms(positions, names, counts) for positions in found[:MOST_SETS]]
    more = len(found) - len(sets)
    rest = f"; and {more} more such set{'s' * (more != 1)}" if more else ""
    return (
        f"{column!r} has {'; '.join(sets)}{rest}, which may mean the same but count as {kept};"
        " unify them in the file"
    )


def _forms(positions: Sequence[int], names: Sequence[str], counts: Sequence[int]) -> str:
    often = sorted(positions, key=lambda i: -counts[i])[:MOST_FORMS]
    forms = [f"{names[i]!r} ({counts[i]} row{'s' * (counts[i] != 1)})" for i in often]
    more = len(positions) - len(forms)
    return enumerated([*forms, *([f"{more} more"] if more else [])])
