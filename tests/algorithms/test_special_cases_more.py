"""More places where one method must be another: the younger methods, the wrappers, and objectives
that coincide.

Numbers in docstrings are those of our list of special cases. "Bit for bit" is asked where the extra
arithmetic is exact (a product with 1, a sum with 0), agreement to rounding elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import evenhand as eh
from evenhand import theory
from tests.algorithms.test_special_cases import (
    FULL_STEP,
    LOCAL,
    MINI_BATCHES,
    ROUNDS,
    SCHEMES,
    SHARES,
    SIZES,
    assert_identical,
    assert_same,
    client_losses,
    descend,
    distance,
    federation,
    module,
    pooled,
    samples,
    train,
)
from tests.support.federations import with_output

every_scheme = pytest.mark.parametrize("cohort", SCHEMES.values(), ids=SCHEMES.keys())
every_local = pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL.keys())

UNBIASED, NORMALISED = SCHEMES["D uniform unbiased"], SCHEMES["E uniform"]  # the same draws
TEAMS = "abba"


@pytest.fixture(params=["loop", "vmap"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@cache
def fedavg(engine: str, cohort: eh.Cohort, local: eh.LocalSGD) -> dict[str, Tensor]:
    """FedAvg's model, with coefficients that sum to one where the cohort's do not."""
    return train(
        eh.FedAvg(), engine, local=local, cohort=NORMALISED if cohort == UNBIASED else cohort
    ).params


def losses_of(params: dict[str, Tensor]) -> list[float]:
    linear = module()
    linear.load_state_dict(params)
    return [loss.item() for loss in client_losses(linear)]


def worst_mixture(losses: Sequence[float], caps: Sequence[float]) -> float:
    """The largest lam . f over the simplex with lam_i <= cap_i, by filling the caps from the
    highest loss down."""
    left, total = 1.0, 0.0
    for loss, cap in sorted(zip(losses, caps, strict=True), reverse=True):
        lam = min(cap, left)
        left, total = left - lam, total + lam * loss
    return total


def random_losses(seed: int, n: int = 7) -> tuple[list[float], list[float]]:
    generator = np.random.default_rng(seed)
    weights = generator.uniform(0.2, 1, n)
    return generator.exponential(size=n).tolist(), (weights / weights.sum()).tolist()


def test_the_younger_methods_differ_where_no_special_setting_makes_them_equal() -> None:
    """The problem below can tell them apart, so equality there means something."""
    plain = train(eh.FedAvg()).params
    fed = federation(group=[np.arange(size) % 2 for size in SIZES])
    others = {
        "TERM": train(eh.TERM(t=2.0)),
        "TERM team": train(eh.TERM(t=5.0, level="team"), fed=federation(team=TEAMS)),
        "TERM sample": train(eh.TERM(t=1.0, level="sample")),
        "GIFAIR exact": train(eh.GIFAIR(strength=0.9, exact_losses=True)),
        "FedMGDA": train(eh.FedMGDA(normalise=False, epsilon=1.0)),
        "DeltaFL": train(eh.DeltaFL(tail=0.3)),
        "DRFA": train(eh.DRFA(lr_lambda=0.5)),
        "AgnosticFedAvg": train(eh.AgnosticFedAvg(lr_lambda=0.5), fed=fed),
        "FedFV": train(eh.FedFV()),
        "AdaFed": train(eh.AdaFed()),
        "AAggFF": train(eh.AAggFF()),
        "FedProx": train(eh.FedProx(mu=1.0), local=MINI_BATCHES),
        "FedAvgM": train(eh.FedAvgM()),
        "FedAdam": train(eh.FedAdam()),
        "Clipped": train(eh.Clipped(norm=0.05)),
        "LossGuard": train(eh.LossGuard(cap=0.3)),
    }
    for name, result in others.items():
        other = train(eh.FedAvg(), local=MINI_BATCHES).params if name == "FedProx" else plain
        assert distance(result.params, other) > 1e-3, name


# ---- objectives (2, 3, 9, 20)


@pytest.mark.parametrize("shrink", [1.0, 0.5, 0.01])
def test_fafl_with_levels_at_or_below_the_weights_has_the_objective_of_afl(shrink: float) -> None:
    """Special case 2: every cap is at least 1, so the worst client may have all the weight."""
    for seed in range(5):
        losses, weights = random_losses(seed)
        alpha = tuple(shrink * weight for weight in weights)
        assert float(theory.HCVaR(alpha).value(losses, weights)) == pytest.approx(
            max(losses), rel=1e-12
        )
        assert float(theory.Maximum().value(losses, weights)) == max(losses)


def test_fafl_and_afl_certify_the_same_objective_at_the_same_model() -> None:
    """Special case 2, by what runs report of the model that they hand out."""
    with pytest.warns(UserWarning, match="below its weight"):
        fafl = train(
            eh.FAFL(alpha=tuple(0.9 * share for share in SHARES), mu=0.0, eta0="mean"),
            local=eh.LocalSGD(lr=0.02, steps=1),
        )
    afl = train(eh.AFL(lr_lambda=0.1))
    for result in (fafl, afl):
        assert result.certificate is not None
        assert float(result.certificate.value) == pytest.approx(
            max(losses_of(result.params)), rel=1e-9
        )


@pytest.mark.parametrize("tail", [0.07, 0.3, 0.5, 0.9, 1.0])
def test_fafl_with_one_level_has_the_objective_of_deltafl(tail: float) -> None:
    """Special case 3: the mean of the worst ``tail`` of the weight, the client at the edge counting
    in part."""
    for seed in range(5):
        losses, weights = random_losses(seed)
        expected = worst_mixture(losses, [weight / tail for weight in weights])
        assert float(theory.HCVaR(tail).value(losses, weights)) == pytest.approx(
            expected, rel=1e-12
        )
        assert float(theory.superquantile(losses, weights, tail)) == pytest.approx(
            expected, rel=1e-12
        )
        assert float(theory.cvar(losses, weights, 1 - tail)) == pytest.approx(expected, rel=1e-9)


def test_deltafl_and_fafl_certify_the_same_objective() -> None:
    """Special case 3, by what runs report of the model that they hand out."""
    for method in (eh.DeltaFL(tail=0.6), eh.FAFL(alpha=0.6, mu=0.0, eta0="mean")):
        result = train(method)
        assert result.certificate is not None
        expected = worst_mixture(losses_of(result.params), [share / 0.6 for share in SHARES])
        assert float(result.certificate.value) == pytest.approx(expected, rel=1e-9)


def test_large_powers_and_tilts_tend_to_the_maximum() -> None:
    """Special case 9: max w_worst^(1/(q+1)) <= A_q <= max and max + log(w_worst)/t <= A_t <=
    max."""
    for seed in range(5):
        losses, weights = random_losses(seed)
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
        result = train(method, rounds=1)
        assert result.certificate is not None
        assert float(result.certificate.value) == pytest.approx(
            max(losses_of(result.params)), rel=0.01
        )


def test_smoothed_fafl_with_small_levels_weighs_clients_as_term() -> None:
    """Special case 20: lam_i ~ (p_i / alpha_i) e^(f_i / mu) as all alpha_i fall in fixed ratios,
    the error in proportion."""
    for seed in range(4):
        losses, weights = random_losses(seed, 4)
        ratio, mu = np.array([1.0, 0.5, 0.8, 0.3]), 0.4
        tilted = np.array(weights) / ratio * np.exp(np.array(losses) / mu)
        tilted /= tilted.sum()
        errors = []
        for scale in (1e-1, 1e-2, 1e-3, 1e-4):
            alpha = tuple((scale * ratio).tolist())
            found = theory.HCVaR(alpha, mu).weights(losses, weights).numpy()
            assert found.sum() == pytest.approx(1, abs=1e-9)
            errors.append(np.abs(found - tilted).max())
        assert errors[1] < 0.05
        assert errors[1] / errors[2] == pytest.approx(10, rel=0.3)
        assert errors[2] / errors[3] == pytest.approx(10, rel=0.05)


def test_smoothed_fafl_is_close_to_term_already_at_an_eighth_of_the_weights() -> None:
    """Special case 20: "already close at alpha = p/8"."""
    losses, mu = [0.3, 0.5, 0.9], 0.3
    weights = [1 / 3] * 3
    found = theory.HCVaR(1 / 24, mu).weights(losses, weights).numpy()
    tilted = np.exp(np.array(losses) / mu)
    assert np.abs(found - tilted / tilted.sum()).max() < 0.03


# ---- TERM (10)


@every_scheme
@every_local
def test_term_without_tilt_is_fedavg(engine: str, cohort: eh.Cohort, local: eh.LocalSGD) -> None:
    """Special case 10: t = 0 is a case of its own; with the unbiased scheme, FedAvg with
    coefficients that sum to one."""
    found = train(eh.TERM(t=0.0), engine, local=local, cohort=cohort).params
    assert_same(found, fedavg(engine, cohort, local))


@every_local
def test_term_without_tilt_is_fedavg_bit_for_bit_where_everyone_trains(
    engine: str, local: eh.LocalSGD
) -> None:
    """Special case 10."""
    fed = federation(team=TEAMS)
    expected = train(eh.FedAvg(), engine, fed, local=local).params
    for method in (eh.TERM(t=0.0), eh.TERM(t=0.0, level="team"), eh.TERM(t=0.0, level="sample")):
        assert_identical(train(method, engine, fed, local=local).params, expected)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("level", ["client", "team", "sample"])
def test_term_with_a_small_tilt_tends_to_fedavg(level: str, sign: float) -> None:
    """Special case 10: the distance falls in proportion to t."""
    fed = federation(team=TEAMS)
    plain = train(eh.FedAvg(), fed=fed).params
    errors = [
        distance(train(eh.TERM(t=sign * t, level=level), fed=fed).params, plain)
        for t in (1e-2, 1e-3, 1e-4)
    ]
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.01)
    assert errors[2] < 1e-3


def test_term_with_one_client_in_each_team_is_term_over_clients(engine: str) -> None:
    found = train(
        eh.TERM(t=2.0, level="team"), engine, federation(team="abcd"), local=MINI_BATCHES
    ).params
    assert_same(found, train(eh.TERM(t=2.0), engine, local=MINI_BATCHES).params)


def test_term_with_one_team_is_fedavg(engine: str) -> None:
    fed = federation(team="aaaa")
    assert_same(
        train(eh.TERM(t=2.0, level="team"), engine, fed).params,
        train(eh.FedAvg(), engine, fed).params,
    )


# ---- q-FFL with any L (7, 8)


@pytest.mark.parametrize("lipschitz", [1e-3, 1.0, 700.0])
@every_local
def test_qffl_at_zero_does_not_depend_on_L(
    engine: str, local: eh.LocalSGD, lipschitz: float
) -> None:
    """Special case 7: any L > 0 cancels."""
    found = train(eh.QFFL(q=0.0, lipschitz=lipschitz), engine, local=local).params
    assert_same(found, train(eh.FedAvg(), engine, local=local).params)


@pytest.mark.parametrize("lipschitz", [None, 0.7, 20.0])
def test_qfedsgd_at_zero_is_gradient_descent_with_step_one_over_L(
    engine: str, lipschitz: float | None
) -> None:
    """Special case 8: FedSGD with step 1/L, 1/L = lr by default, whatever the local solver."""
    rate = FULL_STEP.lr if lipschitz is None else 1 / lipschitz
    by_data = descend(lambda linear: cross_entropy(linear(pooled()[0]), pooled()[1]), rate)
    uniform = descend(lambda linear: sum(client_losses(linear)) / len(SIZES), rate)
    for local in (FULL_STEP, eh.LocalSGD(lr=FULL_STEP.lr, epochs=2, batch_size=4)):
        method = eh.QFFL(q=0.0, solver="fedsgd", lipschitz=lipschitz)
        assert_same(train(method, engine, local=local).params, by_data)
        assert_same(train(method, engine, local=local, weights="uniform").params, uniform)


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_qfedsgd_is_qfedavg_with_one_full_step_of_size_one_over_L(engine: str, q: float) -> None:
    """Then L (received - local) is the gradient itself."""
    assert_same(
        train(eh.QFFL(q=q, solver="fedsgd"), engine).params, train(eh.QFFL(q=q), engine).params
    )


# ---- FedMGDA+ (17)


@every_scheme
@every_local
def test_fedmgda_at_its_prior_without_normalisation_is_fedavg(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    """Special case 17: epsilon = 0 keeps lam0, the cohort's coefficients (normalised where they do
    not sum to one)."""
    found = train(
        eh.FedMGDA(epsilon=0.0, normalise=False), engine, local=local, cohort=cohort
    ).params
    assert_same(found, fedavg(engine, cohort, local))


def test_fedmgda_at_the_uniform_prior_without_normalisation_is_fedavg_with_uniform_weights(
    engine: str,
) -> None:
    """Special case 17."""
    found = train(
        eh.FedMGDA(epsilon=0.0, normalise=False, prior="uniform"), engine, local=MINI_BATCHES
    ).params
    assert_same(found, train(eh.FedAvg(), engine, local=MINI_BATCHES, weights="uniform").params)


def client_steps(local: eh.LocalSGD) -> np.ndarray:
    """(4, P) received - local model of every client after the first round, from what LocalOnly
    leaves with it."""
    start = dict(module().state_dict())
    result = train(eh.LocalOnly(), rounds=1, local=local)
    return np.stack(
        [
            np.concatenate([(start[name] - own[name]).numpy().ravel() for name in start])
            for own in result.personal or []
        ]
    )


@pytest.mark.parametrize("normalise", [True, False])
@every_local
def test_fedmgda_with_a_wide_box_takes_the_least_norm_point_of_the_hull(
    engine: str, local: eh.LocalSGD, normalise: bool
) -> None:
    """Special case 17: d is in the hull of the (normalised) updates, and <u_i, d> >= |d|^2 for all
    of them."""
    start = dict(module().state_dict())
    updates = client_steps(local)
    if normalise:
        updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    for prior in ("weights", "uniform"):
        params = train(
            eh.FedMGDA(epsilon=1.0, server_lr=0.5, normalise=normalise, prior=prior),
            engine,
            rounds=1,
            local=local,
        ).params
        d = np.concatenate([(start[name] - params[name]).numpy().ravel() for name in start]) / 0.5
        _, residual = scipy.optimize.nnls(
            np.vstack([updates.T, np.ones(len(updates))]), np.append(d, 1)
        )
        assert residual < 1e-9
        assert (updates @ d >= d @ d * (1 - 1e-8)).all()
        # and is not the prior's
        assert np.linalg.norm(d) < np.linalg.norm(np.array(SHARES) @ updates)


# ---- one step on the global objective (18)


def share_weighted(values: Sequence[Tensor]) -> Tensor:
    return sum(p * value for p, value in zip(SHARES, values, strict=True))  # type: ignore[return-value]


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
    losses = client_losses(linear)
    members = [[i for i, team in enumerate(TEAMS) if team == name] for name in sorted(set(TEAMS))]
    shares = [sum(SHARES[i] for i in team) for team in members]
    risks = [
        sum(SHARES[i] * losses[i] for i in team) / share
        for team, share in zip(members, shares, strict=True)
    ]
    return tilted(risks, shares, t)  # type: ignore[arg-type]


def term_samples(linear: nn.Module, t: float) -> Tensor:
    values = cross_entropy(linear(pooled()[0]), pooled()[1], reduction="none")
    return (torch.logsumexp(t * values, 0) - math.log(len(values))) / t


def gifair(linear: nn.Module, strength: float, teams: str) -> Tensor:
    losses = client_losses(linear)
    names = sorted(set(teams))
    c = (
        strength
        * min(SHARES[i] * teams.count(teams[i]) for i in range(len(SIZES)))
        / (len(names) - 1)
    )
    means = [
        torch.stack([losses[i] for i in range(len(SIZES)) if teams[i] == name]).mean()
        for name in names
    ]
    spread = sum((means[a] - means[b]).abs() for a in range(len(names)) for b in range(a))
    return share_weighted(losses) + c * spread


ONE_STEP: dict[str, tuple[eh.Algorithm, Callable[[nn.Module], Tensor]]] = {
    "FedAvg": (eh.FedAvg(), lambda linear: share_weighted(client_losses(linear))),
    "TERM": (eh.TERM(t=2.0), lambda linear: tilted(client_losses(linear), SHARES, 2.0)),
    "TERM towards the best": (
        eh.TERM(t=-3.0),
        lambda linear: tilted(client_losses(linear), SHARES, -3.0),
    ),
    "TERM teams": (eh.TERM(t=3.0, level="team"), lambda linear: term_teams(linear, 3.0)),
    "TERM samples": (eh.TERM(t=1.5, level="sample"), lambda linear: term_samples(linear, 1.5)),
    "PropFair": (
        eh.PropFair(M=5.0),
        lambda linear: -share_weighted([torch.log(5 - loss) for loss in client_losses(linear)]),
    ),
    "GIFAIR teams": (
        eh.GIFAIR(strength=0.9, exact_losses=True),
        lambda linear: gifair(linear, 0.9, TEAMS),
    ),
}


@pytest.mark.parametrize(("method", "objective"), ONE_STEP.values(), ids=ONE_STEP)
def test_one_full_step_of_everyone_descends_the_global_objective(
    engine: str, method: eh.Algorithm, objective: Callable[[nn.Module], Tensor]
) -> None:
    """Special case 18 (TERM: on A_s; PropFair: on -sum p log(M - f))."""
    found = train(method, engine, federation(team=TEAMS), rounds=8)
    assert_same(found.params, descend(objective, FULL_STEP.lr, rounds=8))


def test_one_full_step_of_gifair_individuals_descends_the_global_objective(engine: str) -> None:
    """Special case 18, where every client is its own team."""
    found = train(eh.GIFAIR(strength=0.95, exact_losses=True), engine, rounds=8)
    assert_same(
        found.params, descend(lambda linear: gifair(linear, 0.95, "abcd"), FULL_STEP.lr, rounds=8)
    )


@pytest.mark.parametrize("floor", [0.0, (0.0, 0.5, 0.2, 1.0), 0.7], ids=str)
@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_one_full_step_of_fafl_descends_its_joint_objective(
    engine: str, mu: float, floor: float | tuple[float, ...]
) -> None:
    """Special case 18: eta + sum p_i [a_i (f_i - eta) + (1/alpha_i - a_i) phi_mu(f_i - eta)] over
    model and eta."""
    alpha, lr = (0.9, 0.5, 0.6, 0.3), 0.2
    floors = floor if isinstance(floor, tuple) else (floor,) * 4
    linear, eta = module(), torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    for _ in range(10):
        total = eta
        for p, level, least, loss in zip(SHARES, alpha, floors, client_losses(linear), strict=True):
            excess = loss - eta
            positive = (
                excess.clamp(min=0)
                if mu == 0
                else mu * torch.logaddexp(torch.zeros_like(excess), excess / mu)
            )
            total = total + p * (least * excess + (1 / level - least) * positive)
        variables = [*linear.parameters(), eta]
        slopes = torch.autograd.grad(total, variables)
        with torch.no_grad():
            for variable, slope in zip(variables, slopes, strict=True):
                variable -= lr * slope
    method = eh.FAFL(alpha=alpha, mu=mu, eta0=1.0, floor=floor)
    result = train(method, engine, local=eh.LocalSGD(lr=lr, steps=1), rounds=10)
    assert_same(
        result.params, {name: tensor.detach() for name, tensor in linear.state_dict().items()}
    )
    assert result.state["eta"].item() == pytest.approx(eta.item(), rel=1e-10)


@every_local
def test_fafl_by_whole_local_losses_is_fafl_where_batches_are_whole(
    engine: str, local: eh.LocalSGD
) -> None:
    method = {"alpha": (0.9, 0.5, 0.6, 0.3), "mu": 0.1, "eta0": 1.0, "floor": 0.2}
    one, other = (
        train(eh.FAFL(**method, sigma=sigma), engine, local=local) for sigma in ("local", "batch")
    )
    if local is FULL_STEP:
        assert_same(one.params, other.params)
        assert one.state["eta"].item() == pytest.approx(other.state["eta"].item(), rel=1e-12)
    else:
        assert distance(one.params, other.params) > 1e-4


def test_fafl_by_whole_local_losses_needs_no_smoothing_to_have_the_right_weights(
    engine: str,
) -> None:
    """alpha = 1, mu = 0, eta below every local loss: s = 1, FedAvg but for the order of sums;
    single batches may lie below eta."""
    eta0 = 0.5 * min(losses_of(dict(module().state_dict())))
    local = eh.LocalSGD(lr=0.01, epochs=1, batch_size=1)
    found = train(eh.FAFL(alpha=1.0, mu=0.0, eta0=eta0, sigma="local"), engine, local=local)
    assert distance(found.params, train(eh.FedAvg(), engine, local=local).params) < 1e-15
    assert found.state["eta"].item() == eta0
    by_batch = train(eh.FAFL(alpha=1.0, mu=0.0, eta0=eta0, sigma="batch"), engine, local=local)
    assert by_batch.state["eta"].item() < eta0


def test_fafl_with_full_floors_is_fedavg_where_eta_is_above_every_loss(engine: str) -> None:
    """a = 1 leaves no room: s = 1 + (1/alpha - 1) 0 = 1, eta never moves."""
    found = train(eh.FAFL(alpha=0.5, mu=0.0, eta0=50.0, floor=1.0), engine, local=MINI_BATCHES)
    assert_identical(found.params, train(eh.FedAvg(), engine, local=MINI_BATCHES).params)
    assert found.state["eta"].item() == 50.0


# ---- identical clients (19)


def copies(
    group: Sequence[Any] | None = None, counts: Sequence[int] = (1, 2, 1, 3)
) -> eh.Federation:
    """Four clients with the same samples, one, two, one and three times over: losses equal up to
    rounding, unequal weights."""
    one = samples()[2]
    clients = []
    for count in counts:
        client = {key: np.concatenate([values] * count) for key, values in one.items()}
        clients.append(
            client
            if group is None
            else {**client, "group": np.concatenate([np.asarray(group)] * count)}
        )
    return eh.Federation.from_arrays(clients)


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
    assert_same(
        train(method, engine, copies(), local=local).params,
        train(eh.FedAvg(), engine, copies(), local=local).params,
    )


@pytest.mark.parametrize("exact", [False, True])
def test_on_identical_clients_gifair_is_fedavg(engine: str, exact: bool) -> None:
    """Special case 19: losses tie, nobody gains rank. Where rounding breaks the tie the ranks still
    sum to zero: one step."""
    method = eh.GIFAIR(strength=0.9, exact_losses=exact)
    for fed, local in (
        (copies(counts=(1, 1, 1, 1)), eh.LocalSGD(lr=0.3, steps=2)),
        (copies(), FULL_STEP),
    ):
        assert_same(
            train(method, engine, fed, local=local).params,
            train(eh.FedAvg(), engine, fed, local=local).params,
        )


def gradient(linear: nn.Module) -> tuple[float, list[Tensor]]:
    x, y = (torch.from_numpy(samples()[2][key]) for key in ("x", "y"))
    loss = cross_entropy(linear(x), y)
    return loss.item(), list(torch.autograd.grad(loss, list(linear.parameters())))


def scaled_descent(
    step_of: Callable[[float, float], float], rounds: int = ROUNDS
) -> dict[str, Tensor]:
    """Descent on the one loss, the step size a function of the loss and of the gradient's norm."""
    linear = module()
    for _ in range(rounds):
        loss, slopes = gradient(linear)
        size = step_of(loss, math.sqrt(sum(float((slope**2).sum()) for slope in slopes)))
        with torch.no_grad():
            for parameter, slope in zip(linear.parameters(), slopes, strict=True):
                parameter -= size * slope
    return {name: tensor.detach() for name, tensor in linear.state_dict().items()}


