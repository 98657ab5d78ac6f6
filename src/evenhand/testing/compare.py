"""Comparisons that say what differs."""

from __future__ import annotations

import logging
import unittest
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from evenhand import tree
from evenhand.data.samples import Batch
from evenhand.model import Model
from evenhand.training.result import Result
from evenhand.tree import Tree

CLOSE = 1e-9  # tolerance for values that differ only in the order of summation, in float64


def expect(condition: bool, text: str) -> None:
    """Raise an AssertionError with ``text`` unless ``condition`` holds."""
    if not condition:
        raise AssertionError(text)


def expect_alike(found: Any, wanted: Any, tolerance: float = 0.0, what: str = "") -> None:
    """Raise an AssertionError that says where two values differ, if they do."""
    text = difference(found, wanted, tolerance)
    expect(not text, f"{what}: {text}" if what else text)


def skip(reason: str) -> None:
    """Skip the running check, which does not apply; pytest understands this exception too."""
    raise unittest.SkipTest(reason)


def difference(a: Any, b: Any, tolerance: float = 0.0, path: str = "") -> str:
    """Say where two nested values differ by more than ``tolerance``; "" if nowhere. NaN equals
    NaN."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _tensor_difference(a, b, tolerance, path)
    if isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            return f"{path or 'it'} has the keys {list(a)} against {list(b)}"
        return next(
            filter(
                None,
                (difference(a[key], b[key], tolerance, f"{path}/{key}".strip("/")) for key in a),
            ),
            "",
        )
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        if len(a) != len(b):
            return f"{path or 'it'} has {len(a)} entries against {len(b)}"
        names = getattr(a, "_fields", range(len(a)))
        parts = (
            difference(x, y, tolerance, f"{path}/{name}".strip("/"))
            for name, x, y in zip(names, a, b, strict=True)
        )
        return next(filter(None, parts), "")
    if isinstance(a, Batch) and isinstance(b, Batch):
        return difference(_columns(a), _columns(b), tolerance, path)
    alike = isinstance(a, Model) or a is b or repr(a) == repr(b) or bool(a == b)
    return "" if alike else f"{path or 'it'} is {a!r} against {b!r}"


def _tensor_difference(a: Tensor, b: Tensor, tolerance: float, path: str) -> str:
    kinds = [f"{value.dtype} {list(value.shape)}" for value in (a, b)]
    if kinds[0] != kinds[1]:
        return f"{path or 'it'} is {kinds[0]} against {kinds[1]}"
    x, y = a.detach().double(), b.detach().double()
    room = tolerance * max(1.0, float(x.abs().nan_to_num(posinf=0.0).max())) if x.numel() else 0.0
    if torch.allclose(x, y, rtol=0.0, atol=room, equal_nan=True):
        return ""
    return (
        f"{path or 'it'} differs by {float((x - y).abs().max()):.3g}, where {room:.3g} is allowed"
    )


def _columns(batch: Batch) -> Tree:
    return {"x": batch.x, "y": batch.y, "group": batch.group, "weight": batch.weight}


def form(values: Tree, rows: bool = False) -> dict[str, str]:
    """Return keys, dtypes and shapes of a tree or, with ``rows``, of one row of it."""
    return {
        "/".join(path): f"{leaf.dtype} {list(leaf.shape)[int(rows) :]}"
        for path, leaf in tree.items(values)
    }


def finite(values: Tree) -> bool:
    """Whether every number of a tree is finite."""
    return all(bool(leaf.isfinite().all()) for leaf in tree.leaves(values))


def everything(result: Result) -> Tree:
    """Return all numbers in the models and the state of a run."""
    personal = {str(i): params for i, params in enumerate(result.personal or [])}
    return {
        "params": result.params,
        "state": result.state,
        "personal": personal,
        "certificate": result.certificate,
    }


def expect_sane(result: Result, lost: bool = False) -> None:
    """Expect finite models and, unless ``lost``, no skipped clients."""
    expect(finite(result.params), "the model is not finite")
    expect(finite(result.state["model"]), 'state["model"] is not finite')
    for client, params in enumerate(result.personal or []):
        expect(finite(params), f"the model of client {client} is not finite")
    for row in result.history_rows:
        expect(
            lost or not row["left_out"],
            f"round {row['round']} skipped {row['left_out']}, whose replies were not finite",
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and log messages, because checks use odd federations on purpose."""
    logger = logging.getLogger("evenhand")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
