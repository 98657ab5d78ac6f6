"""Settings that are absurd but finite: a refusal of one line, or a run that ends."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.algorithms import ALGORITHMS
from evenhand.errors import is_expected

VALUES = (1e30, 1e300, 1e-30, 1e-300, 0, -1, float("inf"), float("nan"), 10**400)


def _federation(classify: bool) -> eh.Federation:
    rng = np.random.default_rng(0)
    rows = [
        {
            "x": rng.normal(size=(6, 3)).astype(np.float32),
            "y": rng.integers(0, 2, 6) if classify else rng.normal(size=6).astype(np.float32),
            "group": ["a", "b"] * 3,
        }
        for _ in range(3)
    ]
    return eh.Federation.from_arrays(rows, test=rows)


def _settings() -> Iterator[tuple[str, str]]:
    for name, kind in ALGORITHMS.items():
        for field in dataclasses.fields(kind):
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                yield name, field.name


def _train(method: eh.Algorithm, classify: bool, engine: str, lr: float = 0.1) -> eh.Result:
    return eh.fit(
        torch.nn.Linear(3, 2 if classify else 1),
        _federation(classify),
        method,
        rounds=3,
        loss="cross_entropy" if classify else "mse",
        local=eh.LocalSGD(lr=lr, epochs=1, batch_size=6),
        engine=engine,
    )


def _refusal(name: str, settings: dict[str, float], *how: Any) -> Exception | None:
    """What is said where it is not trained; NumPy's warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        try:
            _train(ALGORITHMS[name](**settings), *how)
        except (ValueError, TypeError, eh.EvenhandError) as error:
            return error
    return None


@pytest.mark.parametrize(("name", "field"), sorted(_settings()))
def test_every_number_of_every_method_is_refused_in_one_line_or_trains(
    name: str, field: str
) -> None:
    for place, value in enumerate(VALUES):
        engine, classify = ("loop", "vmap")[place % 2], place % 4 < 2
        refusal = _refusal(name, {field: value}, classify, engine)
        assert refusal is None or is_expected(refusal), (value, refusal)
        assert "\n" not in str(refusal)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("classify", [True, False])
def test_every_method_survives_a_step_size_of_a_thousand(name: str, classify: bool) -> None:
    refusal = _refusal(name, {}, classify, "vmap", 1e3)
    assert refusal is None or is_expected(refusal)