LR = FULL_STEP.lr
SCALED: dict[str, tuple[eh.Algorithm, Callable[[float, float], float]]] = {
    "q-FFL": (eh.QFFL(q=2.0), lambda f, g: f**2 / (2 * f * g**2 + f**2 / LR)),
    "q-FedSGD": (
        eh.QFFL(q=0.5, solver="fedsgd", lipschitz=4.0),
        lambda f, g: f**0.5 / (0.5 * f**-0.5 * g**2 + 4 * f**0.5),
    ),
    "PropFair": (eh.PropFair(M=6.0), lambda f, g: LR / (6 - f)),
    "PropFair huber": (
        eh.PropFair(M=0.9, epsilon=0.8, continuation="huber"),
        lambda f, g: LR / max(0.9 - f, 0.8),
    ),
    "FedMGDA": (eh.FedMGDA(epsilon=0.3, server_lr=0.2), lambda f, g: 0.2 / g),
    "AdaFed": (eh.AdaFed(gamma=2.0, server_lr=0.2), lambda f, g: 0.2 / g / f**2),
    "Clipped": (eh.Clipped(norm=0.1), lambda f, g: min(LR, 0.1 / g)),
}


@pytest.mark.parametrize(("method", "step_of"), SCALED.values(), ids=SCALED)
def test_on_identical_clients_the_others_are_fedavg_up_to_the_step(
    engine: str, method: eh.Algorithm, step_of: Callable[[float, float], float]
) -> None:
    """Special case 19: q-FFL F^q/h, PropFair 1/(M - f); unit vectors for FedMGDA+; <g, d> = F^gamma
    |d|^2 for AdaFed."""
    found, expected = train(method, engine, copies()).params, scaled_descent(step_of)
    assert distance(found, expected) < 1e-8


