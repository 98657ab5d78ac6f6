"""Text as numbers: letters of a fixed alphabet, and words with vectors."""

from __future__ import annotations

import html
import io
import re
import string
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.storage.file import File, find, folder_of, read
from evenhand.data.storage.locate import locate
from evenhand.errors import DataError, require, require_whole

# the alphabet of LEAF's next-character task: 80 letters, in LEAF's order
ALPHABET = (
    "\n !\"&'(),-."
    + string.digits
    + ":;>?"
    + string.ascii_uppercase
    + "[]"
    + string.ascii_lowercase
    + "}"
)
LETTER_NAMES = ("newline", "space", *ALPHABET[2:])

PADDING, UNKNOWN, SPECIAL = (
    0,
    1,
    2,
)  # codes of the two rows before the words, and the number of such rows

GLOVE_HOME = "https://nlp.stanford.edu/data/glove.6B.zip"
GLOVE_CHECKSUM = "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb"
GLOVE_DIMENSIONS = (50, 100, 200, 300)
CUT = File(
    "glove_6b_100d_cut.npz",
    content="sha256:1a743493bbfa7d2b12843b316db3b3a0d968e944d6f9dbf5dde0ebd75f5cb34c",
)

_LETTER_CODES = np.full(256, 255, dtype=np.uint8)
_LETTER_CODES[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(
    len(ALPHABET), dtype=np.uint8
)


def letter_codes(text: str) -> NDArray[np.uint8]:
    """Return the place of each character in ``ALPHABET``; raise a ValueError for any other
    character.

    >>> letter_codes("Ay!").tolist()
    [25, 77, 2]
    """
    codes = _LETTER_CODES[np.frombuffer(text.encode("latin-1", "replace"), dtype=np.uint8)]
    # not ASCII: "replace" wrote "?", which is a letter
    if not text.isascii() or (len(codes) and codes.max() == 255):
        place, letter = next(
            (place, letter) for place, letter in enumerate(text) if letter not in ALPHABET
        )
        raise ValueError(
            f"character {letter!r} (number {place}) is not in LEAF's alphabet of {len(ALPHABET)}"
            " letters"
        )
    return codes


_TOKEN = re.compile(
    r"(?P<link>https?://\S+|www\.\S+)|(?P<handle>@\w+)|(?P<dots>\.\.+|…)"
    r"|[^\W\d_]+?(?=n't\b)|n't\b|'(?:s|m|d|re|ve|ll)\b"  # as in GloVe's words: did n't, it 's
    r"|[^\W\d_]+|\d+(?:[.,:]\d+)*|[^\w\s]|_"
)
# for word lists without the short forms
_WRITTEN_OUT = {
    "n't": "not",
    "'m": "am",
    "'re": "are",
    "'ve": "have",
    "'ll": "will",
    "'d": "would",
    "...": ".",
}


def tokens(text: str) -> list[str]:
    """Split a tweet into lower-case words, numbers and marks; a handle is "<user>", a link "<url>".

    >>> tokens("@united I didn't fly: http://t.co/x #fail &amp; it's 10:30...")
    ['<user>', 'i', 'did', "n't", 'fly', ':', '<url>', '#', 'fail', '&', 'it', "'s", '10:30', '...']
    """
    clean = html.unescape(text).replace("\u2019", "'").lower()
    names = {"link": "<url>", "handle": "<user>", "dots": "..."}
    return [names.get(match.lastgroup or "", match.group()) for match in _TOKEN.finditer(clean)]


@dataclass(frozen=True, eq=False, repr=False)
class WordVectors:
    """Words with their vectors: code 0 is padding, 1 an unknown word, 2 the first word, and so
    on."""

    words: tuple[str, ...]  # most frequent first
    # (2 + words, d) float32, row = code: zeros for padding, the mean of all words for unknown words
    vectors: Tensor

    def __repr__(self) -> str:
        return f"<WordVectors: {len(self.words)} words, {self.vectors.shape[1]} dimensions>"

    @cached_property
    def codes(self) -> dict[str, int]:
        """The code of each word."""
        return {word: code for code, word in enumerate(self.words, start=SPECIAL)}

    def encode(self, texts: Iterable[str], length: int = 25) -> Tensor:
        """Return (N, length) int32 codes of each text's first ``length`` words, padded at the
        end."""
        require_whole("length", length, 1)
        codes = self.codes
        known = {
            **{short: codes[long] for short, long in _WRITTEN_OUT.items() if long in codes},
            **codes,
        }
        rows = [[known.get(token, UNKNOWN) for token in tokens(text)[:length]] for text in texts]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        encoded = np.full((len(rows), length), PADDING, dtype=np.int32)
        encoded[np.arange(length) < lengths[:, None]] = [code for row in rows for code in row]
        return torch.from_numpy(encoded)


def glove_file(dimensions: int) -> File:
    """Return the official file of GloVe's vectors from 6 billion words."""
    require(
        dimensions in GLOVE_DIMENSIONS,
        "dimensions must be 50, 100, 200 or 300, got {!r}",
        dimensions,
    )
    name = f"glove.6B.{dimensions}d.txt"
    return File(name, url=GLOVE_HOME, checksum=GLOVE_CHECKSUM, member=name)


def glove(
    root: Path | str | None = None, dimensions: int = 100, most: int | None = None
) -> WordVectors:
    """Load GloVe's word vectors (Pennington et al., 2014), trained on 6 billion words.

    They are read from the official glove.6B.<dimensions>d.txt in the folder "glove" of the data
    root. For 100 dimensions, the small glove_6b_100d_cut.npz is used if the official file is not
    there.

    Args:
        root: the folder of all data sets; by default $EVENHAND_DATA or the user's cache.
        dimensions: 50, 100, 200 or 300.
        most: load only this many of the most frequent words. The official list has 400,000, a
            matrix of up to 480 MB.
    """
    official = glove_file(dimensions)
    require_whole("most", most, 1, optional=True)
    folder = folder_of("glove", root)
    file = (
        CUT
        if dimensions == 100
        and find(official, [folder]) is None
        and find(CUT, [folder]) is not None
        else official
    )
    (path,) = locate("glove", [file], root)
    if file is CUT:
        words, numbers = _read_npz(path, read(path, CUT))
    else:
        words, numbers = read_glove_text(path, dimensions, most)
    vectors = torch.from_numpy(numbers[:most])
    special = torch.stack([torch.zeros(dimensions), vectors.double().mean(0).float()])
    return WordVectors(tuple(words[:most]), torch.cat([special, vectors]))


def _read_npz(path: Path, content: bytes) -> tuple[list[str], NDArray[np.float32]]:
    try:
        with np.load(io.BytesIO(content)) as arrays:
            words, vectors = arrays["words"].tolist(), arrays["vectors"].astype(np.float32)
    except (KeyError, OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    return words, _checked(path, words, vectors)


def read_glove_text(
    path: Path, dimensions: int, most: int | None = None
) -> tuple[list[str], NDArray[np.float32]]:
    """Read words and vectors from lines of a word and ``dimensions`` numbers; errors name the
    line."""
    words: list[str] = []
    blocks: list[NDArray[np.float32]] = []
    with path.open("rb") as file:
        while most is None or len(words) < most:
            lines = file.readlines(1 << 24)
            if not lines:
                break
            lines = lines[: None if most is None else most - len(words)]
            heads, rows = zip(*(line.partition(b" ")[::2] for line in lines), strict=True)
            blocks.append(_numbers(path, len(words) + 1, rows, dimensions))
            try:
                words.extend(head.decode() for head in heads)
            except UnicodeDecodeError as error:  # the words before it are in the list
                raise DataError(
                    f"{path}, line {len(words) + 1}: the word is not UTF-8 text"
                ) from error
    if not words:
        raise DataError(f"{path} is empty; download it again from {GLOVE_HOME}")
    return words, _checked(path, words, np.concatenate(blocks))


def _numbers(path: Path, first: int, rows: Sequence[bytes], dimensions: int) -> NDArray[np.float32]:
    """Parse (rows, dimensions) numbers; ``first`` is the line of the first row."""
    try:
        return np.array(b" ".join(rows).split(), dtype=np.float32).reshape(len(rows), dimensions)
    except ValueError:
        pass  # look for the line below
    for line, row in enumerate(rows, start=first):
        try:
            count = len(np.array(row.split(), dtype=np.float32))
        except ValueError as error:
            raise DataError(
                f"{path}, line {line}: not a word and {dimensions} numbers ({error})"
            ) from error
        if count != dimensions:
            raise DataError(
                f"{path}, line {line}: {count} numbers instead of {dimensions}; the file may be"
                " truncated, download it again"
            )
    raise AssertionError("some line is wrong")


def _checked(path: Path, words: Sequence[str], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    if vectors.shape[:1] != (len(words),):
        raise DataError(
            f"{path} has {len(words)} words but {len(vectors)} vectors; download it again"
        )
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(f"{path}, line {bad[0] + 1}: the vector of {words[bad[0]]!r} is not finite")
    seen: set[str] = set()
    for line, word in enumerate(words, start=1):
        if word in seen:
            raise DataError(f"{path}, line {line}: word {word!r} appears twice")
        seen.add(word)
    return vectors
