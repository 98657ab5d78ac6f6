"""Local solvers against torch.optim, step by step, and the same bits on both engines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import evenhand as eh
from evenhand import tree
from evenhand.engines.replay import Replayed
from evenhand.engines.threads import one_thread
from evenhand.local import STATISTICS, LocalSolver
from evenhand.local.clipping import clipped, sums_of_squares

SIZES = (37, 5, 16, 9)
EPOCHS, BATCH = 2, 8
Make = Callable[[Any], Optimizer]
# our solver, and torch's with the same settings
PAIRS: dict[str, tuple[Callable[..., LocalSolver], Make]] = {
    "nesterov": (
        lambda **more: eh.LocalSGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.02, **more),
        lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.02),
    ),
    "momentum": (
        lambda **more: eh.LocalSGD(0.1, momentum=0.5, **more),
        lambda p: SGD(p, 0.1, momentum=0.5),
    ),
    "adam": (lambda **more: eh.LocalAdam(0.01, **more), lambda p: Adam(p, 0.01)),
    "adam-l2": (
        lambda **more: eh.LocalAdam(
            0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3, amsgrad=True, **more
        ),
        lambda p: Adam(p, 0.02, (0.8, 0.95), 1e-3, weight_decay=0.3, amsgrad=True),
    ),
    "adamw": (
        lambda **more: eh.LocalAdamW(0.02, weight_decay=0.5, **more),
        lambda p: AdamW(p, 0.02, weight_decay=0.5),
    ),
}


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def federation() -> eh.Federation:
    generator = torch.Generator().manual_seed(1)
    return eh.Federation.from_arrays(
        [
            {
                "x": torch.randn(n, 6, generator=generator, dtype=torch.float64),
                "y": torch.randint(0, 3, (n,), generator=generator),
            }
            for n in SIZES
        ]
    )


def by_torch(
    client: int,
    make: Make,
    dtype: torch.dtype,
    clip: float | None = None,
    factor: Callable[[int], float] | None = None,
) -> dict[str, Tensor]:
    """The client's model after its local steps of the first round, by torch.optim."""
    module, data = network(dtype), federation().train
    start = int(data.offsets[client])
    batches = eh.LocalSGD(0.1, epochs=EPOCHS, batch_size=BATCH).batches(
        torch.tensor([client]), torch.tensor([SIZES[client]]), SIZES[client], 0, 0
    )
    optimizer = make(module.parameters())
    scheduler = LambdaLR(optimizer, factor) if factor else None
    for step in range(int(batches.steps[0])):
        rows = start + batches.positions[0, step][batches.valid[0, step]]
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(data.x[rows].to(dtype)), data.y[rows]).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return module.state_dict()


def models(local: LocalSolver, engine: str, dtype: torch.dtype, rounds: int = 1) -> list[Any]:
    """Each client's model after its local steps."""
    result = eh.fit(
        network(dtype), federation(), eh.LocalOnly(), rounds=rounds, local=local, engine=engine
    )
    assert result.personal is not None
    return [dict(params) for params in result.personal]


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("pair", PAIRS)
def test_steps_are_those_of_torch_optim(
    pair: str, dtype: torch.dtype, close: float, engine: str
) -> None:
    ours, theirs = PAIRS[pair]
    found = models(ours(epochs=EPOCHS, batch_size=BATCH), engine, dtype)
    for client in range(len(SIZES)):
        wanted = by_torch(client, theirs, dtype)
        for name, value in wanted.items():
            torch.testing.assert_close(found[client][name], value, rtol=0, atol=close)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("pair", ["nesterov", "adamw"])
