"""Integer noise for differential privacy, which clients add in shares before masking.

The sum must carry a Gaussian of a given standard deviation, whoever of the cohort answers. At
least t clients are in a sum, m of which may tell the server theirs, so each adds the variance
sigma^2/(t - m) on the grid of the fixed-point numbers. The noise is a discrete Gaussian, sampled by
rejection from a discrete Laplace distribution (Canonne, Kamath and Steinke, NeurIPS 2020,
Algorithm 3).

Two things are approximate. A sum of discrete Gaussians is nearly, not exactly, discrete Gaussian
(Kairouz, Liu and Steinke, ICML 2021; the difference vanishes for a sigma of many grid steps). And
acceptance compares float64 probabilities with 53 random bits, where the paper has exact rationals.

Random bits come from AES-256 in counter mode under a seed from the system's generator. The node
keeps that seed until its next exchange, so that a repeated message has the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.secure.context import PROTOCOL, digest
from evenhand.secure.numbers import Format, Vector, checked
from evenhand.secure.primitives import derived, stream

Integers = NDArray[np.int64]

FINEST, COARSEST = 2.0**4, 2.0**52  # standard deviations in steps of the grid that can be drawn
AT_ONCE = 1 << 16


class Bits:
    """Uniform numbers from a secret seed."""

    def __init__(self, seed: bytes) -> None:
        self._blocks = stream(derived(seed, digest(PROTOCOL, "noise"), 32), 1 << 62)
        self._left: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Uniform integers of 64 bits."""
        parts, have = [self._left], len(self._left)
        while have < count:
            parts.append(next(self._blocks).astype(np.uint64))
            have += len(parts[-1])
        both = np.concatenate(parts)
        self._left = both[count:]
        return both[:count]

    def below_one(self, count: int) -> NDArray[np.float64]:
        """Uniform floats in (0, 1], multiples of 2^-53."""
        return ((self.words(count) >> np.uint64(11)) + 1).astype(np.float64) * 2.0**-53

    def below(self, end: int, count: int) -> Integers:
        """Uniform integers in [0, end)."""
        last = (1 << 64) // end * end - 1  # larger words would favour small remainders
        words = self.words(count)
        while (bad := words > np.uint64(last)).any():
            words[bad] = self.words(int(bad.sum()))
        return (words % np.uint64(end)).astype(np.int64)


def discrete_gaussian(sigma: float, count: int, bits: Bits) -> Integers:
    """Integers x (count,) with probabilities proportional to exp(-x^2 / 2 sigma^2)."""
    if not sigma <= COARSEST:
        raise ValueError(
            "noise must have a standard deviation of at most 2^52 steps of the grid, got"
            f" {sigma:g}; give the leaf a larger exponent"
        )
    found = np.zeros(count, dtype=np.int64)
    if sigma == 0:
        return found
    done, scale = 0, math.floor(sigma) + 1
    while done < count:
        # about three in four are kept
        drawn = _discrete_laplace(scale, min(AT_ONCE, 2 * (count - done) + 16), bits)
        away = (np.abs(drawn) - sigma**2 / scale) / sigma
        kept = drawn[bits.below_one(len(drawn)) <= np.exp(-away * away / 2)][: count - done]
        found[done : done + len(kept)] = kept
        done += len(kept)
    return found


def _discrete_laplace(scale: int, count: int, bits: Bits) -> Integers:
    """At most ``count`` integers with probabilities proportional to exp(-|x| / scale)."""
    within = bits.below(scale, count)
    within = within[bits.below_one(count) <= np.exp(-within / scale)]
    whole = np.floor(-np.log(bits.below_one(len(within)))).astype(np.int64)
    size = within + scale * whole
    negative = (bits.words(len(size)) & np.uint64(1)).astype(bool)
    kept = ~(negative & (size == 0))  # zero must not count twice
    signed: Integers = np.where(negative, -size, size)[kept]
    return signed


def add_noise(
    vector: Vector, format: Format, deviations: Mapping[str, Any], shares: int, seed: bytes
) -> Vector:
    """A client's vector with its share of the noise, and a checksum that is right again.

    Args:
        vector: from ``Format.encode``.
        format: of the vector.
        deviations: by path, the standard deviation that the sum must carry: a number, or an array
            of the leaf's shape.
        shares: how many clients' noise is enough (t - m).
        seed: secret, from the system's generator.
    """
    noisy, bits = vector.copy(), Bits(seed)
    unknown = set(deviations) - set(format.exponents())
    if unknown:
        raise ValueError(f"noise needs fixed-point leaves; {sorted(unknown)} are not")
    for leaf, place in format.places():
        if leaf.path not in deviations:
            continue
        steps = np.asarray(deviations[leaf.path], dtype=np.float64) * 2.0 ** format.scale(leaf)
        sigmas = np.broadcast_to(steps / math.sqrt(shares), leaf.shape).ravel()
        numbers = noisy[place][:-1]
        for sigma in np.unique(sigmas).tolist():
            if 0 < sigma < FINEST:
                raise ValueError(
                    f'the grid of "{leaf.path}" is too coarse for its noise: {sigma:.3g} steps;'
                    " give it a smaller exponent"
                )
            there = np.flatnonzero(sigmas == sigma)
            numbers[there] += discrete_gaussian(sigma, len(there), bits).view(np.uint64)
    return checked(noisy)
