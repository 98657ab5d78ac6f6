"""A function's operations are recorded as they are, and recorded only if they fit every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from evenhand import losses
from evenhand.engines.recording import recorded
from evenhand.engines.tracing import traced
from evenhand.model import Model
from evenhand.tree import Tree

Function = Callable[..., Sequence[Tensor]]


def test_recorded_operations_give_the_same_bits_for_other_values() -> None:
    labels = torch.tensor([0, 2, 1])

    def function(w: Tensor, x: Tensor, room: Tensor) -> list[Tensor]:
        def loss(w: Tensor, x: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(x @ w, labels) + (w**2).sum()

        slopes = torch.func.vmap(torch.func.grad(loss))(w, x)
        low, high = slopes.flatten(1).aminmax(dim=1)  # two results
        count = torch.tensor([0.0])  # made from a number, then changed
        count.add_(x[0, 0, 0])
        torch.mul(slopes, 0.5, out=room)
        w.sub_(room)
        return [torch.cat([low, high]), count, w[0]]

    def values(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        w, x = (torch.randn(shape, generator=generator) for shape in ((2, 4, 3), (2, 3, 4)))
        return [w, x, torch.zeros(2, 4, 3)]

    graph = recorded(function, values(0))
    for seed in (1, 2, 1):
        mine, theirs = values(seed), values(seed)
        results = zip(graph(*mine), function(*theirs), strict=True)
        assert all(torch.equal(found, expected) for found, expected in results)
        assert all(map(torch.equal, mine, theirs))  # changed in place alike


def test_random_numbers_are_drawn_anew_at_every_call() -> None:
    graph = recorded(lambda x: [x + torch.randn_like(x)], [torch.zeros(3)])
    torch.manual_seed(0)
    first, second = (graph(torch.zeros(3))[0] for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(first, torch.randn(3))
    assert torch.equal(second, torch.randn(3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [x * x.sum().item()],
        lambda x: [x if x.sum() > 0 else -x],
        lambda x: [x[x > 0]],
        lambda x: [x.nonzero()],
        lambda x: [x.unique()],
    ],
    ids=["number", "branch", "mask", "nonzero", "unique"],
)
def test_a_function_that_depends_on_values_is_refused(function: Function) -> None:
    with pytest.raises(ValueError, match="depends on values"):
        recorded(function, [torch.tensor([1.0, -2.0, 3.0])])


def test_an_index_of_numbers_is_an_input_like_others() -> None:
    graph = recorded(lambda x, at: [x[at]], [torch.arange(4.0), torch.tensor([1, 0])])
    assert graph(torch.arange(4.0), torch.tensor([3, 2]))[0].tolist() == [3, 2]


def test_views_of_the_same_values_become_one_and_others_stay_apart() -> None:
    def function(shared: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
        x = own["x"]  # square: its rows, columns and transpose have equal shapes
        before = x.view(16).view(4, 4) * 2
        x.view(2, 8).view(4, 4)[1].add_(1)
        after = x.t().contiguous().view(4, 4).t() + x.permute(0, 1) * 3
        return {
            "before": before,
            "after": after.transpose(0, 1).transpose(0, 1),
            "rows": x[0] - x[1] * 5,
            "crossed": x - x.t(),
            "same": x[0].expand(4, 4) - x[0].view(4, 1).expand(4, 4),
        }

    def x(seed: int) -> dict[str, Tensor]:
        return {"x": torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))}

    graph, form = traced(function, {}, x(0))
    given, own = x(1), x(1)
    expected = function({}, own)
    for name, found in zip(form, graph(given["x"]), strict=True):
        assert torch.equal(found, expected[name]), name
    assert torch.equal(given["x"], own["x"])  # changed in place alike
    views = [node for node in graph.graph.nodes if "view" in str(node.target)]
    assert len(views) == 1  # x[0] as a column


def test_a_module_may_be_used_first_while_operations_are_recorded() -> None:
    module = torch.nn.Linear(4, 3)
    model = Model(module, losses.cross_entropy).training()  # copies the module for each thread
    params = {
        name: value.detach().expand(2, *value.shape) for name, value in module.named_parameters()
    }

    def slopes(w: Tensor, bias: Tensor, x: Tensor) -> list[Tensor]:
        def loss(params: Tree, x: Tensor) -> Tensor:
            return model.output(params, x).square().sum()

        found = torch.func.vmap(torch.func.grad(loss))({"weight": w, "bias": bias}, x)
        return [found["weight"], found["bias"]]

    values = [params["weight"], params["bias"], torch.randn(2, 5, 4)]
    graph = recorded(slopes, values)
    assert "clone" not in graph.code
    for own, right in zip(graph(*values), slopes(*values), strict=True):
        assert torch.equal(own, right)
