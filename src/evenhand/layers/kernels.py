"""Whether Triton's kernels can be used, and in which precision they multiply."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def usable(values: Tensor) -> bool:
    """Whether kernels can run on these values; EVENHAND_TRITON=0 switches them off."""
    return (
        os.environ.get("EVENHAND_TRITON") != "0"
        and _triton_found()
        and (not values.is_cuda or torch.cuda.get_device_capability(values.device) >= (8, 0))
    )


@cache
def _triton_found() -> bool:
    return find_spec("triton") is not None


def precision(values: Tensor, tf32: bool) -> str:
    """Triton's name for how factors like these are multiplied.

    In fp32 a product is three products of TF32, of which the sum is as exact as with float32
    (tests/engines/test_direct.py).
    """
    if values.dtype != torch.float32 or not values.is_cuda:
        return "ieee"
    return "tf32" if tf32 else "tf32x3"


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton starts kernels on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
