"""From the bytes of a text file to its characters: a guess that says what it took, or the encoding
that the user names."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from evenhand.errors import DataError

UTF8 = "utf-8"
# the longer mark first: that of UTF-32 begins like that of UTF-16
_MARKS = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LOOKED_AT = 4096  # bytes that tell UTF-16 without a mark: every other one of Latin text is 0
_ZEROS = 0.4  # the least share of those that are 0 on one side; at most a tenth of it on the other
# bytes that no text has, and bytes that cp1252 has no character for
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\x81\x8d\x8f\x90\x9d]")


class Decoded(NamedTuple):
    """The text of a file, without a byte order mark, and the encoding that it was read in."""

    text: str
    encoding: str


def decode(content: bytes, source: str, encoding: str | None = UTF8) -> Decoded:
    """The text of a file.

    Args:
        source: what to call it in errors.
        encoding: the name of one that Python knows. None guesses: UTF-8; UTF-16 where a byte order
            mark or zero bytes say so; else cp1252, Western European Windows.
    """
    taken = encoding or _guess(content, source)
    try:
        return Decoded(content.decode(taken).removeprefix("\ufeff"), taken)
    except UnicodeDecodeError as error:
        line = content[: error.start].decode(taken, errors="replace").count("\n") + 1
        at = f"byte {content[error.start]:#04x} at position {error.start}"
        raise DataError(
            f"{source} line {line} is not {taken} text ({at}); save the file as UTF-8, or give its"
            " encoding with --encoding NAME"
        ) from error
    except LookupError as error:
        raise DataError(
            f"encoding {taken!r} is none that Python knows for text; give a name such as utf-8,"
            " cp1252, latin-1 or utf-16"
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
    """cp1252 for text that is not UTF-8; UTF-8, which will be refused, for UTF-8 with a damaged
    spot: cp1252 would make two wrong letters of each of its umlauts."""
    read = content.decode(UTF8, errors="replace")
    damaged = read.count("\ufffd")
    if sum(letter > "\x7f" for letter in read) - damaged > damaged:
        return UTF8
    bad = _NO_TEXT.search(content)
    if bad is not None:
        raise DataError(
            f"{source} is not a table, or in an encoding that cannot be guessed (byte"
            f" {bad[0][0]:#04x} at position {bad.start()}); name it with --encoding NAME"
        )
    return "cp1252"
