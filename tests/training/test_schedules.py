"""Schedules: their factors against torch's, and what they do in whole runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR, StepLR

import evenhand as eh
from evenhand.schedules import SCHEDULES, Schedule, built_schedule, schedule_table
from tests.support.federations import network, ragged

LR = 0.2


def halved(round: int) -> float:
    return 0.5**round


def a_third(round: int) -> float:
    return 3.0**-round


def sequential(optimizer: torch.optim.Optimizer) -> LRScheduler:
    first = LinearLR(optimizer, start_factor=1 / 4, total_iters=3)
    return SequentialLR(optimizer, [first, CosineAnnealingLR(optimizer, 9)], [3])


TORCH: dict[str, tuple[Schedule, Callable[..., LRScheduler]]] = {
    "cosine": (
        eh.schedules.Cosine(10, floor=0.1),
        lambda optimizer: CosineAnnealingLR(optimizer, 10, 0.1 * LR),
    ),
    "warm-up and cosine": (eh.schedules.Cosine(12, warmup=3), sequential),
    "step": (eh.schedules.Step(3, 0.5), lambda optimizer: StepLR(optimizer, 3, 0.5)),
    "warm-up": (
        eh.schedules.Warmup(4),
        lambda optimizer: LinearLR(optimizer, start_factor=1 / 5, total_iters=4),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_step_sizes_are_those_of_torch(name: str) -> None:
    schedule, make = TORCH[name]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], LR)
    scheduler = make(optimizer)
    local = eh.LocalSGD(LR, schedule=schedule)
    for round in range(10):
        assert local.rate(round) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_a_schedule_over_steps_takes_all_of_a_clients_steps() -> None:
    local = eh.LocalAdam(0.1, step_schedule=eh.schedules.Cosine())
    numbers = local.numbers(torch.tensor([4, 2]))
    assert numbers is not None
    factors = numbers[..., 0]
    assert factors[:, 0].tolist() == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert factors[:2, 1].tolist() == pytest.approx([1, 0.5])


def test_after_its_length_a_schedule_stays() -> None:
    assert eh.schedules.Cosine(4, floor=0.2).factor(9) == 0.2
    assert eh.schedules.Warmup(2).factor(9) == 1.0


def test_any_function_of_the_round_is_a_schedule_and_multiplies_decay() -> None:
    local = eh.LocalSGD(LR, decay=0.9, schedule=halved)
    assert local.rate(3) == LR * 0.9**3 * 0.5**3
    assert local == eh.LocalSGD(LR, decay=0.9, schedule=halved)
    assert local != eh.LocalSGD(LR, decay=0.9, schedule=a_third)
    assert repr(local).endswith("schedule=halved)")


def test_methods_and_history_see_the_rounds_step_size() -> None:
    local = eh.LocalSGD(LR, steps=1, schedule=eh.schedules.Step(1, 0.5))
    result = eh.fit(network(), ragged(), eh.QFFL(), rounds=3, local=local)
    assert [row["lr"] for row in result.history_rows] == [LR, LR / 2, LR / 4]
    plain = [
        eh.fit(network(), ragged(), eh.FedAvg(), rounds=3, local=one)
        for one in (local, eh.LocalSGD(LR, steps=1, decay=0.5))
    ]
    for name, value in plain[0].params.items():
        assert torch.equal(value, plain[1].params[name])


def test_a_schedule_that_stops_training_is_refused_before_it_starts() -> None:
    local = eh.LocalSGD(LR, schedule=eh.schedules.Cosine(3))
    assert eh.Settings(rounds=3, local=local)
    with pytest.raises(ValueError, match=r"Cosine\(length=3.*\) is 0 in round 4, where nothing"):
        eh.Settings(rounds=4, local=local)
    with pytest.raises(ValueError, match="in round 4, in which all clients train once more"):
        eh.fit(network(), ragged(), eh.FineTuned(), rounds=3, local=local)


def test_a_schedule_that_fails_is_named() -> None:
    with pytest.raises(ValueError, match="<lambda> fails at 2 with IndexError: list index out of"):
        eh.Settings(rounds=4, local=eh.LocalSGD(LR, schedule=lambda round: [1, 0.5][round]))


@pytest.mark.parametrize("name", TORCH)
def test_schedules_come_back_from_their_tables(name: str) -> None:
    schedule = TORCH[name][0]
    table = schedule_table("schedule", schedule)
    assert built_schedule("schedule", table) == schedule
    assert hash(built_schedule("schedule", table)) == hash(schedule)
    assert SCHEDULES[table["name"]] is type(schedule)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("cosine", "schedule must be a table such as"),
        (halved, "halved is a function, which a spec or message cannot hold; use one of"),
        ({"name": "cosin"}, "did you mean 'cosine'"),
        ({"name": "cosine", "rounds": 3}, "unknown keyword of schedule: 'rounds'"),
        ({"name": "step"}, "schedule: .*missing.*'every'"),
        ({"name": "warmup", "length": 0}, "length must be a whole number >= 1"),
        ({"name": "cosine", "length": 3, "warmup": 3}, "warmup must be below length"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(table: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        built_schedule("schedule", table)
    assert "\n" not in str(caught.value)


def fitted(out: Path, local: eh.LocalSolver, rounds: int = 2) -> eh.Result:
    return eh.fit(
        network(), ragged(), eh.FedAvg(), rounds=rounds, local=local, out=out, resume=True
    )


def test_a_run_is_resumed_only_with_the_same_solver(tmp_path: Path) -> None:
    local = eh.LocalAdam(0.01, schedule=eh.schedules.Step(2), clip=1.0)
    fitted(tmp_path, local)
    longer = fitted(tmp_path, eh.LocalAdam(0.01, schedule=eh.schedules.Step(2), clip=1.0), 3)
    whole = eh.fit(network(), ragged(), eh.FedAvg(), rounds=3, local=local)
    for name, value in whole.params.items():
        assert torch.equal(value, longer.params[name])
    with pytest.raises(eh.RunError):
        fitted(tmp_path, eh.LocalAdam(0.01, schedule=eh.schedules.Step(3), clip=1.0), 3)


def test_functions_of_the_same_name_are_not_the_same_solver(tmp_path: Path) -> None:
    fitted(tmp_path, eh.LocalSGD(0.1, schedule=lambda round: 0.5**round))
    assert fitted(tmp_path, eh.LocalSGD(0.1, schedule=lambda round: 0.5**round), 3)
    with pytest.raises(eh.RunError):
        fitted(tmp_path, eh.LocalSGD(0.1, schedule=lambda round: 0.4**round), 3)


def test_settings_without_news_identify_checkpoints_as_before() -> None:
    assert repr(eh.LocalSGD(0.1, momentum=0.5)) == (
        "LocalSGD(lr=0.1, epochs=None, steps=None, batch_size=None, momentum=0.5,"
        " weight_decay=0.0, decay=1.0)"
    )


UNSUITED = {
    "qffl and momentum": (eh.QFFL(), eh.LocalSGD(0.1, momentum=0.5), "momentum"),
    "qffl inside": (
        eh.FedProx(inner=eh.QFFL()),
        eh.LocalAdam(0.01),
        "the adaptive steps of LocalAdam",
    ),
    "gifair and clipping": (eh.GIFAIR(), eh.LocalSGD(0.1, clip=1.0), "gradient clipping"),
    "fafl and adamw": (eh.FAFL(alpha=0.6), eh.LocalAdamW(0.01), "the adaptive steps of LocalAdamW"),
    "a schedule over steps": (
        eh.QFFL(),
        eh.LocalSGD(0.1, step_schedule=eh.schedules.Warmup(2)),
        "a schedule over local steps",
    ),
}
SUITED = {
    "plain": (eh.QFFL(), eh.LocalSGD(0.1, weight_decay=0.1, schedule=eh.schedules.Step(1))),
    "no local steps": (eh.QFFL(solver="fedsgd"), eh.LocalAdam(0.01)),
    "momentum keeps proportions": (eh.FAFL(alpha=0.6), eh.LocalSGD(0.1, momentum=0.5)),
    "also in gifair's steps": (
        eh.GIFAIR(),
        eh.LocalSGD(0.1, momentum=0.5, step_schedule=eh.schedules.Warmup(2)),
    ),
    "fedavg": (eh.FedAvg(), eh.LocalAdam(0.01)),
}
PROPORTIONAL = {
    "plain": eh.LocalSGD(0.1, steps=4),
    "momentum": eh.LocalSGD(0.1, steps=4, momentum=0.9),
    "nesterov": eh.LocalSGD(0.1, steps=4, momentum=0.9, nesterov=True),
    "schedule": eh.LocalSGD(0.1, steps=4, step_schedule=eh.schedules.Cosine()),
    "clip": eh.LocalSGD(0.1, steps=4, clip=0.5),
    "adam": eh.LocalAdam(0.1, steps=4),
    "adamw": eh.LocalAdamW(0.1, steps=4),
}


@pytest.mark.parametrize("name", PROPORTIONAL)
def test_a_larger_step_is_a_larger_gradient_unless_the_solver_rescales(name: str) -> None:
    solver = PROPORTIONAL[name]
    grads = torch.randn(4, 1, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def moved(rate: float, scale: float) -> Tensor:
        variables = {"model": {"w": torch.ones(1, 6, dtype=torch.float64)}}
        state, rates = solver.state(variables), {"model": torch.tensor([rate], dtype=torch.float64)}
        numbers = solver.numbers(torch.tensor([4]))
        for step, grad in enumerate(grads):
            one = None if numbers is None else numbers[step]
            solver.update(variables, state, {"model": {"w": scale * grad}}, rates, None, one)
        return variables["model"]["w"]

    alike = torch.allclose(moved(0.3, 1.0), moved(0.1, 3.0), rtol=1e-12, atol=0)
    assert alike == (not solver.rescaling)


@pytest.mark.parametrize("name", UNSUITED)
def test_a_method_that_assumes_sgd_warns_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    method, local, found = UNSUITED[name]
    with caplog.at_level(logging.WARNING, "evenhand"):
        eh.fit(network(), ragged(), method, rounds=2, local=local)
    (text,) = [one.getMessage() for one in caplog.records if "assumes" in one.getMessage()]
    assert text.startswith(type(method).__name__)
    assert found in text
    assert "\n" not in text


@pytest.mark.parametrize("name", SUITED)
def test_other_runs_say_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    method, local = SUITED[name]
    with caplog.at_level(logging.WARNING, "evenhand"):
        eh.fit(network(), ragged(), method, rounds=2, local=local)
    assert not [one for one in caplog.records if "assumes" in one.getMessage()]
