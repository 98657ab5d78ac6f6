"""Choices by measurement, remembered in the process and in a small file.

Which way is fastest depends on the machine, so each question is answered once by timing. The file
is in the user's cache directory, or in the directory named by the environment variable
EVENHAND_CACHE. A file that cannot be read or written is ignored.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from evenhand.files import cache_home, write_atomic

T = TypeVar("T")
# at most; the fastest counts, since disturbances only make a trial slower
REPETITIONS = 7
PATIENCE = 0.3  # seconds for all trials of one question; then the fastest so far wins

# by question: a second thread waits for the answer of the first
_locks: dict[str, threading.Lock] = {}


def fastest(question: str, device: torch.device, ways: Mapping[str, Callable[[], object]]) -> str:
    """The name of the fastest way on this device; ways that raise an error are excluded.

    The same question gets the same answer again, also in another process; see
    :func:`remembered`.
    """
    return remembered(question, device, lambda: race(device, ways))


def remembered(question: str, device: torch.device, find: Callable[[], str]) -> str:
    """The answer known for this machine, or else the result of ``find`` in a new thread.

    Transforms and traces that are active here do not reach that thread, so it computes with plain
    tensors.
    """
    with _locks.setdefault(f"{device} {question}", threading.Lock()):
        path, machine = home() / "choices.json", _machine(device)
        known = _known(path)
        if question not in known.setdefault(machine, {}):
            known[machine][question] = elsewhere(find)
            with suppress(OSError):
                current = _read(path)  # other processes may have added theirs
                current[machine] = {**current.get(machine, {}), **known[machine]}
                write_atomic(path, json.dumps(current, indent=1, sort_keys=True).encode())
        return known[machine][question]


def known(question: str, device: torch.device) -> str | None:
    """The remembered answer, if there is one."""
    return _known(home() / "choices.json").get(_machine(device), {}).get(question)


def home() -> Path:
    """The directory for things that can be measured again."""
    return Path(os.environ.get("EVENHAND_CACHE") or cache_home())


@cache
def _known(path: Path) -> dict[str, dict[str, str]]:
    return _read(path)


def _read(path: Path) -> dict[str, dict[str, str]]:
    """The contents of the file; nothing if it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(machine): {
                question: answer for question, answer in answers.items() if isinstance(answer, str)
            }
            for machine, answers in content.items()
        }
    except (OSError, ValueError, AttributeError):
        return {}


@cache
def _machine(device: torch.device) -> str:
    return f"torch {torch.__version__}, {processor(device)}"


def processor(device: torch.device) -> str:
    """The name of the CPU or GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return (
                    f"{line.partition(':')[2].strip()}, {torch.backends.cpu.get_cpu_capability()}"
                )
    return (
        f"{platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    )


def elsewhere(find: Callable[[], T]) -> T:
    """The result of ``find`` in a thread of its own, without what is active in this one."""
    found: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(find())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def race(
    device: torch.device,
    ways: Mapping[str, Callable[[], object]],
    handicaps: Mapping[str, float] | None = None,
) -> str:
    """The fastest of several ways; handicaps multiply times.

    The ways take turns, so that a disturbance affects all of them.
    """
    best: dict[str, float] = {}
    problem: Exception | None = None
    for name, way in ways.items():
        try:
            way()  # the first call is slower
            best[name] = float("inf")
        except Exception as error:
            problem = error
    if not best:
        raise RuntimeError("none of the ways to do this works") from problem
    begin = time.perf_counter()
    for _ in range(REPETITIONS if len(best) > 1 else 0):
        for name in best:
            best[name] = min(best[name], _seconds(device, ways[name]))
        if time.perf_counter() - begin > PATIENCE:
            break
    return min(best, key=lambda name: best[name] * (handicaps or {}).get(name, 1.0))


def _seconds(device: torch.device, way: Callable[[], object]) -> float:
    """How long it takes; on a CPU the time of its one thread, regardless of other load."""
    if device.type == "cuda":
        return _kernel_seconds(way)
    begin = time.thread_time()
    way()
    return time.thread_time() - begin


def _kernel_seconds(way: Callable[[], object], replays: int = 5) -> float:
    """How long its kernels take in a CUDA graph, as engines replay them."""
    graph = torch.cuda.CUDAGraph()
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        way()
    graph.replay()
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / replays / 1e3
