"""Numbers for tests against exact arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tensor(values: Any) -> Tensor:
    """``values`` in float64."""
    return torch.tensor(values, dtype=torch.float64)
