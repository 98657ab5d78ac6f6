"""The client side of masked sums on the same problem. A message that only opens masks needs neither
the model nor the data, so both are imported by those that do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenhand.flower import client_app

if TYPE_CHECKING:
    from torch import nn


def make_model() -> nn.Module:
    from benchmarks.federation.problem import network

    return network()


def load(config: Mapping[str, Any]) -> dict[str, Any]:
    from benchmarks.federation.problem import read_data

    train, test = (
        dict(zip("xy", read_data(config["data"], part), strict=True)) for part in ("train", "test")
    )
    return {**train, "test": test}


client = client_app(make_model, load, share="masked")
