"""A Triton kernel that takes a step along a product without writing the product to memory.

Importing this module needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