def test_on_identical_clients_fafl_is_fedavg_up_to_the_step(engine: str) -> None:
    """Special case 19: the step is lr s with s = sigmoid((f - eta)/mu)/alpha, eta <- eta - lr (1 -
    s)."""
    eta = 0.8

    def step_of(loss: float, norm: float) -> float:
        nonlocal eta
        s = 1 / (1 + math.exp(-(loss - eta) / 0.3)) / 0.5
        eta -= LR * (1 - s)
        return LR * s

    expected = scaled_descent(step_of)
    found = train(eh.FAFL(alpha=0.5, mu=0.3, eta0=0.8), engine, copies())
    assert_same(found.params, expected)
    assert found.state["eta"].item() == pytest.approx(eta, rel=1e-10)


@pytest.mark.parametrize(
    "method", [eh.FedMinMax(lr_mu=0.5), eh.AgnosticFedAvg(lr_lambda=0.5)], ids=repr
)
def test_on_identical_clients_group_methods_are_those_of_one_client(
    engine: str, method: eh.Algorithm
) -> None:
    """Special case 19, for methods over groups of samples: four copies are one client."""
    group = np.arange(SIZES[2]) % 2
    alone = eh.Federation.from_arrays([{**samples()[2], "group": group}])
    assert_same(train(method, engine, copies(group)).params, train(method, engine, alone).params)


