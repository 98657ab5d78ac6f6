"""Questions and answers on Stack Overflow by user: predict the next word.

TensorFlow Federated's files are HDF5 with each user's sentences as ``examples/USER/tokens``, byte
strings of words separated by spaces, and a list of words with their counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.partitions import natural
from evenhand.data.pool import TEST, TRAIN, VAL, Partition, Pool
from evenhand.data.splits import part_sizes, shares_in_order
from evenhand.data.storage.file import File
from evenhand.data.storage.file import read as read_file
from evenhand.data.storage.locate import locate
from evenhand.data.views import View
from evenhand.errors import DataError, first_line, require, require_choice, require_whole

HOME = "https://storage.googleapis.com/tff-datasets-public"


def _file(name: str, archive: str) -> File:
    return File(name, hint=f"unpack {HOME}/{archive} and put it there")


PARTS = ("train", "held_out", "test")
USERS = {part: _file(f"stackoverflow_{part}.h5", "stackoverflow.tar.bz2") for part in PARTS}
WORDS = _file("stackoverflow.word_count", "stackoverflow.word_count.tar.bz2")
FILES = (USERS["train"], WORDS)

PADDING = 0  # words are 1, 2, ..., most frequent first; then unknown words, begin and end
SPECIAL = 4

Ints = NDArray[np.int64]


def stackoverflow(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | str | None = None,
    least: int = 10_000,
    most: int | None = 12_500,
    among: int | None = 10_000,
    users: int | Sequence[str] | None = None,
    part: str = "train",
    words: int = 10_000,
    length: int = 20,
    per_sentence: int | None = None,
    order: str = "file",
) -> Federation:
    """Load windows of 20 words from Stack Overflow; the label is the next word; each user is a
    client.

    A sample is the words of a sentence up to some position, after padding and a begin mark; the
    label is the next word. As in TensorFlow Federated's experiments (Reddi et al., 2021), only the
    first ``length`` words of a sentence are used; a shorter one also has an end mark. There, a
    sentence is one sample with up to ``length`` labels; here it makes as many samples, or
    ``per_sentence`` of them.

    The defaults select the users of PropFair's experiments: those with 10,000 to 12,500 sentences
    among the first 10,000 users. With ``split={"test": 0.5}``, a user's first sentences are for
    training and the last for testing. (The published code draws both from all sentences.)

    Args:
        split: shares of each user's sentences for "val" and "test", by default ``{"test": 0.2}``.
        least: the smallest number of sentences of a user.
        most: the largest number of sentences of a user; None for no limit.
        among: use only this many users of the file, the first by name. Counting the sentences of
            all 342,477 takes minutes.
        users: how many of them to draw (by ``seed``), or their names. None uses all.
        part: the official file: "train", "held_out" (other users) or "test" (later sentences of
            users in "train").
        words: the number of known words, the most frequent; all others are one unknown word.
            Padding, unknown, begin and end add 4 labels.
        length: words per window.
        per_sentence: draw only this many windows per sentence, by ``seed``; None uses all. With 1,
            a user has as many samples as sentences.
        order: of the sentences before they are split: as in the "file", or "random".
    """
    require_choice("order", order, ("file", "random"))
    text = read(root, least, most, among, users, part, words, length, seed)
    if order == "random":
        text = text.shuffled(seed)
    val, test = shares_in_order(split, "sentence", "each user's sentences")
    way_out = "remove val or partition"
    require(val == 0 or partition is None, "val needs users as clients; {}", way_out)
    pool, codes = text.windows(val, test, per_sentence, seed)
    if partition is None:
        return Federation.from_pool(pool, natural(pool, seed=seed, clients=clients), codes)
    return deal(replace(pool, held_out=codes == TEST), partition, "official", seed, clients)


@dataclass(frozen=True)
class Text:
    """Sentences of some users as word codes."""

    codes: NDArray[np.int16]  # of all words, sentence by sentence, without marks
    sizes: Ints  # (S,) words of each sentence, at most ``length``
    owner: Ints  # (S,) its user, ascending
    names: tuple[str, ...]  # of the users
    labels: tuple[str, ...]  # what codes mean
    length: int

    def shuffled(self, seed: int) -> Text:
        """Return each user's sentences in random order."""
        chance = np.random.default_rng([seed, 20]).random(len(self.sizes))
        row = np.lexsort((chance, self.owner))
        first = np.cumsum(self.sizes) - self.sizes
        sizes = self.sizes[row]
        codes = self.codes[_ranges(first[row], sizes)]
        return replace(self, codes=codes, sizes=sizes)

    def windows(
        self, val: float, test: float, per_sentence: int | None, seed: int
    ) -> tuple[Pool, Tensor]:
        """Return every next-word prediction, and the split of its sentence."""
        require_whole("per_sentence", per_sentence, 1, optional=True)
        length, known = self.length, len(self.labels)
        begin, end = known - 2, known - 1
        # a sentence is stored as padding, begin, words, end: the window before each word, and
        # before the end, stays inside
        span = length + self.sizes + 1
        first = np.cumsum(span) - span
        laid = np.zeros(span.sum(), dtype=np.int16)
        laid[first + length - 1] = begin
        laid[_ranges(first + length, self.sizes)] = self.codes
        laid[first + span - 1] = end
        count = np.minimum(self.sizes + 1, length)  # no end mark if it continues or just fits
        sentence = np.repeat(np.arange(len(count)), count)
        rows = _ranges(first, count)
        if per_sentence is not None:
            chance = np.random.default_rng([seed, 21]).random(len(rows))
            rank = np.empty(len(rows), dtype=np.int64)
            rank[np.lexsort((chance, sentence))] = _ranges(np.zeros_like(count), count)
            kept = rank < per_sentence
            rows, sentence = rows[kept], sentence[kept]
        letters, starts = torch.from_numpy(laid), torch.from_numpy(rows)
        pool = Pool(
            x=View(letters.unfold(0, length, 1), starts),
            y=letters[starts + length].long(),
            label_names=self.labels,
            client=torch.from_numpy(self.owner[sentence]),
            client_names=self.names,
        )
        return pool, torch.from_numpy(self._parts(val, test)[sentence])

    def _parts(self, val: float, test: float) -> Ints:
        """Return (S,) the split of each sentence: a user's first are for training, then
        validation and test."""
        wanted = [
            part_sizes(int(size), val, test)
            for size in np.bincount(self.owner, minlength=len(self.names))
        ]
        return np.repeat(np.tile([TRAIN, VAL, TEST], len(wanted)), np.reshape(wanted, -1))


