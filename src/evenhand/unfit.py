"""Modules that cannot be trained are refused in one line."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def refuse_unfit(module: Any) -> None:
    """Raise unless the module can be trained by clients that share its parameters."""
    if not isinstance(module, nn.Module):
        got = (
            f"the class {module.__name__}; call it"
            if isinstance(module, type)
            else type(module).__name__
        )
        raise TypeError(f"module must be a torch.nn.Module, got {got}")
    for name, part in module.named_modules():
        norm = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if norm or getattr(part, "track_running_stats", False):
            width = getattr(part, "num_features", 0) or "channels"
            raise ValueError(
                f"layer {name or 'itself'!r} ({type(part).__name__}) keeps running statistics or"
                " normalises over batches, which clients cannot share; use nn.GroupNorm(groups,"
                f" {width}) instead"
            )
    if any(
        isinstance(parameter, nn.parameter.UninitializedParameter)
        for parameter in module.parameters()
    ):
        raise ValueError(
            "the module has lazy layers without shapes; call it once on a sample before training"
        )
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError(
            "the module has no parameters that require gradients; there is nothing to train"
        )
    if len({parameter.dtype for parameter in trained}) > 1 or not trained[0].is_floating_point():
        raise ValueError(
            "all trained parameters need one floating-point dtype; convert with module.float() or"
            " module.double()"
        )
    bad = [
        name
        for name, parameter in module.named_parameters()
        if not bool(torch.isfinite(parameter).all())
    ]
    if bad:
        raise ValueError(f"parameter {bad[0]!r} of the module is not finite; initialise it again")
