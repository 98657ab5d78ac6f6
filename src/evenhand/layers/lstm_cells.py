"""The recurrence of an LSTM of stacked clients on a GPU, with one product and one kernel of torch's
own LSTM cell per step.

All arrays begin with the client: shares (K, T, B, 4H) of the gates, recurrent weights (K, 4H, H).
With weights of low precision, products have it too, but sums over time do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand import torch_private


def run_cells(shares: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States and cells (K, T, B, H) and gates (K, T, B, 4H)."""
    clients, steps, batch, width = shares.shape
    turned, exact = weight.transpose(1, 2).contiguous(), exact_type(weight.dtype)
    state = cell = shares.new_zeros(clients * batch, width // 4, dtype=exact)
    found = []
    # autocast would give the cells the precision of the products
    with torch.autocast(shares.device.type, enabled=False):
        whole = shares.transpose(0, 1).to(exact) + bias.to(exact)[:, None]
        for share in whole.flatten(1, 2).unbind(0):
            product = (
                torch.bmm(state.view(clients, batch, -1).to(weight.dtype), turned)
                .to(exact)
                .flatten(0, 1)
            )
            state, cell, gates = torch_private.fused_lstm_cell(share, product, cell)
            found.append((state, cell, gates))
    states, cells, kept = (
        torch.stack(values).view(steps, clients, batch, -1).transpose(0, 1)
        for values in zip(*found, strict=True)
    )
    return states.to(shares.dtype), cells, kept


def run_cells_back(
    slopes: Tensor, weight: Tensor, states: Tensor, cells: Tensor, gates: Tensor
) -> Tensor:
    """The gradient of the shares from that of the states."""
    clients, steps, batch, units = states.shape
    weight, exact = weight.contiguous(), exact_type(weight.dtype)
    slopes, cells, gates = (value.transpose(0, 1) for value in (slopes, cells, gates))
    of_state, of_cell, of_gates = slopes[-1].to(exact), None, []
    before = torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
    for t in reversed(range(steps)):
        pieces = (value.reshape(clients * batch, -1) for value in (before[t], cells[t], gates[t]))
        slope, of_cell, _ = torch_private.fused_lstm_cell_backward(
            of_state.reshape(-1, units), of_cell, *pieces, False
        )
        of_gates.append(slope.view(clients, batch, -1).to(weight.dtype))
        if t:
            of_state = torch.baddbmm(slopes[t - 1].to(weight.dtype), of_gates[-1], weight).to(exact)
    return torch.stack(of_gates[::-1], 1)


def exact_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which numbers of this type are summed."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
