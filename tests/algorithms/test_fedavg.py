"""FedAvg: numbers by hand, the optimum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from tests.support import convex
from tests.support.by_hand import (
    P_A,
    P_B,
    F,
    G,
    assert_same,
    at,
    batches,
    clients_of,
    f_a,
    f_b,
    federation,
    g_a,
    g_b,
    move,
    near,
    network,
    numbers,
    run,
    value,
    weight,
)

# ---- by hand


def test_the_numbers_of_the_problem_are_those_in_the_docstring() -> None:
    assert (f_a(1), g_a(1), f_b(1), g_b(1)) == (5 / 3, -2, 16, -16)


def test_fedavg_one_step_moves_by_the_data_weighted_gradient(engine: str) -> None:
    # w - lr (p_a f_a' + p_b f_b') = 1 - 0.1 (3/4 (-2) + 1/4 (-16)) = 1 + 0.1 * 5.5
    assert value(run(eh.FedAvg(), engine, lr=0.1).params) == near(1.55)


def test_fedavg_two_local_steps_average_the_local_models(engine: str) -> None:
    # A: 1 -> 1.2 -> 1.36;  B with lr 0.1: 1 -> 2.6 -> 2.6 - 0.4 (5.2 - 6) = 2.92
    assert value(run(eh.FedAvg(), engine, lr=0.1, steps=2).params) == near(
        0.75 * 1.36 + 0.25 * 2.92
    )


def test_fedavg_step_size_decays_by_round(engine: str) -> None:
    first = 1 + 0.1 * 5.5
    second = first - 0.05 * (P_A * g_a(first) + P_B * g_b(first))
    assert value(
        run(eh.FedAvg(), engine, rounds=2, local=eh.LocalSGD(lr=0.1, steps=1, decay=0.5)).params
    ) == near(second)


def test_uniform_weights_count_clients_not_samples(engine: str) -> None:
    # 1 - 0.1 (1/2 (-2) + 1/2 (-16)) = 1.9
    assert value(run(eh.FedAvg(), engine, lr=0.1, weights="uniform").params) == near(1.9)


def test_a_loss_given_as_a_function_is_averaged_over_samples(engine: str) -> None:
    def cubic(output: Tensor, target: Tensor) -> Tensor:
        return (output.squeeze(-1) - target).abs() ** 3

    # slopes at w = 1: A: mean of -3 (0, 1, 4) = -5;  B: x * -3 (2 - 6)^2 = -96
    result = eh.fit(
        weight(1.0),
        federation(),
        eh.FedAvg(),
        loss=cubic,
        rounds=1,
        local=eh.LocalSGD(lr=0.01),
        engine=engine,
    )
    assert value(result.params) == near(1 + 0.01 * (0.75 * 5 + 0.25 * 96))


def plain_fedavg(
    module: nn.Module,
    clients: list[dict[str, np.ndarray]],
    local: eh.LocalSGD,
    rounds: int,
    seed: int,
    coefficients: Sequence[dict[int, float]] | None = None,
) -> dict[str, Tensor]:
    """McMahan's loop in plain PyTorch: torch.optim.SGD on every client, then the weighted mean of
    the local models."""
    total = sum(len(client["y"]) for client in clients)
    server = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for round in range(rounds):
        taking_part = (
            coefficients[round]
            if coefficients
            else {i: len(client["y"]) / total for i, client in enumerate(clients)}
        )
        mean = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        for i, coefficient in taking_part.items():
            x, y = torch.from_numpy(clients[i]["x"]), torch.from_numpy(clients[i]["y"])
            module.load_state_dict(server)
            rate = local.lr * local.decay**round
            optimizer = torch.optim.SGD(
                module.parameters(),
                lr=rate,
                momentum=local.momentum,
                weight_decay=local.weight_decay,
            )
            for batch in batches(i, len(y), local, round, seed):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
                optimizer.step()
            for name, tensor in module.state_dict().items():
                mean[name] += coefficient * tensor
        server = mean
    return server


LOCAL_WORK = {
    "one epoch of whole data": eh.LocalSGD(lr=0.3),
    "three steps on whole data": eh.LocalSGD(lr=0.3, steps=3),
    "epochs of mini-batches": eh.LocalSGD(lr=0.2, epochs=3, batch_size=4),
    "steps on mini-batches": eh.LocalSGD(lr=0.2, steps=5, batch_size=4),
    "everything": eh.LocalSGD(
        lr=0.2, epochs=2, batch_size=4, momentum=0.9, weight_decay=0.05, decay=0.8
    ),
}


@pytest.mark.parametrize("local", LOCAL_WORK.values(), ids=LOCAL_WORK.keys())
def test_fedavg_equals_a_plain_pytorch_fedavg(engine: str, local: eh.LocalSGD) -> None:
    clients = numbers([9, 4, 14, 1])
    result = eh.fit(
        network(),
        eh.Federation.from_arrays(clients),
        eh.FedAvg(),
        rounds=3,
        local=local,
        seed=7,
        engine=engine,
    )
    assert_same(result.params, plain_fedavg(network(), clients, local, 3, 7))


@pytest.mark.parametrize(
    "cohort",
    [eh.Uniform(2), eh.Proportional(3), eh.Proportional(2, replacement=False)],
    ids=["E", "B", "C"],
)
def test_fedavg_with_sampling_equals_a_plain_pytorch_fedavg(engine: str, cohort: eh.Cohort) -> None:
    clients, local = numbers([9, 4, 14, 1]), LOCAL_WORK["everything"]
    fed = eh.Federation.from_arrays(clients)
    found = [cohort.draw(fed.census(), 7, round) for round in range(4)]
    coefficients = [
        dict(zip(draw.ids.tolist(), draw.weight.tolist(), strict=True)) for draw in found
    ]
    result = eh.fit(
        network(), fed, eh.FedAvg(), rounds=4, local=local, seed=7, engine=engine, cohort=cohort
    )
    assert_same(result.params, plain_fedavg(network(), clients, local, 4, 7, coefficients))


def test_the_numbers_of_the_problem_are_those_in_the_docstring_with_three_clients(
    engine: str,
) -> None:
    assert (at(F, 1.0), at(G, 1.0)) == ([5 / 3, 16, 10], [-2, -16, 6])
    # FedAvg moves by minus the mean of the updates: -(3/4 (3, 4) + 1/4 (0, 2))
    assert move(eh.FedAvg(), engine, clients_of((3, 4), (0, 2), counts=(3, 1))) == near(
        [-2.25, -3.5]
    )


# ---- the optimum


def test_fedavg_reaches_the_least_mean_loss() -> None:
    theta = convex.parameters(convex.train(eh.FedAvg(), lr=0.3, rounds=50))
    optimum = convex.minimise(lambda theta: convex.P @ convex.losses(theta))
    assert convex.P @ convex.losses(convex.fedavg_minimiser()) == pytest.approx(optimum, rel=1e-9)
    assert convex.P @ convex.losses(theta) <= convex.WITHIN * optimum
    assert theta == pytest.approx(convex.fedavg_minimiser(), abs=1e-6)