def test_clipping_and_a_schedule_over_steps_are_those_of_torch(pair: str, engine: str) -> None:
    ours, theirs = PAIRS[pair]
    local = ours(
        epochs=EPOCHS, batch_size=BATCH, clip=0.2, step_schedule=eh.schedules.Cosine(warmup=2)
    )
    found = models(local, engine, torch.float64)
    for client, size in enumerate(SIZES):
        total = EPOCHS * math.ceil(size / BATCH)

        def factor(step: int, total: int = total) -> float:
            if step < 2:
                return (step + 1) / 3
            return (1 + math.cos(math.pi * (step - 2) / (total - 2))) / 2 if total > 2 else 0.0

        wanted = by_torch(client, theirs, torch.float64, 0.2, factor)
        for name, value in wanted.items():
            torch.testing.assert_close(found[client][name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("most", [1e-3, 0.7, 1e3])
def test_clipping_is_that_of_torch_for_each_client_by_itself(most: float) -> None:
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(3, *shape, generator=generator) for shape in ((4, 5), (7,), ())]
    found = clipped(grads, most)
    for client in range(3):
        parameters = [nn.Parameter(torch.zeros_like(grad[client])) for grad in grads]
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad[client].clone()
        nn.utils.clip_grad_norm_(parameters, most)
        for parameter, grad in zip(parameters, found, strict=True):
            torch.testing.assert_close(grad[client], parameter.grad, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [3, 129, 4097, 40_001])
def test_a_norm_has_the_same_bits_whatever_is_stacked_with_it(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    stacked = torch.randn(7, size, generator=generator)
    with one_thread():
        together = sums_of_squares(stacked)
        turned = sums_of_squares(stacked.t().contiguous().t())
        alone = torch.cat([sums_of_squares(stacked[row : row + 1]) for row in range(7)])
    assert torch.equal(together, alone)
    assert torch.equal(together, turned)


def test_a_long_gradient_is_clipped_without_overflow() -> None:
    (found,) = clipped([torch.full((1, 4), 1e30)], 2.0)
    torch.testing.assert_close(found, torch.ones(1, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_client_moves_alike_alone_and_in_a_stack(pair: str, dtype: torch.dtype) -> None:
    """Given its gradients, every bit is the same: what engines add are the gradients' own bits."""
    local = PAIRS[pair][0](clip=0.5, step_schedule=eh.schedules.Cosine(warmup=2))
    generator = torch.Generator().manual_seed(3)
    steps, shapes = torch.tensor([9, 6, 6, 2, 1]), {"w": (7, 5), "b": (37,), "s": ()}

    def drawn() -> tree.Tree:
        return {
            "model": {
                key: torch.randn(len(steps), *shape, generator=generator, dtype=dtype)
                for key, shape in shapes.items()
            },
            "eta": torch.randn(len(steps), generator=generator, dtype=dtype),
        }

    start, gradients = drawn(), [drawn() for _ in range(int(steps.max()))]
    rates = {name: torch.rand(len(steps), generator=generator, dtype=dtype) for name in start}

    def moved(rows: list[int]) -> tree.Tree:
        """The clients in ``rows`` after their steps, in one stack; those that finish stay in it."""
        some = tree.map(lambda leaf: leaf[rows].clone(), start)
        state, numbers = local.state(some), local.numbers(steps[rows])
        for step in range(int(steps[rows].max())):
            active = steps[rows] > step
            local.update(
                some,
                state,
                tree.map(lambda leaf: leaf[rows], gradients[step]),
                {name: rate[rows] for name, rate in rates.items()},
                None if active.all() else active,
                None if numbers is None else numbers[step].to(dtype),
            )
        return some

    together = moved([0, 1, 2, 3, 4])
    for row in range(len(steps)):
        alone = moved([row])
        for (path, value), (_, wanted) in zip(tree.items(together), tree.items(alone), strict=True):
            assert torch.equal(value[row], wanted[0]), (row, path)


@pytest.mark.parametrize("pair", PAIRS)
def test_chunks_and_traces_change_no_bit(pair: str) -> None:
    local = PAIRS[pair][0](
        epochs=EPOCHS, batch_size=BATCH, clip=0.5, step_schedule=eh.schedules.Warmup(3)
    )
    runs = [
        eh.fit(network(), federation(), eh.FedAvg(), rounds=3, local=local, engine=engine)
        for engine in (eh.Vmap(), eh.Vmap(chunk=3), eh.Vmap(trace=False), eh.Loop())
    ]
    for other in runs[1:3]:
        for name, value in runs[0].params.items():
            assert torch.equal(value, other.params[name]), name
    for name, value in runs[0].params.items():
        torch.testing.assert_close(value, runs[3].params[name], rtol=0, atol=1e-12)


def test_a_traced_step_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step count is an input: a trace made at one step is right at every other."""
    traced: list[Replayed] = []
    monkeypatch.setattr("evenhand.engines.replay.CALLS_BEFORE_TRACING", 2)
    plain = Replayed.__init__

    def noticed(self: Replayed, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        traced.append(self)

    monkeypatch.setattr(Replayed, "__init__", noticed)
    local = eh.LocalAdam(
        0.01, steps=12, batch_size=BATCH, clip=0.5, step_schedule=eh.schedules.Cosine()
    )
    settings: dict[str, Any] = {"rounds": 3, "local": local}
    runs = [
        eh.fit(network(), federation(), eh.FedAvg(), engine=engine, **settings)
        for engine in (eh.Vmap(), eh.Vmap(trace=False))
    ]
    assert sum(len(one.traces) for one in traced) > 0
    assert all(one.enabled for one in traced)
    for name, value in runs[0].params.items():
        assert torch.equal(value, runs[1].params[name])


def test_what_a_solver_accumulates_is_reset_in_every_round() -> None:
    local = eh.LocalAdam(0.01, steps=1)
    once = eh.fit(network(), federation(), eh.FedAvg(), rounds=1, local=local, engine="loop")
    module = network()
    module.load_state_dict(once.params)
    again = eh.fit(module, federation(), eh.FedAvg(), rounds=1, local=local, engine="loop")
    twice = eh.fit(network(), federation(), eh.FedAvg(), rounds=2, local=local, engine="loop")
    for name, value in again.params.items():
        assert torch.equal(value, twice.params[name])


SOLVERS = {
    "sgd": eh.LocalSGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1, clip=0.1),
    "adam": eh.LocalAdam(0.1, weight_decay=0.1, amsgrad=True, clip=0.1),
    "adamw": eh.LocalAdamW(0.1, clip=0.1, step_schedule=eh.schedules.Warmup(5)),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_statistics_take_plain_steps_with_every_solver(name: str) -> None:
    local = SOLVERS[name]
    start: tree.Tree = {
        "model": {"w": torch.ones(2, 3)},
        STATISTICS: {"mean": torch.tensor([[1.0, 2.0], [3.0, 4.0]])},
    }
    gradient = tree.map(lambda leaf: torch.full_like(leaf, 5.0), start)
    rates = {"model": torch.tensor([0.1, 0.1]), STATISTICS: torch.tensor([0.5, 0.2])}
    variables, state = tree.map(torch.clone, start), local.state(start)
    numbers = local.numbers(torch.tensor([2, 2]))
    for step in range(2):
        here = None if numbers is None else numbers[step].float()
        local.update(variables, state, gradient, rates, None, here)
    torch.testing.assert_close(
        variables[STATISTICS]["mean"], torch.tensor([[1.0 - 5, 2 - 5], [3 - 2, 4 - 2]])
    )
    assert not torch.equal(variables["model"]["w"], start["model"]["w"])


def test_other_variables_take_plain_steps_beside_adam() -> None:
    local = SOLVERS["adam"]
    variables = {"model": {"w": torch.ones(1, 3)}, "eta": torch.tensor([1.0])}
    gradient = {"model": {"w": torch.ones(1, 3)}, "eta": torch.tensor([3.0])}
    rates = {"model": torch.tensor([0.1]), "eta": torch.tensor([0.5])}
    numbers = local.numbers(torch.tensor([1]))
    assert numbers is not None
    local.update(variables, local.state(variables), gradient, rates, None, numbers[0].float())
    assert variables["eta"].tolist() == [1 - 0.5 * 3]  # not clipped, not adaptive, no decay


@pytest.mark.parametrize("name", SOLVERS)
def test_finished_clients_do_not_move(name: str) -> None:
    local = SOLVERS[name]
    variables = {"model": {"w": torch.ones(2, 3)}, "eta": torch.ones(2)}
    gradient = {"model": {"w": torch.full((2, 3), torch.nan)}, "eta": torch.ones(2)}
    gradient["model"]["w"][0] = 1.0
    rates = dict.fromkeys(variables, torch.tensor([0.1, 0.1]))
    numbers = local.numbers(torch.tensor([1, 1]))
    here = None if numbers is None else numbers[0].float()
    active = torch.tensor([True, False])
    local.update(variables, local.state(variables), gradient, rates, active, here)
    assert torch.equal(variables["model"]["w"][1], torch.ones(3))
    assert variables["eta"][1] == 1
    assert (variables["model"]["w"][0] < 1).all()


def test_fafls_threshold_moves_by_its_own_step_size_beside_adam() -> None:
    # far below every loss, eta rises by lr_eta (1/alpha - 1) in a step, whatever the model does
    method = eh.FAFL(alpha=0.6, mu=0.0, eta0=-50.0, lr_eta=0.25)
    local = eh.LocalAdam(0.001, steps=2, clip=0.01)
    result = eh.fit(network(), federation(), method, rounds=1, local=local, engine="vmap")
    assert float(result.state["eta"]) == pytest.approx(-50.0 + 2 * 0.25 * (1 / 0.6 - 1), abs=1e-9)


def test_gifairs_scaled_step_scales_adams() -> None:
    scaled = {"model": torch.tensor([0.1, 0.3])}
    variables: tree.Tree = {"model": {"w": torch.zeros(2, 3)}}
    gradient: tree.Tree = {"model": {"w": torch.ones(2, 3)}}
    local = eh.LocalAdam(0.1, steps=1)
    numbers = local.numbers(torch.tensor([1, 1]))
    assert numbers is not None
    local.update(variables, local.state(variables), gradient, scaled, None, numbers[0].float())
    torch.testing.assert_close(variables["model"]["w"][1], 3 * variables["model"]["w"][0])


def test_memory_for_adams_state_is_counted() -> None:
    from evenhand.engines.loop import OneByOne
    from evenhand.engines.prepared import Prepared
    from evenhand.engines.work import Train
    from evenhand.model import Model

    model, samples = (
        Model(network(), "cross_entropy"),
        federation().train.samples(torch.float64, torch.device("cpu")),
    )

    def needed(local: LocalSolver) -> int:
        work = Train(eh.FedAvg(), local)
        return Prepared(work, model, samples, OneByOne(1)).bytes_of_a_client(8)

    size = 8 * sum(leaf.numel() for leaf in network().parameters())
    sgd, adam = needed(eh.LocalSGD(0.1)), needed(eh.LocalAdam(0.1))
    assert adam - sgd >= 2 * size
    assert needed(eh.LocalAdam(0.1, amsgrad=True)) - adam == size


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eh.LocalAdam(lr=0.0), "lr must be a finite number > 0"),
        (lambda: eh.LocalAdam(0.1, betas=(0.9, 1.0)), r"each of betas must be in \[0, 1\)"),
        (lambda: eh.LocalAdam(0.1, betas=0.9), "betas must be two numbers"),  # type: ignore[arg-type]
        (lambda: eh.LocalAdam(0.1, eps=0), "eps must be a finite number > 0"),
        (lambda: eh.LocalAdam(0.1, amsgrad=1), "amsgrad must be true or false"),  # type: ignore[arg-type]
        (lambda: eh.LocalAdamW(0.1, steps=1, epochs=1), "pass epochs or steps, not both"),
        (lambda: eh.LocalSGD(0.1, nesterov=True), "nesterov needs momentum above 0"),
        (lambda: eh.LocalSGD(0.1, clip=0), "clip must be a finite number > 0"),
        (lambda: eh.LocalSGD(0.1, schedule="cosine"), "schedule must be a schedule such as"),  # type: ignore[arg-type]
        (lambda: eh.LocalSGD(0.1, step_schedule=0.5), "or a function of the step, got 0.5"),  # type: ignore[arg-type]
        (lambda: eh.LocalSGD(0.1, schedule=eh.schedules.Cosine()), "over rounds needs a length"),
        (lambda: eh.LocalSGD(0.1, schedule=lambda r: -1.0), "must be a finite number >= 0, got -1"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(
    make: Callable[[], LocalSolver], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
