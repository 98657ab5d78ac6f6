"""The recurrence of an LSTM of stacked clients on a GPU, in the form that is fastest there.

steps   one Triton kernel per time step, see :mod:`evenhand.layers.lstm_steps`
cells   one product and one kernel of torch's own LSTM cell per time step
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenhand.layers import choices
from evenhand.layers.lstm_cells import exact_type, run_cells, run_cells_back
from evenhand.layers.lstm_steps import (
    RACED_STEPS,
    run_steps,
    run_steps_back,
    trial_values,
    usable,
)
from evenhand.torch_private import is_transformed


def recurrence(shares: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """States (T, B, H) from the input's shares (T, B, 4H) of the gates, a bias (4H,) and the
    recurrent weights (4H, H).

    It can be stacked over clients and differentiated once.
    """
    states: Tensor = _Recurrence.apply(shares, bias, weight)[0]  # type: ignore[no-untyped-call]
    return states


class _Recurrence(torch.autograd.Function):
    """States, and cells and gates for the derivative."""

    @staticmethod
    def forward(shares: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return tuple(values[0] for values in _run(shares[None], bias[None], weight[None]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[2], *output)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor] = _Backward.apply(slopes[0], *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *values: Tensor) -> tuple[Any, Any]:
        return _run(*_stacked(info.batch_size, in_dims, values)), (0, 0, 0)


class _Backward(torch.autograd.Function):
    """Gradients of shares, bias and weights, from those of the states."""

    @staticmethod
    def forward(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(value[0] for value in _run_back(*(value[None] for value in values)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *values: Tensor) -> tuple[Any, Any]:
        return _run_back(*_stacked(info.batch_size, in_dims, values)), (0, 0, 0)


def _stacked(
    clients: int, dims: tuple[int | None, ...], values: tuple[Tensor, ...]
) -> list[Tensor]:
    """The same values with the dimension of the clients first."""
    return [
        value.expand(clients, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(values, dims, strict=True)
    ]


def _run(shares: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States and cells (K, T, B, H) and gates (K, T, B, 4H)."""
    if _form(shares, weight) == "steps":
        found: tuple[Tensor, Tensor, Tensor] = run_steps(shares, bias, weight, _tf32(weight))
        return found
    return run_cells(shares, bias, weight)


def _run_back(
    slopes: Tensor, weight: Tensor, states: Tensor, cells: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of shares (K, T, B, 4H), bias (K, 4H) and weights (K, 4H, H)."""
    if _form(slopes, weight) == "steps":
        of_shares = run_steps_back(slopes, weight, cells, gates, _tf32(weight))
    else:
        of_shares = run_cells_back(slopes, weight, states, cells, gates)
    of_bias = of_shares.sum((1, 2), dtype=exact_type(weight.dtype))
    # of all steps at once; the first one had no state before it
    rows, past = of_shares[:, 1:].flatten(1, 2), states[:, :-1].flatten(1, 2)
    return of_shares, of_bias, torch.bmm(rows.transpose(1, 2), past.to(weight.dtype))


def _form(values: Tensor, weight: Tensor) -> str:
    """The name of the faster form; ``values`` are of the shape (K, T, B, .)."""
    if any(map(is_transformed, (values, weight))) or not values.numel() or not usable(weight):
        return "cells"  # stacked more than once: torch handles it
    device, dtype, tf32 = weight.device, weight.dtype, _tf32(weight)
    if device.type != "cuda":
        return "steps"  # of an interpreter: torch has no such cell here
    shape = (len(values), RACED_STEPS, values.shape[2], weight.shape[-1])
    question = (
        f"form of an LSTM, {shape[3]} units, {shape[0]} clients x {shape[2]},"
        f" {'tf32' if tf32 else dtype}"
    )
    if torch.cuda.is_current_stream_capturing():  # nothing can be timed now
        return choices.known(question, device) or "cells"

    def find() -> str:
        shares, weight = trial_values(shape, dtype, device)
        bias, slopes = weight[..., 0].float(), shares[..., : shape[3]].contiguous()

        def steps() -> None:
            _, cells, gates = run_steps(shares, bias, weight, tf32)
            run_steps_back(slopes, weight, cells, gates, tf32)

        def cells() -> None:
            states, cells, gates = run_cells(shares, bias, weight)
            run_cells_back(slopes, weight, states, cells, gates)

        return choices.race(device, {"steps": steps, "cells": cells})

    return choices.remembered(question, device, find)


def _tf32(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
