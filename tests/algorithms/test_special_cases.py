"""Where a method with a special setting must be another method: the same iterates, from the same
seeds and batches.

Numbers in docstrings are those of our list of special cases. "Bit for bit" is asked where the extra
arithmetic is exact (a product with 1, a sum with 0), agreement to rounding elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import evenhand as eh
from evenhand.local import permutation
from tests.support.federations import with_output

SIZES = (9, 4, 14, 6)
ROUNDS = 4
SEED = 5

FULL_STEP = eh.LocalSGD(lr=0.3, steps=1)
MINI_BATCHES = eh.LocalSGD(
    lr=0.2, epochs=2, batch_size=4, momentum=0.5, weight_decay=0.01, decay=0.9
)
LOCAL = {"one full step": FULL_STEP, "mini-batches": MINI_BATCHES}

SCHEMES = {
    "A full": eh.Full(),
    "B proportional": eh.Proportional(3),
    "C without replacement": eh.Proportional(2, replacement=False),
    "D uniform unbiased": eh.Uniform(2, unbiased=True),
    "E uniform": eh.Uniform(2),
}

every_scheme = pytest.mark.parametrize("cohort", SCHEMES.values(), ids=SCHEMES.keys())
every_local = pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL.keys())


@pytest.fixture(params=["loop", "vmap"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def samples(
    sizes: Sequence[int] = SIZES, features: int = 3, classes: int = 3
) -> list[dict[str, np.ndarray]]:
    """Clients that disagree: each has its own centre and its own preference for a class."""
    generator = np.random.default_rng(2)
    clients = []
    for i, size in enumerate(sizes):
        x = generator.normal(size=(size, features)) + 0.5 * generator.normal(size=features)
        y = np.where(
            generator.random(size) < 0.5, i % classes, generator.integers(classes, size=size)
        )
        clients.append({"x": x, "y": y})
    return clients


def federation(**extra: Sequence[Any]) -> eh.Federation:
    """The clients above; each keyword gives a further entry for every client."""
    return eh.Federation.from_arrays(
        [{**client, **{key: extra[key][i] for key in extra}} for i, client in enumerate(samples())]
    )


def module(dtype: torch.dtype = torch.float64) -> nn.Linear:
    generator = torch.Generator().manual_seed(3)
    linear = nn.Linear(3, 3).to(dtype)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return linear


def train(
    algorithm: eh.Algorithm, engine: str = "loop", fed: eh.Federation | None = None, **settings: Any
) -> eh.Result:
    # evaluate once, at the end
    settings = {"rounds": ROUNDS, "local": FULL_STEP, "seed": SEED, "eval_every": 100, **settings}
    start = settings.pop("module", None) or module()
    return eh.fit(start, fed or federation(), algorithm, engine=engine, **settings)


def assert_identical(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), (name, (found[name] - tensor).abs().max())


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-11, atol=1e-12)


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return sum(((one[name] - other[name]) ** 2).sum().item() for name in one) ** 0.5


def pooled() -> tuple[Tensor, Tensor]:
    clients = samples()
    return torch.from_numpy(np.concatenate([c["x"] for c in clients])), torch.from_numpy(
        np.concatenate([c["y"] for c in clients])
    )


def descend(objective: Any, lr: float, rounds: int = ROUNDS) -> dict[str, Tensor]:
    """Plain gradient descent on a function of the module."""
    linear = module()
    for _ in range(rounds):
        slopes = torch.autograd.grad(objective(linear), list(linear.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(linear.parameters(), slopes, strict=True):
                parameter -= lr * slope
    return {name: tensor.detach() for name, tensor in linear.state_dict().items()}


def client_losses(linear: nn.Module) -> list[Tensor]:
    return [
        cross_entropy(linear(torch.from_numpy(c["x"])), torch.from_numpy(c["y"])) for c in samples()
    ]


SHARES = [size / sum(SIZES) for size in SIZES]


def test_methods_differ_where_no_special_setting_makes_them_equal() -> None:
    """The problem below can tell methods apart, so equality there means something."""
    plain = train(eh.FedAvg()).params
    fed = federation(group=[np.arange(size) % 2 for size in SIZES])
    others = {
        "FAFL": train(eh.FAFL(alpha=0.5, eta0=1.0)),
        "GIFAIR": train(eh.GIFAIR(strength=0.9)),
        "QFFL": train(eh.QFFL(q=1.0)),
        "PropFair": train(eh.PropFair(M=5.0)),
        "AFL": train(eh.AFL(lr_lambda=0.5)),
        "FedMinMax": train(eh.FedMinMax(lr_mu=0.5), fed=fed),
    }
    for name, result in others.items():
        assert distance(result.params, plain) > 1e-3, name


# ---- FAFL


@every_local
@pytest.mark.parametrize("cohort", [eh.Full(), eh.Proportional(3)], ids=["A", "B"])
def test_fafl_at_level_one_without_smoothing_is_fedavg(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    """Special case 1: alpha = 1, mu = 0, eta_0 = 0 below every loss; slope of (x)_+ is 1."""
    result = train(eh.FAFL(alpha=1.0, mu=0.0, eta0=0.0), engine, local=local, cohort=cohort)
    assert_identical(result.params, train(eh.FedAvg(), engine, local=local, cohort=cohort).params)
    assert result.state["eta"].item() == 0


@every_local
@pytest.mark.parametrize("cohort", [eh.Full(), eh.Proportional(3)], ids=["A", "B"])
@pytest.mark.parametrize(
    ("dtype", "widths"), [(torch.float64, 37.5), (torch.float32, 17.5)], ids=["float64", "float32"]
)
def test_fafl_at_level_one_far_above_eta_is_fedavg(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD, dtype: torch.dtype, widths: float
) -> None:
    """Special case 1: alpha = 1, mu > 0 and (f - eta_0) / mu so large that the sigmoid rounds to 1:
    eta never moves."""
    mu = 0.25  # losses are positive, so f - eta_0 > widths * mu for every batch
    settings: dict[str, Any] = {"local": local, "cohort": cohort, "module": module(dtype)}
    result = train(eh.FAFL(alpha=1.0, mu=mu, eta0=-widths * mu), engine, **settings)
    assert_identical(result.params, train(eh.FedAvg(), engine, **settings).params)
    assert result.state["eta"].item() == -widths * mu


def test_fafl_at_level_one_near_eta_is_only_close_to_fedavg() -> None:
    """Special case 1, the other way: where the sigmoid is not 1, eta moves and the iterates
    differ."""
    result = train(eh.FAFL(alpha=1.0, mu=0.5, eta0=0.5))
    assert result.state["eta"].item() != 0.5
    assert distance(result.params, train(eh.FedAvg()).params) > 1e-3


@pytest.mark.parametrize("mu", [0.05, 0.5])
def test_rfedfair_with_one_step_is_gradient_descent_on_the_smoothed_objective(
    engine: str, mu: float
) -> None:
    """Special case 4: kappa = 1, everyone, whole data: joint descent on eta + sum (p_i / alpha_i)
    phi_mu(f_i - eta)."""
    alpha, lr, eta0 = (0.9, 0.5, 0.6, 0.3), 0.2, 1.0
    linear, eta = module(), torch.tensor(eta0, dtype=torch.float64, requires_grad=True)
    for _ in range(10):
        value = eta + sum(
            p
            / level
            * mu
            * torch.logaddexp(torch.zeros((), dtype=torch.float64), (loss - eta) / mu)
            for p, level, loss in zip(SHARES, alpha, client_losses(linear), strict=True)
        )
        variables = [*linear.parameters(), eta]
        slopes = torch.autograd.grad(value, variables)
        with torch.no_grad():
            for variable, slope in zip(variables, slopes, strict=True):
                variable -= lr * slope
    result = train(
        eh.FAFL(alpha=alpha, mu=mu, eta0=eta0), engine, local=eh.LocalSGD(lr=lr, steps=1), rounds=10
    )
    assert_same(
        result.params, {name: tensor.detach() for name, tensor in linear.state_dict().items()}
    )
    assert result.state["eta"].item() == pytest.approx(eta.item(), rel=1e-11)


# ---- GIFAIR


@every_scheme
@every_local
@pytest.mark.parametrize("teams", [None, "abab"], ids=["individuals", "teams"])
def test_gifair_at_strength_zero_is_fedavg(
    cohort: eh.Cohort, local: eh.LocalSGD, teams: str | None
) -> None:
    """Special case 5: c = 0, the same sampling scheme, nothing else."""
    fed = federation(team=teams) if teams else federation()
    found = train(eh.GIFAIR(strength=0.0), fed=fed, local=local, cohort=cohort).params
    assert_identical(found, train(eh.FedAvg(), fed=fed, local=local, cohort=cohort).params)


@every_scheme
@pytest.mark.parametrize("teams", [None, "abab"], ids=["individuals", "teams"])
def test_gifair_global_and_per_have_the_same_server_model(
    cohort: eh.Cohort, teams: str | None
) -> None:
    """Special case 6: what is handed out differs, the trajectory of the server does not."""
    fed = federation(team=teams) if teams else federation()
    one, other = (
        train(eh.GIFAIR(0.7, personal), fed=fed, local=MINI_BATCHES, cohort=cohort)
        for personal in (False, True)
    )
    assert_identical(one.params, other.params)
    assert one.personal is None
    assert other.personal is not None
    assert max(distance(own, other.params) for own in other.personal) > 1e-3


def test_gifair_per_hands_out_the_first_model_to_a_client_never_asked() -> None:
    """Special case 6: clients never sampled keep theta^0."""
    cohort = eh.Proportional(1)
    asked = set(cohort.draw(federation().census(), SEED, 0).ids.tolist())
    result = train(eh.GIFAIR(0.7, personal=True), rounds=1, cohort=cohort)
    for i, own in enumerate(result.personal or []):
        moved = distance(own, dict(module().state_dict())) > 0
        assert moved == (i in asked)


# ---- q-FFL


@every_scheme
@every_local
def test_qffl_at_zero_is_fedavg_under_the_same_cohort(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    """Special case 7: q = 0 for any L (here 1/lr of each round), each term weighted by the cohort's
    coefficient.

    The ratio normalises itself: with the unbiased scheme it is FedAvg with the same draws and
    coefficients that sum to one.
    """
    normalised = eh.Uniform(2) if cohort == SCHEMES["D uniform unbiased"] else cohort
    found = train(eh.QFFL(q=0.0), engine, local=local, cohort=cohort).params
    assert_same(found, train(eh.FedAvg(), engine, local=local, cohort=normalised).params)


@pytest.mark.parametrize(
    "algorithm", [eh.QFFL(q=2.0), eh.AFL(lr_lambda=0.1), eh.FAFL(alpha=0.5, mu=0.1)], ids=repr
)
def test_drawing_everyone_without_bias_is_full_participation(
    engine: str, algorithm: eh.Algorithm
) -> None:
    everyone = len(client_losses(module()))
    found = train(algorithm, engine, cohort=eh.Uniform(everyone, unbiased=True)).params
    assert_same(found, train(algorithm, engine, cohort=eh.Full()).params)


def mean_of_local_models(chosen: Sequence[dict[int, int]], local: eh.LocalSGD) -> dict[str, Tensor]:
    """Rounds of the plain mean over the models of those drawn (client: how often drawn), one
    full-batch step each."""
    linear = module()
    for times in chosen:
        server = {name: tensor.clone() for name, tensor in linear.state_dict().items()}
        mean = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        for i, count in times.items():
            linear.load_state_dict(server)
            slopes = torch.autograd.grad(client_losses(linear)[i], list(linear.parameters()))
            for (name, tensor), slope in zip(server.items(), slopes, strict=True):
                mean[name] += count / sum(times.values()) * (tensor - local.lr * slope)
        linear.load_state_dict(mean)
    return {name: tensor.clone() for name, tensor in linear.state_dict().items()}


def test_qffl_at_zero_with_uniform_weights_is_the_plain_mean_of_local_models(engine: str) -> None:
    """Special case 7: a_i = 1/K for everyone, whatever their sizes."""
    expected = mean_of_local_models([dict.fromkeys(range(len(SIZES)), 1)] * ROUNDS, FULL_STEP)
    assert_same(train(eh.QFFL(q=0.0), engine, weights="uniform").params, expected)
    # with data weights it is not
    assert distance(train(eh.QFFL(q=0.0), engine).params, expected) > 1e-3


@pytest.mark.parametrize(
    "cohort", [eh.Proportional(3), eh.Proportional(3, replacement=False)], ids=["B", "C"]
)
def test_qffl_at_zero_with_proportional_draws_is_the_plain_mean_over_the_draws(
    engine: str, cohort: eh.Proportional
) -> None:
    """Special case 7: a_i = 1/K for each draw; a client drawn twice counts twice."""
    found = [cohort.draw(federation().census(), SEED, round) for round in range(ROUNDS)]
    chosen = [
        {i: round(3 * a) for i, a in zip(draw.ids.tolist(), draw.weight.tolist(), strict=True)}
        for draw in found
    ]
    assert_same(
        train(eh.QFFL(q=0.0), engine, cohort=cohort).params, mean_of_local_models(chosen, FULL_STEP)
    )


def test_qffl_at_zero_with_one_full_step_is_gradient_descent_with_step_one_over_L(
    engine: str,
) -> None:
    """Special case 8: q-FedSGD at q = 0 is FedSGD with step 1/L = lr, by data weights or by uniform
    ones."""
    by_data = descend(lambda linear: cross_entropy(linear(pooled()[0]), pooled()[1]), FULL_STEP.lr)
    assert_same(train(eh.QFFL(q=0.0), engine).params, by_data)
    uniform = descend(lambda linear: sum(client_losses(linear)) / len(SIZES), FULL_STEP.lr)
    assert_same(train(eh.QFFL(q=0.0), engine, weights="uniform").params, uniform)


# ---- PropFair


@every_scheme
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_propfair_with_epsilon_above_M_is_fedavg_with_step_over_M(
    cohort: eh.Cohort, momentum: float
) -> None:
    """Special case 11: M - loss < epsilon for every loss >= 0, so every batch descends loss / M."""
    M, lr = 4.0, 0.8
    scaled, plain = (
        eh.LocalSGD(lr=rate, epochs=2, batch_size=4, momentum=momentum, decay=0.9)
        for rate in (lr, lr / M)
    )
    found = train(eh.PropFair(M=M, epsilon=4.1), local=scaled, cohort=cohort).params
    assert_same(found, train(eh.FedAvg(), local=plain, cohort=cohort).params)


def test_propfair_with_large_M_and_step_times_M_tends_to_fedavg(engine: str) -> None:
    """Special case 11: slope M f' / (M - f) = f' (1 + f / M + ...): the relative error of a step is
    about f / M."""
    plain, start = train(eh.FedAvg(), engine, rounds=1).params, dict(module().state_dict())
    losses = [loss.item() for loss in client_losses(module())]
    moved = distance(plain, start)
    errors = []
    for M in (1e3, 1e4, 1e5):
        found = train(
            eh.PropFair(M=M), engine, rounds=1, local=eh.LocalSGD(lr=FULL_STEP.lr * M, steps=1)
        ).params
        errors.append(distance(found, plain))
        # the error is lr |sum p_i f_i / (M - f_i) f_i'|; with client gradients of either sign it is
        # bounded by the largest factor
        bound = max(losses) / (M - max(losses)) * FULL_STEP.lr * max_gradient()
        assert 0 < errors[-1] <= bound
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.02)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.02)
    assert errors[-1] < 1e-3 * moved


def max_gradient() -> float:
    """The norm of the largest client gradient at the start."""
    linear = module()
    norms = []
    for loss in client_losses(linear):
        slopes = torch.autograd.grad(loss, list(linear.parameters()))
        norms.append(sum((slope**2).sum().item() for slope in slopes) ** 0.5)
    return max(norms)


# ---- AFL


def test_afl_without_ascent_is_full_batch_gradient_descent(engine: str) -> None:
    """Special case 12: lr_lambda = 0 keeps lambda = p."""
    result = train(eh.AFL(lr_lambda=0.0), engine)
    assert_same(
        result.params,
        descend(lambda linear: cross_entropy(linear(pooled()[0]), pooled()[1]), FULL_STEP.lr),
    )
    assert_same(result.params, train(eh.FedAvg(), engine).params)
    assert result.state["lam"].tolist() == pytest.approx(SHARES, abs=1e-15)


# ---- FedMinMax


@pytest.mark.parametrize("output", ["last", "average"])
@pytest.mark.parametrize("ascent", [0.05, 0.4, 3.0])
def test_fedminmax_with_one_group_on_each_client_is_afl(
    engine: str, output: str, ascent: float
) -> None:
    """Special case 13: each client holds one group, each group lives on one client, one full-batch
    step, everyone."""
    fed = federation(group=[[name] * size for name, size in zip("abcd", SIZES, strict=True)])
    groups = train(with_output(eh.FedMinMax(lr_mu=ascent), output), engine, fed, rounds=8)
    clients = train(with_output(eh.AFL(lr_lambda=ascent), output), engine, fed, rounds=8)
    assert_same(groups.params, clients.params)
    assert groups.state["mu"].tolist() == pytest.approx(clients.state["lam"].tolist(), abs=1e-12)
    assert groups.state["mu"].tolist() != pytest.approx(SHARES, abs=1e-2)


def project_by_bisection(v: np.ndarray, floor: float) -> np.ndarray:
    """max(v - t, floor) with the t that makes the sum 1."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, floor).sum() > 1 else (low, middle)
    return np.maximum(v - low, floor)


