"""One line about where figures were taken."""

from __future__ import annotations

import datetime
import os
import platform

import torch


def describe() -> str:
    """Date, cores, processor, Python and torch versions, threads."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass
    return (
        f"{datetime.date.today()}, {os.cpu_count()} cores of {name}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
