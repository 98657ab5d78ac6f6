"""The Triton form of the LSTM's recurrence is torch.nn.LSTM: in triton's interpreter on a CPU, and
on a GPU. Without triton both are skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.engines.recording import recorded
from evenhand.layers import choices, kernels, lstm_steps, recurrence
from tests.support.interpreter import INTERPRETED, run_in_interpreter
from tests.support.products import products

ON_CUDA = torch.cuda.is_available() and not INTERPRETED
DEVICE = torch.device("cuda" if ON_CUDA else "cpu")
runs_kernels = pytest.mark.skipif(not (INTERPRETED or ON_CUDA), reason="no interpreter, no GPU")
on_gpu = pytest.mark.skipif(not ON_CUDA, reason="no GPU")
NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
# clients, samples, steps, inputs and units: fewer and more than a tile, not multiples of one
ODD = [(3, 5, 4, 2, 7), (1, 1, 1, 3, 1), (2, 18, 3, 5, 20), (2, 10, 5, 8, 16)]
LARGE = [(2, 10, 12, 8, 256), (3, 64, 6, 256, 256), (2, 70, 4, 9, 100)]


def test_the_tests_of_the_kernels_pass_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


MEASURED = recurrence._form  # before the fixture replaces it


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No choice by time: each test has kernels."""
    monkeypatch.setattr(recurrence, "_form", lambda values, weight: "steps")


