"""Numbers as sums of parts of bfloat16, whose products are fast on tensor cores.

A float32 has 24 binary digits and a bfloat16 eight, so two parts hold 16 digits, more than TF32's
11, and three hold all. The product of two such sums takes three or six products of parts; the
others are smaller than the last digit.
"""

from __future__ import annotations

import torch
from torch import Tensor

HIGH_HALF = -1 << 16  # of the bits of a float32, which are those of a bfloat16


def in_parts(values: Tensor, count: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """(count, ...): parts of float32 values that add up to them, the largest first.

    Values that are not divided keep their type.
    """
    if count == 1:
        return values.unsqueeze(0)
    parts, rest = [], values
    for _ in range(count - 1):
        # exact, also where torch's compiler leaves out roundings
        high = (rest.view(torch.int32) & HIGH_HALF).view(torch.float32)
        parts.append(high.to(dtype))
        rest = rest - high
    return torch.stack([*parts, rest.to(dtype)])