@pytest.mark.parametrize("floor", [0.0, 0.15])
@pytest.mark.parametrize(
    "split", [(9, 4, 14, 6), (33,), (1, 31, 1), (11, 11, 11), (2,) * 16 + (1,)], ids=str
)
def test_fedminmax_is_centralised_descent_ascent_whatever_the_split(
    engine: str, split: tuple[int, ...], floor: float
) -> None:
    """Special case 14: the same iterates as minimax descent ascent on the pooled data."""
    x, y = pooled()
    group = np.random.default_rng(4).choice(3, size=len(y), p=[0.6, 0.3, 0.1])
    mu = np.bincount(group) / len(group)
    ascent, linear, total = 0.3, module(), {}
    for _ in range(8):
        losses = cross_entropy(linear(x), y, reduction="none")
        risks = [losses[group == a].mean() for a in range(3)]
        slopes = torch.autograd.grad(
            sum(m * risk for m, risk in zip(mu.tolist(), risks, strict=True)),
            list(linear.parameters()),
        )
        mu = project_by_bisection(mu + ascent * np.array([risk.item() for risk in risks]), floor)
        with torch.no_grad():
            for parameter, slope in zip(linear.parameters(), slopes, strict=True):
                parameter -= FULL_STEP.lr * slope
        total = {
            name: total.get(name, 0) + tensor.clone()
            for name, tensor in linear.state_dict().items()
        }
    edges = np.cumsum((0, *split))
    clients = [
        {"x": x[a:b], "y": y[a:b], "group": group[a:b]} for a, b in itertools.pairwise(edges)
    ]
    fed = eh.Federation.from_arrays(clients)
    result = train(eh.FedMinMax(lr_mu=ascent, floor=floor), engine, fed, rounds=8)
    assert_same(result.params, dict(linear.state_dict()))
    assert result.state["mu"].tolist() == pytest.approx(mu.tolist(), abs=1e-11)
    averaged = train(eh.Averaged(eh.FedMinMax(lr_mu=ascent, floor=floor)), engine, fed, rounds=8)
    assert_same(averaged.params, {name: tensor / 8 for name, tensor in total.items()})


