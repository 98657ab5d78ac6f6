"""Triton kernels that convolve the images of stacked clients without copying patches.

A convolution is a product of patches and filters. These kernels read the patches from where the
images lie, with channels last, so that no patch is ever written to memory. Importing this module
needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def convolve(  # type: ignore[no-untyped-def]
    source,  # (K, N, rows, columns, depth)
    filters,  # (K, outputs, KH, KW, depth)
    bias,  # (K, outputs), if HAS_BIAS
    out,  # (K, N, out_rows, out_columns, outputs)
    images,
    rows,
    columns,
    depth,
    placed_rows,  # places that this launch computes, per image
    placed_columns,
    out_rows,
    out_columns,
    outputs,
    first_row,  # of the image, under the first tap at the first place
    first_column,
    KH: tl.constexpr,
    KW: tl.constexpr,
    TAPS: tl.constexpr,  # rows and columns of the filter that are used: (TAPS, TAPS_ACROSS)
    TAPS_ACROSS: tl.constexpr,
    FIRST_TAP: tl.constexpr,
    FIRST_TAP_ACROSS: tl.constexpr,
    TAP_STEP: tl.constexpr,  # from one used row of the filter to the next
    MOVE: tl.constexpr,  # of the window, from one place to the next
    REACH: tl.constexpr,  # from one used tap to the next, in the image; negative if turned
    OUT_STEP: tl.constexpr,  # from one place to the next, in the output
    OUT_ROW: tl.constexpr,
    OUT_COLUMN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DEPTH: tl.constexpr,  # depth, unless BLOCK_D divides it: then 0
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The output at BLOCK_P places for BLOCK_O channels of one client."""
    client = tl.program_id(2).to(tl.int64)
    source += client * images * rows * columns * depth
    filters += client * outputs * KH * KW * depth
    out += client * images * out_rows * out_columns * outputs
    place = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    real = place < images * placed_rows * placed_columns
    image = place // (placed_rows * placed_columns)
    down = place // placed_columns % placed_rows
    across = place % placed_columns
    channel = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    row, column = down * MOVE + first_row, across * MOVE + first_column
    product = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    if DEPTH == 0:
        pieces = depth // BLOCK_D
        for step in range(TAPS * TAPS_ACROSS * pieces):
            tap = step // pieces
            part = step % pieces * BLOCK_D + tl.arange(0, BLOCK_D)
            i, j = tap // TAPS_ACROSS, tap % TAPS_ACROSS
            r, c = row + i * REACH, column + j * REACH
            inside = real & (r >= 0) & (r < rows) & (c >= 0) & (c < columns)
            where = ((image * rows + r) * columns + c) * depth
            patch = tl.load(
                source + where[:, None] + part[None, :], mask=inside[:, None], other=0.0
            )
            used = (FIRST_TAP + i * TAP_STEP) * KW + FIRST_TAP_ACROSS + j * TAP_STEP
            weights = tl.load(
                filters + (channel * (KH * KW * depth))[None, :] + used * depth + part[:, None],
                mask=(channel < outputs)[None, :],
                other=0.0,
            )
            product = tl.dot(patch, weights, product, input_precision=PRECISION)
    else:
        for step in range(tl.cdiv(TAPS * TAPS_ACROSS * DEPTH, BLOCK_D)):
            part = step * BLOCK_D + tl.arange(0, BLOCK_D)
            tap = part // DEPTH
            i, j = tap // TAPS_ACROSS, tap % TAPS_ACROSS
            r = row[:, None] + (i * REACH)[None, :]
            c = column[:, None] + (j * REACH)[None, :]
            some = part < TAPS * TAPS_ACROSS * DEPTH
            inside = real[:, None] & some[None, :] & (r >= 0) & (r < rows)
            inside = inside & (c >= 0) & (c < columns)
            where = ((image[:, None] * rows + r) * columns + c) * DEPTH + (part % DEPTH)[None, :]
            patch = tl.load(source + where, mask=inside, other=0.0)
            used = (FIRST_TAP + i * TAP_STEP) * KW + FIRST_TAP_ACROSS + j * TAP_STEP
            weights = tl.load(
                filters
                + (channel * (KH * KW * DEPTH))[None, :]
                + (used * DEPTH + part % DEPTH)[:, None],
                mask=(channel < outputs)[None, :] & some[:, None],
                other=0.0,
            )
            product = tl.dot(patch, weights, product, input_precision=PRECISION)
    if HAS_BIAS:
        added = tl.load(bias + client * outputs + channel, mask=channel < outputs, other=0.0)
        product += added.to(tl.float32)[None, :]
    out_place = (image * out_rows + down * OUT_STEP + OUT_ROW) * out_columns
    out_place += across * OUT_STEP + OUT_COLUMN
    tl.store(
        out + (out_place * outputs)[:, None] + channel[None, :],
        product.to(out.dtype.element_ty),
        mask=real[:, None] & (channel < outputs)[None, :],
    )


