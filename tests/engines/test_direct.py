"""Triton's convolutions and steps are torch's: in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evenhand.engines.recording import recorded
from evenhand.layers import direct, direct_plan, kernels
from evenhand.layers.convolution import Geometry
from evenhand.layers.forms import FORMS
from evenhand.layers.fused_update import fuse_updates
from tests.support.interpreter import INTERPRETED, run_in_interpreter

ON_CUDA = torch.cuda.is_available() and not INTERPRETED
DEVICE = torch.device("cuda" if ON_CUDA else "cpu")
runs_kernels = pytest.mark.skipif(not (INTERPRETED or ON_CUDA), reason="no interpreter, no GPU")
on_gpu = pytest.mark.skipif(not ON_CUDA, reason="no GPU")

# clients, images, channels, height, width, filters, their sides, stride, padding, dilation
CASES = {
    "an image's channels": (2, 3, 3, 9, 8, 5, (3, 3), 1, (0, 0), 1),
    "one channel, a large stride": (1, 1, 1, 17, 14, 3, (5, 5), 3, (2, 2), 1),
    "seven by seven, stride two": (2, 2, 3, 11, 10, 16, (7, 7), 2, (3, 3), 1),
    "narrow": (2, 3, 8, 7, 6, 16, (5, 5), 1, (2, 2), 1),
    "a whole block of channels": (3, 2, 16, 7, 7, 20, (3, 3), 1, (1, 1), 1),
    "two blocks": (2, 2, 64, 6, 5, 17, (3, 3), 1, (1, 1), 1),
    "stride two": (2, 2, 16, 8, 7, 16, (3, 3), 2, (1, 1), 1),
    "one by one, stride two": (2, 2, 16, 8, 7, 24, (1, 1), 2, (0, 0), 1),
    "not square, dilated": (1, 2, 16, 9, 9, 8, (3, 2), 1, (2, 1), 2),
    "most taps outside": (2, 4, 32, 1, 1, 40, (3, 3), 1, (1, 1), 1),
    "more filters than a tile": (1, 2, 16, 2, 2, 70, (3, 3), 2, (1, 1), 1),
}


def test_the_tests_of_the_kernels_pass_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


def values(name: str, dtype: torch.dtype = torch.float32) -> tuple[Geometry, list[Tensor]]:
    """The geometry of a case, and images, filters, bias and a gradient of the output."""
    clients, n, channels, height, width, filters, sides, stride, padding, dilation = CASES[name]
    how = Geometry((stride, stride), padding, (dilation, dilation))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients, n, channels, height, width, generator=generator)
    w = torch.randn(clients, filters, channels, *sides, generator=generator)
    w /= math.sqrt(w[0, 0].numel())
    bias = torch.randn(clients, filters, generator=generator)
    out = FORMS["loop"].forward(x, w, bias, how)
    slopes = torch.randn(out.shape, generator=generator)
    return how, [value.to(DEVICE, dtype) for value in (x, w, bias, slopes)]


def close(found: Tensor | None, expected: Tensor | None, tolerance: float) -> None:
    assert found is not None
    assert expected is not None
    assert found.shape == expected.shape
    error = (found.double() - expected).norm() / expected.norm()
    assert error < tolerance, f"{error:.1e}"


def compare(name: str, dtype: torch.dtype, tolerance: float, form: str = "direct") -> None:
    how, (x, w, bias, slopes) = values(name, dtype)
    exact = [value.double() for value in (x, w, bias, slopes)]
    close(FORMS[form].forward(x, w, bias, how), FORMS["loop"].forward(*exact[:3], how), tolerance)
    close(
        FORMS[form].forward(x, w, None, how),
        FORMS["loop"].forward(*exact[:2], None, how),
        tolerance,
    )
    wanted = (True, True, True)
    found = FORMS[form].backward(slopes, x, w, how, wanted)
    expected = FORMS["loop"].backward(exact[3], exact[0], exact[1], how, wanted)
    for own, right in zip(found, expected, strict=True):
        close(own, right, tolerance)


@runs_kernels
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_and_its_gradients_are_those_of_torch(name: str) -> None:
    compare(name, torch.float32, 1e-6)


@on_gpu
@pytest.mark.parametrize("form", ["direct", "direct_grouped", "direct_grouped_last"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 2e-6), ("tf32", 2e-3), ("bf16", 1e-2)]
)
def test_on_a_gpu_they_are_as_exact_as_the_precision(
    name: str, precision: str, tolerance: float, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision == "tf32")
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", precision == "tf32")
    compare(name, torch.bfloat16 if precision == "bf16" else torch.float32, tolerance, form)


@runs_kernels
def test_only_wanted_gradients_are_computed() -> None:
    how, (x, w, _, slopes) = values("stride two")
    found = direct.direct_backward(slopes, x, w, how, (False, True, False))
    assert [value is None for value in found] == [True, False, True]


@runs_kernels
@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter
def test_a_client_that_is_not_finite_spoils_no_other() -> None:
    how, (x, w, bias, slopes) = values("a whole block of channels")
    x[1], slopes[1] = torch.nan, torch.inf
    found = [direct.direct(x, w, bias, how)]
    found += [
        value
        for value in direct.direct_backward(slopes, x, w, how, (True, True, True))
        if value is not None
    ]
    for value in found:
        assert not value[1].isfinite().all()
        assert value[[0, 2]].isfinite().all()


@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        (Geometry(groups=2), torch.float32),
        (Geometry((1, 2)), torch.float32),
        (Geometry((2, 2), dilation=(2, 2)), torch.float32),
        (Geometry(), torch.float64),
    ],
)
def test_what_the_kernels_cannot_do_is_left_to_other_forms(
    how: Geometry, dtype: torch.dtype
) -> None:
    x = torch.zeros(2, 1, 4, 5, 5, dtype=dtype)
    with pytest.raises(ValueError, match="no kernel"):
        direct.direct(x, torch.zeros(2, 4, 4 // how.groups, 3, 3, dtype=dtype), None, how)


def test_places_beyond_32_bits_are_left_to_other_forms() -> None:
    x, w = torch.empty(1, 1, 1, 1, 1), torch.empty(1, 64, 1, 1, 1)
    with pytest.raises(ValueError, match="no kernel"):
        direct.direct(x.expand(1, 1 << 25, 1, 1, 1), w, None, Geometry())


@pytest.mark.parametrize("value", [None, "0"])
def test_the_kernels_can_be_switched_off(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_triton_found", lambda: True)
    monkeypatch.delenv("EVENHAND_TRITON", raising=False)
    if value is not None:
        monkeypatch.setenv("EVENHAND_TRITON", value)
    assert kernels.usable(torch.zeros(1)) is (value is None)


def test_taps_that_never_touch_the_image_are_left_out() -> None:
    # an image of one place, padded by one: only the middle of three taps touches it
    assert direct_plan.used_taps(3, -1, 1, 1, 1, 1) == (1, 1, 0)
    # turned around, as for the gradient of the image
    assert direct_plan.used_taps(3, 1, -1, 1, 1, 1) == (1, 1, 0)
    # a large image: all
    assert direct_plan.used_taps(3, -1, 1, 1, 28, 28) == (3, 0, -1)
    # no tap of the filter is over a place that the stride skips
    assert direct_plan.used_taps(0, 0, -1, 1, 4, 4).number == 0


@pytest.mark.parametrize(
    ("rows", "columns", "images"), [(28, 28, 10), (1, 1, 64), (7, 5, 3), (2, 200, 1)]
)
def test_steps_cover_every_place_once(rows: int, columns: int, images: int) -> None:
    slopes, x = torch.empty(2, images, rows, columns, 8), torch.empty(2, images, rows, columns, 16)
    sums = direct_plan.sums(slopes, x, [3, 3])
    covered = math.prod(
        -(-size // taken) for size, taken in zip((images, rows, columns), sums.taken, strict=True)
    )
    assert covered == sums.steps
    assert (sums.splits - 1) * sums.each < sums.steps <= sums.splits * sums.each


@pytest.mark.parametrize("clients", [1, 50, 1000, 60_000])
def test_sums_are_divided_among_no_more_programs_than_a_grid_holds(clients: int) -> None:
    x, slopes = torch.empty(1, 100, 28, 28, 16), torch.empty(1, 100, 28, 28, 8)
    many = [value.expand(clients, *value.shape[1:]) for value in (slopes, x)]
    splits = direct_plan.sums(*many, [3, 3]).splits
    assert clients * splits < 1 << 16
    assert (splits > 1) == (clients < 100)  # few clients alone would leave a GPU idle


# ---- steps along a product

CLIENTS, ROWS, COLUMNS, SAMPLES = 3, 5, 70, 4


def operands(turned: bool) -> list[Tensor]:
    """Weights, inputs and slopes of a dense layer, and rates."""
    generator = torch.Generator().manual_seed(0)
    shape = (COLUMNS, ROWS) if turned else (ROWS, COLUMNS)
    sizes = ((CLIENTS, *shape), (CLIENTS, SAMPLES, COLUMNS), (CLIENTS, SAMPLES, ROWS), (CLIENTS,))
    return [torch.randn(size, generator=generator).to(DEVICE) for size in sizes]


def step(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
    """What a traced step does with a dense layer."""
    product = torch.bmm(x.transpose(1, 2), slopes)
    gradient = product if weights.shape[1] == COLUMNS else product.transpose(1, 2)
    weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
    return [rates + 1]


@runs_kernels
@pytest.mark.parametrize("turned", [False, True])
def test_a_fused_step_is_the_step(turned: bool) -> None:
    weights, *rest = operands(turned)
    graph = recorded(step, (weights.clone(), *rest))
    assert fuse_updates(graph) == 1
    assert "bmm" not in graph.code
    own, right = weights.clone(), weights.double()
    step(right, *(value.double() for value in rest))
    graph(own, *rest)
    torch.testing.assert_close(own, right.float(), rtol=1e-5, atol=1e-6)


@on_gpu
def test_a_fused_step_of_rounded_factors_is_exact_for_them() -> None:
    weights, x, slopes, rates = operands(False)
    a, b = slopes.bfloat16().transpose(1, 2), x.bfloat16()
    expected = weights.double() - rates.double().view(-1, 1, 1) * (a.double() @ b.double())
    torch.ops.evenhand.subtract_product(weights, a, b, rates.view(-1, 1, 1))
    torch.testing.assert_close(weights, expected.float(), rtol=1e-5, atol=1e-5)


def fused(function: Callable[..., list[Tensor]], *given: Tensor) -> int:
    return fuse_updates(recorded(function, given))


def test_a_gradient_that_is_needed_elsewhere_is_kept() -> None:
    def keeps(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        gradient = torch.bmm(slopes.transpose(1, 2), x)
        weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
        return [gradient.sum()]

    assert fused(keeps, *operands(False)) == 0


def test_a_product_with_weights_that_change_is_not_moved() -> None:
    def tied(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        # the gradient of the first reads the second, which has changed by the time of its step
        gradient = torch.bmm(slopes.transpose(1, 2), x)
        x.addcmul_(x, rates.view(-1, 1, 1), value=-1)
        weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
        return [rates + 1]

    assert fused(tied, *operands(False)) == 0


def test_a_product_over_many_samples_is_left_to_torch() -> None:
    weights, _, _, rates = operands(False)
    many = torch.zeros(CLIENTS, 1000, COLUMNS), torch.zeros(CLIENTS, 1000, ROWS)
    assert fused(step, weights, *many, rates) == 0
