"""Records what a node was asked, for its owner, and counts its answers.

``audit.jsonl`` in the node's state-dir (or where the policy says) gets one line per message: the
time, the run, the request, and whether the node answered. A node that cannot write it does not
answer.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, RecordDict

from evenhand.errors import RunError, first_line
from evenhand.flower.answering import Declined
from evenhand.flower.policy import Policy, Refused

FILE, COUNTS = "audit.jsonl", "answered.sqlite"
LONGEST = 2000  # letters of a text in the audit file


def audited(
    policy: Policy,
    folder: Path,
    content: RecordDict,
    context: Context,
    kind: str,
    answer: Callable[[], RecordDict],
) -> RecordDict:
    """Answer a message, and record it before the answer is sent."""
    asked = _asked(content, context, kind)
    try:
        reply = answer()
    except Exception as error:
        if isinstance(error, Declined) and error.refuses:
            write_down(policy, folder, asked, "refused", first_line(error))
            raise
        write_down(policy, folder, asked, "failed", type(error).__name__)
        raise
    write_down(policy, folder, asked, "answered")
    return reply


def _asked(content: RecordDict, context: Context, kind: str) -> dict[str, Any]:
    """What a message asks for, without tensors; long texts are cut, because the server wrote
    them."""
    record = content.get("about")
    about = record if isinstance(record, ConfigRecord) else ConfigRecord()
    asked: dict[str, Any] = {"flower_run": str(context.run_id), "kind": kind}
    if "policy" not in context.node_config:
        asked["policy"] = "none"
    for name in ("run", "round", "client", "seed", "loss"):
        if name in about:
            value = about[name]
            asked[name] = value if isinstance(value, int) else str(value)[:LONGEST]
    for name, shown in (("how", "work"), ("look", "evaluation")):
        if name in about:
            asked[shown] = _plain(str(about[name]))
    return asked


def _plain(text: str) -> Any:
    if len(text) > LONGEST:
        return text[:LONGEST]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def write_down(
    policy: Policy, folder: Path, asked: Mapping[str, Any], outcome: str, reason: str = ""
) -> None:
    """Add a line to the node's audit file."""
    path = Path(policy.audit) if policy.audit else folder / FILE
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = {"time": now, **asked, "outcome": outcome} | ({"reason": reason} if reason else {})
    line = json.dumps(found, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode(errors="replace"))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RunError(
            f"its audit file cannot be written ({error.strerror}), so it answers nothing"
        ) from error


def count_answer(policy: Policy, folder: Path, kind: str, today: str | None = None) -> None:
    """Count one more answer to a kind of task; raise :class:`Refused` at the owner's limit.

    It counts before the work is done, so a node that is killed on the way has answered.
    """
    if not policy.rounds_per_day and not policy.rounds_in_total:
        return
    today = today or f"{datetime.now(UTC):%Y-%m-%d}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(folder / COUNTS, timeout=60)) as base, base:
            base.execute(
                "CREATE TABLE IF NOT EXISTS answered"
                " (day TEXT, kind TEXT, times INTEGER, PRIMARY KEY (day, kind))"
            )
            base.execute(
                "INSERT INTO answered VALUES (?, ?, 1)"
                " ON CONFLICT (day, kind) DO UPDATE SET times = times + 1",
                (today, kind),
            )
            one_day, in_total = base.execute(
                "SELECT total(times) FILTER (WHERE day = ?), total(times) FROM answered"
                " WHERE kind = ?",
                (today, kind),
            ).fetchone()
            for rule, times, most in (
                ("rounds-per-day", one_day, policy.rounds_per_day),
                ("rounds-in-total", in_total, policy.rounds_in_total),
            ):
                if most and times > most:  # raising takes the count back
                    raise Refused(f"{rule} = {most}", f"it has answered that many {kind} tasks")
    except sqlite3.Error as error:
        raise RunError(
            f"its count of answers, {COUNTS}, is damaged: {error}; its owner can remove the file"
        ) from error
