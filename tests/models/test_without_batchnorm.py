"""GroupNorm in place of BatchNorm."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn

import evenhand as eh
from tests.support.batchnorm import FED, cnn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(6, eps=1e-3)
        self.again = self.norm
        self.branches = nn.ModuleDict({"side": nn.Sequential(nn.BatchNorm2d(32, affine=False))})


def test_every_layer_is_replaced_and_the_network_is_not_changed() -> None:
    net = nn.Sequential(nn.Conv2d(1, 6, 3), Block(), nn.BatchNorm1d(48), nn.BatchNorm3d(7))
    before = str(net)
    found = eh.models.without_batchnorm(net)
    assert str(net) == before
    assert "BatchNorm" not in str(found)
    groups = [
        (m.num_groups, m.num_channels) for m in found.modules() if isinstance(m, nn.GroupNorm)
    ]
    assert groups == [(1, 6), (2, 32), (3, 48), (1, 7)]  # at least 16 channels each, or one group
    block = found[1]  # type: ignore[index]
    assert block.norm is block.again
    assert block.norm.eps == 1e-3
    assert not block.branches["side"][0].affine


def test_scale_and_offset_are_kept() -> None:
    norm = nn.BatchNorm2d(4).double().eval()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.bias.requires_grad_(False)
    found = eh.models.without_batchnorm(norm)
    assert isinstance(found, nn.GroupNorm)  # the network itself was the layer
    assert torch.equal(found.weight, norm.weight)
    assert torch.equal(found.bias, norm.bias)
    assert (found.weight.requires_grad, found.bias.requires_grad) == (True, False)
    assert found.weight is not norm.weight
    assert not found.training
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    flat = x.reshape(2, -1)
    mean, var = flat.mean(1)[:, None, None, None], flat.var(1, correction=0)[:, None, None, None]
    wanted = (x - mean) / (var + norm.eps).sqrt() * norm.weight[:, None, None]
    torch.testing.assert_close(found(x), wanted + norm.bias[:, None, None])


@pytest.mark.parametrize(("asked", "channels", "got"), [(2, 6, 2), (4, 6, 3), (8, 8, 4), (5, 7, 1)])
def test_the_number_of_groups_divides_the_channels(asked: int, channels: int, got: int) -> None:
    found = eh.models.without_batchnorm(nn.BatchNorm2d(channels), groups=asked)
    assert isinstance(found, nn.GroupNorm)
    assert found.num_groups == got


def test_the_log_says_what_was_replaced(caplog: pytest.LogCaptureFixture) -> None:
    net = cnn()
    eh.models.without_batchnorm(net)
    assert caplog.messages == ["replaced 2 BatchNorm layers by GroupNorm (groups of 4 channels)"]
    caplog.clear()
    net.train()(torch.ones(3, 1, 8, 8, dtype=torch.float64))
    eh.models.without_batchnorm(net)
    eh.models.without_batchnorm(nn.BatchNorm2d(8))
    eh.models.without_batchnorm(nn.Linear(2, 2))
    assert caplog.messages == [
        "replaced 2 BatchNorm layers by GroupNorm (groups of 4 channels); their running statistics"
        " are lost, so train the network again",
        "replaced 1 BatchNorm layer by GroupNorm (groups of 8 channels)",
        "the network has no BatchNorm layers; nothing was replaced",
    ]
    # without any setting of the user's
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_the_result_trains() -> None:
    result = eh.fit(eh.models.without_batchnorm(cnn()), FED, eh.FedAvg(), rounds=1)
    assert result.personal is None


class OwnForward(nn.BatchNorm2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu()


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (OwnForward(4), r"'0' \(OwnForward\) has a forward of its own"),
        (nn.LazyBatchNorm2d(), "no shape yet"),
        (nn.BatchNorm1d(1), "one channel"),
    ],
)
def test_layers_that_groupnorm_cannot_replace_are_refused(layer: nn.Module, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        eh.models.without_batchnorm(nn.Sequential(layer))
    with pytest.raises(TypeError, match="net must be a Module"):
        eh.models.without_batchnorm(copy.copy)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="groups"):
        eh.models.without_batchnorm(nn.Linear(1, 1), groups=0)
