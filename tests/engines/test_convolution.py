"""Convolutions of stacked clients: every form against torch, and the choice between them."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import evenhand as eh
from evenhand import tree
from evenhand.engines import choose
from evenhand.layers import choices
from evenhand.layers import stacked as layers
from evenhand.layers.convolution import Geometry
from evenhand.layers.forms import FORMS
from evenhand.layers.stacked import FastLayers

CPU = torch.device("cpu")
# torch says that it copies
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
ALL = (True, True, True)
# forms with Triton's kernels are in test_direct.py
PLAIN = [name for name in FORMS if not name.startswith("direct")]


def stacked(
    clients: int,
    samples: int,
    how: Geometry,
    kernel: tuple[int, int],
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((clients, samples, 4, 9, 11), (clients, 6, 4 // how.groups, *kernel), (clients, 6))
    return tuple(torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes)


def by_autograd(
    x: Tensor, w: Tensor, bias: Tensor, how: Geometry
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Output, a slope of it, and the slopes of x, w and bias, one client after another with torch's
    conv2d."""
    leaves = [value.clone().requires_grad_() for value in (x, w, bias)]
    sides = (how.stride, how.padding, how.dilation, how.groups)
    out = torch.stack([F.conv2d(*client, *sides) for client in zip(*leaves, strict=True)])
    slope = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    return out.detach(), slope, torch.autograd.grad(out, leaves, slope)


@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize("groups", [1, 2])
def test_every_form_is_torchs_convolution(form: str, groups: int) -> None:
    strides, paddings, dilations = ((1, 1), (2, 1), (3, 2)), ((0, 0), (1, 2)), ((1, 1), (2, 1))
    kernels = ((1, 1), (3, 3), (2, 4))
    for stride, padding, dilation, kernel in itertools.product(
        strides, paddings, dilations, kernels
    ):
        how = Geometry(stride, padding, dilation, groups)
        x, w, bias = stacked(3, 2, how, kernel)
        out, slope, slopes = by_autograd(x, w, bias, how)
        found = (FORMS[form].forward(x, w, bias, how), *FORMS[form].backward(slope, x, w, how, ALL))
        for value, right in zip(found, (out, *slopes), strict=True):
            assert value is not None
            torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            FORMS[form].forward(x, w, None, how),
            out - bias[:, None, :, None, None],
            rtol=1e-12,
            atol=1e-12,
        )


@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize(("clients", "samples"), [(1, 2), (2, 0), (5, 1), (9, 2)])
def test_any_number_of_clients_and_samples(form: str, clients: int, samples: int) -> None:
    how = Geometry(padding=(1, 1))
    x, w, bias = stacked(clients, samples, how, (3, 3))
    out, slope, slopes = by_autograd(x, w, bias, how)
    found = (FORMS[form].forward(x, w, bias, how), *FORMS[form].backward(slope, x, w, how, ALL))
    for value, right in zip(found, (out, *slopes), strict=True):
        assert value is not None
        torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", PLAIN)
def test_only_wanted_slopes_are_computed(form: str) -> None:
    how = Geometry()
    x, w, bias = stacked(2, 2, how, (3, 3))
    _, slope, slopes = by_autograd(x, w, bias, how)
    for wanted in itertools.product((False, True), repeat=3):
        for value, want, right in zip(
            FORMS[form].backward(slope, x, w, how, wanted), wanted, slopes, strict=True
        ):
            assert (value is not None) == want
            if value is not None:
                torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12)


# ---- modules


