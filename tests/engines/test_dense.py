"""Dense layers of stacked clients by Triton's kernels: in its interpreter, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from evenhand.engines.graphs import Captured, GraphMemory
from evenhand.engines.recording import recorded
from evenhand.layers import choices, dense, kernels
from evenhand.layers.fused_update import fuse_updates
from evenhand.tree import Tree
from tests.support.interpreter import INTERPRETED, run_in_interpreter
from tests.support.products import products

ON_CUDA = torch.cuda.is_available() and not INTERPRETED
DEVICE = torch.device("cuda" if ON_CUDA else "cpu")
runs_kernels = pytest.mark.skipif(not (INTERPRETED or ON_CUDA), reason="no interpreter, no GPU")
on_gpu = pytest.mark.skipif(not ON_CUDA, reason="no GPU")
CLIENTS, ROWS, COLUMNS, SAMPLES = 3, 70, 300, 4
Step = Callable[..., list[Tensor]]
FASTER = dense.faster  # before the fixture replaces it


def test_the_tests_of_the_kernels_pass_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Exact products, and kernels wherever they can be used."""
    monkeypatch.setattr(dense, "faster", lambda *_: True)
    with products("fp32"):
        yield


def operands(rows: int = ROWS, columns: int = COLUMNS, samples: int = SAMPLES) -> list[Tensor]:
    """Weights, inputs and slopes of a dense layer, and rates."""
    generator = torch.Generator().manual_seed(0)
    sizes = (CLIENTS, rows, columns), (CLIENTS, samples, columns), (CLIENTS, samples, rows)
    values = [torch.randn(size, generator=generator) for size in (*sizes, (CLIENTS,))]
    values[3] /= 100
    return [value.to(DEVICE) for value in values]


