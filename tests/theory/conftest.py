"""What all tests of the theory share."""

from __future__ import annotations

from collections.abc import Iterator

import mpmath
import pytest


@pytest.fixture(autouse=True)
def _fifty_digits() -> Iterator[None]:
    with mpmath.mp.workdps(50):
        yield
