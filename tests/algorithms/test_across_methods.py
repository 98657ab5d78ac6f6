"""Facts about several methods: where they differ, coincide, and end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import evenhand as eh
from evenhand import theory
from evenhand.theory.checks import pareto_residual
from tests.support import limits

# ---- where it is another method


def test_methods_differ_where_no_special_setting_makes_them_equal() -> None:
    """The problem below can tell methods apart, so equality there means something."""
    plain = limits.train(eh.FedAvg()).params
    fed = limits.federation(group=[np.arange(size) % 2 for size in limits.SIZES])
    others = {
        "FAFL": limits.train(eh.FAFL(alpha=0.5, eta0=1.0)),
        "GIFAIR": limits.train(eh.GIFAIR(strength=0.9)),
        "QFFL": limits.train(eh.QFFL(q=1.0)),
        "PropFair": limits.train(eh.PropFair(M=5.0)),
        "AFL": limits.train(eh.AFL(lr_lambda=0.5)),
        "FedMinMax": limits.train(eh.FedMinMax(lr_mu=0.5), fed=fed),
    }
    for name, result in others.items():
        assert limits.distance(result.params, plain) > 1e-3, name


def test_the_younger_methods_differ_where_no_special_setting_makes_them_equal() -> None:
    """The problem below can tell them apart, so equality there means something."""
    plain = limits.train(eh.FedAvg()).params
    fed = limits.federation(group=[np.arange(size) % 2 for size in limits.SIZES])
    others = {
        "TERM": limits.train(eh.TERM(t=2.0)),
        "TERM team": limits.train(
            eh.TERM(t=5.0, level="team"), fed=limits.federation(team=limits.TEAMS)
        ),
        "TERM sample": limits.train(eh.TERM(t=1.0, level="sample")),
        "GIFAIR exact": limits.train(eh.GIFAIR(strength=0.9, exact_losses=True)),
        "FedMGDA": limits.train(eh.FedMGDA(normalise=False, epsilon=1.0)),
        "DeltaFL": limits.train(eh.DeltaFL(tail=0.3)),
        "DRFA": limits.train(eh.DRFA(lr_lambda=0.5)),
        "AgnosticFedAvg": limits.train(eh.AgnosticFedAvg(lr_lambda=0.5), fed=fed),
        "FedFV": limits.train(eh.FedFV()),
        "AdaFed": limits.train(eh.AdaFed()),
        "AAggFF": limits.train(eh.AAggFF()),
        "FedProx": limits.train(eh.FedProx(mu=1.0), local=limits.MINI_BATCHES),
        "FedAvgM": limits.train(eh.FedAvgM()),
        "FedAdam": limits.train(eh.FedAdam()),
        "Clipped": limits.train(eh.Clipped(norm=0.05)),
        "LossGuard": limits.train(eh.LossGuard(cap=0.3)),
    }
    for name, result in others.items():
        other = (
            limits.train(eh.FedAvg(), local=limits.MINI_BATCHES).params
            if name == "FedProx"
            else plain
        )
        assert limits.distance(result.params, other) > 1e-3, name


def test_large_powers_and_tilts_tend_to_the_maximum() -> None:
    """Special case 9: max w_worst^(1/(q+1)) <= A_q <= max and max + log(w_worst)/t <= A_t <=
    max."""
    for seed in range(5):
        losses, weights = limits.random_losses(seed)
        worst = weights[losses.index(max(losses))]
        for size in (1.0, 10.0, 100.0, 1000.0):
            powered = float(theory.PowerMean(size).value(losses, weights))
            assert (
                max(losses) * worst ** (1 / (size + 1)) * (1 - 1e-12)
                <= powered
                <= max(losses) * (1 + 1e-12)
            )
            tilted = float(theory.TiltedMean(size).value(losses, weights))
            assert max(losses) + math.log(worst) / size - 1e-12 <= tilted <= max(losses) + 1e-12
        assert powered == pytest.approx(max(losses), rel=5e-3)
        assert tilted == pytest.approx(max(losses), abs=5e-3)


def test_qffl_and_term_with_large_settings_certify_nearly_the_objective_of_afl() -> None:
    """Special case 9, by what runs report: A_s, not the raw sum."""
    for method in (eh.QFFL(q=300.0), eh.TERM(t=300.0)):
        result = limits.train(method, rounds=1)
        assert result.certificate is not None
        assert float(result.certificate.value) == pytest.approx(
            max(limits.losses_of(result.params)), rel=0.01
        )


def tilted(values: Sequence[Tensor], weights: Sequence[float], t: float) -> Tensor:
    """(1/t) log sum w e^(t f)"""
    return (
        torch.logsumexp(
            torch.stack(
                [t * value + math.log(w) for value, w in zip(values, weights, strict=True)]
            ),
            0,
        )
        / t
    )


def term_teams(linear: nn.Module, t: float) -> Tensor:
    losses = limits.client_losses(linear)
    members = [
        [i for i, team in enumerate(limits.TEAMS) if team == name]
        for name in sorted(set(limits.TEAMS))
    ]
    shares = [sum(limits.SHARES[i] for i in team) for team in members]
    risks = [
        sum(limits.SHARES[i] * losses[i] for i in team) / share
        for team, share in zip(members, shares, strict=True)
    ]
    return tilted(risks, shares, t)  # type: ignore[arg-type]


def term_samples(linear: nn.Module, t: float) -> Tensor:
    values = cross_entropy(linear(limits.pooled()[0]), limits.pooled()[1], reduction="none")
    return (torch.logsumexp(t * values, 0) - math.log(len(values))) / t


ONE_STEP: dict[str, tuple[eh.Algorithm, Callable[[nn.Module], Tensor]]] = {
    "FedAvg": (eh.FedAvg(), lambda linear: limits.share_weighted(limits.client_losses(linear))),
    "TERM": (
        eh.TERM(t=2.0),
        lambda linear: tilted(limits.client_losses(linear), limits.SHARES, 2.0),
    ),
    "TERM towards the best": (
        eh.TERM(t=-3.0),
        lambda linear: tilted(limits.client_losses(linear), limits.SHARES, -3.0),
    ),
    "TERM teams": (eh.TERM(t=3.0, level="team"), lambda linear: term_teams(linear, 3.0)),
    "TERM samples": (eh.TERM(t=1.5, level="sample"), lambda linear: term_samples(linear, 1.5)),
    "PropFair": (
        eh.PropFair(M=5.0),
        lambda linear: (
            -limits.share_weighted([torch.log(5 - loss) for loss in limits.client_losses(linear)])
        ),
    ),
    "GIFAIR teams": (
        eh.GIFAIR(strength=0.9, exact_losses=True),
        lambda linear: limits.gifair(linear, 0.9, limits.TEAMS),
    ),
}


@pytest.mark.parametrize(("method", "objective"), ONE_STEP.values(), ids=ONE_STEP)
def test_one_full_step_of_everyone_descends_the_global_objective(
    engine: str, method: eh.Algorithm, objective: Callable[[nn.Module], Tensor]
) -> None:
    """Special case 18 (TERM: on A_s; PropFair: on -sum p log(M - f))."""
    found = limits.train(method, engine, limits.federation(team=limits.TEAMS), rounds=8)
    limits.assert_same(found.params, limits.descend(objective, limits.FULL_STEP.lr, rounds=8))


SAME_AS_FEDAVG = [
    eh.AFL(lr_lambda=0.5),
    eh.AFL(lr_lambda=0.5, order="before"),
    eh.TERM(t=5.0),
    eh.DeltaFL(tail=0.3),
    eh.DRFA(lr_lambda=0.5),
    eh.FedMGDA(epsilon=0.5, normalise=False),
    eh.FedFV(alpha=0.3, tau=1),
    eh.AAggFF(),
    eh.LossGuard(cap=0.4),
    eh.FedProx(mu=0.0),
]


@pytest.mark.parametrize("method", SAME_AS_FEDAVG, ids=repr)
def test_on_identical_clients_every_weighting_is_fedavg(engine: str, method: eh.Algorithm) -> None:
    """Special case 19: whatever the weights, they weigh the same step."""
    local = eh.LocalSGD(lr=0.3, steps=2)
    limits.assert_same(
        limits.train(method, engine, limits.copies(), local=local).params,
        limits.train(eh.FedAvg(), engine, limits.copies(), local=local).params,
    )


SCALED: dict[str, tuple[eh.Algorithm, Callable[[float, float], float]]] = {
    "q-FFL": (eh.QFFL(q=2.0), lambda f, g: f**2 / (2 * f * g**2 + f**2 / limits.LR)),
    "q-FedSGD": (
        eh.QFFL(q=0.5, solver="fedsgd", lipschitz=4.0),
        lambda f, g: f**0.5 / (0.5 * f**-0.5 * g**2 + 4 * f**0.5),
    ),
    "PropFair": (eh.PropFair(M=6.0), lambda f, g: limits.LR / (6 - f)),
    "PropFair huber": (
        eh.PropFair(M=0.9, epsilon=0.8, continuation="huber"),
        lambda f, g: limits.LR / max(0.9 - f, 0.8),
    ),
    "FedMGDA": (eh.FedMGDA(epsilon=0.3, server_lr=0.2), lambda f, g: 0.2 / g),
    "AdaFed": (eh.AdaFed(gamma=2.0, server_lr=0.2), lambda f, g: 0.2 / g / f**2),
    "Clipped": (eh.Clipped(norm=0.1), lambda f, g: min(limits.LR, 0.1 / g)),
}


@pytest.mark.parametrize(("method", "step_of"), SCALED.values(), ids=SCALED)
def test_on_identical_clients_the_others_are_fedavg_up_to_the_step(
    engine: str, method: eh.Algorithm, step_of: Callable[[float, float], float]
) -> None:
    """Special case 19: q-FFL F^q/h, PropFair 1/(M - f); unit vectors for FedMGDA+; <g, d> = F^gamma
    |d|^2 for AdaFed."""
    found, expected = (
        limits.train(method, engine, limits.copies()).params,
        limits.scaled_descent(step_of),
    )
    assert limits.distance(found, expected) < 1e-8


@pytest.mark.parametrize(
    "method", [eh.FedMinMax(lr_mu=0.5), eh.AgnosticFedAvg(lr_lambda=0.5)], ids=repr
)
def test_on_identical_clients_group_methods_are_those_of_one_client(
    engine: str, method: eh.Algorithm
) -> None:
    """Special case 19, for methods over groups of samples: four copies are one client."""
    group = np.arange(limits.SIZES[2]) % 2
    alone = eh.Federation.from_arrays([{**limits.samples()[2], "group": group}])
    limits.assert_same(
        limits.train(method, engine, limits.copies(group)).params,
        limits.train(method, engine, alone).params,
    )


@pytest.mark.parametrize(
    "method", [eh.AgnosticFedAvg(lr_lambda=0.0), eh.FedFV(alpha=1.0)], ids=repr
)
@limits.every_local
def test_no_ascent_and_no_clearing_are_fedavg(
    engine: str, method: eh.Algorithm, local: eh.LocalSGD
) -> None:
    """Agnostic FedAvg at lambda = shares by data; FedFV that keeps all counts clients alike."""
    fed = limits.federation(group=[np.arange(size) % 3 for size in limits.SIZES])
    weights = "uniform" if isinstance(method, eh.FedFV) else "data"
    found = limits.train(method, engine, fed, local=local).params
    limits.assert_same(
        found, limits.train(eh.FedAvg(), engine, fed, local=local, weights=weights).params
    )


# ---- the optimum


@cache
def enough_parameters() -> eh.Federation:
    """Three clients and six parameters: more directions than clients, so that one can help all."""
    generator, rows = np.random.default_rng(5), []
    for size in (30, 20, 12):
        x, target = generator.normal(size=(size, 6)), generator.normal(size=6)
        rows.append({"x": x, "y": x @ target + 0.3 * generator.normal(size=size)})
    return eh.Federation.from_arrays(rows)


@pytest.mark.parametrize(
    "algorithm",
    [eh.FedMGDA(epsilon=1.0, server_lr=0.5), eh.AdaFed(gamma=1.0, server_lr=1.0)],
    ids=["fedmgda", "adafed"],
)
def test_common_descent_ends_where_no_step_lowers_all_losses(algorithm: eh.Algorithm) -> None:
    module = nn.Linear(6, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(module.weight)
    fed, local = enough_parameters(), eh.LocalSGD(lr=0.1, steps=1)
    first = pareto_residual(module, fed, "mse")
    result = eh.fit(
        module, fed, algorithm, loss="mse", rounds=100, local=local, eval_every=100, engine="vmap"
    )
    last = pareto_residual(module, fed, "mse", result.params)
    assert first.residual > 1
    assert last.residual < 1e-3
    # nobody is at its optimum: the residual is small because the gradients balance
    assert min(last.weights) > 0.01
    assert all(after < before for after, before in zip(last.losses, first.losses, strict=True))

    slopes = [
        2 * (x.T @ (x @ result.params["weight"][0] - y)) / len(y)
        for x, y, _ in (fed.train.client(i) for i in range(3))
    ]
    combined = sum(weight * slope for weight, slope in zip(last.weights, slopes, strict=True))
    # the library's check, by hand
    assert combined.norm().item() == pytest.approx(last.residual, rel=1e-6)
