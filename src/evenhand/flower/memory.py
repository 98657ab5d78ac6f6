"""A client's memory between rounds, on its own disk.

A node may execute a task twice, or one whose reply never counts: the server gave up and asked
again, the node stopped between writing and replying, or the server resumed from an earlier round.
So memory depends only on the run and on the last round in which the server **counted** this
client's reply. Every task names that round, and

- training in round r starts from the memory after round ``counted``, and writes the memory after
  round r beside it;
- questions and evaluation only read the memory after round ``counted``.

So executing a task again gives the same reply and the same memory, and a late reply leaves no trace
in later rounds, as in the simulator.

Each file has the memory after one round. Old files are removed while a later round is trained,
never while reading. The newest few before ``counted`` stay (a resumed server may ask for one
again), and the newest few after it (late replies). A server that goes back further gets an error
that lists the available rounds.

An error's text reaches the server, so it names no path of the node; the node's log does.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from evenhand import tree
from evenhand.errors import RunError, require_whole
from evenhand.files import clear_partial, read_tensors, write_atomic, write_tensors
from evenhand.reading import read_text
from evenhand.tree import Tree

log = logging.getLogger(__name__)

FIRST = -1  # counted, before any reply of the client counts
SPARE = 2  # memories to keep on either side of the one that counts
# seconds to wait for another process of this node; reading and writing take moments
PATIENCE = 60.0

KEEP_RUNS = 5  # other runs that a node keeps, unless they are old
DAY = 86400.0  # seconds
IDLE_DAYS, OLD_DAYS = 7, 90

# it becomes a folder name, and comes from the server
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FILE = re.compile(r"after-(\d+)\.safetensors")
_CLIENT = re.compile(r"client-\d+")


class MemoryLost(RunError):
    """The node lacks the memory that the server asks for: the server went back too far, or the node
    lost its disk."""


class NodeMemory:
    """One client's memory of one run. Other runs and other clients in the same ``directory`` have
    separate folders.

    Args:
        directory: the node's own folder, which outlives its processes.
        run: the run's name; a resumed run keeps it.
        client: the client's number.
        spare: how many memories to keep before and after the one that counts.
        session: grows with each start of the server; a task of an earlier session that arrives
            after one of a later session leaves no trace.
        keep_runs: how many other runs to keep, see :func:`forget_old_runs`.
    """

    def __init__(
        self,
        directory: Path,
        run: str,
        client: int,
        spare: int = SPARE,
        session: int = 0,
        keep_runs: int = KEEP_RUNS,
    ) -> None:
        if not _RUN.fullmatch(run):
            raise ValueError(
                "run must be a name of at most 100 letters, digits, '.', '_' and '-', got"
                f" {run[:120]!r}"
            )
        require_whole("client", client, 0)
        require_whole("spare", spare, 0)
        require_whole("session", session, 0)
        require_whole("keep-runs", keep_runs, 0)
        self._folder, self._keep_runs = directory / run / f"client-{client}", keep_runs
        self._run, self._client, self._session, self._spare = run, client, session, spare

    def recall(self, first: Tree, counted: int) -> Tree:
        """The memory after round ``counted``, or ``first``, whose form later ones share, if that is
        :data:`FIRST`."""
        require_whole("counted", counted, FIRST)
        # many methods have no memory
        if counted == FIRST or (not first and not self._folder.exists()):
            return first
        with self._alone():
            rounds = self._rounds()
            if not first and not rounds:
                return first
            if counted not in rounds:
                held = ", ".join(map(str, rounds)) or "none"
                raise MemoryLost(
                    f"client {self._client} has no memory after round {counted} of run {self._run};"
                    f" it has those after rounds: {held}. Start a new run, or resume from a"
                    " checkpoint after one of these"
                )
            flat = self._read(counted)
        found = tree.unflatten(flat)
        if first and not found.keys() & first.keys():
            return found  # a method's work after the last round may leave something else
        if not first:
            return found
        # some work needs only a part, such as the client's normalisation
        part = {name: kept for name, kept in found.items() if name in first}
        self._check_fits(tree.flatten(part), tree.flatten(first), counted)
        return _with_empty_branches(found, first)

    def remember(self, round: int, counted: int, memory: Tree) -> None:
        """Save the memory after training in ``round``, which started from that after round
        ``counted``."""
        require_whole("counted", counted, FIRST)
        require_whole("round", round, counted + 1)
        if not memory:
            return
        if not self._folder.exists():  # the first time in this run
            forget_old_runs(self._folder.parent.parent, self._run, self._keep_runs)
        with self._alone():
            self._be_newest()
            clear_partial(self._folder)
            about = {"run": self._run, "client": self._client, "round": round, "counted": counted}
            write_tensors(self._path(round), memory, about)
            self._remove_old(round, counted)

    def _be_newest(self) -> None:
        """Record the session; raise if there was a later one."""
        path = self._folder / "session"
        newest = self._session_of(path) if path.exists() else 0
        if newest > self._session:
            raise RunError(
                "the task is from before the server was restarted, and client"
                f" {self._client} has had later ones"
            )
        if newest < self._session:
            write_atomic(path, str(self._session).encode())

    def _session_of(self, path: Path) -> int:
        try:
            return int(read_text(path))
        except (RunError, ValueError) as error:
            raise RunError(
                f"client {self._client} cannot read the last session of run {self._run}: the file"
                ' is damaged; remove the file "session" from its memory'
            ) from error

    def _remove_old(self, round: int, counted: int) -> None:
        rounds = self._rounds()
        before = [known for known in rounds if known < counted]
        late = [known for known in rounds if counted < known < round]
        for group in (before, late):
            for known in group[: max(len(group) - self._spare, 0)]:
                self._path(known).unlink()

    def _rounds(self) -> list[int]:
        """Rounds after which there is a memory, ascending."""
        names = (_FILE.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def _path(self, round: int) -> Path:
        return self._folder / f"after-{round}.safetensors"

    def _read(self, round: int) -> dict[str, Tensor]:
        who = f"client {self._client} cannot use its memory after round {round} of run {self._run}"
        try:
            flat, about = read_tensors(self._path(round))
        except RunError as error:
            raise RunError(
                f"{who}: the file is damaged; restore it from a copy, or start a new run"
            ) from error
        owner = tuple(about.get(name) for name in ("run", "client", "round"))
        if owner != (self._run, self._client, round):
            raise RunError(
                f"{who}: the file belongs to another run, client or round; restore the right one,"
                " or start a new run"
            )
        return flat

    def _check_fits(self, flat: dict[str, Tensor], first: dict[str, Tensor], counted: int) -> None:
        who = (
            f"the memory of client {self._client} after round {counted} of run {self._run} does"
            " not fit the model"
        )
        if flat.keys() != first.keys():
            raise RunError(f"{who}: it has other entries; start a new run")
        for key, leaf in first.items():
            if (flat[key].shape, flat[key].dtype) != (leaf.shape, leaf.dtype):
                raise RunError(
                    f"{who}: {key} is {_kind(flat[key])}, expected {_kind(leaf)}; start a new run"
                )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of this node from reading or writing meanwhile; the lock of a dead
        process is free."""
        from filelock import FileLock, Timeout

        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder / ".lock", timeout=PATIENCE):
                yield
        except Timeout as error:
            raise RunError(
                f"another process of client {self._client} has held its memory for {PATIENCE:g} s;"
                " stop one of them"
            ) from error
        except OSError as error:
            way_out = (
                "free space on its disk"
                if error.errno in (errno.ENOSPC, errno.EDQUOT)
                else "see its log"
            )
            raise RunError(
                f"client {self._client} cannot use its memory folder; nothing there is lost;"
                f" {way_out}"
            ) from error


