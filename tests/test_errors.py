"""What is asked of arguments, and what is said where they are wrong."""

from __future__ import annotations

import pytest

from evenhand.errors import require_whole, unknown


def test_whole_numbers_are_neither_true_nor_too_large() -> None:
    require_whole("rounds", 0, 0)
    require_whole("rounds", None, 1, optional=True)
    for value in (True, 2.0, "2", None, -1, 2**63):
        with pytest.raises(ValueError, match=r"rounds must be a whole number >= 0, got"):
            require_whole("rounds", value, 0)


def test_the_nearest_name_is_given_whatever_its_case() -> None:
    known = ("fedavg", "qffl")
    assert unknown("algorithm", "QFFL", known) == "unknown algorithm 'QFFL'; did you mean 'qffl'?"
    assert unknown("algorithm", "x", known) == "unknown algorithm 'x'; choose from fedavg, qffl"
    assert unknown("keyword", "x", ()) == "unknown keyword 'x'; it has none"
