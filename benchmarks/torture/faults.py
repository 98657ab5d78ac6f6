"""Faults of a federation of real processes: each run must end with the simulator's parameters for
the clients that took part, to the bit.

One SuperLink and three SuperNodes with TLS and node keys; runs of a method whose clients remember
(Ditto). At a random moment of each run something is killed, halted or told to end.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.torture import Figure
from evenhand.flower.status import read_status
from evenhand.flower.tryout.errors import FederationError
from evenhand.flower.tryout.loopback import Loopback, Run
from tests.support.flower_trial import AT_WORK, PATIENCE, Trial, history, same_params

METHOD, ROUNDS = "ditto", 3
MOMENTS = 25.0  # seconds of a run within which something happens
FAULTS = ("server app", "node", "client app", "client app, SIGTERM", "SuperLink", "node halted")


def figures(seconds: float, seed: int) -> list[Figure]:
    """Runs with a fault each, one of each kind at least, and more until the time is over."""
    rng, end = random.Random(seed), time.monotonic() + seconds
    tried, held = dict.fromkeys(FAULTS, 0), dict.fromkeys(FAULTS, 0)
    told, absent, starts = 0, 0, 0
    with tempfile.TemporaryDirectory() as place:
        trial = Trial(Path(place))
        with trial.federation("federation", tls=True) as federation:
            while time.monotonic() < end or not all(tried.values()):
                fault = FAULTS[sum(tried.values()) % len(FAULTS)]
                out = Path(place) / f"run-{sum(tried.values())}"
                tried[fault] += 1
                starts += _run_with(fault, trial, federation, out, rng)
                lost = lost_in(out)
                absent += len(lost)
                held[fault] += same_params(out, trial.simulated(METHOD, ROUNDS, lost))
                told += is_told(out)
    rows = [
        Figure(f"ends with the simulator's parameters: {fault}", tried[fault], held[fault])
        for fault in FAULTS
    ]
    total = sum(tried.values())
    note = f"{starts} starts of the server app; {absent} replies of clients were lost"
    return [
        *rows,
        Figure("flower status says that it is finished, and who answered", total, told, note),
    ]


def lost_in(out: Path) -> list[tuple[str, int, int]]:
    """Work, round and client that a run went without, from its history."""
    return [
        ("train", int(row["round"]) - 1, int(client))
        for row in history(out)
        for client in row["left_out"].replace(",", " ").split()
    ]


def _run_with(fault: str, trial: Trial, federation: Loopback, out: Path, rng: random.Random) -> int:
    """A run in which something happens; how often it was started."""
    how = {"rounds": ROUNDS, "deadline": 100.0, "app": trial.slow}
    run = trial.start(federation, out, METHOD, **how)
    time.sleep(MOMENTS * rng.random())
    starts, deadline = 1, time.monotonic() + 2 * PATIENCE
    if _act(fault, federation, run, rng):
        starts, run = 2, trial.start(federation, out, METHOD, **how)
    while not (out / "final.safetensors").exists():
        if run.status().startswith("finished") and not (out / "final.safetensors").exists():
            # as an operator would: a node was missing at the start
            starts, run = starts + 1, trial.start(federation, out, METHOD, **how)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{fault}: {out} has not ended; the log:\n{run.log()}")
        time.sleep(2)
    run.wait(60)
    return starts


def _act(fault: str, federation: Loopback, run: Run, rng: random.Random) -> bool:
    """Do it; whether there is no server app any more."""
    node = rng.choice(federation.nodes)
    if fault == "server app":
        with suppress(FederationError):  # it has not begun
            run.kill_server_app()
            return True
    elif fault == "SuperLink":
        federation.link.kill()
        federation.link.restart()
        return True
    elif fault == "node":
        node.kill()
        node.restart()
    elif fault == "node halted":
        halted = node.pids()
        _signal(halted, signal.SIGSTOP)
        time.sleep(5 + 20 * rng.random())
        _signal(halted, signal.SIGCONT)
    else:
        begun, deadline = node.text().count(AT_WORK), time.monotonic() + 120
        while node.text().count(AT_WORK) == begun and time.monotonic() < deadline:
            time.sleep(0.05)
        number = signal.SIGTERM if "SIGTERM" in fault else signal.SIGKILL
        _signal([pid for pid in node.pids() if _is_for_a_message(pid)][-1:], number)
    return False


def _is_for_a_message(pid: int) -> bool:
    with suppress(OSError):
        return b"flwr-clientapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def is_told(out: Path) -> bool:
    """Whether the status of a finished run is right."""
    found = read_status(out)
    last = history(out)[-1]["left_out"].replace(",", " ").split()
    return (
        found.state == "finished"
        and found.done == ROUNDS
        and not found.problems
        and all(
            (client.answered == ROUNDS) == (str(client.number) not in last)
            for client in found.clients
        )
    )
