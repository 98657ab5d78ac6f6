"""On a GPU: float32 results near those of the CPU loop, and results that come back on the CPU."""

from __future__ import annotations

import pytest
import torch

import evenhand as eh
from evenhand import tree
from federations import METHODS, network, ragged

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_twenty_rounds_end_near_the_cpu_loop(method: str, engine: str) -> None:
    local = eh.LocalSGD(lr=0.05, epochs=1, batch_size=32, momentum=0.5)
    settings = {"rounds": 20, "local": local, "cohort": eh.Uniform(6), "eval_every": 20}
    reference = eh.fit(network(torch.float32), ragged(), METHODS[method], engine="loop", **settings)
    result = eh.fit(network(torch.float32), ragged(), METHODS[method], engine=engine, device="cuda", **settings)
    both = [
        tree.flatten({"params": r.params, "state": r.state, "own": {str(i): p for i, p in enumerate(r.personal or [])}})
        for r in (reference, result)
    ]
    for key, value in both[0].items():
        assert both[1][key].device.type == "cpu"
        torch.testing.assert_close(both[1][key], value, rtol=1e-4, atol=1e-4)
