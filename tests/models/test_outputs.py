"""What a module returns: a tensor, a tuple, a dict, an object with logits, or what ``output`` takes."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh

RNG = np.random.default_rng(0)
FED = eh.Federation.from_arrays(
    [{"x": RNG.normal(size=(n, 3)), "y": RNG.integers(0, 2, n)} for n in (4, 7)]
)
Pair = namedtuple("Pair", ["hidden", "logits"])


@dataclass
class Answer:
    logits: Tensor


KINDS = {
    "tensor": lambda z: z,
    "tuple": lambda z: (z, z.sum()),
    "list": lambda z: [z, None],
    "dict": lambda z: {"hidden": z * 2, "logits": z},
    "ordered dict": lambda z: OrderedDict(logits=z),
    "object": lambda z: Answer(z),
    "named tuple": lambda z: Pair(z * 2, z),
}


class Returns(nn.Linear):
    def __init__(self, kind: Any) -> None:
        super().__init__(3, 2, dtype=torch.float64)
        self.kind = kind

    def forward(self, input: Tensor) -> Any:
        return self.kind(super().forward(input))


def trained(kind: Any, **options: Any) -> eh.Result:
    torch.manual_seed(0)
    return eh.fit(Returns(kind), FED, eh.FedAvg(), rounds=2, **options)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_output_is_found(kind: str, engine: str) -> None:
    plain, found = trained(KINDS["tensor"], engine=engine), trained(KINDS[kind], engine=engine)
    assert all(torch.equal(found.params[name], value) for name, value in plain.params.items())
    assert found.score_columns["accuracy"].tolist() == plain.score_columns["accuracy"].tolist()


def test_output_takes_what_it_is_told() -> None:
    plain = trained(KINDS["tensor"])
    found = trained(lambda z: {"out": (z, None)}, output=lambda o: o["out"][0])
    assert all(torch.equal(found.params[name], value) for name, value in plain.params.items())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            lambda z: {"out": z},
            {},
            r"dict without 'logits' \(it has out\); pass output=.*o\['out'\]",
        ),
        (
            lambda z: {"logits": None, "hidden": z},
            {},
            r"must return a tensor in 'logits', got a NoneType; pass output=.*o\['hidden'\]",
        ),
        (lambda z: ((z, None),), {}, r"got a tuple of tuple; pass output=.*lambda o: o\[0\]\[0\]"),
        (lambda z: None, {}, "must return a tensor, got a NoneType; pass output="),
        (lambda z: z, {"output": lambda o: None}, "output= must return a tensor, got NoneType"),
        (lambda z: z, {"output": "logits"}, "output must be a function"),
        (
            lambda z: {"out": z},
            {"output": lambda o: o["logit"]},
            "output= fails with KeyError: 'logit'; the module returned a dict with out",
        ),
        (lambda z: z, {"output": lambda o: o[:1]}, "one row per sample"),
    ],
)
def test_other_outputs_are_refused_in_one_line(kind: Any, options: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        trained(kind, **options)
    assert "\n" not in str(caught.value)
