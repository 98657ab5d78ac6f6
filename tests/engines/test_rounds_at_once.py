"""Rounds of small models: several steps in one, a whole round in one, and samples chosen ahead.

Every trick gives the bits of the plain form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import evenhand as eh
from evenhand import tree
from evenhand.engines import ahead as ahead_module
from evenhand.engines.overwriting import overwrite
from evenhand.engines.recording import is_recording, recorded
from evenhand.engines.replay import Replayed
from evenhand.engines.tracing import simplify
from evenhand.engines.unrolling import unrolled
from tests.support.federations import METHODS, network, ragged

ATEN = torch.ops.aten
CPU = torch.device("cpu")
SAMPLES, LABELS = torch.randn(40, 6), torch.arange(40) % 3
MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "linear": lambda: torch.nn.Linear(6, 3),
    "perceptron": lambda: torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    ),
}
SOLVERS = {
    "plain": eh.LocalSGD(lr=0.1, epochs=1, batch_size=4),
    "momentum": eh.LocalSGD(lr=0.1, steps=3, batch_size=4, momentum=0.9, weight_decay=0.1),
    "whole data": eh.LocalSGD(lr=0.1, steps=3),
    "schedule": eh.LocalSGD(
        lr=0.1, steps=3, batch_size=4, step_schedule=lambda step: 1 / (1 + step)
    ),
    "adam": eh.LocalAdam(lr=0.01, steps=3, batch_size=4),
}


def equal_clients(count: int = 12, size: int = 10) -> eh.Federation:
    generator = torch.Generator().manual_seed(5)
    return eh.Federation.from_arrays(
        [
            {
                "x": torch.randn(size, 6, generator=generator),
                "y": torch.randint(0, 3, (size,), generator=generator),
            }
            for _ in range(count)
        ]
    )


def bits(result: eh.Result) -> dict[str, Tensor]:
    personal = {str(i): params for i, params in enumerate(result.personal or [])}
    return tree.flatten({"params": result.params, "state": result.state, "personal": personal})


def assert_same(one: eh.Result, other: eh.Result) -> None:
    first, second = bits(one), bits(other)
    assert first.keys() == second.keys()
    assert not [name for name in first if not torch.equal(first[name], second[name])]
    assert one.history_rows == other.history_rows


def run(engine: eh.Engine, module: str = "linear", **settings: Any) -> eh.Result:
    torch.manual_seed(0)
    given: dict[str, Any] = {"rounds": 24, "cohort": eh.Uniform(5), "local": SOLVERS["plain"]}
    given |= {"eval_every": 24, "algorithm": eh.FedAvg(), "federation": equal_clients()} | settings
    return eh.fit(
        MODULES[module](), given.pop("federation"), given.pop("algorithm"), engine=engine, **given
    )


@pytest.fixture
def whole_rounds(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each list of operations of a whole round was recorded without another trace."""
    found: list[bool] = []
    trace = Replayed._trace

    def noted(self: Replayed, *arguments: Any) -> None:
        assert not is_recording()
        trace(self, *arguments)
        if self.outermost:
            found.append(self.enabled)

    monkeypatch.setattr(Replayed, "_trace", noted)
    return found


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_round_in_one_gives_the_bits_of_plain_steps(
    module: str, solver: str, whole_rounds: list[bool]
) -> None:
    local = SOLVERS[solver]
    at_once = run(eh.Vmap(), module, local=local)
    assert whole_rounds == [True]
    assert_same(at_once, run(eh.Vmap(trace=False), module, local=local))
    assert_same(at_once, run(eh.Vmap(chunk=2), module, local=local))


@pytest.mark.parametrize("method", ["ditto", "gifair", "qffl", "fafl", "fedmgda", "fedminmax"])
def test_methods_with_memories_and_rows_of_clients_train_alike_in_one(method: str) -> None:
    settings: dict[str, Any] = {
        "rounds": 20,
        "local": eh.LocalSGD(lr=0.05, steps=4, batch_size=8),
        "cohort": eh.Uniform(6),
    }
    runs = [
        eh.fit(network(torch.float32), ragged(), METHODS[method], engine=engine, **settings)
        for engine in (eh.Vmap(), eh.Vmap(trace=False))
    ]
    assert_same(*runs)


def test_a_client_that_diverges_is_left_out_of_a_round_in_one() -> None:
    federation = equal_clients()
    x = federation.train.x
    assert isinstance(x, Tensor)
    x[30:40] *= 1e38  # client 3
    runs = [run(engine, federation=federation) for engine in (eh.Vmap(), eh.Vmap(trace=False))]
    assert any(row["left_out"] for row in runs[0].history_rows[15:])
    assert_same(*runs)


