"""Feature shifts: images that are rotated or noisy to a different degree on each client.

Each function takes a federation and returns another one with changed samples in every split;
labels, groups, teams and names stay the same. Views are gathered, so bytes of images become numbers
of four bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.data.samples import PARTS
from evenhand.data.views import View
from evenhand.errors import require, require_number, require_whole

PerClient = float | Sequence[float] | Tensor  # one number for all clients, or one for each

AT_ONCE = 4096  # images rotated together, to keep sampling grids small


def draw_per_client(federation: Federation, low: float, high: float, seed: int = 0) -> Tensor:
    """Draw (n,) a number for each client, uniform between ``low`` and ``high``: angles or noise
    levels."""
    require_whole("seed", seed, 0)
    require_number("low", low, "(-inf, inf)")
    require_number("high", high, "(-inf, inf)")
    require(low <= high, "low must be at most high, {}, got {}", high, low)
    return torch.from_numpy(np.random.default_rng([seed, 6]).uniform(low, high, federation.clients))


def shifted(
    federation: Federation,
    rotation: float | Sequence[float] | None = None,
    noise: float | Sequence[float] | None = None,
    seed: int = 0,
) -> Federation:
    """Rotate images, then add noise: the shifts that a spec can name.

    Args:
        federation: the data to change.
        rotation: degrees for all clients, or two numbers; each client then draws its own in
            between.
        noise: standard deviation for all clients, or two numbers; each client then draws its own in
            between.
        seed: of the draws and of the noise.
    """
    if rotation is not None:
        federation = rotate(federation, _drawn("rotation", rotation, federation, 2 * seed))
    if noise is not None:
        require(
            min(noise if isinstance(noise, Sequence) else [noise]) >= 0,
            "noise must not be negative, got {!r}",
            noise,
        )
        federation = add_noise(federation, _drawn("noise", noise, federation, 2 * seed + 1), seed)
    return federation


def _drawn(
    name: str, values: float | Sequence[float], federation: Federation, seed: int
) -> PerClient:
    if not isinstance(values, Sequence):
        return values
    require(
        len(values) == 2,
        "{} must be a number, or two numbers between which each client draws its own; got {!r}",
        name,
        values,
    )
    low, high = values
    return draw_per_client(federation, low, high, seed)


def rotate(federation: Federation, degrees: PerClient) -> Federation:
    """Rotate every client's images counter-clockwise by its own angle.

    Multiples of 90 degrees only move pixels. Other angles interpolate between the four nearest
    pixels and fill the corners by repeating the edge.

    Args:
        federation: its samples are images (C, H, W) or (H, W) of floating-point numbers.
        degrees: one angle for all clients, or one per client.
    """
    shape = federation.train.x.shape[1:]
    require(
        len(shape) in (2, 3),
        "rotate needs images (C, H, W) or (H, W); samples have shape {}",
        list(shape),
    )
    angles = _per_client("degrees", degrees, federation) % 360
    require(
        shape[-1] == shape[-2] or bool((angles % 180 == 0).all()),
        "images of {} x {} pixels can only be rotated by multiples of 180 degrees; make them square"
        " first",
        *shape[-2:],
    )

    def turned(x: Tensor, owners: Tensor, part: int) -> Tensor:
        angle, out = angles[owners], x.clone()
        for quarters in (1, 2, 3):
            rows = (angle == 90 * quarters).nonzero().flatten()
            if len(rows):
                out[rows] = torch.rot90(x[rows], quarters, (-2, -1))
        slanted = (angle % 90 != 0).nonzero().flatten()
        for start in range(0, len(slanted), AT_ONCE):
            rows = slanted[start : start + AT_ONCE]
            out[rows] = _interpolated(x[rows], angle[rows])
        return out

    return _changed("rotate", federation, turned)


def add_noise(federation: Federation, std: PerClient, seed: int = 0) -> Federation:
    """Add independent normal noise to every feature, with its own standard deviation on each
    client.

    Args:
        federation: its features are floating-point numbers.
        std: one standard deviation for all clients, or one per client; 0 adds no noise.
        seed: of the noise.
    """
    require_whole("seed", seed, 0)
    stds = _per_client("std", std, federation)
    require(bool((stds >= 0).all()), "std must not be negative, got {:g}", float(stds.min()))

    def noisy(x: Tensor, owners: Tensor, part: int) -> Tensor:
        noise = np.random.default_rng([seed, 7, part]).standard_normal(x.shape, dtype=np.float32)
        return x + torch.from_numpy(noise).to(x.dtype) * stds[owners].to(x.dtype).reshape(
            -1, *[1] * (x.ndim - 1)
        )

    return _changed("add_noise", federation, noisy)


def _interpolated(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate square images (B, [C,] H, W) by ``angle`` (B,) degrees about their centres."""
    turn = torch.deg2rad(angle).to(x.dtype)
    cos, sin, zero = turn.cos(), turn.sin(), torch.zeros_like(turn)
    # where each pixel comes from; y points down, so this rotates the coordinates clockwise
    where = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    images = x if x.ndim == 4 else x[:, None]
    grid = F.affine_grid(where, list(images.shape), align_corners=False)
    return F.grid_sample(
        images, grid, mode="bilinear", padding_mode="border", align_corners=False
    ).reshape(x.shape)


def _per_client(name: str, values: PerClient, federation: Federation) -> Tensor:
    """(n,) float64"""
    given = torch.as_tensor(values, dtype=torch.float64)
    require(bool(torch.isfinite(given).all()), "{} must be finite, got {!r}", name, values)
    if given.ndim == 0:
        return given.expand(federation.clients)
    shape = list(given.shape)
    require(
        shape == [federation.clients],
        "{} must be one number, or one for each of {} clients; got {}",
        name,
        federation.clients,
        shape,
    )
    return given


def _changed(
    name: str, federation: Federation, change: Callable[[Tensor, Tensor, int], Tensor]
) -> Federation:
    """Return the federation with each split's x replaced by ``change(x, owners, split number)``."""
    if not federation.train.x.is_floating_point():
        raise ValueError(
            f"{name} needs features that are floating-point numbers, got {federation.train.x.dtype}"
        )
    parts = {}
    for number, part_name in enumerate(PARTS):
        part = getattr(federation, part_name)
        if part is not None:
            x = part.x[:] if isinstance(part.x, View) else part.x
            parts[part_name] = replace(part, x=change(x, part.owners, number))
    return replace(federation, **parts)
