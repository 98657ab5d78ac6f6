"""A piece of the harness ``benchmarks/torture/lies_about_data.py``."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from benchmarks.torture.lies_about_data import LIES, Lie, try_lie

FEW = 4  # rounds
SOME = (
    "census: 10^7 samples, labels flipped",
    "census: 2^28 samples",
    "census: 50,000 groups",
    "the same, groups approved",
    "evaluation: 4e9 in a histogram",
    "evaluation: accuracy 1e300",
    "silence after the census",
)


@pytest.fixture(scope="module")
def honest() -> float:
    return try_lie(LIES[0], LIES[0].methods[0], rounds=FEW).worst


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie.name in SOME], ids=lambda lie: lie.name)
def test_a_liar_costs_little_and_is_named(lie: Lie, honest: float) -> None:
    found = try_lie(lie, lie.methods[0], rounds=FEW)
    assert found.held(honest, lie), found
