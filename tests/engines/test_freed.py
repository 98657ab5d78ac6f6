"""Memory that is freed after a step is kept for the next one."""

from __future__ import annotations

import platform
import resource

import pytest
import torch

import evenhand as eh
from evenhand.engines.freed import keep_freed_memory

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


def new_pages() -> int:
    """How many pages the system clears for five steps with two tensors of 16 MB each."""
    before = 0
    for step in range(8):
        if step == 3:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.ones(4 << 20) for _ in range(2)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc
def test_a_run_keeps_freed_memory() -> None:
    federation = eh.Federation.from_arrays([{"x": torch.ones(2, 3), "y": [0, 1]}])
    eh.Loop().attach(eh.Model(torch.nn.Linear(3, 2)), federation, 0)
    assert keep_freed_memory.cache_info().currsize == 1
    if keep_freed_memory():  # not where the user set the allocator
        assert new_pages() < 5 * 2 * 4096 / 4


@glibc
@pytest.mark.parametrize(
    "setting", ["MALLOC_TRIM_THRESHOLD_=1000000", "GLIBC_TUNABLES=glibc.malloc.arena_max=2"]
)
def test_a_users_own_settings_stay(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*setting.split("=", 1))
    assert keep_freed_memory.__wrapped__() is False