def test_fedminmax_without_ascent_is_full_batch_gradient_descent(engine: str) -> None:
    """Special case 15: lr_mu = 0 keeps every sample's weight at 1."""
    fed = federation(group=[np.arange(size) % 3 for size in SIZES])
    result = train(eh.FedMinMax(lr_mu=0.0), engine, fed)
    assert_same(
        result.params,
        descend(lambda linear: cross_entropy(linear(pooled()[0]), pooled()[1]), FULL_STEP.lr),
    )
    assert_same(result.params, train(eh.FedAvg(), engine, fed).params)


@every_local
def test_fedminmax_with_one_group_is_fedavg(engine: str, local: eh.LocalSGD) -> None:
    """Special case 15: one group has weight 1 whatever the ascent."""
    fed = federation(group=[["all"] * size for size in SIZES])
    assert_same(
        train(eh.FedMinMax(lr_mu=0.7), engine, fed, local=local).params,
        train(eh.FedAvg(), engine, fed, local=local).params,
    )


# ---- Ditto


@every_scheme
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_ditto_server_model_is_fedavgs(cohort: eh.Cohort, lam: float) -> None:
    """Special case 16: the personal part never touches the global one."""
    found = train(eh.Ditto(lam=lam), local=MINI_BATCHES, cohort=cohort).params
    assert_same(found, train(eh.FedAvg(), local=MINI_BATCHES, cohort=cohort).params)


@every_local
def test_ditto_without_pull_is_training_alone(engine: str, local: eh.LocalSGD) -> None:
    """Special case 16: lam = 0, v_i is client i's own SGD, round after round, as if there were no
    server."""
    result = train(eh.Ditto(lam=0.0), engine, local=local)
    for i, client in enumerate(samples()):
        x, y, alone = torch.from_numpy(client["x"]), torch.from_numpy(client["y"]), module()
        for round in range(ROUNDS):
            rate = local.lr * local.decay**round
            optimizer = torch.optim.SGD(
                alone.parameters(),
                lr=rate,
                momentum=local.momentum,
                weight_decay=local.weight_decay,
            )
            order = permutation(
                torch.tensor([i]), torch.tensor([len(y)]), len(y), local.epochs or 1, round, SEED
            )[0]
            for batch in (
                piece for epoch in order for piece in epoch.split(local.batch_size or len(y))
            ):
                optimizer.zero_grad()
                cross_entropy(alone(x[batch]), y[batch]).backward()
                optimizer.step()
        assert_same((result.personal or [])[i], dict(alone.state_dict()))
