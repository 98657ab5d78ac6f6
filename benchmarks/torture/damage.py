"""Damage to the files of runs: each is noticed or made good, or changes nothing.

Real runs are made once. Then, again and again, one of them is copied, a random file of it is
damaged in a random way, and a command or a function reads it. What comes of it is one of

detected   the command ends with 1, or the function raises, and says which file it is
healed     the command says which file it is, and ends with the files of the undamaged run
harmless   what comes out is, byte for byte, that of the undamaged run
silent     something else comes out
unnamed    an error that does not say which file it is
traceback  an error that is none of ours
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import random
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import evenhand as eh
from benchmarks.torture import Figure
from evenhand.training.checkpoints import CHECKPOINT

HELD = ("detected", "healed", "harmless")
TABLE = ("--data", "patients.csv", "--client", "site", "--label", "ill", "--group", "sex")
METHODS = ("-a", "ditto", "-a", "qffl")
# what reads a run; of an interrupted one, what it becomes is looked at
FINISHED = ("verify", "report", "resume", "load")


class Stop(Exception):
    """Ends a run before it is done."""


class Made(NamedTuple):
    """A run that is damaged again and again."""

    name: str
    actions: tuple[str, ...]
    expected: dict[str, str]  # what the undamaged run gives, by action


def figures(seconds: float, seed: int = 0) -> list[Figure]:
    """Damage finished and interrupted runs, files that Python reads, and checkpoints, a third of
    the time each."""
    each = seconds / 3
    with tempfile.TemporaryDirectory() as place, _inside(Path(place)):
        runs = made()
        checkpoint = made_checkpoint()
        return [
            _figure("files of runs: resume, report, verify", each, seed, runs, FINISHED[:3]),
            _figure("files of runs: load", each, seed + 1, runs[:3], ("load",)),
            _figure("checkpoints", each, seed + 2, [checkpoint], ("fit",)),
        ]


def outcomes(runs: list[Made], actions: tuple[str, ...], seed: int) -> Iterator[tuple[str, str]]:
    """What comes of one damage after another, and what was done; without end."""
    draw = random.Random(seed)
    while True:
        run = draw.choice(runs)
        action = draw.choice([name for name in run.actions if name in actions] or run.actions)
        shutil.rmtree(run.name)
        shutil.copytree(f"{run.name}.whole", run.name)
        damage = _damage(Path(run.name), draw)
        if damage is not None:
            touched, how = damage
            what = f"{action} of {run.name}: {how} {', '.join(touched)}"
            yield _outcome(run, action, touched), what


def _figure(
    what: str, seconds: float, seed: int, runs: list[Made], actions: tuple[str, ...]
) -> Figure:
    counts: Counter[str] = Counter()
    missed: list[str] = []
    end = time.monotonic() + seconds
    for outcome, done in outcomes(runs, actions, seed):
        counts[outcome] += 1
        if outcome not in HELD:
            missed.append(f"{outcome}: {done}")
        if time.monotonic() > end:
            break
    note = ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts))
    return Figure(
        what,
        sum(counts.values()),
        sum(counts[kind] for kind in HELD),
        "; ".join([note, *missed[:5]]),
    )


def _outcome(run: Made, action: str, touched: list[str]) -> str:
    """What comes of reading a damaged run."""
    try:
        code, given, said = _act(run.name, action)
    except eh.EvenhandError as error:
        return "detected" if _names(str(error), touched) else "unnamed"
    except Exception:
        return "traceback"
    named = _names(said, touched)
    if code:
        return "detected" if named else "unnamed"
    if given == run.expected[action]:
        return "healed" if named else "harmless"
    return "detected" if named and action == "resume" else "silent"


def _names(text: str, touched: list[str]) -> bool:
    """Whether a message of one line names a file that was damaged, or the folder that it is in."""
    names = [path.rsplit("/", 1)[-1] for path in touched]
    folders = [path.rsplit("/", 2)[-2] for path in touched if path.count("/") > 1]
    return any(name in text for name in (*names, *folders))


def _act(name: str, action: str) -> tuple[int, str, str]:
    """Exit code, digest of what comes out, and what was said on standard error."""
    if action == "load":
        return 0, _digest_of_study(eh.load(name)), ""
    if action == "fit":
        return 0, _digest_of_result(_fit(Path(name), resume=True)), ""
    extra = ("--out", "page.html") if action == "report" else ()
    code, _, said = command(action, name, *extra)
    if action == "report" and not code:
        return code, _digest(Path("page.html").read_bytes()), said
    return code, _digest_of_folder(Path(name)) if action == "resume" else "", said


def command(*arguments: str) -> tuple[int, str, str]:
    """The command line in this process: exit code, standard output and standard error."""
    from evenhand.cli import main

    out, said = io.StringIO(), io.StringIO()
    log, shown = logging.getLogger("evenhand"), logging.StreamHandler(said)
    log.addHandler(shown)
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            main(list(arguments), prog_name="evenhand")
    except SystemExit as done:
        code = done.code
    finally:
        log.removeHandler(shown)
    return int(code or 0), out.getvalue(), said.getvalue()


# ---- damage


def _damage(folder: Path, draw: random.Random) -> tuple[list[str], str] | None:
    """Damage a file; its name, and those of files that it was exchanged with, and how. None where
    that has changed nothing."""
    # the report can be made again at any time, and nothing reads it
    kept = (path for path in folder.rglob("*") if path.name != "report.html")
    paths = sorted(path for path in kept if path.is_file())
    path = draw.choice(paths)
    others = [other for other in paths if other != path]
    twins = [other for other in others if other.name == path.name]
    how = draw.choice([*CHANGES, "delete", "swap", "another's", "directory", "swap folders"])
    before = path.read_bytes()
    if how in CHANGES:
        path.write_bytes(CHANGES[how](before, draw))
        return None if path.read_bytes() == before else ([str(path)], how)
    if how == "delete":
        path.unlink()
        return [str(path)], how
    if how == "directory":
        path.unlink()
        path.mkdir()
        return [str(path)], how
    if how == "swap folders":
        return _swap_folders(folder, draw)
    if not others or (how == "another's" and not twins):
        return None
    other = draw.choice(twins if how == "another's" else others)
    if other.read_bytes() == before:
        return None
    path.write_bytes(other.read_bytes())
    if how == "another's":
        return [str(path)], how
    other.write_bytes(before)
    return [str(path), str(other)], how


def _swap_folders(folder: Path, draw: random.Random) -> tuple[list[str], str] | None:
    """Exchange two methods, or two seeds, with all their files."""
    folders = sorted(path for path in folder.rglob("*") if path.is_dir())
    pairs = [
        (one, two) for one in folders for two in folders if one < two and one.parent == two.parent
    ]
    if not pairs:
        return None
    one, two = draw.choice(pairs)
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    return [f"{one}/x", f"{two}/x", f"{folder}/manifest.json"], "swap folders"


def _flip_bit(content: bytes, draw: random.Random) -> bytes:
    return _with_byte(content, draw, lambda byte: byte ^ (1 << draw.randrange(8)))


def _flip_byte(content: bytes, draw: random.Random) -> bytes:
    return _with_byte(content, draw, lambda _: draw.randrange(256))


def _with_byte(content: bytes, draw: random.Random, change: Callable[[int], int]) -> bytes:
    place = draw.randrange(max(1, len(content)))
    return (
        content[:place]
        + bytes([change(byte) for byte in content[place : place + 1]])
        + content[place + 1 :]
    )


def _digit(content: bytes, draw: random.Random) -> bytes:
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return content
    place = draw.choice(places)
    return content[:place] + str(draw.randrange(10)).encode() + content[place + 1 :]


def _zeros(content: bytes, draw: random.Random) -> bytes:
    first = draw.randrange(max(1, len(content)))
    last = min(len(content), first + 4096)
    return content[:first] + bytes(last - first) + content[last:]


def _line_twice(content: bytes, draw: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    place = draw.randrange(max(1, len(lines)))
    return b"".join([*lines[:place], *lines[place : place + 1] * 2, *lines[place + 1 :]])


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip a bit of": _flip_bit,
    "flip a byte of": _flip_byte,
    "change a digit of": _digit,
    "cut": lambda content, draw: content[: draw.randrange(max(1, len(content)))],
    "empty": lambda content, draw: b"",
    "append to": lambda content, draw: content + draw.randbytes(draw.randint(1, 64)),
    "zero a page of": _zeros,
    "double": lambda content, draw: content * 2,
    "repeat a line of": _line_twice,
}


# ---- the runs


@contextlib.contextmanager
def _inside(place: Path) -> Iterator[None]:
    """Work in a directory."""
    before = Path.cwd()
    os.chdir(place)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(before)


def made() -> list[Made]:
    """A run, a comparison, a run of Python's, and an interrupted run, in the present directory."""
    write_table(Path("patients.csv"))
    short = (*TABLE, *METHODS, "--rounds", "3", "-q")
    assert command("run", *short, "--out", "run")[0] == 0
    two = (*TABLE, "-a", "qffl", "--seeds", "2", "--validation", "0.2", "--rounds", "2", "-q")
    assert command("compare", *two, "--out", "comparison")[0] == 0
    _fit(Path("python"))
    _interrupt(short)
    runs = [("run", FINISHED), ("comparison", FINISHED), ("python", ("verify", "report", "load"))]
    return [_kept(*run) for run in (*runs, ("interrupted", ("resume",)))]


