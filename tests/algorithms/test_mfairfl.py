"""mFairFL: numbers by hand, special cases and an independent version in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from tests.support import limits
from tests.support.by_hand import clients_of, near

GROUPS = [
    np.array(list(text)) for text in ("uvvuvwvuw", "vwuv", "uvwuvwvvuvwuwv", "wwuuvv")
]  # of limits' clients
UNIFORM = {"weights": "uniform"}
LOOSE = 1e3


def grouped() -> eh.Federation:
    return limits.federation(group=GROUPS)


def same_direction() -> eh.Federation:
    """Clients of unequal sizes whose losses all fall as any weight grows, for a model at 0."""
    generator = np.random.default_rng(4)
    return eh.Federation.from_arrays(
        [
            {
                "x": generator.uniform(0.1, 1, size=(size, 3)),
                "y": generator.uniform(2, 4, size=size) + 2 * (np.arange(size) % 2),
                "group": np.array(["u", "v"])[np.arange(size) % 2],
            }
            for size in (12, 8, 4)
        ]
    )


def regress(method: eh.Algorithm, fed: eh.Federation, features: int, **settings: Any) -> eh.Result:
    module = torch.nn.Linear(features, 1, bias=False).double()
    torch.nn.init.zeros_(module.weight)
    return eh.fit(module, fed, method, loss="mse", **settings)


def test_prices_and_conflicts_of_two_rounds_in_numbers(engine: str) -> None:
    # one client for each group. Updates from 0 with lr 1/2: (2, 0) of loss 1 and (-1, 1) of loss 4
    # conflict, and FedFV with alpha = .1 moves to (0, -1/sqrt 2): see test_fedfv.py
    clients = clients_of((2, 0), (-1, 1), losses=(1, 4))
    fed = eh.Federation.from_arrays(
        [
            {"x": np.array(client["x"]), "y": np.array(client["y"]), "group": [name]}
            for client, name in zip(clients, "uv", strict=True)
        ]
    )
    method = eh.MFairFL(bound=1, lr_dual=0.2, damping=0.4, smallest=0)

    def train(rounds: int) -> eh.Result:
        local = eh.LocalSGD(lr=0.5, steps=1)
        return regress(method, fed, 2, rounds=rounds, local=local, engine=engine)

    first = train(1)
    assert first.params["weight"][0].tolist() == near([0, -math.sqrt(0.5)])
    # the gap of 3 exceeds the bound by 2: the price is .2 * 2, and .4 + .4 * 2 = 1.2 is used. The
    # groups have half of the data each and share it: v's samples count 1 + .6, u's 1 - .6
    found = (first.history["group_gap"].iloc[-1], first.history["price"].iloc[-1])
    assert found == near((3, 0.4))
    # (w x + c)^2 with x = (2, 0), c = 1 and x = (-1, 1)/2, c = 2; its update is 2 (w x + c) x / 2
    w = np.array([0, -math.sqrt(0.5)])
    residual = w[1] / 2 + 2
    u, v = 0.4 * np.array([2, 0]), 1.6 * residual * np.array([-0.5, 0.5])
    # they conflict; u has the smaller loss and gives up its part along v
    assert residual**2 > 1
    assert u @ v < 0
    direction = (u - (u @ v) / (v @ v) * v + v) / 2
    length = np.linalg.norm(u + v) / 2
    w -= direction * length / np.linalg.norm(direction)
    second = train(2)
    assert second.params["weight"][0].tolist() == near(w.tolist())
    # the second round's gap is the one at its start
    gap = residual**2 - 1
    found = (second.history["group_gap"].iloc[-1], second.history["price"].iloc[-1])
    assert found == near((gap, 0.4 + 0.2 * (gap - 1)))


def softmax_gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each sample's loss and gradient; the last row of w is the bias."""
    x = np.hstack([x, np.ones((len(x), 1))])
    logits = x @ w
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    losses = -np.log(p[np.arange(len(y)), y])
    return losses, x[:, :, None] * (p - np.eye(w.shape[1])[y])[:, None, :]


