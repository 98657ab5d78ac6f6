"""Networks with BatchNorm: frozen statistics, and normalisation that is local to each client."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.model import Model
from tests.support.batchnorm import apart, arrays, cnn, mlp, norm_keys, trained


def warmed(module: nn.Module) -> nn.Module:
    """A module whose running statistics are those of some data."""
    with torch.no_grad():
        for _ in range(5):
            module.train()(torch.randn(9, 1, 8, 8, dtype=torch.float64) + 1)
    return module


# ---- frozen statistics


@pytest.mark.parametrize("make", [cnn, mlp])
def test_layers_given_in_evaluation_mode_keep_their_statistics(make: Any) -> None:
    module = warmed(make()).eval()
    results = [trained(module, eh.FedAvg(), engine=engine) for engine in ("loop", "vmap")]
    assert apart(*results) < 1e-13
    for key in norm_keys(module):
        same = torch.equal(results[0].params[key], module.state_dict()[key])
        assert same == key.split(".")[-1].startswith(("running", "num")), key


def test_frozen_statistics_are_those_of_torch_in_evaluation_mode() -> None:
    module = warmed(mlp()).train()
    result = eh.fit(
        module, eh.Federation.from_arrays(arrays((12,)), test=arrays((4,), 1)), eh.FedAvg(),
        rounds=1, engine="vmap", local=eh.LocalSGD(0.1, steps=3), normalisation="frozen",
    )  # fmt: skip
    twin = copy.deepcopy(module).eval()
    step = torch.optim.SGD(twin.parameters(), 0.1)
    x, y = (torch.as_tensor(arrays((12,))[0][name]) for name in "xy")
    for _ in range(3):
        step.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()
        step.step()
    for key, value in twin.state_dict().items():
        torch.testing.assert_close(result.params[key], value, rtol=0, atol=1e-12)


def test_frozen_is_evaluation_mode() -> None:
    module = warmed(cnn())
    frozen = trained(module.train(), eh.AFL(), normalisation="frozen")
    assert apart(frozen, trained(module.eval(), eh.AFL())) == 0


def test_the_training_mode_of_other_layers_does_not_reach_frozen_ones() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model = Model(module.eval()).training()
    assert [layer.training for layer in model._own()] == [True, True, False, True]


def test_every_thread_has_one_copy_of_the_module_for_each_mode() -> None:
    model = Model(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    with ThreadPoolExecutor(1) as other:
        elsewhere = other.submit(model._own).result()
    copies = [model._own(), model.training()._own(), elsewhere]
    assert [each.training for each in copies] == [False, True, False]
    assert len({id(each) for each in (*copies, model._module)}) == 4
    # one copy, however often the mode or the precision is chosen
    assert model.training()._own() is copies[1]
    assert model.with_precision("bf16")._own() is copies[0]
    # a module with other constants, or elsewhere, is another module
    alike = model.with_parameters_of(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    assert alike is not None
    assert alike._own() is not copies[0]
    assert model.to(torch.device("cpu"))._own() is not copies[0]


def test_frozen_affine_parameters_stay() -> None:
    module = warmed(mlp()).eval()
    module[2].requires_grad_(False)  # type: ignore[index]
    result = trained(module, eh.FedAvg(), engine="vmap")
    for key in norm_keys(module):
        assert torch.equal(result.params[key], module.state_dict()[key])
    assert not torch.equal(result.params["1.weight"], module.state_dict()["1.weight"])


@pytest.mark.parametrize("mode", [True, False])
def test_instance_norm_with_statistics_can_be_frozen(mode: bool) -> None:
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(2, affine=True, track_running_stats=True)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(72, 3)).double()
    options: dict[str, Any] = {"normalisation": "frozen"} if mode else {}
    results = [
        trained(module.train(mode), eh.FedAvg(), engine=engine, **options)
        for engine in ("loop", "vmap")
    ]
    assert apart(*results) < 1e-13
    assert torch.equal(results[0].params["1.running_mean"], torch.zeros(2, dtype=torch.float64))


# ---- refusals


class OwnForward(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


def net(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), layer, nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("module", "setting", "says"),
    [
        (
            net(nn.BatchNorm1d(4)), None,
            r"layer '2' \(BatchNorm1d\) is in training mode.*\"frozen\".*\"local\".*"
            r"eh\.models\.without_batchnorm",
        ),
        (net(nn.BatchNorm1d(4, track_running_stats=False)), "local", "even in evaluation"),
        (net(nn.BatchNorm1d(4, track_running_stats=False)), "frozen", "even in evaluation"),
        (net(nn.Sequential(nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True))), "local", r"track_running_stats=False"),
        (net(OwnForward(4)), "local", r"\(OwnForward\) has a forward of its own.*\"frozen\""),
        (net(nn.BatchNorm1d(4)), "shared", r'normalisation.*frozen.*local.*shared'),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64)), "local", "leaves nothing to share"),
        (nn.Linear(4, 3), "local", "has no such layer"),
    ],
)  # fmt: skip
def test_other_layers_are_refused_in_one_line(
    module: nn.Module, setting: str | None, says: str
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        trained(module, eh.FedAvg(), normalisation=setting)
    assert "\n" not in str(caught.value)


def test_a_layer_that_sees_several_rows_for_a_sample_is_refused() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.BatchNorm1d(16), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.norm(x.reshape(-1, 16)).reshape(-1, 64))  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match="'norm' gets 8 rows for a batch of 2 samples"):
        trained(Parts(), eh.FedAvg(), normalisation="local")