def made_checkpoint() -> Made:
    """A run of Python's that was stopped after its second round."""

    def stop(done: int, _: object) -> None:
        if done == 3:
            raise Stop

    with contextlib.suppress(Stop):
        _fit(Path("checkpoint"), progress=stop)
    Path("checkpoint/history.csv").unlink()  # nobody reads it
    return _kept("checkpoint", ("fit",))


def _kept(name: str, actions: tuple[str, ...]) -> Made:
    """Keep a copy of a run, and what each action gives."""
    shutil.copytree(name, f"{name}.whole")
    expected = {}
    for action in actions:
        code, expected[action], _ = _act(name, action)
        assert code == 0
        shutil.rmtree(name)
        shutil.copytree(f"{name}.whole", name)
    return Made(name, actions, expected)


def _interrupt(options: tuple[str, ...]) -> None:
    """A run that was stopped in its second method, after a checkpoint."""
    from evenhand.training.checkpoints import Checkpoints

    real = Checkpoints.save

    def save(self: Checkpoints, now: Any) -> None:
        real(self, now)
        if self.directory.name == "ditto":
            raise KeyboardInterrupt

    Checkpoints.save = save  # type: ignore[method-assign]
    try:
        code, _, _ = command("run", *options, "--out", "interrupted")
    finally:
        Checkpoints.save = real  # type: ignore[method-assign]
    assert code == 130
    assert Path("interrupted/ditto", CHECKPOINT).exists()


