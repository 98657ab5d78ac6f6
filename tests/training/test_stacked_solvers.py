"""Stacked runs with every local solver: the same bits as one run after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evenhand as eh
from evenhand.local import LocalSolver
from evenhand.training.stacks.plan import kind_of
from tests.support.federations import network, ragged

SIZES = (1, 9, 7, 12, 8)
SETTINGS: dict[str, Any] = {"rounds": 3, "eval_every": 3, "cohort": eh.Uniform(3)}


def check(method: eh.Algorithm, solvers: list[LocalSolver]) -> None:
    runs = [eh.Run(method, seed, local) for local in solvers for seed in (0, 5)]
    together = eh.fit_many(network(), ragged(SIZES), runs, engine="vmap", **SETTINGS)
    for run, found in zip(runs, together, strict=True):
        alone = eh.fit(
            network(),
            ragged(SIZES),
            method,
            seed=run.seed,
            local=run.local,
            engine="vmap",
            **SETTINGS,
        )
        for name, value in alone.params.items():
            assert torch.equal(found.params[name], value), (run, name)
        assert [row["lr"] for row in found.history_rows] == [
            row["lr"] for row in alone.history_rows
        ]


@pytest.mark.parametrize("method", [eh.FedAvg(), eh.QFFL(q=1.0)], ids=["fedavg", "qffl"])
def test_step_sizes_and_schedules_are_stacked(method: eh.Algorithm) -> None:
    common: dict[str, Any] = {"batch_size": 4, "clip": 0.5, "step_schedule": eh.schedules.Cosine()}
    solvers: list[LocalSolver] = [
        eh.LocalAdamW(0.01, **common),
        eh.LocalAdamW(0.003, decay=0.9, **common),
        eh.LocalAdamW(0.003, schedule=eh.schedules.Warmup(2), **common),
        eh.LocalAdamW(0.003, schedule=lambda round: 0.5**round, **common),
    ]
    assert len({kind_of(method, local) for local in solvers}) == 1
    check(method, solvers)


def test_solvers_that_differ_in_more_are_trained_by_themselves() -> None:
    solvers: list[LocalSolver] = [
        eh.LocalSGD(0.05, batch_size=4, momentum=0.5, nesterov=True),
        eh.LocalSGD(0.05, batch_size=4, momentum=0.5),
        eh.LocalAdam(0.05, batch_size=4),
        eh.LocalAdam(0.05, batch_size=4, betas=(0.5, 0.9)),
        eh.LocalAdamW(0.05, batch_size=4, weight_decay=0.0),
        # functions of the same name
        eh.LocalSGD(0.05, batch_size=4, step_schedule=lambda step: 0.5),
        eh.LocalSGD(0.05, batch_size=4, step_schedule=lambda step: 0.25),
    ]
    assert len({kind_of(eh.FedAvg(), local) for local in solvers}) == len(solvers)
    check(eh.FedAvg(), solvers)