@pytest.mark.parametrize(("alpha", "cap"), [(0.0, 0.3), (0.1, 0.3), (0.1, 9.0), (0.6, 9.0)])
def test_numpy_finds_the_same_models(engine: str, alpha: float, cap: float) -> None:
    """Three groups over four clients, five rounds of two local steps: written out."""
    rounds, lr, bound, lr_dual, damping = 5, 0.4, 0.02, 2.0, 6.0
    clients, names = limits.samples(), ("u", "v", "w")
    start = limits.module().state_dict()
    w = np.vstack([start["weight"].numpy().T, start["bias"].numpy()])
    lam, price = np.zeros((3, 3)), np.zeros(3)
    side, overshot = np.zeros((3, 3)), np.zeros((3, 3))
    everyone = np.concatenate(GROUPS)
    share = np.array([(everyone == name).mean() for name in names])
    conflicts, capped, floored = 0, False, False
    for _ in range(rounds):
        updates, losses, by_group = [], [], np.zeros(3)
        for client, group in zip(clients, GROUPS, strict=True):
            codes = np.array([names.index(name) for name in group])
            own = w.copy()
            for _ in range(2):
                _, slopes = softmax_gradient(own, client["x"], client["y"])
                own = own - lr * ((1 + price[codes])[:, None, None] * slopes).mean(0)
            updates.append((w - own).ravel())
            values, _ = softmax_gradient(w, client["x"], client["y"])
            losses.append(values.mean())
            by_group += [values[codes == a].sum() for a in range(3)]
        order = np.argsort(losses)
        kept = order[math.ceil(3 * (1 - alpha)) :] if alpha else []
        cleared = []
        for i, update in enumerate(updates):
            for j in order:
                other = updates[j]
                if i not in kept and i != j and update @ other < 0:
                    update = update - (update @ other) / (other @ other) * other
                    conflicts += 1
            cleared.append(update)
        direction, plain = np.mean(cleared, 0), np.mean(updates, 0)
        direction *= np.linalg.norm(plain) / np.linalg.norm(direction)
        w = w - direction.reshape(w.shape)
        risk = by_group / len(everyone) / share
        excess = risk[:, None] - risk[None, :] - bound  # row: the group whose loss is larger
        np.fill_diagonal(excess, -np.inf)
        overshot += (side > 0) & (excess < 0)
        side, falls = np.sign(excess), 1 + overshot
        lam = np.clip(lam + lr_dual / np.sqrt(falls) * excess, 0, cap)
        more = damping / np.sqrt(falls) * excess
        used = np.clip(np.where(np.isfinite(excess), lam + more, 0), 0, cap)
        capped |= bool((used == cap).any())
        other = share[None, :] / (share[:, None] + share[None, :])  # a pays b's part, b pays a's
        price = ((used - used.T) * other).sum(1)
        floored |= bool((price < -1).any())
        price = np.maximum(price, -1)
    assert conflicts > 0
    assert (capped, floored) == (cap == 0.3, cap == 9.0)
    assert (price != 0).all()
    method = eh.MFairFL(bound, lr_dual, damping, cap, smallest=0, alpha=alpha)
    local = eh.LocalSGD(lr=lr, steps=2)
    found = limits.train(method, engine, grouped(), rounds=rounds, local=local).params
    both = np.vstack([found["weight"].numpy().T, found["bias"].numpy()])
    np.testing.assert_allclose(both, w, rtol=1e-9, atol=1e-11)


# ---- special cases