def read(
    root: Path | str | None = None,
    least: int = 1,
    most: int | None = None,
    among: int | None = None,
    users: int | Sequence[str] | None = None,
    part: str = "train",
    words: int = 10_000,
    length: int = 20,
    seed: int = 0,
) -> Text:
    """Read the sentences of the chosen users; see ``stackoverflow``."""
    require_choice("part", part, PARTS)
    require_whole("least", least, 1)
    require_whole("most", most, least, optional=True)
    require_whole("among", among, 1, optional=True)
    require_whole("length", length, 1)
    require_whole("words", words, 1)
    require(words <= 2**15 - 1 - SPECIAL, "words must be at most {}, got {}", 32_763, words)
    path, listed = locate("stackoverflow", (USERS[part], WORDS), root)
    known = vocabulary(listed, words)
    code_of = {word: code for code, word in enumerate(known, start=1)}
    unknown = len(known) + 1
    codes: list[int] = []
    sizes: list[int] = []
    counts: list[int] = []
    with _opened(path) as examples:
        chosen = _choose(path, examples, least, most, among, users, seed)
        for name in chosen:
            sentences = _sentences(path, examples, name)
            counts.append(len(sentences))
            for sentence in sentences:
                found = [code_of.get(word, unknown) for word in sentence.split()[:length]]
                codes += found
                sizes.append(len(found))
    return Text(
        np.array(codes, dtype=np.int16),
        np.array(sizes, dtype=np.int64),
        np.repeat(np.arange(len(chosen)), counts),
        tuple(chosen),
        ("<pad>", *(word.decode() for word in known), "<oov>", "<bos>", "<eos>"),
        length,
    )


