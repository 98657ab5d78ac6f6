"""Bytes, texts and values that nobody sane would give."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 10, 100, 255, 256, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**12),
    *(10**30, 10**400, -(10**400), -(2**63)),
    *(0.0, -0.0, 0.1, 0.5, 1.0, -1.0, 1e-30, 1e-300, 5e-324, 1e30, -1e30, 1e300, 1.7e308),
    *(math.inf, -math.inf, math.nan, True, False, None),
)
TEXTS = (
    *("", " ", "a", "fedavg", "qffl", "auto", "nan", "inf", "-inf", "1e999", "0x1", "1_0", "true"),
    *(
        "\0",
        "\n",
        "\r",
        "\r\n",
        "\t",
        '"',
        "'",
        ",",
        ";",
        "\\",
        "é",
        "\U0001d518",
        "\u202e",
        "\ufeff",
    ),
    *("=cmd|' /C calc'!A0", "../../x", "a" * 3000, "9" * 400, "-", "--", "[bold]", "<script>"),
    *("2020-13-45", "1,5", "1e", "∞", "{", "[", "NA", "?", "none", "null", "0" * 50 + "1"),
)


def number(rng: random.Random) -> Any:
    """A number, or something that could pass for one."""
    if rng.random() < 0.6:
        return rng.choice(NUMBERS)
    return rng.choice(
        (rng.gauss(0, 1), rng.randint(-5, 50), rng.random() * 10 ** rng.randint(-9, 9))
    )


def value(rng: random.Random, depth: int = 2) -> Any:
    """Anything that a TOML or JSON file, or a careless program, could hold."""
    kind = rng.random()
    if kind < 0.5:
        return number(rng)
    if kind < 0.75 or depth == 0:
        return rng.choice(TEXTS)
    if kind < 0.9:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(TEXTS): value(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def mutated(rng: random.Random, content: bytes, tokens: Sequence[bytes] = ()) -> bytes:
    """``content`` with a few of its bytes changed, lost, doubled, moved, or replaced by a token."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(found) + 1)
        to = min(len(found), at + rng.choice((1, 2, 4, 8, 30, 200)))
        kind = rng.randrange(8)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = rng.randrange(256)
        elif kind == 2:
            del found[at:to]
        elif kind == 3:
            found[at:at] = found[at:to]
        elif kind == 4:
            del found[at:]
        elif kind == 5:
            elsewhere = rng.randrange(len(found) + 1)
            found[elsewhere:elsewhere] = found[at:to]
        else:
            token = rng.choice(tokens) if tokens and kind == 6 else rng.choice(TEXTS).encode()
            found[at : at if rng.random() < 0.5 else to] = token
    return bytes(found[: 1 << 16])


def mutated_value(rng: random.Random, given: Any) -> Any:
    """A nested value with one or two of its parts replaced, lost or doubled."""
    if isinstance(given, dict) and given and rng.random() < 0.85:
        key = rng.choice(list(given))
        kind = rng.random()
        if kind < 0.12:
            return {k: v for k, v in given.items() if k != key}
        if kind < 0.2:
            return {**given, rng.choice(TEXTS): value(rng)}
        return {**given, key: mutated_value(rng, given[key])}
    if isinstance(given, list) and given and rng.random() < 0.85:
        place = rng.randrange(len(given))
        kind = rng.random()
        if kind < 0.12:
            return given[:place] + given[place + 1 :]
        if kind < 0.2:
            return [*given, given[place]]
        return [*given[:place], mutated_value(rng, given[place]), *given[place + 1 :]]
    return value(rng)