@limits.every_local
@limits.every_scheme
def test_a_bound_that_is_never_reached_gives_fedfv(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    settings: dict[str, Any] = {"cohort": cohort, "local": local}
    expected = limits.train(eh.FedFV(alpha=0.3, tau=1), engine, grouped(), **settings)
    loose = eh.MFairFL(bound=LOOSE, smallest=0, alpha=0.3, tau=1)
    still = eh.MFairFL(bound=0, lr_dual=0, damping=0, smallest=0, alpha=0.3, tau=1)
    for method in (loose, still):
        found = limits.train(method, engine, grouped(), **settings)
        limits.assert_identical(found.params, expected.params)
        assert not any(found.history["price"])


def test_one_group_gives_fedfv_and_groups_that_are_too_small_are_refused(engine: str) -> None:
    expected = limits.train(eh.FedFV(), engine, grouped()).params
    one = limits.federation(group=[["u"] * size for size in limits.SIZES])
    limits.assert_identical(limits.train(eh.MFairFL(0), engine, one).params, expected)
    with pytest.raises(ValueError, match="nothing to compare: fewer than two groups have 100"):
        limits.train(eh.MFairFL(0, smallest=100), engine, grouped())


def test_without_conflicts_it_is_the_constraint_on_fedavg(engine: str) -> None:
    settings: dict[str, Any] = {
        "rounds": 6, "local": eh.LocalSGD(lr=0.02, steps=3), "engine": engine, **UNIFORM
    }  # fmt: skip
    found = regress(eh.MFairFL(0.1, cap=0.3, smallest=0), same_direction(), 3, **settings)
    constraint = eh.GroupConstraint("loss_parity", 0.1, cap=0.3, smallest=0)
    expected = regress(constraint, same_direction(), 3, **settings)
    assert not any(found.history["conflicts"])
    assert found.history["price"].iloc[-1] > 0
    limits.assert_same(found.params, expected.params)


@limits.every_local
def test_keeping_all_updates_is_the_constraint_on_the_plain_mean(
    engine: str, local: eh.LocalSGD
) -> None:
    constraint = eh.GroupConstraint("loss_parity", 0, cap=0.1, smallest=0)
    expected = limits.train(constraint, engine, grouped(), local=local, **UNIFORM).params
    method = eh.MFairFL(0, cap=0.1, smallest=0, alpha=1)
    found = limits.train(method, engine, grouped(), local=local, **UNIFORM)
    assert any(found.history["conflicts"])
    limits.assert_same(found.params, expected)


def test_without_constraint_and_clearing_it_is_fedavg(engine: str) -> None:
    method = eh.MFairFL(bound=LOOSE, alpha=1)
    found = limits.train(method, engine, grouped(), **UNIFORM).params
    limits.assert_same(found, limits.train(eh.FedAvg(), engine, grouped(), **UNIFORM).params)


def test_it_is_the_composition_of_the_two_methods(engine: str) -> None:
    method = eh.MFairFL(0.01, 0.5, 0.3, 0.1, 7, 0.2, alpha=0.3, tau=2)
    both = eh.GroupConstraint(
        "loss_parity",
        0.01,
        lr_dual=0.5,
        damping=0.3,
        cap=0.1,
        smallest=7,
        smoothing=0.2,
        inner=eh.FedFV(alpha=0.3, tau=2),
    )
    settings: dict[str, Any] = {"cohort": eh.Uniform(2), "local": limits.MINI_BATCHES}
    found, expected = (limits.train(one, engine, grouped(), **settings) for one in (method, both))
    limits.assert_identical(found.params, expected.params)
    assert found.history["price"].tolist() == expected.history["price"].tolist()


# ---- what it does


def test_it_does_not_raise_the_smaller_loss_to_close_a_gap(engine: str) -> None:
    # u: x = 1, y = 1 and -1, with loss 1 + w^2; v: x = 2, y = 0 twice, with loss 4 w^2. At w = 0
    # both are as small as can be and the gap is 1; it closes only where both are larger
    clients = [
        {"x": np.ones((2, 1)), "y": np.array([1.0, -1.0]), "group": ["u", "u"]},
        {"x": np.full((2, 1), 2.0), "y": np.zeros(2), "group": ["v", "v"]},
    ]
    fed, local = eh.Federation.from_arrays(clients), eh.LocalSGD(lr=0.1, steps=1)

    def weights(method: eh.Algorithm, rounds: int) -> float:
        module = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.constant_(module.weight, 0.5)
        settings: dict[str, Any] = {"rounds": rounds, "local": local, "engine": engine}
        return abs(eh.fit(module, fed, method, loss="mse", **settings).params["weight"].item())

    # the gap 1.25 - 1 = .25 has the price 4 from the second round on: u counts 1 + 4/2 = 3, and v
    # nothing, as 1 - 4/2 would be negative. The first step is .1 (2 w + 8 w)/2, the second .1 * 3 * 2 w / 2
    method = eh.MFairFL(0, lr_dual=16, damping=0, smallest=0)
    assert weights(method, 1) == near(0.5 * 0.5)
    assert weights(method, 2) == near(0.5 * 0.5 * 0.7)
    assert weights(method, 30) < 1e-4


def test_it_closes_the_gap_that_fedfv_leaves_and_differs_from_its_parts() -> None:
    methods = {
        "fedavg": eh.FedAvg(),
        "fedfv": eh.FedFV(),
        "constraint": eh.GroupConstraint("loss_parity", 0.01, smallest=0),
        "both": eh.MFairFL(0.01, smallest=0),
        "watched": eh.MFairFL(bound=LOOSE, smallest=0),  # FedFV, with the gap in its history
    }
    found = {name: limits.train(one, fed=grouped(), rounds=300) for name, one in methods.items()}
    for name in ("fedavg", "fedfv", "constraint"):
        assert limits.distance(found["both"].params, found[name].params) > 1e-3
    assert found["watched"].history["group_gap"].iloc[-1] > 0.1
    assert found["both"].history["group_gap"].iloc[-100:].mean() < 0.025  # FedFV's steps jump


def test_runs_of_several_settings_are_those_of_each_alone() -> None:
    methods = [eh.MFairFL(bound, smallest=0, alpha=alpha) for bound, alpha in ((0, 0.1), (0.1, 1))]
    runs = [eh.Run(method, seed=limits.SEED) for method in methods]
    stacked = eh.fit_many(limits.module(), grouped(), runs, rounds=3, local=limits.FULL_STEP)
    for method, found in zip(methods, stacked, strict=True):
        alone = limits.train(method, "vmap", grouped(), rounds=3)
        limits.assert_same(found.params, alone.params)


# ---- bad input


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"bound": -1}, "bound must be a finite number >= 0, got -1"),
        ({"lr_dual": float("nan")}, "lr_dual"),
        ({"damping": -0.1}, "damping"),
        ({"cap": 0}, "cap"),
        ({"smallest": -1}, "smallest"),
        ({"smoothing": 1}, "smoothing"),
        ({"alpha": 1.5}, "alpha"),
        ({"tau": 0.5}, "tau"),
    ],
)
def test_bad_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        eh.MFairFL(**setting)


def test_data_without_groups_are_refused_in_its_own_name() -> None:
    with pytest.raises(ValueError, match=r"^MFairFL needs a group for every training sample"):
        limits.train(eh.MFairFL(), fed=limits.federation())
