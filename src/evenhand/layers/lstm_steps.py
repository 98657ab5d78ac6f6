"""The recurrence of an LSTM of stacked clients with one Triton kernel per time step.

Each direction is one operation for torch, whatever the number of steps, so that a training step
stays small enough to compile. All arrays begin with the client: shares (K, T, B, 4H) of the gates,
recurrent weights (K, 4H, H).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenhand.layers import choices, kernels

# gates are between -1 and 1, where float16 rounds less than bfloat16
KEPT = {torch.float32: torch.float32, torch.bfloat16: torch.float16}
RACED_STEPS = 8  # of the sequence with which tiles are timed


class Tile(NamedTuple):
    """What one program computes, and how: see :mod:`evenhand.layers.lstm_kernels`."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def usable(weight: Tensor) -> bool:
    """Whether the kernels can run on these weights."""
    return weight.dtype in KEPT and kernels.usable(weight)


@torch.library.custom_op(
    "evenhand::lstm_steps",
    mutates_args=(),
    schema="(Tensor shares, Tensor bias, Tensor weight, bool tf32) -> (Tensor, Tensor, Tensor)",
)
def run_steps(
    shares: Tensor, bias: Tensor, weight: Tensor, tf32: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """States and cells (K, T, B, H) and gates (K, T, B, 4H)."""
    return forward(shares, bias, weight, tf32, _tile(run_steps, shares, weight, tf32))


@run_steps.register_fake
def _(shares: Tensor, bias: Tensor, weight: Tensor, tf32: bool) -> tuple[Tensor, Tensor, Tensor]:
    return _results(shares)


@torch.library.custom_op(
    "evenhand::lstm_steps_back",
    mutates_args=(),
    schema="(Tensor slopes, Tensor weight, Tensor cells, Tensor gates, bool tf32) -> Tensor",
)
def run_steps_back(
    slopes: Tensor, weight: Tensor, cells: Tensor, gates: Tensor, tf32: bool
) -> Tensor:
    """The gradient of the shares (K, T, B, 4H) from that of the states."""
    tile = _tile(run_steps_back, slopes, weight, tf32)
    return backward(slopes, weight, cells, gates, tf32, tile)


@run_steps_back.register_fake
def _(slopes: Tensor, weight: Tensor, cells: Tensor, gates: Tensor, tf32: bool) -> Tensor:
    return weight.new_empty(gates.shape)


def _results(shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for states, cells and gates."""
    units = shares.shape[-1] // 4
    return (
        shares.new_empty(*shares.shape[:3], units),
        shares.new_empty(*shares.shape[:3], units, dtype=torch.float32),
        shares.new_empty(shares.shape, dtype=KEPT[shares.dtype]),
    )


def forward(
    shares: Tensor, bias: Tensor, weight: Tensor, tf32: bool, tile: Tile
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`run_steps` in these tiles."""
    results = _results(shares)
    values = (shares.contiguous(), bias.float().contiguous(), weight.contiguous(), *results)
    _launch("step_forward", range(shares.shape[1]), values, shares.shape[:3], tf32, tile)
    return results


def backward(
    slopes: Tensor, weight: Tensor, cells: Tensor, gates: Tensor, tf32: bool, tile: Tile
) -> Tensor:
    """:func:`run_steps_back` in these tiles."""
    of_shares = weight.new_empty(gates.shape)
    values = (
        slopes.contiguous(),
        # tensor cores read float32 factors only along the sum
        weight.transpose(1, 2).contiguous(),
        cells.contiguous(),
        gates.contiguous(),
        cells.new_empty(cells[:, 0].shape),
        of_shares,
    )
    steps = reversed(range(slopes.shape[1]))
    _launch("step_backward", steps, values, slopes.shape[:3], tf32, tile)
    return of_shares


def _launch(
    name: str, steps: Any, values: tuple[Tensor, ...], shape: Any, tf32: bool, tile: Tile
) -> None:
    """Start one kernel per step, in this order."""
    from evenhand.layers import lstm_kernels

    clients, length, batch = shape
    units = values[3].shape[-1] if name == "step_forward" else values[0].shape[-1]
    grid = (-(-units // tile.columns), -(-batch // tile.rows), clients)
    kernel = getattr(lstm_kernels, name)[grid]
    with kernels.on(values[0].device):
        for step in steps:
            kernel(
                *values,
                step,
                length,
                batch,
                UNITS=units,
                ROWS=tile.rows,
                COLUMNS=tile.columns,
                DEPTH=tile.depth,
                PRECISION=kernels.precision(values[2 if name == "step_forward" else 1], tf32),
                num_warps=tile.warps,
                num_stages=tile.stages,
            )


def tiles(batch: int, units: int, dtype: torch.dtype, tf32: bool, back: bool) -> list[Tile]:
    """Candidates, with the one to take where nothing can be timed first."""
    rows = min(64, max(16, 1 << (batch - 1).bit_length()))
    widest = max(16, 1 << (units - 1).bit_length())
    depth = 64 if dtype == torch.bfloat16 else 32 if tf32 else 16
    if back and (tf32 or dtype == torch.bfloat16):
        depth *= 2
    depth = min(depth, widest)
    return [
        Tile(rows, columns, depth, 8 if rows * columns > 2048 else 4, 3)
        for columns in (32, 16, 64)
        if columns <= max(widest, 16)
    ]


def _tile(operation: Any, values: Tensor, weight: Tensor, tf32: bool) -> Tile:
    """The fastest tile for these shapes on this machine."""
    (clients, _, batch), units = values.shape[:3], weight.shape[-1]
    back, device, dtype = operation is run_steps_back, weight.device, weight.dtype
    candidates = tiles(batch, units, dtype, tf32, back)
    if device.type != "cuda" or len(candidates) == 1:
        return candidates[0]
    question = (
        f"tile of an LSTM's {'backward' if back else 'forward'} step, {units} units,"
        f" {clients} clients x {batch}, {'tf32' if tf32 else dtype}"
    )
    by_name = {str(tuple(tile)): tile for tile in candidates}
    answer: str | None
    if torch.cuda.is_current_stream_capturing():  # nothing can be timed now
        answer = choices.known(question, device)
    else:
        shape = (clients, RACED_STEPS, batch, units)
        trial = _trial_back if back else _trial
        answer = choices.remembered(
            question,
            device,
            lambda: choices.race(
                device,
                {name: trial(shape, dtype, device, tf32, tile) for name, tile in by_name.items()},
            ),
        )
    # a remembered answer may be from a version with other candidates
    return by_name.get(answer or "", candidates[0])


def _trial(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, tf32: bool, tile: Tile
) -> Callable[[], object]:
    """A short sequence forward."""
    shares, weight = trial_values(shape, dtype, device)
    bias = weight[..., 0]
    return lambda: forward(shares, bias, weight, tf32, tile)


def _trial_back(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, tf32: bool, tile: Tile
) -> Callable[[], object]:
    """A short sequence backward."""
    shares, weight = trial_values(shape, dtype, device)
    slopes, gates = shares[..., : shape[-1]].contiguous(), shares.to(KEPT[dtype])
    cells = slopes.float()
    return lambda: backward(slopes, weight, cells, gates, tf32, tile)


def trial_values(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Shares and weights of a short sequence of states with this shape (K, T, B, H)."""
    units = shape[-1]
    return (
        torch.full((*shape[:-1], 4 * units), 0.1, dtype=dtype, device=device),
        torch.full((shape[0], 4 * units, units), 0.01, dtype=dtype, device=device),
    )