@triton.jit  # type: ignore[untyped-decorator]
def filter_gradient(  # type: ignore[no-untyped-def]
    slopes,  # (PARTS, K, N, out_rows, out_columns, outputs): gradient of the output
    source,  # (PARTS, K, N, rows, columns, depth)
    out,  # (splits, K, outputs, KH, KW, depth), float32
    slope_part,  # from one part of the numbers to the next
    source_part,
    clients,
    images,
    rows,
    columns,
    depth,
    out_rows,
    out_columns,
    outputs,
    steps,  # of one split
    all_steps,
    KW: tl.constexpr,
    TAPS: tl.constexpr,  # KH * KW
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    PADDING_ACROSS: tl.constexpr,
    DILATION: tl.constexpr,
    DEPTH: tl.constexpr,  # depth, unless BLOCK_D divides it: then 0
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,  # into which numbers are divided, see parts.py
    IMAGES: tl.constexpr,  # images, rows and columns of the output that a step takes: powers of
    ROWS: tl.constexpr,  # two, so that nothing is divided by a number known only later
    COLUMNS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The gradient of BLOCK_O filters at BLOCK_D of their entries, from one split of the places."""
    client = (tl.program_id(2) % clients).to(tl.int64)
    split = tl.program_id(2) // clients
    source += client * images * rows * columns * depth
    slopes += client * images * out_rows * out_columns * outputs
    out += (split * clients + client) * outputs * TAPS * depth
    channel = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    entry = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    within = entry < TAPS * depth
    if DEPTH == 0:
        tap = tl.program_id(1) * BLOCK_D // depth
        part = tl.program_id(1) * BLOCK_D % depth + tl.arange(0, BLOCK_D)
    else:
        tap, part = entry // DEPTH, entry % DEPTH
    i, j = tap // KW * DILATION - PADDING, tap % KW * DILATION - PADDING_ACROSS
    place = tl.arange(0, IMAGES * ROWS * COLUMNS)
    own_image, own_row = place // (ROWS * COLUMNS), place // COLUMNS % ROWS
    own_column = place % COLUMNS
    # of the place in the output, and of the middle of its patch in the image, in the first step
    slope_place = (own_image * out_rows + own_row) * out_columns + own_column
    patch_place = (own_image * rows + own_row * STRIDE) * columns + own_column * STRIDE
    shift = (i * columns + j) * depth
    across, down = tl.cdiv(out_columns, COLUMNS), tl.cdiv(out_rows, ROWS)
    product = tl.zeros((BLOCK_O, BLOCK_D), tl.float32)
    for step in range(split * steps, min(split * steps + steps, all_steps)):
        column = step % across * COLUMNS
        row = step // across % down * ROWS
        image = step // (across * down) * IMAGES
        real = (own_image + image < images) & (own_row + row < out_rows)
        real = real & (own_column + column < out_columns)
        slope_step = (image * out_rows + row) * out_columns + column
        slope_at = ((slope_place + slope_step) * outputs)[:, None] + channel[None, :]
        slope_mask = real[:, None] & (channel < outputs)[None, :]
        r, c = (own_row + row) * STRIDE, (own_column + column) * STRIDE
        where = (patch_place + (image * rows + row * STRIDE) * columns + column * STRIDE) * depth
        if DEPTH == 0:
            r, c = r + i, c + j
            inside = real & (r >= 0) & (r < rows) & (c >= 0) & (c < columns)
            patch_at, patch_mask = (where + shift)[:, None] + part[None, :], inside[:, None]
        else:
            r, c = r[:, None] + i[None, :], c[:, None] + j[None, :]
            patch_mask = real[:, None] & within[None, :] & (r >= 0) & (r < rows)
            patch_mask = patch_mask & (c >= 0) & (c < columns)
            patch_at = where[:, None] + (shift + part)[None, :]
        slope = tl.trans(tl.load(slopes + slope_at, mask=slope_mask, other=0.0))
        patch = tl.load(source + patch_at, mask=patch_mask, other=0.0)
        if PARTS == 1:
            product = tl.dot(slope, patch, product, input_precision=PRECISION)
        else:
            slope_2 = tl.trans(tl.load(slopes + slope_part + slope_at, mask=slope_mask, other=0.0))
            patch_2 = tl.load(source + source_part + patch_at, mask=patch_mask, other=0.0)
            if PARTS == 2:
                product = tl.dot(slope_2, patch, product)
                product = tl.dot(slope, patch_2, product)
                product = tl.dot(slope, patch, product)
            else:
                slope_3 = tl.trans(
                    tl.load(slopes + 2 * slope_part + slope_at, mask=slope_mask, other=0.0)
                )
                patch_3 = tl.load(source + 2 * source_part + patch_at, mask=patch_mask, other=0.0)
                # tensor cores cut off what they add to, so a long sum of theirs is not exact
                own = tl.dot(slope_3, patch)
                own = tl.dot(slope, patch_3, own)
                own = tl.dot(slope_2, patch_2, own)
                own = tl.dot(slope_2, patch, own)
                own = tl.dot(slope, patch_2, own)
                product += tl.dot(slope, patch, own)
    tl.store(
        out + (channel * (TAPS * depth))[:, None] + entry[None, :],
        product,
        mask=(channel < outputs)[:, None] & within[None, :],
    )


@triton.jit  # type: ignore[untyped-decorator]
def sum_places(  # type: ignore[no-untyped-def]
    slopes,  # (K, places, outputs)
    out,  # (splits, K, outputs), float32
    clients,
    all_places,
    outputs,
    places,  # of one split, a multiple of BLOCK_P
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Sums over one split of the places, for BLOCK_O channels of one client."""
    client = (tl.program_id(1) % clients).to(tl.int64)
    split = tl.program_id(1) // clients
    slopes += client * all_places * outputs
    channel = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    total = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    for step in range(places // BLOCK_P):
        place = split * places + step * BLOCK_P + tl.arange(0, BLOCK_P)
        total += tl.load(
            slopes + (place * outputs)[:, None] + channel[None, :],
            mask=(place < all_places)[:, None] & (channel < outputs)[None, :],
            other=0.0,
        ).to(tl.float32)
    tl.store(
        out + (split * clients + client) * outputs + channel,
        tl.sum(total, 0),
        mask=channel < outputs,
    )