class Mixed(nn.Module):
    """Convolutions of all kinds, a sum over what they give, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding="same")
        self.even = nn.Conv2d(4, 6, (2, 4), padding="same", groups=2, bias=False)
        self.frozen = nn.Conv2d(6, 6, 1).requires_grad_(False)
        self.back = nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1)
        self.along = nn.Conv1d(4, 3, 3, stride=2, padding=1)
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.first(x), 3, 2, 1).tanh()
        x = F.max_pool2d(self.frozen(self.even(x)), 2, ceil_mode=True)
        x = self.back(x) * self.gain[:, None, None]
        return self.along(x.mean(-1)).mean(-1)


def chain() -> nn.Module:
    middle = (nn.Conv2d(4, 6, 3, stride=2), nn.LeakyReLU(), nn.Flatten(), nn.Linear(24, 3))
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *middle)


Setting = tuple[Callable[..., Tensor], dict[str, Tensor], Tensor, Tensor]


def setting(build: Callable[[], nn.Module], clients: int, dtype: torch.dtype) -> Setting:
    """A loss of one client in fast layers, and stacked parameters, samples and labels."""
    torch.manual_seed(0)
    module = build().to(dtype)
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    params = {
        name: torch.randn(clients, *value.shape, dtype=dtype) * 0.3
        for name, value in trained.items()
    }

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor, fast: bool = True) -> Tensor:
        with layers.fast_layers(module, CPU) if fast else nullcontext():
            return F.cross_entropy(functional_call(module, params, (x,)), y)

    return (
        loss,
        params,
        torch.randn(clients, 5, 1, 12, 12, dtype=dtype),
        torch.randint(0, 3, (clients, 5)),
    )


BUILDS = pytest.mark.parametrize("build", [Mixed, chain], ids=["mixed", "chain"])


@BUILDS
def test_stacked_gradients_are_those_of_clients_one_by_one(build: Callable[[], nn.Module]) -> None:
    loss, params, x, y = setting(build, 5, torch.float64)
    found = vmap(grad(loss))(params, x, y)
    for client in range(5):
        own = {name: value[client].clone().requires_grad_() for name, value in params.items()}
        right = torch.autograd.grad(loss(own, x[client], y[client], False), list(own.values()))
        for name, value in zip(own, right, strict=True):
            torch.testing.assert_close(found[name][client], value, rtol=1e-12, atol=1e-12)


@BUILDS
def test_second_derivatives_are_torchs(build: Callable[[], nn.Module]) -> None:
    loss, params, x, y = setting(build, 2, torch.float64)

    def steepness(params: dict[str, Tensor], x: Tensor, y: Tensor, fast: bool) -> Tensor:
        return tree.sqnorm(grad(lambda params: loss(params, x, y, fast))(params))

    fast, right = (
        vmap(grad(lambda *given, fast=fast: steepness(*given, fast)))(params, x, y)
        for fast in (True, False)
    )
    for name in params:
        torch.testing.assert_close(fast[name], right[name], rtol=1e-10, atol=1e-11)


@BUILDS
def test_company_changes_no_bit(build: Callable[[], nn.Module]) -> None:
    loss, params, x, y = setting(build, 9, torch.float32)
    whole = vmap(grad(loss))(params, x, y)
    for rows in ([0], [1, 0], [4, 8, 2], [3, 4, 5, 6], [8, 7, 6, 5, 4]):
        part = vmap(grad(loss))(
            tree.map(lambda leaf, rows=rows: leaf[rows], params), x[rows], y[rows]
        )
        for name in params:
            assert torch.equal(part[name], whole[name][rows])


@BUILDS
def test_traced_operations_give_the_same_bits(build: Callable[[], nn.Module]) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    loss, params, x, y = setting(build, 3, torch.float32)
    function = vmap(grad(loss))
    # measures on the way, if nobody has before
    graph = make_fx(lambda *given: function(*given))(params, x, y)
    right, found = function(params, x, y), graph(params, x, y)
    assert all(torch.equal(found[name], right[name]) for name in params)


def test_nothing_of_a_measurement_gets_into_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    loss, params, x, y = setting(chain, 3, torch.float32)
    sizes = []
    for _ in range(2):  # the first measures, the second remembers
        monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path))
        sizes.append(
            len(make_fx(lambda *given: vmap(grad(loss))(*given))(params, x, y).graph.nodes)
        )
    assert sizes[0] == sizes[1]
    assert (tmp_path / "choices.json").exists()


def test_slopes_of_data_are_not_computed() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    loss, params, x, y = setting(chain, 3, torch.float32)
    graph = make_fx(lambda *given: vmap(grad(loss))(*given))(params, x, y).graph
    masks = {
        tuple(node.args[-1]) for node in graph.nodes if "convolution_backward" in str(node.target)
    }
    assert masks == {(False, True, False), (True, True, False)}


def test_stacked_twice_is_torchs() -> None:
    loss, params, x, y = setting(chain, 4, torch.float64)
    twice = tree.map(lambda leaf: leaf.unflatten(0, (2, 2)), params)
    found = vmap(vmap(grad(loss)))(twice, x.unflatten(0, (2, 2)), y.unflatten(0, (2, 2)))
    right = vmap(grad(loss))(params, x, y)
    for name in params:
        torch.testing.assert_close(found[name].flatten(0, 1), right[name], rtol=1e-12, atol=1e-12)


def test_pooling_takes_the_first_of_equals_as_torch_does() -> None:
    x = torch.randint(0, 2, (3, 2, 4, 8, 8)).double()

    def value(x: Tensor, fast: bool) -> Tensor:
        with FastLayers(True) if fast else nullcontext():
            return (F.max_pool2d(x, 2) * torch.arange(16.0).reshape(4, 4)).sum()

    assert torch.equal(
        vmap(grad(lambda x: value(x, True)))(x), vmap(grad(lambda x: value(x, False)))(x)
    )


def relu_then_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(x), 2)


def relu_then_places(x: Tensor) -> Tensor:
    values, places = F.max_pool2d(F.relu(x), 2, return_indices=True)
    return values * places


def relu_changed_then_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(x).mul_(-1), 2)


def relu_of_what_is_changed_then_pool(x: Tensor) -> Tensor:
    before = x * 1
    active = F.relu(before)
    before.add_(1)
    return F.max_pool2d(active, 2) * before[..., ::2, ::2]


def relu_then_pool_of_another(x: Tensor) -> Tensor:
    return F.relu(x)[..., ::2, ::2] * F.max_pool2d(x, 2)


@pytest.mark.parametrize(
    "function",
    [
        relu_then_pool,
        relu_then_places,
        relu_of_what_is_changed_then_pool,
        relu_then_pool_of_another,
    ],
)
def test_a_relu_after_the_pooling_changes_no_bit(function: Callable[[Tensor], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 2, (3, 2, 4, 8, 8), generator=generator).double()
    x[0, 0, 0] = float("nan")

    def value(x: Tensor, fast: bool) -> Tensor:
        with FastLayers(True) if fast else nullcontext():
            return (function(x) * torch.arange(16.0).reshape(4, 4)).sum()

    found, right = (
        vmap(grad(lambda x, fast=fast: value(x, fast)))(x).nan_to_num(7) for fast in (True, False)
    )
    assert torch.equal(found, right)


def test_a_relu_that_is_changed_in_place_is_what_is_pooled() -> None:
    x = torch.randn(3, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    with FastLayers(True):
        found = vmap(relu_changed_then_pool)(x)
    assert torch.equal(found, vmap(relu_changed_then_pool)(x))


def test_a_traced_step_takes_the_relu_of_what_is_pooled() -> None:
    from evenhand.engines.tracing import traced

    loss, params, x, y = setting(chain, 3, torch.float32)
    step = vmap(grad(loss))
    graph = traced(lambda shared, own: step(own, x, y), {}, params)[0].graph
    shapes = {
        tuple(node.meta["kind"].shape[-2:])
        for node in graph.nodes
        if "relu" in str(node.target) or "threshold" in str(node.target)
    }
    assert shapes == {(6, 6), (2, 2)}  # not of the images of 12 x 12


def test_a_relus_gradient_has_the_memory_order_of_what_it_is_compared_with() -> None:
    from evenhand.engines.tracing import traced

    def build() -> nn.Module:
        layers = (nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(144, 3))  # gives gradients in another order

    loss, params, x, y = setting(build, 3, torch.float32)
    step = vmap(grad(loss))
    graph = traced(lambda shared, own: step(own, x, y), {}, params)[0].graph
    (found,) = (node for node in graph.nodes if "threshold_backward" in str(node.target))
    gradient, values = (part.meta["kind"] for part in found.args[:2])
    assert gradient.stride == values.stride


@pytest.mark.parametrize("channels", [1, 3, 16, 40])
@pytest.mark.parametrize("form", ["loop", "grouped_last"])
def test_company_changes_no_bit_of_a_bias(form: str, channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w, slope = (
        torch.randn(shape, generator=generator)
        for shape in ((9, 4, 1, 12, 12), (9, channels, 1, 3, 3), (9, 4, channels, 12, 12))
    )

    def biases(rows: list[int]) -> Tensor:
        given = (slope[rows], x[rows], w[rows], Geometry(padding=(1, 1)), (False, False, True))
        found = FORMS[form].backward(*given)[2]
        assert found is not None
        return found

    whole = biases(list(range(9)))
    torch.testing.assert_close(whole, slope.sum((1, 3, 4)), rtol=1e-4, atol=1e-4)
    for rows in ([0], [1, 0], [4, 8, 2], [3, 4, 5, 6], [8, 7, 6, 5, 4]):
        assert torch.equal(biases(rows), whole[rows])


def test_one_client_gets_what_torch_gives() -> None:
    for build in (Mixed, chain):
        loss, params, x, y = setting(build, 1, torch.float32)
        own = {name: value[0].clone().requires_grad_() for name, value in params.items()}
        slopes = [
            torch.autograd.grad(loss(own, x[0], y[0], fast), list(own.values()))
            for fast in (True, False)
        ]
        for value, right in zip(*slopes, strict=True):
            torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-5)


# ---- the choice


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path))
    choices._known.cache_clear()
    yield tmp_path / "choices.json"
    choices._known.cache_clear()


def test_an_answer_is_found_once_and_read_by_the_next_process(cache: Path) -> None:
    asked = []

    def find() -> str:
        asked.append(threading.current_thread())
        return "this"

    assert [choices.remembered("which?", CPU, find) for _ in range(3)] == ["this"] * 3
    assert len(asked) == 1
    assert asked[0] is not threading.current_thread()
    choices._known.cache_clear()  # as in another process
    assert choices.remembered("which?", CPU, lambda: "that") == "this"
    assert choices.remembered("and here?", CPU, lambda: "that") == "that"
    (answers,) = json.loads(cache.read_text()).values()
    assert answers == {"which?": "this", "and here?": "that"}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"machine": 3}', '{"machine": {"which?": 7}}', "\x00"]
)
def test_a_damaged_file_is_as_good_as_none(cache: Path, content: str) -> None:
    cache.write_text(content)
    assert choices.remembered("which?", CPU, lambda: "this") == "this"
    choices._known.cache_clear()
    assert choices.remembered("which?", CPU, lambda: "that") == "this"  # it was written anew


def test_a_directory_that_cannot_be_written_is_no_problem(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the directory should be")
    monkeypatch.setenv("EVENHAND_CACHE", str(cache))
    assert [choices.remembered("which?", CPU, lambda: "this") for _ in range(2)] == ["this"] * 2


def test_the_fastest_way_that_works_wins() -> None:
    small, large = torch.ones(8, 8), torch.ones(300, 300)

    def broken() -> None:
        raise ValueError("not here")

    ways = {"broken": broken, "slow": lambda: large @ large, "quick": lambda: small + 1}
    assert choices.race(CPU, ways) == "quick"
    with pytest.raises(RuntimeError, match="none of the ways"):
        choices.race(CPU, {"broken": broken})


def test_questions_that_lead_to_questions_are_answered(cache: Path) -> None:
    assert (
        choices.remembered("outer?", CPU, lambda: choices.remembered("inner?", CPU, lambda: "deep"))
        == "deep"
    )


def test_an_engine_is_chosen_once_and_is_loop_or_vmap(cache: Path) -> None:
    federation = eh.Federation.from_arrays(
        [{"x": torch.randn(6, 1, 12, 12), "y": [0, 1, 2] * 2} for _ in range(3)]
    )
    chosen = [choose("auto", eh.Model(chain()), federation) for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert isinstance(chosen[0], eh.Loop | eh.Vmap)
    ((question, answer),) = (
        (key, value)
        for key, value in next(iter(json.loads(cache.read_text()).values())).items()
        if "engine" in key
    )
    for other, kind in (("loop", eh.Loop), ("vmap", eh.Vmap)):  # what is remembered is taken
        cache.write_text(
            cache.read_text().replace(f'"{question}": "{answer}"', f'"{question}": "{other}"')
        )
        answer = other
        choices._known.cache_clear()
        assert isinstance(choose("auto", eh.Model(chain()), federation), kind)


def test_few_clients_in_a_block_and_work_for_every_worker() -> None:
    from evenhand.engines.vmap import _blocks

    for clients, workers in itertools.product(range(1, 40), (1, 2, 3, 8)):
        sizes = [
            len(block) for block in torch.arange(clients).tensor_split(_blocks(clients, workers))
        ]
        assert max(sizes) <= 4
        assert min(sizes) >= min(clients, 2)
    assert _blocks(10, 2) == 4