def results(
    lstms: list[nn.LSTM], x: Tensor, slopes: Tensor, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """States and all gradients of stacked clients."""

    def total(
        params: list[Tensor], x: Tensor, slopes: Tensor, biases: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        weight_ih, weight_hh = (value.to(dtype) for value in params)
        shares = F.linear(x.transpose(0, 1).to(dtype), weight_ih)
        states = recurrence.recurrence(shares, biases[0] + biases[1], weight_hh)
        states = states.float().transpose(0, 1)
        return (states * slopes).sum(), states

    params = [
        torch.stack([getattr(lstm, name).detach().float() for lstm in lstms]) for name in NAMES
    ]
    gradients, states = torch.func.vmap(torch.func.grad(total, argnums=(0, 1, 3), has_aux=True))(
        params[:2], x.float(), slopes.float(), tuple(params[2:])
    )
    return [states, *gradients[0], *gradients[2], gradients[1]]


def expected(lstms: list[nn.LSTM], x: Tensor, slopes: Tensor) -> list[Tensor]:
    """The same by torch.nn.LSTM in float64, client by client."""
    found = []
    for lstm, own, slope in zip(lstms, x, slopes, strict=True):
        own = own.clone().requires_grad_()
        states = lstm(own)[0]
        inputs = [*(getattr(lstm, name) for name in NAMES), own]
        found.append([states.detach(), *torch.autograd.grad((states * slope).sum(), inputs)])
    return [torch.stack(values) for values in zip(*found, strict=True)]


def problem(
    clients: int, batch: int, steps: int, inputs: int, units: int
) -> tuple[list[nn.LSTM], Tensor, Tensor]:
    torch.manual_seed(0)
    lstms = [
        nn.LSTM(inputs, units, batch_first=True, dtype=torch.float64, device=DEVICE)
        for _ in range(clients)
    ]
    x = torch.randn(clients, batch, steps, inputs, dtype=torch.float64, device=DEVICE)
    slopes = torch.randn(clients, batch, steps, units, dtype=torch.float64, device=DEVICE)
    return lstms, x, slopes


def require_near(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        error = (one - other).abs().max() / other.abs().max().clamp_min(1e-30)
        assert error.item() < tolerance


@runs_kernels
@pytest.mark.parametrize("sizes", [*ODD, *(LARGE if ON_CUDA else ())], ids=str)
def test_states_and_gradients_are_those_of_torchs_lstm(sizes: tuple[int, ...]) -> None:
    lstms, x, slopes = problem(*sizes)
    require_near(results(lstms, x, slopes), expected(lstms, x, slopes), 1e-5)


@runs_kernels
def test_large_values_saturate_and_small_ones_keep_their_digits() -> None:
    values = torch.tensor([1e-6, 1e-3, 0.1, 0.199, 0.201, 0.5, 3.0, 30.0, 300.0], device=DEVICE)
    values = torch.cat([-values, values])
    shares = torch.zeros(1, 1, 1, 4 * len(values), device=DEVICE)
    shares[..., : len(values)] = 100.0  # the input gate is open
    shares[..., 2 * len(values) : 3 * len(values)] = values
    weight = torch.zeros(1, 4 * len(values), len(values), device=DEVICE)
    _, cells, gates = lstm_steps.run_steps(shares, weight[..., 0], weight, False)
    exact = values.double().tanh()
    for found in (cells[0, 0, 0], gates[0, 0, 0].chunk(4)[2]):
        torch.testing.assert_close(found.double(), exact, rtol=5e-7, atol=0)
    shares[..., : len(values)] = values
    gates = lstm_steps.run_steps(shares, weight[..., 0], weight, False)[2]
    found = gates[0, 0, 0, : len(values)].double()
    # a GPU rounds the exponent before it takes the power of two
    rtol = 2e-6 if ON_CUDA else 5e-7
    torch.testing.assert_close(found, values.double().sigmoid(), rtol=rtol, atol=1e-30)


@runs_kernels
def test_a_client_that_diverges_keeps_its_nan_and_no_other_client_gets_it() -> None:
    shares = torch.randn(3, 2, 4, 12, device=DEVICE)
    bias, weight = torch.randn(3, 12, device=DEVICE), torch.randn(3, 12, 3, device=DEVICE)
    before = lstm_steps.run_steps(shares, bias, weight, False)
    weight[1] = torch.nan
    after = lstm_steps.run_steps(shares, bias, weight, False)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[[0, 2]], other[[0, 2]])
    assert after[0][1, -1].isnan().all()


@runs_kernels
@pytest.mark.parametrize("back", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("tf32", [False, True], ids=["fp32", "tf32"])
def test_every_tile_gives_the_same(tf32: bool, back: bool) -> None:
    batch, units = (70, 96) if ON_CUDA else (17, 33)
    torch.manual_seed(0)
    shares = torch.randn(2, 3, batch, 4 * units, device=DEVICE)
    bias, weight = (
        torch.randn(2, 4 * units, device=DEVICE),
        torch.randn(2, 4 * units, units, device=DEVICE).div(units),
    )
    candidates = lstm_steps.tiles(batch, units, torch.float32, tf32, back)
    assert len(candidates) > 2
    states, cells, gates = lstm_steps.forward(
        shares, bias, weight, False, lstm_steps.tiles(batch, units, torch.float32, False, False)[0]
    )
    found = [
        (
            lstm_steps.backward(states, weight, cells, gates, tf32, tile)
            if back
            else lstm_steps.forward(shares, bias, weight, tf32, tile)[0]
        )
        for tile in candidates
    ]
    for other in found[1:]:
        require_near([other], [found[0]], 5e-3 if tf32 else 1e-6)


@runs_kernels
def test_each_direction_is_one_operation_for_torch() -> None:
    shares = torch.randn(2, 3, 5, 16, device=DEVICE)
    bias, weight = torch.randn(2, 16, device=DEVICE), torch.randn(2, 16, 4, device=DEVICE)

    def gradient(shares: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        def total(*values: Tensor) -> Tensor:
            return recurrence.recurrence(*values).square().sum()

        found: tuple[Tensor, ...] = torch.func.vmap(torch.func.grad(total, argnums=(0, 1, 2)))(
            shares, bias, weight
        )
        return found

    graph = recorded(gradient, (shares, bias, weight))
    called = [str(node.target) for node in graph.graph.nodes]
    for name in ("evenhand.lstm_steps.default", "evenhand.lstm_steps_back.default"):
        assert called.count(name) == 1
    for one, other in zip(graph(shares, bias, weight), gradient(shares, bias, weight), strict=True):
        assert torch.equal(one, other)


@runs_kernels
def test_the_operations_keep_what_they_tell_torchs_compiler() -> None:
    shares = torch.randn(2, 3, 5, 16, device=DEVICE)
    bias, weight = torch.randn(2, 16, device=DEVICE), torch.randn(2, 16, 4, device=DEVICE)
    torch.library.opcheck(lstm_steps.run_steps, (shares, bias, weight, False))
    states, cells, gates = lstm_steps.run_steps(shares, bias, weight, False)
    torch.library.opcheck(lstm_steps.run_steps_back, (states, weight, cells, gates, False))


@on_gpu
@pytest.mark.parametrize("sizes", [*ODD, *LARGE], ids=str)
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 1e-2), ("bf16", 6e-2)])
def test_rounded_products_are_near(
    sizes: tuple[int, ...], precision: str, tolerance: float
) -> None:
    lstms, x, slopes = problem(*sizes)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with products(precision):
        found = results(lstms, x, slopes, dtype)
    require_near(found, expected(lstms, x, slopes), tolerance)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_forms_agree(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    lstms, x, slopes = problem(3, 10, 9, 8, 64)
    found = results(lstms, x, slopes, dtype)
    monkeypatch.setattr(recurrence, "_form", lambda values, weight: "cells")
    other = results(lstms, x, slopes, dtype)
    require_near(found, other, 1e-5 if dtype == torch.float32 else 3e-2)


@on_gpu
def test_form_and_tiles_are_measured_once_and_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path))
    monkeypatch.setattr(recurrence, "_form", MEASURED)
    lstms, x, slopes = problem(3, 10, 9, 8, 64)
    require_near(results(lstms, x, slopes), expected(lstms, x, slopes), 1e-5)
    (answers,) = json.loads((tmp_path / "choices.json").read_text("utf-8")).values()
    assert {"steps", "cells"} >= {
        answers["form of an LSTM, 64 units, 3 clients x 10, torch.float32"]
    }
    for direction in ("forward", "backward"):
        question = f"tile of an LSTM's {direction} step, 64 units, 3 clients x 10, torch.float32"
        tiles = lstm_steps.tiles(10, 64, torch.float32, False, direction == "backward")
        assert answers[question] in [str(tuple(tile)) for tile in tiles]

    def fail(*_: object) -> str:
        raise AssertionError("measured again")

    monkeypatch.setattr(choices, "race", fail)
    results(lstms, x, slopes)


@pytest.mark.parametrize("value", [None, "0"])
def test_the_kernels_can_be_switched_off(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_triton_found", lambda: True)
    if value is None:
        monkeypatch.delenv("EVENHAND_TRITON", raising=False)
    else:
        monkeypatch.setenv("EVENHAND_TRITON", value)
    assert lstm_steps.usable(torch.zeros(1)) is (value is None)
    assert not lstm_steps.usable(torch.zeros(1, dtype=torch.float64))
