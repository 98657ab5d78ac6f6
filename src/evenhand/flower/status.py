"""The status of a federation's run, read only from its directory: while a server works, after it
was killed, and when it is finished.

Nothing here waits, locks, writes or imports slow modules.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evenhand.errors import RunError, first_line
from evenhand.flower import journal
from evenhand.flower.faults import FILE as FAULTS
from evenhand.locks import HOLDER, LOCK

ROSTER, SPEC, HISTORY = "roster.json", "spec.toml", "history.csv"
CHECKPOINT, MODEL = "checkpoint.safetensors", "model.safetensors"
LAST_ROUNDS = 20  # over which the time of a round is averaged


@dataclass(frozen=True)
class Client:
    """A client of the run, as far as the directory shows."""

    number: int
    name: str
    share: str
    answered: int | None = None  # the last round in which its reply counted
    left_out: int = 0  # times
    why: str = ""  # the last time
    when: int | None = None  # the round of that


@dataclass(frozen=True)
class Server:
    """The process that holds the run's lock."""

    pid: int
    host: str
    since: str
    runs: bool | None  # None: on another machine, which cannot be asked


@dataclass(frozen=True)
class Status:
    """The status of a run."""

    run: str
    state: str  # "finished", "working", "waiting", "stalled" or "stopped"
    done: int
    rounds: int | None
    server: Server | None
    seconds: float | None = None  # of a round, on average over the last ones
    last_seconds: float | None = None
    left_seconds: float | None = None
    moved: str | None = None  # when the last line was written, UTC
    quiet_seconds: float | None = None
    clients: list[Client] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)  # faults of nodes that are no client
    problems: list[str] = field(default_factory=list)


def read_status(run: Path, now: datetime | None = None) -> Status:
    """Read the status of the run in a directory; raises a RunError if there is none."""
    now, problems = now or datetime.now(UTC), list[str]()
    if not run.is_dir():
        raise RunError(f"{run} is not a directory; give the out of a server app, such as runs/ours")
    folder = _folder(run)
    roster = _json(run / ROSTER, problems)
    lines = _lines(run / journal.PROGRESS, problems)
    if folder is None and roster is None and not lines and not problems:
        raise RunError(
            f"{run} contains no run of a federation; give the out of a server app, such as"
            " runs/ours"
        )
    faults = _lines(folder / FAULTS, problems) if folder else []
    spec = _toml(run / SPEC, problems)
    rounds = _whole(spec.get("rounds")) or _last(lines, "rounds")
    done = _done(folder, lines, problems)
    server = _server(run, problems)
    missed = _missed(folder / HISTORY, problems) if folder else {}
    clients = _clients(roster, lines, faults, missed, problems)
    taken = [float(line["seconds"]) for line in _rounds(lines) if _is_number(line.get("seconds"))]
    mean = sum(taken[-LAST_ROUNDS:]) / len(taken[-LAST_ROUNDS:]) if taken else None
    moved = str(lines[-1].get("time")) if lines else None
    quiet = _seconds_since(moved, now)
    finished = folder is not None and (folder / MODEL).exists() and done == rounds
    state = _state(finished, server, lines, quiet)
    known = {client.number for client in clients}
    return Status(
        run=str(run),
        state=state,
        done=done,
        rounds=rounds,
        server=server,
        seconds=mean,
        last_seconds=taken[-1] if taken else None,
        left_seconds=None if mean is None or rounds is None else mean * max(0, rounds - done),
        moved=moved,
        quiet_seconds=quiet,
        clients=clients,
        others=[fault for fault in faults if fault.get("client") not in known],
        problems=problems,
    )


def _folder(run: Path) -> Path | None:
    """The method's folder, if the first round is done or a client was skipped in it."""
    for name in (CHECKPOINT, MODEL, HISTORY, FAULTS):
        with suppress(OSError):
            if found := sorted(run.glob(f"*/{name}")):
                return found[0].parent
    return None


def _state(
    finished: bool, server: Server | None, lines: list[dict[str, Any]], quiet: float | None
) -> str:
    if server is not None and server.runs is not False:
        last = lines[-1] if lines else {}
        if finished and last.get("event") == "end":
            return "finished"
        allowed = (_last(lines, "deadline") or 600) + (_last(lines, "patience") or 600)
        if quiet is not None and quiet > allowed:
            return "stalled"
        return "waiting" if last.get("event") == "start" else "working"
    return "finished" if finished else "stopped"


