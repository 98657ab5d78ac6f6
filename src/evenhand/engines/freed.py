"""Freed memory stays with the process, so that the next step need not ask for it again."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache

# numbers of glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
# bytes; a larger block always comes from the system. glibc goes up to the same by itself
LARGE_BLOCK = 32 << 20
MOST_KEPT = 256 << 20  # bytes that stay free at the end of the heap
HEAP = 64 << 20  # bytes in one of a thread's heaps; with less to spare, empty ones are given back


@cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory; returns whether it does.

    By default it returns what is freed at the end of a step to the system, which clears every page
    again in the next step: a quarter of the time of a convolutional network's step. A user's own
    settings of the allocator, in the environment, are left as they are.
    """
    own = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
    if sys.platform != "linux" or any(name in os.environ for name in own):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    with suppress(OSError, AttributeError):  # other libraries have no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        settings = {_MMAP_THRESHOLD: LARGE_BLOCK, _TRIM_THRESHOLD: MOST_KEPT, _TOP_PAD: HEAP}
        return all(mallopt(which, size) for which, size in settings.items())
    return False
