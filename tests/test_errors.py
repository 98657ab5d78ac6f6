"""What is asked of arguments, and what is said where they are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from numbers import Real
from pathlib import Path

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.errors import (
    is_expected,
    is_out_of_memory,
    require,
    require_choice,
    require_kind,
    require_number,
    require_whole,
    unknown,
)


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


def test_a_number_in_quotes_is_given_without() -> None:
    with pytest.raises(ValueError, match=r"got '\.2'; write it as a number: 0\.2$"):
        require_number("val of split", ".2", "[0, 1)", "it is a share")
    with pytest.raises(ValueError, match=r"got '2'; it is a share$"):  # no share either
        require_number("val of split", "2", "[0, 1)", "it is a share")
    for value in ("many", "nan", ""):
        with pytest.raises(ValueError, match=r"a finite number >= 0, got '\w*'$"):
            require_number("alpha", value, "[0, inf)")


def test_a_choice_in_another_spelling_is_given_as_it_is_written() -> None:
    known = ("equalised_odds", "client_parity")
    for name in ("equalized-odds", "Equalised odds"):
        with pytest.raises(ValueError, match=f"got '{name}'; write \"equalised_odds\"$"):
            require_choice("notion", name, known)
    with pytest.raises(ValueError, match=r"got 'odds'$"):
        require_choice("notion", "odds", known)
    with pytest.raises(ValueError, match=r'write "equal_opportunity"$'):
        eh.FairFed(notion="equal-opportunity")


def _raised(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


def _of_a_method() -> None:
    raise ValueError("a user's own method says what is wrong")


def test_expected_are_errors_that_somebody_has_worded() -> None:
    expected = [
        lambda: require_whole("rounds", -1, 0),
        lambda: require_kind("local", "3", Real, "1.0"),
        lambda: Path("/nowhere/at/all").read_text(),
        lambda: __import__("no_such_package"),
        lambda: eh.Federation.from_leaf("/nowhere"),
        _of_a_method,
    ]
    for function in expected:
        assert is_expected(_raised(function)), function


def test_unexpected_are_errors_of_the_interpreter_and_of_other_libraries() -> None:
    unexpected = [
        lambda: unknown("method", "x", 3),  # type: ignore[arg-type]  # difflib iterates over it
        lambda: require("{x}"),  # type: ignore[call-arg,arg-type]  # too few arguments
        lambda: np.zeros((2, 3)) @ np.zeros((2, 3)),
        lambda: json.loads("{"),
        lambda: torch.zeros(2) @ torch.zeros(3),
        lambda: {}["x"],
        lambda: b"\xff".decode(),
    ]
    for function in unexpected:
        assert not is_expected(_raised(function)), function


def test_memory_that_cannot_be_had_is_known_whoever_says_so() -> None:
    assert is_out_of_memory(_raised(lambda: np.zeros(1 << 60)))
    assert is_out_of_memory(_raised(lambda: np.zeros(1 << 50)))
    assert is_out_of_memory(_raised(lambda: torch.zeros(1 << 50)))
    assert is_out_of_memory(_raised(lambda: torch.zeros(1 << 62)))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("another"))