def layer(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
    """What a traced step does with a dense layer: its output, and its inputs' gradient."""
    out = torch.bmm(x, weights.transpose(1, 2)).relu()
    slopes = slopes * (out > 0)
    back = torch.bmm(slopes, weights) * 2
    gradient = torch.bmm(slopes.transpose(1, 2), x)
    weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
    return [out, back]


def first_layer(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
    """As above, where nobody needs the inputs' gradient."""
    out = torch.bmm(x, weights.transpose(1, 2)).relu()
    slopes = slopes * (out > 0)
    gradient = torch.bmm(slopes.transpose(1, 2), x)
    weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
    return [out]


def step(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
    """A step alone, with weights of either orientation."""
    product = torch.bmm(x.transpose(1, 2), slopes)
    gradient = product if weights.shape[1] == x.shape[2] else product.transpose(1, 2)
    weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
    return [rates + 1]


def turned_layer(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
    """A layer whose weights have a row for each input."""
    out = torch.bmm(slopes, weights).relu()
    x = x * (out > 0)
    back = torch.bmm(x, weights.transpose(1, 2)) * 2
    gradient = torch.bmm(slopes.transpose(1, 2), x)
    weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
    return [out, back]


def fused(function: Step, *given: Tensor, expected: int = 1) -> GraphModule:
    graph = recorded(function, given)
    assert fuse_updates(graph, DEVICE) == expected
    return graph


def calls(graph: GraphModule) -> dict[str, int]:
    """How often the operations of interest are called."""
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    interesting = ("aten.bmm", "evenhand.scores", "evenhand.step_back", "evenhand.subtract_product")
    found = {name: sum(other == f"{name}.default" for other in names) for name in interesting}
    return {name: count for name, count in found.items() if count}


def require_same(graph: GraphModule, function: Step, given: list[Tensor]) -> None:
    """Results and new weights are those of float64."""
    own, right = given[0].clone(), given[0].double()
    expected = function(right, *(value.double() for value in given[1:]))
    found = graph(own, *given[1:])
    for one, other in zip([own, *found], [right, *expected], strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-4)


@runs_kernels
@pytest.mark.parametrize(
    ("rows", "columns", "samples"), [(ROWS, COLUMNS, SAMPLES), (10, 129, 1), (128, 1600, 33)]
)
def test_a_layer_reads_its_weights_twice(rows: int, columns: int, samples: int) -> None:
    given = operands(rows, columns, samples)
    graph = fused(layer, given[0].clone(), *given[1:])
    assert calls(graph) == {"evenhand.scores": 1, "evenhand.step_back": 1}
    require_same(graph, layer, given)


@runs_kernels
def test_the_step_of_a_first_layer_is_taken_alone() -> None:
    given = operands()
    graph = fused(first_layer, given[0].clone(), *given[1:])
    assert calls(graph) == {"evenhand.scores": 1, "evenhand.subtract_product": 1}
    require_same(graph, first_layer, given)


@runs_kernels
@pytest.mark.parametrize("turned", [False, True])
def test_a_step_alone_is_the_step(turned: bool) -> None:
    given = operands()
    if turned:
        given[0] = given[0].transpose(1, 2).contiguous()
    graph = fused(step, given[0].clone(), *given[1:])
    assert calls(graph) == {"evenhand.subtract_product": 1}
    require_same(graph, step, given)


@runs_kernels
def test_weights_with_a_row_for_each_input_are_not_changed_before_they_are_read() -> None:
    given = operands()
    graph = fused(turned_layer, given[0].clone(), *given[1:])
    assert calls(graph) == {
        "aten.bmm": 1,
        "evenhand.scores": 1,
        "evenhand.subtract_product": 1,
    }
    require_same(graph, turned_layer, given)


@runs_kernels
def test_the_output_of_a_first_layer_is_not_computed_with_its_step() -> None:
    def first(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        out = torch.bmm(slopes, weights).relu()  # rows of weights are inputs
        gradient = torch.bmm(slopes.transpose(1, 2), x * (out > 0))
        weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
        return [out]

    given = operands()
    graph = fused(first, given[0].clone(), *given[1:])
    assert calls(graph) == {"aten.bmm": 1, "evenhand.subtract_product": 1}
    require_same(graph, first, given)


@runs_kernels
@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter
def test_a_client_that_is_not_finite_spoils_no_other() -> None:
    given = operands()
    graph = fused(layer, given[0].clone(), *given[1:])
    given[0][1], given[1][1] = torch.nan, torch.inf
    found = [given[0].clone()]
    found += graph(found[0], *given[1:])
    for value in found:
        assert not value[1].isfinite().all()
        assert value[[0, 2]].isfinite().all()


@on_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 2e-6), ("tf32", 2e-3)])
def test_on_a_gpu_they_are_as_exact_as_the_precision(precision: str, tolerance: float) -> None:
    given = operands(128, 1600, 10)
    own, right = given[0].clone(), [value.double() for value in given]
    with products(precision):
        graph = fused(layer, given[0].clone(), *given[1:])
        # the same values pass the ReLU
        found = graph(own, *given[1:])
        passed = found[0] > 0
    right[2] = right[2] * passed
    expected = [
        torch.bmm(right[1], right[0].transpose(1, 2)) * passed,
        torch.bmm(right[2], right[0]) * 2,
        right[3].view(-1, 1, 1) * torch.bmm(right[2].transpose(1, 2), right[1]),
    ]
    for one, other in zip([*found, given[0].double() - own], expected, strict=True):
        assert (one.double() - other).norm() / other.norm() < tolerance


@on_gpu
def test_rounded_factors_are_multiplied_exactly() -> None:
    weights, x, slopes, rates = operands()
    x, slopes = x.bfloat16(), slopes.bfloat16()
    rounded, rate = weights.bfloat16().double(), rates.view(-1, 1, 1)
    product = rate.double() * torch.bmm(slopes.double().transpose(1, 2), x.double())
    scores = torch.ops.evenhand.scores(weights, x).sum(0)
    torch.testing.assert_close(
        scores.double(), torch.bmm(rounded, x.double().transpose(1, 2)), rtol=1e-5, atol=1e-4
    )
    own = weights.clone()
    back = torch.ops.evenhand.step_back(own, slopes, x, rate)
    torch.testing.assert_close(own.double(), weights.double() - product, rtol=1e-5, atol=1e-5)
    expected = torch.bmm(slopes.double(), rounded).bfloat16()
    torch.testing.assert_close(back, expected, rtol=1e-2, atol=1e-2)
    own = weights.clone()
    torch.ops.evenhand.subtract_product(own, slopes.transpose(1, 2), x, rate)
    torch.testing.assert_close(own.double(), weights.double() - product, rtol=1e-5, atol=1e-5)


def test_rounded_weights_are_found_behind_their_conversion() -> None:
    def rounded(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        half, x = weights.to(torch.bfloat16), x.to(torch.bfloat16)
        out = torch.bmm(x, half.transpose(1, 2)).float()
        slopes = (slopes * out).to(torch.bfloat16)
        back = torch.bmm(slopes, half)
        gradient = torch.bmm(slopes.transpose(1, 2), x)
        weights.addcmul_(gradient.float(), rates.view(-1, 1, 1), value=-1)
        return [out, back]

    graph = fused(rounded, *operands())
    assert calls(graph) == {"evenhand.scores": 1, "evenhand.step_back": 1}
    made = next(node for node in graph.graph.nodes if "scores" in str(node.target))
    assert made.args[0].op == "placeholder"


def test_a_layer_whose_weights_are_needed_elsewhere_keeps_its_products() -> None:
    def decays(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        return [weights.square().sum(), *layer(weights, x, slopes, rates)]

    def reads(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        return [*layer(weights, x, slopes, rates), weights.square().sum()]

    assert calls(fused(decays, *operands())) == {"aten.bmm": 2, "evenhand.subtract_product": 1}
    assert calls(fused(reads, *operands(), expected=0)) == {"aten.bmm": 3}


def test_a_gradient_of_other_slopes_is_computed_apart() -> None:
    def two(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        back = torch.bmm(slopes * 2, weights)
        gradient = torch.bmm(slopes.transpose(1, 2), x)
        weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
        return [back]

    assert calls(fused(two, *operands())) == {"aten.bmm": 1, "evenhand.subtract_product": 1}


def test_rates_that_change_on_the_way_are_not_used_too_early() -> None:
    def decaying(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        back = torch.bmm(slopes, weights)
        gradient = torch.bmm(slopes.transpose(1, 2), x)
        of_clients = rates.view(-1, 1, 1)
        rates.mul_(0.5)
        weights.addcmul_(gradient, of_clients, value=-1)
        return [back]

    assert "evenhand.step_back" not in calls(fused(decaying, *operands()))


def test_a_large_batch_keeps_its_products() -> None:
    found = calls(fused(layer, *operands(samples=dense.MOST_SAMPLES + 1)))
    assert found == {"aten.bmm": 2, "evenhand.subtract_product": 1}


def test_layers_for_which_torch_is_faster_keep_their_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def faster(*question: object) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(dense, "faster", faster)
    assert calls(fused(layer, *operands())) == {"aten.bmm": 2, "evenhand.subtract_product": 1}
    assert asked == [((CLIENTS, ROWS, COLUMNS), SAMPLES, torch.float32, DEVICE)]


def test_small_layers_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "faster", FASTER)
    assert calls(fused(layer, *operands())) == {"aten.bmm": 2, "evenhand.subtract_product": 1}


@runs_kernels
def test_the_faster_way_is_measured_once_and_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path))
    raced = []

    def race(device: torch.device, ways: dict[str, Callable[[], object]]) -> str:
        raced.append([way() for way in ways.values()])
        return "kernels"

    monkeypatch.setattr(choices, "race", race)
    question = torch.Size((2, 64, 1024)), 3, torch.float32, DEVICE
    assert FASTER(*question)
    assert FASTER(*question)
    assert len(raced) == 1


@pytest.mark.parametrize("value", [None, "0"])
def test_the_kernels_can_be_switched_off(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(shared: Tree, inputs: Tree) -> Tree:
        inputs["weights"].addcmul_(torch.bmm(inputs["a"], inputs["b"]), inputs["rates"], value=-1)
        return {}

    seen: list[GraphModule] = []
    monkeypatch.setattr(kernels, "_triton_found", lambda: True)
    monkeypatch.setattr(torch, "compile", lambda graph, **_: seen.append(graph) or (lambda *_: []))
    monkeypatch.delenv("EVENHAND_TRITON", raising=False)
    if value is not None:
        monkeypatch.setenv("EVENHAND_TRITON", value)
    weights, x, slopes, rates = operands()
    inputs = {
        "weights": weights,
        "a": slopes.transpose(1, 2),
        "b": x,
        "rates": rates[:, None, None],
    }
    Captured(once, GraphMemory.__new__(GraphMemory), True)._compiled({}, inputs)
    expected = "aten.bmm" if value == "0" else "evenhand.subtract_product"
    assert expected in calls(seen[0])


def test_a_gradient_that_is_needed_elsewhere_is_kept() -> None:
    def keeps(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        gradient = torch.bmm(slopes.transpose(1, 2), x)
        weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
        return [gradient.sum()]

    fused(keeps, *operands(), expected=0)


def test_a_product_with_weights_that_change_is_not_moved() -> None:
    def tied(weights: Tensor, x: Tensor, slopes: Tensor, rates: Tensor) -> list[Tensor]:
        # the gradient of the first reads the second, which has changed by the time of its step
        gradient = torch.bmm(slopes.transpose(1, 2), x)
        x.addcmul_(x, rates.view(-1, 1, 1), value=-1)
        weights.addcmul_(gradient, rates.view(-1, 1, 1), value=-1)
        return [rates + 1]

    fused(tied, *operands(), expected=0)


def test_a_product_over_many_samples_is_left_to_torch() -> None:
    fused(step, *operands(samples=1000), expected=0)


@pytest.mark.parametrize("clients", [1, 50, 60_000])
def test_sums_over_columns_are_divided_among_no_more_programs_than_a_grid_holds(
    clients: int,
) -> None:
    splits, each = dense._splits(torch.empty(1).expand(clients, 128, 12544), 64)
    assert clients * splits < dense.MOST_CLIENTS
    assert (splits - 1) * each * 64 < 12544 <= splits * each * 64