def vocabulary(path: Path, words: int) -> list[bytes]:
    """Read the most frequent words, from lines of a word and its count."""
    found: list[bytes] = []
    for number, line in enumerate(read_file(path, WORDS).splitlines()[:words], start=1):
        fields = line.split()
        if len(fields) != 2 or not fields[1].isdigit():
            raise DataError(f"{path}, line {number}: not a word and its count; download it again")
        try:
            fields[0].decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, line {number}: the word is not UTF-8 text") from error
        found.append(fields[0])
    if len(found) < words:
        raise DataError(f"{path} has only {len(found)} words, not {words}; lower words")
    if len(set(found)) < words:
        raise DataError(f"{path} lists a word twice; download it again")
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Yield the group of all users in an HDF5 file."""
    try:
        import h5py
    except ImportError:
        raise DataError(
            "Stack Overflow's files need h5py: pip install h5py (extra: evenhand[hdf5])"
        ) from None
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path} is not a complete HDF5 file: {first_line(error)}") from error
    with file:
        if not isinstance(file.get("examples"), h5py.Group):
            raise DataError(f"{path} has no group 'examples'; it is not a file of users")
        yield file["examples"]


def _sentences(path: Path, examples: Any, name: str) -> Any:
    """Return a user's sentences as bytes."""
    tokens = _tokens(path, examples, name)[()]
    if len(tokens) and not isinstance(tokens[0], bytes):
        raise DataError(f"{path}, user {name}: tokens are not texts")
    return tokens


def _tokens(path: Path, examples: Any, name: str) -> Any:
    user = examples[name]
    if "tokens" not in user or len(user["tokens"].shape) != 1:
        raise DataError(f"{path}, user {name}: there is no list 'tokens'")
    return user["tokens"]


def _choose(
    path: Path,
    examples: Any,
    least: int,
    most: int | None,
    among: int | None,
    users: int | Sequence[str] | None,
    seed: int,
) -> list[str]:
    """Return the names of the chosen users, in the order of the file."""
    if isinstance(users, Sequence):
        require(
            not isinstance(users, str) and len(users) == len(set(users)) > 0,
            "users must be a number or a list of different names, got {!r}",
            users,
        )
        for name in users:
            require(name in examples, "{} has no user {!r}", path, name)
        return sorted(users)
    names = sorted(examples)[:among]
    sizes = [_tokens(path, examples, name).shape[0] for name in names]
    enough = [
        name
        for name, size in zip(names, sizes, strict=True)
        if least <= size and (most is None or size <= most)
    ]
    limits = f"at least {least}" if most is None else f"{least} to {most}"
    require(
        bool(enough),
        "none of {} users has {} sentences (the largest has {}); change least, most or among",
        len(names),
        limits,
        max(sizes, default=0),
    )
    if users is None:
        return enough
    require_whole("users", users, 1)
    require(
        users <= len(enough),
        "cannot draw {} users: only {} have {} sentences",
        users,
        len(enough),
        limits,
    )
    drawn = np.random.default_rng([seed, 22]).choice(len(enough), users, replace=False)
    return [enough[place] for place in sorted(drawn)]


def _ranges(first: Ints, sizes: Ints) -> Ints:
    """Concatenate ranges: ``sizes[0]`` numbers from ``first[0]``, then ``sizes[1]`` from
    ``first[1]``, ..."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes - first, sizes)