def _fit(out: Path, resume: bool = False, progress: Any = None) -> eh.Result:
    federation = eh.datasets.digits(clients=4, seed=0)
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 10)
    return eh.fit(
        module,
        federation,
        eh.Ditto(),
        rounds=4,
        eval_every=2,
        checkpoint_every=2,
        local=eh.LocalSGD(lr=0.1, epochs=1, batch_size=64),
        out=out,
        resume=resume,
        progress=progress,
    )


def write_table(path: Path) -> None:
    """Ninety patients of three hospitals."""
    draw = np.random.default_rng(0)
    rows = [
        f"{draw.choice(list('abc'))},{draw.choice(['f', 'm'])},{draw.normal(50, 9):.2f},"
        f"{draw.choice(['A', 'B', '0'])},{draw.choice(['no', 'yes'])}"
        for _ in range(90)
    ]
    path.write_text("\n".join(["site,sex,age,blood,ill", *rows]) + "\n", encoding="utf-8")


def _digest_of_folder(folder: Path) -> str:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return _digest(*(part for path in paths for part in (str(path).encode(), path.read_bytes())))


def _digest_of_study(study: eh.Study) -> str:
    parts: list[bytes] = [repr((study.labels, study.seeds, study.measure)).encode()]
    parts += [repr(dict(about)).encode() for about in study.about]
    for trial in study.trials.values():
        for table in (trial.scores, trial.history):
            parts.append(table.to_csv().encode())
        arrays = (trial.tally, trial.outcomes, {"w": trial.weights, "v": trial.values})
        parts += [repr(trial.validation).encode(), repr(trial.certificate).encode()]
        parts += [np.asarray(held[name]).tobytes() for held in arrays for name in sorted(held)]
        models = [trial.params, *(trial.personal or [])]
        parts += [model[name].numpy().tobytes() for model in models for name in model]
    return _digest(*parts)


def _digest_of_result(result: eh.Result) -> str:
    models = [result.params, *(result.personal or [])]
    parts = [model[name].numpy().tobytes() for model in models for name in model]
    return _digest(*parts, repr(result.history_rows).encode(), result.scores.to_csv().encode())


def _digest(*parts: bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(hashlib.sha256(part).digest())
    return found.hexdigest()
