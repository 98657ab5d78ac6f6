"""Decoding the bytes of a text file: in the encoding that the user names, or in a guessed one."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from evenhand.errors import DataError

UTF8 = "utf-8"
# longer marks first: UTF-32's starts like UTF-16's
_MARKS = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LOOKED_AT = 4096  # bytes checked for UTF-16 without a mark: every other byte of Latin text is 0
_ZEROS = 0.4  # the least share of zeros on one side; at most a tenth of it on the other
# bytes that text does not contain, and bytes without a character in cp1252
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\x81\x8d\x8f\x90\x9d]")


class Decoded(NamedTuple):
    """The text of a file, without a byte order mark, and its encoding."""

    text: str
    encoding: str


def decode(content: bytes, source: str, encoding: str | None = UTF8) -> Decoded:
    """Return the text of a file.

    Args:
        content: its bytes.
        source: what to call it in errors.
        encoding: a name that Python knows. None guesses: UTF-8; UTF-16 if there is a byte order
            mark or zero bytes; else cp1252 (Western European Windows).
    """
    taken = encoding or _guess(content, source)
    try:
        return Decoded(content.decode(taken).removeprefix("\ufeff"), taken)
    except UnicodeDecodeError as error:
        line = content[: error.start].decode(taken, errors="replace").count("\n") + 1
        at = f"byte {content[error.start]:#04x} at position {error.start}"
        raise DataError(
            f"{source} line {line} is not {taken} text ({at}); save the file as UTF-8, or pass its"
            " encoding with --encoding NAME"
        ) from error
    except LookupError as error:
        raise DataError(
            f"unknown text encoding {taken!r}; use a name that Python knows, such as utf-8, cp1252,"
            " latin-1 or utf-16"
        ) from error


def _guess(content: bytes, source: str) -> str:
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return encoding
    even, odd = (content[side:_LOOKED_AT:2] for side in (0, 1))
    if len(odd) > 1:
        left, right = even.count(0) / len(even), odd.count(0) / len(odd)
        if max(left, right) >= _ZEROS and min(left, right) <= _ZEROS / 10:
            return "utf-16-be" if left > right else "utf-16-le"
    try:
        content.decode(UTF8)
    except UnicodeDecodeError:
        return _of_old_windows(content, source)
    return UTF8


def _of_old_windows(content: bytes, source: str) -> str:
    """Return cp1252 for text that is not UTF-8, and UTF-8 for UTF-8 text with a damaged spot.

    The latter will be refused; cp1252 would turn each umlaut into two wrong letters.
    """
    read = content.decode(UTF8, errors="replace")
    damaged = read.count("\ufffd")
    if sum(letter > "\x7f" for letter in read) - damaged > damaged:
        return UTF8
    bad = _NO_TEXT.search(content)
    if bad is not None:
        raise DataError(
            f"{source} is not a table, or its encoding cannot be guessed (byte"
            f" {bad[0][0]:#04x} at position {bad.start()}); pass it with --encoding NAME"
        )
    return "cp1252"