# ---- the younger methods at their neutral setting


@every_scheme
@every_local
def test_deltafl_with_the_whole_tail_is_fedavg(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    """tail = 1: everyone at or above the 0-quantile trains; coefficients are normalised."""
    found = train(eh.DeltaFL(tail=1.0), engine, local=local, cohort=cohort).params
    assert_same(found, fedavg(engine, cohort, local))


@every_scheme
@every_local
def test_drfa_without_ascent_is_fedavg(engine: str, cohort: eh.Cohort, local: eh.LocalSGD) -> None:
    """lr_lambda = 0 keeps lam = w, so the draws are those of the clients' weights."""
    expected = (
        train(eh.FedAvg(), engine, local=local, cohort=cohort).params
        if cohort == UNBIASED
        else fedavg(engine, cohort, local)
    )
    assert_same(train(eh.DRFA(lr_lambda=0.0), engine, local=local, cohort=cohort).params, expected)


def test_afl_before_without_ascent_is_fedavg(engine: str) -> None:
    found = train(eh.AFL(lr_lambda=0.0, order="before"), engine, local=MINI_BATCHES).params
    assert_same(found, train(eh.FedAvg(), engine, local=MINI_BATCHES).params)


def test_drfa_with_one_step_and_everyone_raises_lambda_as_afl_does_but_one_round_later(
    engine: str,
) -> None:
    """One step, everyone asked: lam^{r+1} = proj(lam^r + lr_lambda f(theta^{r+1})), which is AFL's
    "before" from theta^1 on."""
    drfa = train(eh.DRFA(lr_lambda=0.4), engine, rounds=5).params
    first = module()
    first.load_state_dict(train(eh.FedAvg(), engine, rounds=1).params)
    assert_same(
        drfa, train(eh.AFL(lr_lambda=0.4, order="before"), engine, rounds=4, module=first).params
    )


@pytest.mark.parametrize(
    "method", [eh.AgnosticFedAvg(lr_lambda=0.0), eh.FedFV(alpha=1.0)], ids=repr
)
@every_local
def test_no_ascent_and_no_clearing_are_fedavg(
    engine: str, method: eh.Algorithm, local: eh.LocalSGD
) -> None:
    """Agnostic FedAvg at lambda = shares by data; FedFV that keeps all counts clients alike."""
    fed = federation(group=[np.arange(size) % 3 for size in SIZES])
    weights = "uniform" if isinstance(method, eh.FedFV) else "data"
    found = train(method, engine, fed, local=local).params
    assert_same(found, train(eh.FedAvg(), engine, fed, local=local, weights=weights).params)


# ---- wrappers at their neutral setting

INNER: dict[str, eh.Algorithm] = {
    "FedAvg": eh.FedAvg(),
    "AFL average": eh.Averaged(eh.AFL(lr_lambda=0.3)),
    "AFL before": eh.AFL(lr_lambda=0.3, order="before"),
    "QFFL": eh.QFFL(q=1.0),
    "TERM": eh.TERM(t=1.0),
    "TERM team": eh.TERM(t=1.0, level="team"),
    "TERM sample": eh.TERM(t=1.0, level="sample"),
    "FAFL": eh.Averaged(
        eh.FAFL(
            alpha=0.5,
            mu=0.1,
            eta0="quantile",
            floor=0.2,
            sigma="local",
            short_first_round=True,
        )
    ),
    "GIFAIR": eh.GIFAIR(strength=0.8),
    "GIFAIR per": eh.GIFAIR(strength=0.8, personal=True),
    "GIFAIR exact": eh.GIFAIR(strength=0.8, exact_losses=True),
    "FedMinMax": eh.Averaged(eh.FedMinMax(lr_mu=0.2)),
    "PropFair": eh.PropFair(M=4.0),
    "FedMGDA": eh.FedMGDA(),
    "Ditto": eh.Ditto(lam=0.5),
    "DeltaFL": eh.DeltaFL(tail=0.6),
    "DRFA": eh.DRFA(lr_lambda=0.3, sample=2),
    "AgnosticFedAvg": eh.AgnosticFedAvg(lr_lambda=0.3),
    "FedFV": eh.FedFV(alpha=0.3, tau=1),
    "AAggFF": eh.AAggFF(),
    "AdaFed": eh.AdaFed(),
    "LocalOnly": eh.LocalOnly(),
    "FineTuned": eh.FineTuned(),
}
every_inner = pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
WORK = eh.LocalSGD(lr=0.2, epochs=1, batch_size=5)


def rich() -> eh.Federation:
    return federation(team=list(TEAMS), group=[np.arange(size) % 2 for size in SIZES])


def assert_all_identical(found: eh.Result, expected: eh.Result) -> None:
    assert_identical(found.params, expected.params)
    assert (found.personal is None) == (expected.personal is None)
    for one, other in zip(found.personal or [], expected.personal or [], strict=True):
        assert_identical(one, other)


@every_inner
def test_fedprox_without_pull_is_the_inner_method(inner: eh.Algorithm) -> None:
    assert_all_identical(
        train(eh.FedProx(mu=0.0, inner=inner), fed=rich(), local=WORK),
        train(inner, fed=rich(), local=WORK),
    )


@every_inner
def test_clipping_at_a_huge_length_is_the_inner_method(inner: eh.Algorithm) -> None:
    assert_all_identical(
        train(eh.Clipped(norm=1e30, inner=inner), fed=rich(), local=WORK),
        train(inner, fed=rich(), local=WORK),
    )


@every_inner
def test_a_server_step_of_one_without_momentum_is_the_inner_method(inner: eh.Algorithm) -> None:
    found = train(eh.FedAvgM(lr=1.0, momentum=0.0, inner=inner), fed=rich(), local=WORK)
    expected = train(inner, fed=rich(), local=WORK)
    assert_same(found.params, expected.params)
    for one, other in zip(found.personal or [], expected.personal or [], strict=True):
        assert_same(one, other)


SEES_LOSSES = [
    "AFL average",
    "AFL before",
    "DeltaFL",
    "DRFA",
    "AAggFF",
]


@pytest.mark.parametrize("name", [*SEES_LOSSES, "GIFAIR", "GIFAIR exact"])
def test_a_guard_that_cuts_nothing_is_the_inner_method(name: str) -> None:
    fed = federation()
    assert_all_identical(
        train(eh.LossGuard(mads=1e30, cap=1.0, inner=INNER[name]), fed=fed),
        train(INNER[name], fed=fed),
    )


@pytest.mark.parametrize(
    "cohort", [SCHEMES["B proportional"], SCHEMES["E uniform"]], ids=["B", "E"]
)
@pytest.mark.parametrize("name", SEES_LOSSES)
def test_a_guard_that_cuts_nothing_is_the_inner_method_under_sampling(
    name: str, cohort: eh.Cohort
) -> None:
    guarded = train(eh.LossGuard(mads=1e30, cap=1.0, inner=INNER[name]), cohort=cohort)
    assert_same(guarded.params, train(INNER[name], cohort=cohort).params)


# ---- wrappers of methods with something of their own


def test_fedprox_of_ditto_pulls_the_shared_model_alone(engine: str) -> None:
    """The shared model is FedProx's. In the first round Ditto's own models, which FedProx does not
    touch, are plain Ditto's."""
    found = train(eh.FedProx(mu=1.5, inner=eh.Ditto(lam=0.5)), engine, local=MINI_BATCHES)
    assert_same(found.params, train(eh.FedProx(mu=1.5), engine, local=MINI_BATCHES).params)
    first, plain = (
        train(method, engine, local=MINI_BATCHES, rounds=1)
        for method in (eh.FedProx(1.5, eh.Ditto(lam=0.5)), eh.Ditto(lam=0.5))
    )
    for one, other in zip(first.personal or [], plain.personal or [], strict=True):
        assert_same(one, other)


def test_clipped_ditto_shares_what_clipped_fedavg_shares(engine: str) -> None:
    found = train(eh.Clipped(norm=0.2, inner=eh.Ditto(lam=0.5)), engine, local=MINI_BATCHES)
    assert_same(found.params, train(eh.Clipped(norm=0.2), engine, local=MINI_BATCHES).params)
    assert found.personal is not None


def test_clipped_qffl_at_zero_is_clipped_fedavg(engine: str) -> None:
    found = train(eh.Clipped(norm=0.2, inner=eh.QFFL(q=0.0)), engine, local=MINI_BATCHES).params
    assert_same(found, train(eh.Clipped(norm=0.2), engine, local=MINI_BATCHES).params)


def test_momentum_of_averaged_afl_hands_out_the_mean_of_the_models_it_went_through(
    engine: str,
) -> None:
    averaged = train(
        eh.FedAvgM(lr=0.7, momentum=0.5, inner=eh.Averaged(eh.AFL(lr_lambda=0.3))),
        engine,
        rounds=3,
    ).params
    last = [
        train(
            eh.FedAvgM(lr=0.7, momentum=0.5, inner=eh.AFL(lr_lambda=0.3)), engine, rounds=rounds
        ).params
        for rounds in (1, 2, 3)
    ]
    assert_same(averaged, {name: sum(params[name] for params in last) / 3 for name in averaged})


def test_adam_of_averaged_fafl_hands_out_the_mean_of_the_models_it_went_through(
    engine: str,
) -> None:
    def run(output: str, rounds: int) -> dict[str, Tensor]:
        return train(
            eh.FedAdam(lr=0.1, inner=with_output(eh.FAFL(alpha=0.5, mu=0.1), output)),
            engine,
            rounds=rounds,
        ).params

    last = [run("last", rounds) for rounds in (1, 2, 3)]
    assert_same(
        run("average", 3), {name: sum(params[name] for params in last) / 3 for name in last[0]}
    )


def test_a_server_step_of_one_of_a_server_optimiser_is_that_optimiser(engine: str) -> None:
    for inner in (
        eh.FedAdam(lr=0.1),
        eh.FedAvgM(lr=0.5, momentum=0.5, inner=eh.AFL(lr_lambda=0.3)),
    ):
        assert_same(
            train(eh.FedAvgM(lr=1.0, momentum=0.0, inner=inner), engine).params,
            train(inner, engine).params,
        )


def test_wrappers_of_clients_and_of_the_server_commute(engine: str) -> None:
    one = eh.FedAvgM(0.5, 0.5, eh.FedProx(0.7, eh.Clipped(0.3, eh.TERM(t=1.0))))
    other = eh.Clipped(0.3, eh.FedProx(0.7, eh.FedAvgM(0.5, 0.5, eh.TERM(t=1.0))))
    assert_same(
        train(one, engine, local=MINI_BATCHES).params,
        train(other, engine, local=MINI_BATCHES).params,
    )


# ---- alone


def test_localonly_is_every_clients_fit_alone(engine: str) -> None:
    local = eh.LocalSGD(lr=0.3, steps=2, momentum=0.5, decay=0.9)
    result = train(eh.LocalOnly(), engine, local=local)
    for own, client in zip(result.personal or [], samples(), strict=True):
        alone = train(eh.FedAvg(), engine, eh.Federation.from_arrays([client]), local=local)
        assert_same(own, alone.params)
    assert_identical(result.params, dict(module().state_dict()))


@every_scheme
def test_localonly_is_ditto_without_pull(cohort: eh.Cohort) -> None:
    one, other = (
        train(method, local=MINI_BATCHES, cohort=cohort)
        for method in (eh.LocalOnly(), eh.Ditto(lam=0.0))
    )
    for own, without in zip(one.personal or [], other.personal or [], strict=True):
        assert_same(own, without)


def test_finetuned_localonly_of_one_round_from_the_shared_model(engine: str) -> None:
    """Fine-tuning for one epoch is one more round of training alone, from the model handed out
    (whole batches)."""
    local = eh.LocalSGD(lr=0.3, epochs=1)
    tuned = train(eh.FineTuned(), engine, local=local)
    shared = module()
    shared.load_state_dict(train(eh.FedAvg(), engine, local=local).params)
    alone = train(eh.LocalOnly(), engine, local=local, rounds=1, module=shared)
    for own, other in zip(tuned.personal or [], alone.personal or [], strict=True):
        assert_same(own, other)
