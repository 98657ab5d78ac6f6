"""Logs as one JSON object per line, for log collectors.

Each line has time, level, event, round, client, text and process; unknown values are null. Set
``EVENHAND_LOG_JSON`` for the SuperLink or a SuperNode to turn it on: 1 for standard error, or the
path of a file, which several processes may share.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from evenhand.flower import journal

VARIABLE = "EVENHAND_LOG_JSON"
LOGGERS = ("evenhand", "flwr")
STANDARD_ERROR = ("1", "-", "true")

# events by the wording of a line; the first match counts
EVENTS = {
    "round": r"^round \d+ of \d+: ",
    "left_out": r"skipped|left out|excluded|ignored",
    "refused": r"cannot take part|cannot join",
    "waiting": r"\bwait(s|ing)\b",
    "node_back": r"has a new node",
    "failed": r"a task failed|raised an exception",
}
ROUND, CLIENT = re.compile(r"\bround (\d+)"), re.compile(r"\bclient (\d+)")


def log_as_json(process: str, where: str | None = None) -> None:
    """Turn JSON logs on for this process, if ``where`` or the environment variable asks for it."""
    where = where or os.environ.get(VARIABLE, "")
    if not where or where == "0":
        return
    stream = where.lower() in STANDARD_ERROR
    handler = _ToStandardError() if stream else _ToFile(Path(where))
    handler.setFormatter(_Lines(process))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        before = [old for old in logger.handlers if not isinstance(old, _ToStandardError | _ToFile)]
        # with a file, plain text stays on the console; Python's last resort is only for loggers
        # without any handler
        shown = before or [_words()]
        logger.handlers = [handler, *([] if stream else shown)]
        logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))


def record_of(record: logging.LogRecord, process: str) -> dict[str, object]:
    """The fields of a line."""
    text = record.getMessage().strip()
    found = {
        name: int(match[1]) if (match := pattern.search(text)) else None
        for name, pattern in (("round", ROUND), ("client", CLIENT))
    }
    if record.exc_info and record.exc_info[1] is not None:
        text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    return {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "event": event_of(text),
        **found,
        "text": text,
        "process": process,
        "pid": record.process,
    }


def event_of(text: str) -> str:
    """What happened, in one word; "log" for everything else."""
    return next((name for name, words in EVENTS.items() if re.search(words, text)), "log")


class _Lines(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(record_of(record, self._process))


class _ToStandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current standard error, which Flower replaces to forward it to the
    SuperLink."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        if record.getMessage().strip():  # Flower logs empty lines
            super().emit(record)


class _ToFile(logging.Handler):
    """Writes to a file that other processes may append to as well."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path.absolute()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().strip() and record.name != journal.__name__:
            journal.append(self._path, json.loads(self.format(record)))


def _words() -> logging.Handler:
    """A handler that shows warnings as usual."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    return handler