def forget_old_runs(directory: Path, current: str, keep: int = KEEP_RUNS) -> list[str]:
    """Remove the memory of old runs; returns their names.

    Old runs are those unused for OLD_DAYS and, beyond the ``keep`` most recent, those unused for
    IDLE_DAYS. Other files stay.
    """
    if not directory.is_dir():
        return []
    used = {
        folder: max((path.stat().st_mtime for path in folder.rglob("*")), default=0.0)
        for folder in directory.iterdir()
        if folder.is_dir() and folder.name != current and _is_run(folder)
    }
    gone, now = [], time.time()
    for place, folder in enumerate(sorted(used, key=lambda it: -used[it])):
        days = (now - used[folder]) / DAY
        if days > OLD_DAYS or (place >= keep and days > IDLE_DAYS):
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(folder.name)
    if gone:
        log.info("removed the memory of %d old runs: %s", len(gone), ", ".join(gone))
    return gone


def _is_run(folder: Path) -> bool:
    """Whether a folder contains only memory of clients."""
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    return bool(files) and all(
        _CLIENT.fullmatch(path.relative_to(folder).parts[0])
        and (_FILE.fullmatch(path.name) or path.name in ("session", ".lock"))
        for path in files
    )


def _kind(leaf: Tensor) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"


def _with_empty_branches(found: Tree, first: Tree) -> Tree:
    """Add the empty branches of the first memory, which files do not store."""
    for key, value in first.items():
        if isinstance(value, dict):
            found[key] = _with_empty_branches(found.get(key, {}), value)
    return found
