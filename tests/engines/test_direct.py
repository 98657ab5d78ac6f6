"""Triton's convolutions and steps are torch's: in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from evenhand.layers import direct, direct_plan, kernels
from evenhand.layers.convolution import Geometry
from evenhand.layers.forms import FORMS
from evenhand.layers.parts import in_parts
from tests.support.interpreter import INTERPRETED, run_in_interpreter
from tests.support.products import products

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


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with products("fp32"):
        yield


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


def compare(name: str, dtype: torch.dtype, tolerance: float) -> None:
    how, (x, w, bias, slopes) = values(name, dtype)
    exact = [value.double() for value in (x, w, bias, slopes)]
    close(
        FORMS["direct"].forward(x, w, bias, how), FORMS["loop"].forward(*exact[:3], how), tolerance
    )
    close(
        FORMS["direct"].forward(x, w, None, how),
        FORMS["loop"].forward(*exact[:2], None, how),
        tolerance,
    )
    wanted = (True, True, True)
    found = FORMS["direct"].backward(slopes, x, w, how, wanted)
    expected = FORMS["loop"].backward(exact[3], exact[0], exact[1], how, wanted)
    for own, right in zip(found, expected, strict=True):
        close(own, right, tolerance)


@runs_kernels
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_and_its_gradients_are_those_of_torch(name: str) -> None:
    compare(name, torch.float32, 1e-6)


@on_gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 2e-6), ("tf32", 2e-3), ("bf16", 1e-2)]
)
def test_on_a_gpu_they_are_as_exact_as_the_precision(
    name: str, precision: str, tolerance: float
) -> None:
    with products(precision):
        compare(name, torch.bfloat16 if precision == "bf16" else torch.float32, tolerance)


@runs_kernels
@pytest.mark.parametrize(("count", "tolerance"), [(1, 1e-6), (2, 5e-5), (3, 1e-6)])
@pytest.mark.parametrize("name", ["narrow", "a whole block of channels", "two blocks"])
def test_sums_over_places_of_numbers_in_parts_are_as_exact_as_the_parts(
    name: str, count: int, tolerance: float
) -> None:
    how, (x, w, _, slopes) = values(name)
    exact = FORMS["loop"].backward(
        slopes.double(), x.double(), w.double(), how, (False, True, False)
    )[1]
    # parts as they are on a GPU; the interpreter has no products of bfloat16
    kind = torch.bfloat16 if ON_CUDA else torch.float32
    factors = [
        in_parts(in_parts(value, count).float(), 1)[0].to(kind) if count > 1 else in_parts(value, 1)
        for value in (slopes.movedim(2, -1).contiguous(), x.movedim(2, -1).contiguous())
    ]
    found = torch.ops.evenhand.filter_gradient(
        *factors, list(w.shape[3:]), how.stride[0], list(how.padding), how.dilation[0]
    )
    close(found.sum(0).movedim(-1, 2), exact, tolerance)


@pytest.mark.parametrize(("count", "digits"), [(2, 15), (3, 23)])
def test_parts_are_numbers_of_eight_digits_that_add_up(count: int, digits: int) -> None:
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e3
    parts = in_parts(numbers, count)
    assert parts.dtype == torch.bfloat16
    assert parts.shape == (count, 1000)
    missing = (parts.double().sum(0) - numbers).abs() / numbers.abs()
    assert missing.max() <= 2.0**-digits
    assert missing.max() > 2.0 ** -(8 * count + 2) or count == 3  # two parts do not hold all


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
    slopes, x = (torch.empty(1, 2, images, rows, columns, depth) for depth in (8, 16))
    sums = direct_plan.sums(slopes, x, [3, 3])
    covered = math.prod(
        -(-size // taken) for size, taken in zip((images, rows, columns), sums.taken, strict=True)
    )
    assert covered == sums.steps
    assert (sums.splits - 1) * sums.each < sums.steps <= sums.splits * sums.each


@pytest.mark.parametrize("clients", [1, 50, 1000, 60_000])
def test_sums_are_divided_among_no_more_programs_than_a_grid_holds(clients: int) -> None:
    x, slopes = torch.empty(1, 1, 100, 28, 28, 16), torch.empty(1, 1, 100, 28, 28, 8)
    many = [value.expand(1, clients, *value.shape[2:]) for value in (slopes, x)]
    splits = direct_plan.sums(*many, [3, 3]).splits
    assert clients * splits < 1 << 16
    assert (splits > 1) == (clients < 100)  # few clients alone would leave a GPU idle
