"""Modules that cannot be trained are refused in one line."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from evenhand.norms import has_usual_forward, norm_layers

INSTEAD = "replace it with eh.models.without_batchnorm(module)"


def refuse_unfit(module: Any, normalisation: str | None = None) -> None:
    """Raise unless the module can be trained by clients that share its parameters.

    ``normalisation`` is what happens to layers with running statistics; see ``evenhand.Settings``.
    """
    if not isinstance(module, nn.Module):
        got = (
            f"the class {module.__name__}; call it"
            if isinstance(module, type)
            else type(module).__name__
        )
        raise TypeError(f"module must be a torch.nn.Module, got {got}")
    layers = norm_layers(module)
    if normalisation == "local" and not any(isinstance(it, _BatchNorm) for it in layers.values()):
        raise ValueError(
            'normalisation="local" is for BatchNorm, but the module has no such layer; leave it out'
        )
    for name, layer in layers.items():
        _refuse_norm(f"layer {name or 'itself'!r} ({type(layer).__name__})", layer, normalisation)
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


def _refuse_norm(layer: str, part: nn.Module, normalisation: str | None) -> None:
    """Raise unless a layer's statistics are constant, or can be local to each client."""
    batches = isinstance(part, _BatchNorm)
    if not getattr(part, "track_running_stats", True):
        raise ValueError(
            f"{layer} keeps no running statistics, so its output depends on the other samples of a"
            f" batch even in evaluation; {INSTEAD}"
        )
    if normalisation == "local" and batches:
        if not has_usual_forward(part):
            raise ValueError(
                f'{layer} has a forward of its own, which normalisation="local" cannot replace; use'
                f' normalisation="frozen", or {INSTEAD}'
            )
    elif normalisation != "frozen" and part.training:
        ways = (
            f'normalisation="frozen" or normalisation="local", or {INSTEAD}'
            if batches
            else 'normalisation="frozen", or build it with track_running_stats=False'
        )
        raise ValueError(
            f"{layer} is in training mode, where it changes running statistics, which clients"
            f" cannot share; pass {ways}"
        )
