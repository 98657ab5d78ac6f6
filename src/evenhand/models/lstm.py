"""An LSTM that can be stacked over clients."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand import torch_private
from evenhand.errors import require_whole
from evenhand.layers.recurrence import recurrence


class LSTM(nn.Module):
    """Long short-term memory: (B, T, inputs) to the states of the last layer, (B, T, units).

    ``torch.func`` cannot stack torch.nn.LSTM over clients, so this one is written as matrix
    products and a loop over time. If nothing is stacked, it calls the kernel of torch.nn.LSTM,
    which is faster. Parameters have the names, shapes, order and initial values of
    ``torch.nn.LSTM(inputs, units, layers, batch_first=True)``: state_dicts fit both.

        c_t = f c_{t-1} + i g,  h_t = o tanh c_t;   i, f, o = sigmoid and g = tanh of parts of W_ih
        x_t + b_ih + W_hh h_{t-1} + b_hh

    Parameters of a layer: 4 units (inputs + units + 2).
    """

    def __init__(self, inputs: int, units: int, layers: int = 1) -> None:
        super().__init__()
        for name, value in (("inputs", inputs), ("units", units), ("layers", layers)):
            require_whole(name, value, 1)
        self.inputs, self.units, self.layers = inputs, units, layers
        for layer in range(layers):
            shapes = {
                "weight_ih": (4 * units, units if layer else inputs),
                "weight_hh": (4 * units, units),
            }
            for name, shape in {**shapes, "bias_ih": (4 * units,), "bias_hh": (4 * units,)}.items():
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape)))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(units), 1 / math.sqrt(units))

    def forward(self, x: Tensor) -> Tensor:
        weights = [
            getattr(self, f"{name}_l{n}")
            for n in range(self.layers)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        if not torch_private.transforms_active():
            return self._kernel(x, weights)
        x = x.transpose(0, 1)  # time first: a step is then contiguous
        for weight_ih, weight_hh, bias_ih, bias_hh in zip(
            *(weights[kind::4] for kind in range(4)), strict=True
        ):
            bias = bias_ih + bias_hh
            if x.is_cuda:
                shares = F.linear(x, weight_ih)  # of all steps at once
                # with precision="bf16" the product has the precision of the shares
                x = recurrence(shares, bias, weight_hh.to(shares.dtype))
            else:
                shares = F.linear(x, weight_ih, bias)
                x = _Recurrence.apply(shares, weight_hh.to(shares.dtype))[0]  # type: ignore[no-untyped-call]
        return x.transpose(0, 1)

    def _kernel(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        zero = x.new_zeros(self.layers, x.shape[0], self.units)
        packed = _in_one_piece(weights) if x.is_cuda else weights
        # whether to keep values for backpropagation; there is no dropout to switch on
        kept = torch.is_grad_enabled()
        states: Tensor = torch_private.lstm(
            x, (zero, zero), packed, True, self.layers, 0.0, kept, False, True
        )[0]
        return states

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.units}, layers={self.layers}"


class _Recurrence(torch.autograd.Function):
    """States (T, B, H) from the input's shares (T, B, 4H) of the gates and the recurrent weights
    (4H, H).

    It has its own derivative: autograd would add up the gradient of the weights step by step, while
    here it is one product over all steps. Only inputs and states are kept; the rest is recomputed.
    It can be differentiated twice.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(shares: Tensor, weight: Tensor) -> tuple[Tensor]:
        state = cell = torch.zeros_like(shares[0].chunk(4, -1)[0])
        states = []
        for share in shares.unbind(0):
            i, f, g, o = _gates(share + state @ weight.t())
            cell = i * g + f * cell
            state = o * cell.tanh()
            states.append(state)
        return (torch.stack(states),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        shares, weight, states = ctx.saved_tensors
        before = _delayed(states)
        i, f, g, o = _gates(shares + before @ weight.t())  # (T, B, H) each
        fresh, cells = i * g, [torch.zeros_like(states[0])]
        for new, kept in zip(fresh.unbind(0), f.unbind(0), strict=True):
            cells.append(new + kept * cells[-1])
        bent = torch.stack(cells[1:]).tanh()
        # how a gate's input moves the cell (i, f, g) or the state (o), and how the cell moves the
        # state
        # (T, B, 3, H)
        by_cell = torch.stack(
            [fresh * (1 - i), torch.stack(cells[:-1]) * f * (1 - f), i * (1 - g * g)], -2
        )
        by_state, through = bent * o * (1 - o), o * (1 - bent * bent)
        # gradients from later steps
        of_state = of_cell = torch.zeros_like(states[0])
        of_gates = []
        steps = zip(
            *(values.unbind(0) for values in (slopes[0], by_cell, by_state, through, f)),
            strict=True,
        )
        for slope, to_cell, to_state, passed, kept in reversed(list(steps)):
            of_state = slope + of_state
            of_cell = of_cell + of_state * passed
            of_gates.append(
                torch.cat([(of_cell.unsqueeze(-2) * to_cell).flatten(-2), of_state * to_state], -1)
            )
            of_state, of_cell = of_gates[-1] @ weight, of_cell * kept
        of_shares = torch.stack(of_gates[::-1])
        return of_shares, of_shares.flatten(0, 1).t() @ before.flatten(0, 1)


def _gates(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Input gate, forget gate, candidate and output gate, (..., H) each, from (..., 4H)."""
    # one call for three gates and an unused one, since calls take the time
    i, f, _, o = _sigmoid(values).chunk(4, -1)
    return i, f, values.chunk(4, -1)[2].tanh(), o


def _sigmoid(x: Tensor) -> Tensor:
    # on a CPU, torch's sigmoid rounds differently by place in memory, so a client's bits would
    # depend on its neighbours; tanh does not
    return x.sigmoid() if x.is_cuda else ((x / 2).tanh() + 1) / 2


def _delayed(states: Tensor) -> Tensor:
    """(T, ...) the state before each step."""
    return torch.cat([torch.zeros_like(states[:1]), states[:-1]])


def _in_one_piece(weights: list[Tensor]) -> list[Tensor]:
    """The same weights as views of one buffer, laid out as cuDNN wants it: otherwise it warns
    and copies them itself."""
    kinds = ((0, 1), (2, 3))  # matrices of all layers, then biases
    order = [
        4 * layer + kind for pair in kinds for layer in range(len(weights) // 4) for kind in pair
    ]
    buffer = torch.cat([weights[k].flatten() for k in order])
    pieces = dict(zip(order, torch.split(buffer, [weights[k].numel() for k in order]), strict=True))
    return [pieces[k].view_as(weight) for k, weight in enumerate(weights)]
