"""Masked sums over Flower's messages: what the simulator gives with the same fixed-point sums, to
the bit, whoever drops out, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.algorithm import visible
from tests.support.federations import METHODS, ragged
from tests.support.flower_masks import SECURE, SIZES, Masked
from tests.support.flower_nodes import FAST, flat, one_client

# groups' shares from masked counts are rounded otherwise; see test_masked_counts.py
VISIBLE = eh.flower.SecureSums(counts="visible")
SUMS_ONLY = [name for name in METHODS if not visible(METHODS[name], ragged(SIZES).census())]


def assert_equal(result: eh.Result, reference: eh.Result) -> None:
    for key, value in flat(reference).items():
        assert torch.equal(flat(result)[key], value), key
    for mine, theirs in zip(result.history_rows, reference.history_rows, strict=True):
        assert mine["answered"] == theirs["answered"]
        assert mine.get("loss") == theirs.get("loss")
        assert mine.get("worst10") == theirs.get("worst10")


@pytest.mark.parametrize("method", SUMS_ONLY)
def test_every_method_of_sums_gives_what_fixed_point_gives_to_the_bit(
    method: str, tmp_path: Path
) -> None:
    setting = Masked(tmp_path)
    result = setting.run(METHODS[method], weights="uniform", secure=VISIBLE)
    assert_equal(result, setting.plain_sums(METHODS[method], weights="uniform"))
    assert {row["answered"] for row in result.history_rows} == {5}


@pytest.mark.parametrize("method", ["fedavg", "qffl", "fafl", "ditto", "fedminmax"])
@pytest.mark.parametrize("evaluate", ["with training", "after training"])
def test_the_simulators_engine_gives_the_same(method: str, evaluate: str, tmp_path: Path) -> None:
    """``eh.Masked`` masks, too; without masks it only rounds."""
    setting, settings = Masked(tmp_path), {"weights": "uniform", "evaluate": evaluate}
    result = setting.run(METHODS[method], secure=VISIBLE, **settings)
    for masks in (False, True):
        engine = eh.Masked(SECURE, engine="loop", masks=masks)
        settings_here = {**FAST, **settings, "rounds": 3, "engine": engine}
        assert_equal(
            result, eh.fit(setting.module, setting.federation, METHODS[method], **settings_here)
        )


def test_a_sum_that_hardly_counts_more_than_one_client_is_spoken_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """q-FFL gives the client with the highest loss nearly all weight, by design."""
    sizes = (1, 30, 7, 40, 12)  # by these weights alone they are 3.007 clients
    held = [one_client(ragged(sizes), client) for client in range(5)]
    held[2].train.x.mul_(30.0)
    setting = Masked(tmp_path, sizes, data=held)
    setting.run(eh.QFFL(q=5.0), rounds=1)
    told = [it.message for it in caplog.records if "fewer than least = 3" in it.message]
    assert len(told) == 1
    assert "it may show the worst client's update" in told[0]


@dataclass(frozen=True)
class Noisy(eh.Algorithm):
    """FedAvg whose clients add noise to the step in shares."""

    std: float = 0.0

    def local_work(self) -> eh.LocalWork:
        return eh.LocalWork(noise=self._noise if self.std else None)

    def _noise(self, total: Any) -> Any:
        return {"delta": eh.tree.map(lambda leaf: torch.tensor(self.std), total["delta"])}


def test_clients_add_noise_in_shares_before_they_mask(tmp_path: Path) -> None:
    """Five clients add variance s^2/4 each, for at least four answers."""
    moved = {}
    for std in (0.0, 3.0):
        method = Noisy(std)
        setting = Masked(tmp_path / f"{std}", algorithm=method)
        result = setting.run(method, rounds=1)
        moved[std] = torch.cat([value.reshape(-1) for value in result.params.values()])
    noise = moved[3.0] - moved[0.0]
    assert len(noise) == 75
    # a standard deviation from 75 numbers is right to 8 %
    assert float(noise.std()) == pytest.approx(3 * (5 / 4) ** 0.5, rel=0.35)


def test_a_private_method_whose_clients_add_the_noise(tmp_path: Path) -> None:
    method = eh.Private(clip=0.5, noise=6.0, delta=1e-3, noise_by="clients")
    still = eh.LocalSGD(lr=1e-12, steps=1, batch_size=1)
    setting = Masked(tmp_path)
    result = setting.run(method, rounds=1, weights="uniform", local=still)
    first = setting.module.state_dict()
    noise = torch.cat([(value - first[key]).reshape(-1) for key, value in result.params.items()])
    # on the mean of five clients; each adds variance for at least four answers
    assert float(noise.std()) == pytest.approx(6 * 0.5 / 5 * (5 / 4) ** 0.5, rel=0.35)
    assert result.privacy is not None
    assert result.privacy.noise_by == "clients"
    assert result.privacy.epsilon is not None