def test_without_tracing_nothing_is_run_at_once(whole_rounds: list[bool]) -> None:
    run(eh.Vmap(trace=False))
    assert not whole_rounds


@pytest.mark.parametrize("batch_size", [4, None])
def test_samples_chosen_ahead_are_those_of_the_round(
    batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = eh.LocalSGD(lr=0.1, epochs=2, batch_size=batch_size)
    sizes = [10, 4, 7, 10, 5, 9]
    data = [{"x": torch.randn(n, 6), "y": torch.arange(n) % 3} for n in sizes]
    for federation in (equal_clients(), eh.Federation.from_arrays(data)):
        cohort = eh.Uniform(3)
        chosen = run(eh.Vmap(), federation=federation, local=local, cohort=cohort)
        monkeypatch.setattr(ahead_module, "MOST_ROUNDS", 1)
        assert_same(chosen, run(eh.Vmap(), federation=federation, local=local, cohort=cohort))
        monkeypatch.undo()


# ---- the parts of a recorded step


def loss(w: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    output = SAMPLES[index] @ w
    y = torch.nn.functional.embedding(index, LABELS[:, None]).squeeze(-1)
    values = -output.log_softmax(-1).gather(-1, y[:, None]).squeeze(-1)
    return torch.where(weight > 0, values, 0).sum() / weight.sum().clamp(min=1)


def step(w: Tensor, index: Tensor, weight: Tensor) -> list[Tensor]:
    w.sub_(torch.func.vmap(torch.func.grad(loss))(w, index, weight) * 0.1)
    return []


def batches(steps: int = 4, clients: int = 3, size: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, 40, (steps, clients, size), generator=generator)
    return index, (torch.rand(steps, clients, size, generator=generator) < 0.7).float()


def operations(graph: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_targets_are_made_for_all_steps_at_once_and_steps_keep_the_rest() -> None:
    index, weight = batches()
    w = torch.randn(3, 6, 3)
    graph = recorded(step, [w.clone(), index[0], weight[0]])
    simplify(graph, CPU)
    parts = unrolled(graph, [index, weight], 1)
    left = operations(parts.rest)
    assert ATEN.scatter_add.default in operations(parts.ahead)
    assert not {ATEN.scatter_add.default, ATEN.where.self, ATEN.gt.Scalar} & {*left}
    plain, fast = w.clone(), w.clone()
    for row in range(4):
        step(plain, index[row], weight[row])
    parts.repeat([fast], [index, weight])
    assert torch.equal(plain, fast)


def test_what_a_step_changes_or_sums_up_is_not_made_ahead() -> None:
    rates = torch.rand(4, 3, 5)

    def changed(w: Tensor, index: Tensor, rate: Tensor) -> list[Tensor]:
        seen = rate.unsqueeze(0)
        w.add_(rate.sum(1, keepdim=True))
        rate.mul_(w)
        w.add_((seen * 2).squeeze(0))  # of the batch as it is now
        return []

    index, _ = batches()
    w = torch.randn(3, 5)
    graph = recorded(changed, [w.clone(), index[0], rates[0].clone()])
    parts = unrolled(graph, [index, rates], 0)  # the rates are no weights
    assert ATEN.sum.dim_IntList not in operations(parts.ahead)
    plain, fast = w.clone(), w.clone()
    for row in range(4):
        changed(plain, index[row], rates[row].clone())
    parts.repeat([fast], [index, rates.clone()])
    assert torch.equal(plain, fast)


def test_products_overwrite_only_what_nobody_else_needs() -> None:
    def function(a: Tensor, b: Tensor) -> list[Tensor]:
        room = torch.zeros_like(a)
        for _ in range(2):
            a.sub_(torch.mul(a + b, b, out=room))
        kept = torch.zeros_like(a)
        seen = kept.view(-1)
        torch.mul(a * 3, b, out=kept)
        shared = a * b
        return [shared * 2, shared, seen + 1, kept, (a - b).t() * b.t(), b * 2 * a]

    def values() -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(3, 4, generator=generator) for _ in range(2)]

    mine, theirs = values(), values()
    graph = recorded(function, values())
    overwrite(graph)
    done = operations(graph)
    assert done.count(ATEN.mul_.Tensor) >= 3
    assert done.count(ATEN.mul.out) == 1  # its memory is seen through a view
    assert all(map(torch.equal, graph(*mine), function(*theirs)))
    assert all(map(torch.equal, mine, theirs))
