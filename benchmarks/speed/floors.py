"""The least time that a machine needs for local steps, whatever the program.

Bytes: a client's parameters are read in the forward and in the backward pass and written once (the
update fused into the backward pass), three times their size a step; the round's start writes them
once and its end reads them once. Activations, data and gradients are taken to stay in caches, so
this is less than any program moves. Arithmetic: the products and convolutions of forward and
backward pass, as torch counts them. The floor is the larger of bytes / bandwidth (of a large copy)
and operations / throughput (of a large matrix product in the same precision), both measured in the
same run.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import machine
from evenhand.models import LSTM


def of_round(
    module: nn.Module,
    x: Tensor,
    clients: int,
    steps: int,
    device: torch.device,
    precision: str = "fp32",
) -> float:
    """Seconds of a round of ``steps`` local steps of ``clients`` on batches like ``x``."""
    # parameters are kept in float32 in every precision
    size = sum(p.numel() for p in module.parameters() if p.requires_grad) * 4
    bytes_moved = clients * size * (3 * steps + 2)
    operations = clients * steps * operations_of_step(module, x)
    return least(bytes_moved, operations, device, precision)


def least(bytes_moved: float, operations: float, device: torch.device, precision: str) -> float:
    """Seconds that so many bytes and operations need."""
    return max(bytes_moved / _bandwidth(device), operations / _throughput(device, precision))


def operations_of_step(module: nn.Module, x: Tensor) -> int:
    """Floating-point operations of a forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    module.zero_grad()
    recurrent = 0  # torch does not count its LSTM kernel
    for layer in module.modules():
        if isinstance(layer, LSTM):
            # of all layers, with the states that come back
            inputs = layer.inputs + layer.units * (2 * layer.layers - 1)
            # forward, and two products backward
            recurrent += 3 * 2 * x.shape[0] * x.shape[1] * 4 * layer.units * inputs
    return counter.get_total_flops() + recurrent


_bandwidth = cache(machine.bandwidth)
_throughput = cache(machine.throughput)
