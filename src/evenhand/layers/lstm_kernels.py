"""Triton kernels for one time step of an LSTM of stacked clients: a product with the recurrent
weights and everything that follows from it, so that no intermediate result reaches memory.

A program computes a tile: ROWS samples by COLUMNS units of one client. All arrays begin with the
client, (K, T, B, .), and a kernel reads what the one of the step before (or after) has written.
This module alone needs triton, so it is imported only where kernels run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    size = tl.abs(x)
    small = tl.exp(-2 * size)
    square = x * x
    # near zero, 1 - small would lose digits, and four terms of the series have them all
    series = size * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315))))
    bent = tl.where(size < 0.2, series, (1 - small) / (1 + small))
    return tl.where(x < 0, -bent, bent)


@triton.jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    small = tl.exp(-tl.abs(x))  # never too large
    return tl.where(x < 0, small, 1.0) / (1 + small)


@triton.jit(do_not_specialize=["step", "steps", "batch"])  # type: ignore[untyped-decorator]
def step_forward(  # type: ignore[no-untyped-def]
    shares,  # (K, T, B, 4H)
    bias,  # (K, 4H)
    weight,  # (K, 4H, H)
    states,  # (K, T, B, H), written
    cells,  # (K, T, B, H), written
    gates,  # (K, T, B, 4H), written
    step,
    steps,  # of the sequence
    batch,  # samples of a client
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,  # of the pieces of the product
    PRECISION: tl.constexpr,  # of float32 products
):
    unit = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    client = tl.program_id(2).to(tl.int64)
    start = (client * steps + step) * batch  # of this step's rows in all arrays
    here = (row < batch)[:, None] & (unit < UNITS)[None, :]
    known = row < batch * tl.minimum(step, 1)  # rows with a state before this step
    wide = start * (4 * UNITS) + row[:, None] * (4 * UNITS) + unit[None, :]
    narrow = start * UNITS + row[:, None] * UNITS + unit[None, :]

    # what does not need the product is read first, since the product hides the wait
    shares += wide
    bias += client * (4 * UNITS) + unit
    share_i = tl.load(shares, mask=here, other=0.0)
    share_f = tl.load(shares + UNITS, mask=here, other=0.0)
    share_g = tl.load(shares + 2 * UNITS, mask=here, other=0.0)
    share_o = tl.load(shares + 3 * UNITS, mask=here, other=0.0)
    cell = tl.load(cells + narrow - batch * UNITS, mask=here & known[:, None], other=0.0)

    i = tl.zeros((ROWS, COLUMNS), tl.float32)
    f = tl.zeros((ROWS, COLUMNS), tl.float32)
    g = tl.zeros((ROWS, COLUMNS), tl.float32)
    o = tl.zeros((ROWS, COLUMNS), tl.float32)
    part = tl.arange(0, DEPTH)
    before = states + (start - batch) * UNITS + row[:, None] * UNITS + part[None, :]
    weight += client * (4 * UNITS * UNITS) + unit[None, :] * UNITS + part[:, None]
    for k in range(0, UNITS, DEPTH):
        inside = part + k < UNITS
        real = inside[:, None] & (unit < UNITS)[None, :]
        state = tl.load(before + k, mask=known[:, None] & inside[None, :], other=0.0)
        of_i = tl.load(weight + k, mask=real, other=0.0)
        of_f = tl.load(weight + UNITS * UNITS + k, mask=real, other=0.0)
        of_g = tl.load(weight + 2 * UNITS * UNITS + k, mask=real, other=0.0)
        of_o = tl.load(weight + 3 * UNITS * UNITS + k, mask=real, other=0.0)
        i = tl.dot(state, of_i, i, input_precision=PRECISION)
        f = tl.dot(state, of_f, f, input_precision=PRECISION)
        g = tl.dot(state, of_g, g, input_precision=PRECISION)
        o = tl.dot(state, of_o, o, input_precision=PRECISION)

    full = unit < UNITS
    i += share_i.to(tl.float32) + tl.load(bias, mask=full, other=0.0)[None, :]
    f += share_f.to(tl.float32) + tl.load(bias + UNITS, mask=full, other=0.0)[None, :]
    g += share_g.to(tl.float32) + tl.load(bias + 2 * UNITS, mask=full, other=0.0)[None, :]
    o += share_o.to(tl.float32) + tl.load(bias + 3 * UNITS, mask=full, other=0.0)[None, :]
    i, f, g, o = _sigmoid(i), _sigmoid(f), _tanh(g), _sigmoid(o)
    cell = f * cell + i * g
    tl.store(states + narrow, o * _tanh(cell), mask=here)
    tl.store(cells + narrow, cell, mask=here)
    gates += wide
    tl.store(gates, i, mask=here)
    tl.store(gates + UNITS, f, mask=here)
    tl.store(gates + 2 * UNITS, g, mask=here)
    tl.store(gates + 3 * UNITS, o, mask=here)


@triton.jit(do_not_specialize=["step", "steps", "batch"])  # type: ignore[untyped-decorator]
def step_backward(  # type: ignore[no-untyped-def]
    slopes,  # (K, T, B, H), the gradient of the states
    turned,  # (K, H, 4H), the weight transposed
    cells,  # (K, T, B, H)
    gates,  # (K, T, B, 4H)
    of_cell,  # (K, B, H), the gradient of a cell from the steps after it, read and written
    of_shares,  # (K, T, B, 4H), written
    step,
    steps,  # of the sequence
    batch,  # samples of a client
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    unit = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    client = tl.program_id(2).to(tl.int64)
    start = (client * steps + step) * batch
    here = (row < batch)[:, None] & (unit < UNITS)[None, :]
    followed = row < batch * tl.minimum(steps - 1 - step, 1)  # rows with a step after this one
    wide = start * (4 * UNITS) + row[:, None] * (4 * UNITS) + unit[None, :]
    narrow = start * UNITS + row[:, None] * UNITS + unit[None, :]

    gates += wide
    slope = tl.load(slopes + narrow, mask=here, other=0.0)
    i = tl.load(gates, mask=here, other=0.0)
    f = tl.load(gates + UNITS, mask=here, other=0.0)
    g = tl.load(gates + 2 * UNITS, mask=here, other=0.0)
    o = tl.load(gates + 3 * UNITS, mask=here, other=0.0)
    cell = tl.load(cells + narrow, mask=here, other=0.0)
    known = row < batch * tl.minimum(step, 1)  # rows with a state before this step
    before = tl.load(cells + narrow - batch * UNITS, mask=here & known[:, None], other=0.0)
    of_cell += client * (batch * UNITS) + row[:, None] * UNITS + unit[None, :]
    later = tl.load(of_cell, mask=here & followed[:, None], other=0.0)

    of_state = tl.zeros((ROWS, COLUMNS), tl.float32)
    part = tl.arange(0, DEPTH)
    after = of_shares + (start + batch) * (4 * UNITS) + row[:, None] * (4 * UNITS) + part[None, :]
    turned += client * (4 * UNITS * UNITS) + unit[None, :] * (4 * UNITS) + part[:, None]
    for k in range(0, 4 * UNITS, DEPTH):
        inside = part + k < 4 * UNITS
        of_gates = tl.load(after + k, mask=followed[:, None] & inside[None, :], other=0.0)
        factor = tl.load(turned + k, mask=inside[:, None] & (unit < UNITS)[None, :], other=0.0)
        of_state = tl.dot(of_gates, factor, of_state, input_precision=PRECISION)

    of_state += slope.to(tl.float32)
    i, f, g, o = i.to(tl.float32), f.to(tl.float32), g.to(tl.float32), o.to(tl.float32)
    bent = _tanh(cell)
    change = later + of_state * o * (1 - bent * bent)  # the gradient of this cell
    tl.store(of_cell, change * f, mask=here)
    of_shares += wide
    tl.store(of_shares, change * g * i * (1 - i), mask=here)
    tl.store(of_shares + UNITS, change * before * f * (1 - f), mask=here)
    tl.store(of_shares + 2 * UNITS, change * i * (1 - g * g), mask=here)
    tl.store(of_shares + 3 * UNITS, of_state * bent * o * (1 - o), mask=here)
