"""Triton kernels for dense layers of stacked clients.

Every client has its own weights, so with small batches they are most of what a step reads and
writes. The kernels round weights on their way to a product, so that no rounded copy is made, and
change them without a gradient in memory. Importing this module needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def scores(  # type: ignore[no-untyped-def]
    values,  # (K, rows, columns), float32
    x,  # (K, samples, columns), with strides
    out,  # (splits, K, rows, samples), float32
    clients,
    rows,
    columns,
    samples,
    x_client,
    x_sample,
    x_column,
    steps,  # of one split
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Products of BLOCK_R rows of one client's weights with its samples, over one split."""
    client = (tl.program_id(1) % clients).to(tl.int64)
    split = tl.program_id(1) // clients
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    sample = tl.arange(0, BLOCK_N)
    values += client * rows * columns
    x += client * x_client
    product = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    for step in range(split * steps, min(split * steps + steps, tl.cdiv(columns, BLOCK_C))):
        column = step * BLOCK_C + tl.arange(0, BLOCK_C)
        weights = tl.load(
            values + (row * columns)[:, None] + column[None, :],
            mask=(row < rows)[:, None] & (column < columns)[None, :],
            other=0.0,
        )
        inputs = tl.load(
            x + (sample * x_sample)[None, :] + (column * x_column)[:, None],
            mask=(sample < samples)[None, :] & (column < columns)[:, None],
            other=0.0,
        )
        product = tl.dot(weights.to(inputs.dtype), inputs, product, input_precision=PRECISION)
    out += (split * clients + client) * rows * samples
    tl.store(
        out + (row * samples)[:, None] + sample[None, :],
        product,
        mask=(row < rows)[:, None] & (sample < samples)[None, :],
    )


@triton.jit  # type: ignore[untyped-decorator]
def step_back(  # type: ignore[no-untyped-def]
    values,  # (K, rows, columns), float32, changed in place
    slopes,  # (K, samples, rows), with strides
    x,  # (K, samples, columns), with strides
    rates,  # (K,)
    out,  # (K, samples, columns)
    rows,
    columns,
    samples,
    slope_client,
    slope_sample,
    slope_row,
    x_client,
    x_sample,
    x_column,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The gradient of BLOCK_C columns of one client's inputs, and the step of their weights.

    The gradient is that at the weights before the step.
    """
    client = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    sample = tl.arange(0, BLOCK_N)
    values += client * rows * columns
    slopes += client * slope_client
    inputs = tl.load(
        x + client * x_client + (sample * x_sample)[:, None] + (column * x_column)[None, :],
        mask=(sample < samples)[:, None] & (column < columns)[None, :],
        other=0.0,
    )
    rate = tl.load(rates + client)
    gradient = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    for step in range(tl.cdiv(rows, BLOCK_R)):
        row = step * BLOCK_R + tl.arange(0, BLOCK_R)
        there = (row < rows)[:, None] & (column < columns)[None, :]
        places = values + (row * columns)[:, None] + column[None, :]
        weights = tl.load(places, mask=there, other=0.0)
        slope = tl.load(
            slopes + (sample * slope_sample)[:, None] + (row * slope_row)[None, :],
            mask=(sample < samples)[:, None] & (row < rows)[None, :],
            other=0.0,
        )
        gradient = tl.dot(slope, weights.to(slope.dtype), gradient, input_precision=PRECISION)
        product = tl.dot(tl.trans(slope), inputs, input_precision=PRECISION)
        tl.store(places, weights - rate * product, mask=there)
    tl.store(
        out + client * samples * columns + (sample * columns)[:, None] + column[None, :],
        gradient.to(out.dtype.element_ty),
        mask=(sample < samples)[:, None] & (column < columns)[None, :],
    )


@triton.jit  # type: ignore[untyped-decorator]
def subtract_product(  # type: ignore[no-untyped-def]
    values,  # (K, rows, columns), changed in place
    a,  # (K, rows, depth), with strides
    b,  # (K, depth, columns), with strides
    rates,  # (K,)
    rows,
    columns,
    depth,
    a_client,
    a_row,
    a_depth,
    b_client,
    b_depth,
    b_column,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Subtract rate * a @ b from BLOCK_R x BLOCK_C values of one client."""
    client = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    a += client * a_client
    b += client * b_client
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for step in range(tl.cdiv(depth, BLOCK_D)):
        part = step * BLOCK_D + tl.arange(0, BLOCK_D)
        left = tl.load(
            a + (row * a_row)[:, None] + (part * a_depth)[None, :],
            mask=(row < rows)[:, None] & (part < depth)[None, :],
            other=0.0,
        )
        right = tl.load(
            b + (part * b_depth)[:, None] + (column * b_column)[None, :],
            mask=(part < depth)[:, None] & (column < columns)[None, :],
            other=0.0,
        )
        product = tl.dot(left, right, product, input_precision=PRECISION)
    places = values + client * rows * columns + (row * columns)[:, None] + column[None, :]
    there = (row < rows)[:, None] & (column < columns)[None, :]
    rate = tl.load(rates + client)
    tl.store(places, tl.load(places, mask=there) - rate * product, mask=there)
