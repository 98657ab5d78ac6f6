"""The small problems that FedMGDA, FedFV and AAggFF solve on the server in every round.

``python -m benchmarks.solvers [--clients 2000] [--parameters 10000]`` gives the CPU time of each,
and that of its plain form, by extrapolation from fewer clients where that would take minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import torch
from torch import Tensor

from benchmarks.machine import describe
from evenhand.algorithms.aaggff import least_on_simplex
from evenhand.algorithms.fedfv import mean_without_conflicts, without_conflict
from evenhand.simplex import min_norm_weights, project_box

FEW = 60  # clients of FedFV's plain form, whose time grows with their square


def seconds(function: Callable[[], object]) -> float:
    """Of CPU time, which other processes do not change."""
    start = time.process_time()
    function()
    return time.process_time() - start


def gradient_steps(G: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
    """The plain way to the shortest combination: as many exact projections as there are clients."""
    lam = ahead = torch.full_like(low, 1 / len(G))
    rate = 1 / G.abs().sum(1).max()
    for k in range(1, steps + 1):
        after = project_box(ahead - rate * (G @ ahead), low, high)
        ahead, lam = after + (k - 1) / (k + 2) * (after - lam), after
    return lam


def one_by_one(updates: Tensor, order: list[int]) -> Tensor:
    """FedFV as it is written: every update is cleared of every other, vector by vector."""
    cleared = updates.clone()
    for i in range(len(updates)):
        for j in order:
            if i != j:
                cleared[i] = without_conflict(cleared[i], updates[j])
    return cleared.mean(0)


@click.command()
@click.option("--clients", default=2000, show_default=True)
@click.option("--parameters", default=10_000, show_default=True)
def main(clients: int, parameters: int) -> None:
    """Time the solvers."""
    click.echo(describe())
    rng = torch.Generator().manual_seed(0)
    u = torch.randn(clients, parameters, generator=rng, dtype=torch.float64)
    u = u + 0.1 * torch.randn(parameters, generator=rng, dtype=torch.float64)
    u = u / u.norm(dim=1, keepdim=True)
    G, prior = u @ u.T, torch.full((clients,), 1 / clients, dtype=torch.float64)
    low, high = (prior - 0.1).clamp(min=0), (prior + 0.1).clamp(max=1)
    order = torch.randperm(clients, generator=rng).tolist()
    nobody = torch.zeros(clients, dtype=torch.bool)
    response = torch.rand(clients, generator=rng, dtype=torch.float64) / clients
    quadratic = 4 * torch.eye(clients, dtype=torch.float64) + clients / 4 * torch.outer(
        response, response
    )
    sample = clients // 20  # of the gradient steps; each takes the same time
    few = [place for place in order if place < FEW]
    timed = {
        "FedMGDA": (
            seconds(lambda: min_norm_weights(G, low, high)),
            20 * seconds(lambda: gradient_steps(G, low, high, sample)),
        ),
        "FedFV": (
            seconds(lambda: mean_without_conflicts(G, order, nobody)),
            (clients / FEW) ** 2 * seconds(lambda: one_by_one(u[:FEW], few)),
        ),
        "AAggFF": (
            seconds(lambda: least_on_simplex(quadratic, -response)),
            20 * seconds(lambda: gradient_steps(quadratic, 0 * prior, 0 * prior + 1, sample)),
        ),
    }
    for name, (new, plain) in timed.items():
        click.echo(f"{name:8} {new:6.2f} s   plain {plain:7.1f} s   {plain / new:6.0f} times")


if __name__ == "__main__":
    main()
