"""Private methods in a federation: the same bits as in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import evenhand as eh
from tests.support.federations import network, ragged
from tests.support.flower_nodes import SETTINGS, SIZES, Setting, flat


@pytest.mark.parametrize(
    "inner", [eh.FedAvg(), eh.FedMinMax(lr_mu=0.1), eh.FAFL(alpha=0.5, mu=0.1, lr_eta=0.05)]
)
def test_a_private_run_gives_what_the_simulator_gives(inner: eh.Algorithm, tmp_path: Path) -> None:
    federation, module = ragged(SIZES), network(torch.float64)
    method = eh.Private(inner, clip=0.5, noise=0.7, delta=1e-3, loss_cap=3.0, secret=1)
    steps = eh.LocalSGD(lr=0.1, steps=2, batch_size=8)
    settings = {**SETTINGS, "rounds": 3, "weights": "uniform", "local": steps}
    settings |= {"cohort": eh.Poisson(0.7)}
    reference = eh.fit(module, federation, method, engine="loop", **settings)
    result = Setting(tmp_path, federation, module).run(method, **settings)
    for key, value in flat(reference).items():
        assert torch.allclose(flat(result)[key], value, rtol=1e-9, atol=1e-12), key
    assert result.privacy is not None
    assert result.privacy == reference.privacy
    assert {row["left_out"] for row in result.history_rows} == {""}
