"""Where figures were taken, and what the machine could do at best."""

from __future__ import annotations

import datetime
import os
import platform
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence

import torch

from evenhand.engines.ahead import MOST_ROUNDS

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


def describe(device: str | torch.device = "cpu") -> str:
    """Date, cores and how many are wanted, processor, graphics processor, Python and torch
    versions, threads."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(
                (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")),
                name,
            )
    except OSError:
        pass
    gpu = f"{torch.cuda.get_device_name(device)}, " if torch.device(device).type == "cuda" else ""
    return (
        f"{datetime.date.today()}, {gpu}{os.cpu_count()} cores of {name} (load"
        f" {os.getloadavg()[0]:.1f}), Python {platform.python_version()}, torch"
        f" {torch.__version__}, {torch.get_num_threads()} threads"
    )


def synchronise(device: str | torch.device) -> None:
    """Wait until nothing is left running on a graphics processor."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def seconds(function: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """How long a call takes, with all that it leaves running on the device."""
    synchronise(device)
    begin = time.perf_counter()
    function()
    synchronise(device)
    return time.perf_counter() - begin


def typical(rounds: Sequence[float], device: str | torch.device = "cpu") -> float:
    """The time of a round: the median, on a CPU of means over so many rounds as are prepared
    together by one of them."""
    size = 1 if torch.device(device).type == "cuda" else min(MOST_ROUNDS, len(rounds))
    blocks = [rounds[first : first + size] for first in range(0, len(rounds) - size + 1, size)]
    return statistics.median(map(statistics.mean, blocks))


def peak_memory(device: str | torch.device) -> float:
    """The most memory used so far, in GB: torch's tensors on a graphics processor, else all of the
    process."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024)
        / 1e9
    )


def bandwidth(device: str | torch.device) -> float:
    """Bytes a second, read and written, of copying an array that no cache holds."""
    count = (1 << 30 if torch.device(device).type == "cuda" else 1 << 28) // 4
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    return 8 * count / _least(lambda: target.copy_(source), device)


def throughput(device: str | torch.device, precision: str = "fp32") -> float:
    """Floating-point operations a second of a large matrix product."""
    side = 8192 if torch.device(device).type == "cuda" else 2048
    left, right = (
        torch.randn(side, side, device=device, dtype=DTYPES[precision]) for _ in range(2)
    )
    matmul = torch.backends.cuda.matmul
    with warnings.catch_warnings():
        # newer versions of torch announce another name for the same setting
        warnings.simplefilter("ignore")
        before, matmul.allow_tf32 = matmul.allow_tf32, precision == "tf32"
        try:
            return 2 * side**3 / _least(lambda: left @ right, device)
        finally:
            matmul.allow_tf32 = before


def _least(function: Callable[[], object], device: str | torch.device) -> float:
    """Median seconds of a call among the faster half of ten: other users of the machine do not
    count."""
    times = sorted(seconds(function, device) for _ in range(10))
    return statistics.median(times[:5])
