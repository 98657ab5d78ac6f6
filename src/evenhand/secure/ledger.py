"""What a node has answered, in one file with its keys, written before a reply leaves the node."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from evenhand.errors import EvenhandError
from evenhand.secure.context import Context
from evenhand.secure.keys import Announcement, Identity, NodeKey, fingerprint
from evenhand.secure.refusals import Refused

KEPT = 1000  # questions whose set of clients is remembered; older rounds are refused


class Answer(NamedTuple):
    """What a node has drawn for one context; with it, the same input gives the same bytes."""

    mask: bytes  # seed of its own mask
    noise: bytes  # seed of its noise
    boxes: Mapping[int, bytes]  # by holder
    commitments: bytes


class Ledger:
    """A node's memory of what it has answered; see the rules in ``evenhand.secure.refusals``.

    The file holds private keys: a node that loses one loses the other, and comes back as new. It
    must not be restored from a copy, because the node would then answer a second time.

    Args:
        path: of the file, readable by its owner only; None keeps everything in memory (simulation).
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._text = ""
        self._lock = threading.Lock()

    # ---- keys

    def identity(self) -> Identity:
        """An identity key of the node's own, made when it is first needed."""
        with self._open() as book:
            if "identity" not in book:
                book["identity"] = _text(Identity.new().content())
            return Identity.load(_bytes(book["identity"]))

    def key(self, run: str, name: str) -> NodeKey:
        """The client's key for a run, made when it is first needed."""
        with self._open() as book:
            keys = _run(book, run)["keys"]
            if name not in keys:
                keys[name] = {"epoch": int(time.time()), "private": _text(secrets.token_bytes(32))}
            kept = keys[name]
            return NodeKey(run, name, kept["epoch"], _bytes(kept["private"]))

    def forget(self, run: str) -> None:
        """Delete the keys of a run that has ended."""
        with self._open() as book:
            book.get("runs", {}).pop(run, None)

    # ---- what the rules need

    def pin(self, run: str, announced: Iterable[Announcement]) -> None:
        """Remember who signs for a name, in all runs; raises ``Refused`` if that has changed."""
        with self._open() as book:
            owners, keys = book.setdefault("owners", {}), _run(book, run)["latest"]
            for one in announced:
                if owners.setdefault(one.name, one.signer) != one.signer:
                    raise Refused("pinned keys", f"the owner of {one.name!r} has changed")
                epoch, key = keys.get(one.name, (one.epoch, _text(one.key)))
                if one.epoch < epoch or (one.epoch == epoch and _text(one.key) != key):
                    raise Refused("pinned keys", f"the key of {one.name!r} is not its latest one")
                keys[one.name] = (one.epoch, _text(one.key))

    def pinned(self) -> dict[str, str]:
        """The fingerprints of the owners' keys that this node has seen, by the clients' names."""
        with self._open() as book:
            return {name: fingerprint(signer) for name, signer in book.get("owners", {}).items()}

    def answer(
        self, context: Context, name: str, given: bytes, draw: Callable[[], Answer]
    ) -> Answer:
        """What the node has drawn for this context and input, drawn and written now if it is new.

        Raises ``Refused`` for another input in the same context, and for older exchanges.

        Args:
            context: of the exchange.
            name: the client's name.
            given: digest of the input.
            draw: called if the context is new.
        """
        place = [context.session, context.exchange]
        about = {"place": place, "context": _text(context.digest()), "given": _text(given)}
        with self._open() as book:
            answered = _run(book, context.run)["answered"]
            last = answered.get(name)
            if last is not None and place == last["place"]:
                if {key: last[key] for key in about} != about:
                    raise Refused("one input", f"exchange {place} of {name!r} has another input")
                return _read(last)
            if last is not None and place < last["place"]:
                raise Refused("newer exchanges only", f"exchange {place} of {name!r} is over")
            drawn = draw()
            answered[name] = about | _plain(drawn)
            return drawn

    def allow(self, context: Context, name: str, chosen: bytes) -> None:
        """Remember the set of clients that a question is summed over; raises ``Refused`` if it was
        another."""
        question = _text(context.question())
        with self._open() as book:
            run = _run(book, context.run)
            sets = run["sets"].setdefault(name, {})
            if question not in sets and context.round <= run["forgotten"].get(name, -1):
                raise Refused("newer exchanges only", f"round {context.round + 1} is long over")
            before = sets.setdefault(question, [context.round, _text(chosen)])
            if before[1] != _text(chosen):
                raise Refused(
                    "one set", f"round {context.round + 1} was summed over other clients before"
                )
            while len(sets) > KEPT:
                oldest = min(sets, key=lambda asked: sets[asked][0])
                run["forgotten"][name] = sets.pop(oldest)[0]

    # ---- the file

    @contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        """The content, alone; what has changed is written at the end, unless an error is raised."""
        with self._lock:
            if self.path is None:
                book = json.loads(self._text or "{}")
                yield book
                self._text = json.dumps(book)
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(f".{self.path.name}.lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                before = self.path.read_text(encoding="utf-8") if self.path.exists() else "{}"
                try:
                    book = json.loads(before)
                except ValueError as error:
                    raise EvenhandError(
                        f"{self.path} is damaged; remove it, and the node comes back with a new key"
                    ) from error
                yield book
                after = json.dumps(book)
                if after != before:
                    _write(self.path, after.encode())


def _write(path: Path, content: bytes) -> None:
    """Write a private file so that a crash leaves the old or the new version."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def _run(book: dict[str, Any], run: str) -> dict[str, Any]:
    found: dict[str, Any] = book.setdefault("runs", {}).setdefault(run, {})
    for name in ("keys", "latest", "answered", "sets", "forgotten"):
        found.setdefault(name, {})
    return found


def _plain(answer: Answer) -> dict[str, Any]:
    return {
        "mask": _text(answer.mask),
        "noise": _text(answer.noise),
        "boxes": {str(holder): _text(box) for holder, box in answer.boxes.items()},
        "commitments": _text(answer.commitments),
    }


def _read(kept: dict[str, Any]) -> Answer:
    boxes = {int(holder): _bytes(box) for holder, box in kept["boxes"].items()}
    return Answer(_bytes(kept["mask"]), _bytes(kept["noise"]), boxes, _bytes(kept["commitments"]))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
