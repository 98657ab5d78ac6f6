"""What tests of methods share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["loop", "vmap"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)