def _done(folder: Path | None, lines: list[dict[str, Any]], problems: list[str]) -> int:
    """Rounds that a server would not repeat: those of the checkpoint."""
    path = None if folder is None else folder / CHECKPOINT
    if path is not None and path.exists():
        try:
            return rounds_in(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(
                f"{path} is damaged: {first_line(error)}; restore the run directory from a copy"
            )
    rounds = [int(line["round"]) for line in _rounds(lines)]
    return rounds[-1] if rounds else 0


def rounds_in(path: Path) -> int:
    """The rounds of a checkpoint, from its small header; raises an OSError, ValueError, KeyError or
    TypeError if it is damaged."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= path.stat().st_size - 8:
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
    return int(json.loads(header["__metadata__"]["evenhand"])["rounds"])


def _server(run: Path, problems: list[str]) -> Server | None:
    about = _json(run / HOLDER, problems)
    if about is None:
        return None
    try:
        pid, host, since = int(about["pid"]), str(about["host"]), str(about["since"])
    except (KeyError, TypeError, ValueError):
        problems.append(f"{run / HOLDER} does not name the server's process")
        return None
    return Server(pid, host, since, _holds(pid, run / LOCK) if host == platform.node() else None)


def _holds(pid: int, lock: Path) -> bool:
    """Whether a process of this machine runs and, if that can be seen, has the lock open: its id
    may have been reused."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    opened = Path(f"/proc/{pid}/fd")
    try:
        target = os.stat(lock)
        files = list(opened.iterdir())
    except FileNotFoundError:
        return not opened.parent.parent.joinpath("self").exists()
    except OSError:
        return True
    for file in files:
        with suppress(OSError):
            if os.path.samestat(os.stat(file), target):
                return True
    return False


def _clients(
    roster: Mapping[str, Any] | None,
    lines: list[dict[str, Any]],
    faults: list[dict[str, Any]],
    missed: Mapping[str, list[int]],
    problems: list[str],
) -> list[Client]:
    answered: dict[int, int] = {}
    for line in _rounds(lines):
        for client in line.get("clients") or ():
            if isinstance(client, int):
                answered[client] = int(line["round"])
    blamed: dict[int, list[dict[str, Any]]] = {}
    for fault in faults:
        if isinstance(fault.get("client"), int):
            blamed.setdefault(fault["client"], []).append(fault)
    try:
        named = [
            (str(client["name"]), str(client["share"])) for client in (roster or {})["clients"]
        ]
    except (KeyError, TypeError):
        if roster is not None:
            problems.append(f"{ROSTER} does not list the clients; restore it from a copy")
        named = []
    found = []
    for number, (name, share) in enumerate(named):
        own = blamed.get(number, [])
        noted = {fault.get("round") for fault in own}
        # rounds of earlier versions, or faults that could not be written
        own += [
            {"round": round, "what": "the server's log says why"}
            for round in missed.get(name, [])
            if round not in noted
        ]
        own.sort(key=lambda fault: _whole(fault.get("round")) or 0)
        why, when = (str(own[-1].get("what")), own[-1].get("round")) if own else ("", None)
        out = sum(fault.get("kind") != "bounded" for fault in own)
        found.append(Client(number, name, share, answered.get(number), out, why, _whole(when)))
    return found


def _missed(path: Path, problems: list[str]) -> dict[str, list[int]]:
    """The rounds in which clients were skipped, by name, from the history."""
    found: dict[str, list[int]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                for name in filter(None, (row.get("left_out") or "").split(", ")):
                    found.setdefault(name, []).append(int(row["round"]))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        problems.append(f"{path} is damaged: {first_line(error)}; the checkpoint has its rows, too")
    return found


# Files that may be missing, half-written or damaged


def _json(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path} is damaged: {first_line(error)}; restore it from a copy")
        return None


def _toml(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{path} is damaged: {first_line(error)}; restore it from a copy")
        return {}


def _lines(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    try:
        found = journal.read(path)
    except OSError as error:
        problems.append(f"{path} cannot be read: {first_line(error)}")
        return []
    if found.damaged:
        problems.append(f"{path} has {found.damaged} damaged lines, which are ignored")
    return found.records


def _rounds(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        line
        for line in lines
        if line.get("event") == "round" and _whole(line.get("round")) is not None
    ]


def _last(lines: list[dict[str, Any]], key: str) -> int | None:
    return next((_whole(line[key]) for line in reversed(lines) if _is_number(line.get(key))), None)


def _whole(value: Any) -> int | None:
    return int(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53


def _seconds_since(moved: str | None, now: datetime) -> float | None:
    try:
        return max(0.0, (now - datetime.fromisoformat(moved or "")).total_seconds())
    except (ValueError, TypeError):
        return None
