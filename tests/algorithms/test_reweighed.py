"""Reweighed: numbers by hand, independence, doubled samples, where it is the inner method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.algorithms.reweighed import counted, independent
from evenhand.data.samples import Batch, Samples
from evenhand.messages import Asked, Task
from evenhand.model import Model
from tests.support import binary, by_hand, limits
from tests.support.by_hand import near

SCOPES = ("local", "global")
every_scope = pytest.mark.parametrize("scope", SCOPES)
STEP = 0.5

# of the eight samples: group u has labels 1, 0, 0 and group v has 1, 1, 0, so that n_a = n_y = 3,
# a cell of one sample has weight 9 / 6 and a cell of two has 9 / 12
SIX = (0, 2, 3, 4, 5, 6)
OF_SIX = {(0, 1): 1.5, (0, 0): 0.75, (1, 1): 0.75, (1, 0): 1.5}


def table(count: Any) -> np.ndarray:
    return independent(torch.tensor(count, dtype=torch.float64)).numpy()


def cell(row: int) -> tuple[int, int]:
    return binary.GROUP[row], binary.Y[row]


def slope(w: float, rows: Any, weight: dict[tuple[int, int], float]) -> float:
    """Slope of a client's mean weighted loss."""
    slopes = [
        weight[cell(row)] * binary.brier_slope(w, binary.X[row], binary.Y[row]) for row in rows
    ]
    return sum(slopes) / len(slopes)


def descend(engine: str, scope: str, *rows: Any, inner: Any = None, **settings: Any) -> eh.Result:
    settings = {"rounds": 1, "local": eh.LocalSGD(lr=STEP, steps=1), **settings}
    method = eh.Reweighed(scope, inner or eh.FedAvg())
    fed = binary.eight(*rows)
    return binary.train(method, engine, fed, binary.weight(), loss="brier", **settings)


def weight_of(result: eh.Result) -> float:
    return float(result.params["weight"].item())


# ---- by hand


@every_scope
def test_one_client_in_numbers(engine: str, scope: str) -> None:
    expected = 1 - STEP * slope(1.0, SIX, OF_SIX)
    assert weight_of(descend(engine, scope, SIX)) == near(expected)
    plain = dict.fromkeys(OF_SIX, 1.0)
    assert abs(expected - (1 - STEP * slope(1.0, SIX, plain))) > 1e-3


def test_two_clients_in_numbers(engine: str) -> None:
    # the second client has u: 1, 1, 0 and v: 0; n_u = 3, n_v = 1, n_1 = n_0 = 2
    other = (0, 1, 2, 7)
    own = {(0, 1): 3 * 2 / (4 * 2), (0, 0): 3 * 2 / (4 * 1), (1, 0): 1 * 2 / (4 * 1)}
    expected = 1 - STEP * (0.6 * slope(1.0, SIX, OF_SIX) + 0.4 * slope(1.0, other, own))
    assert weight_of(descend(engine, "local", SIX, other)) == near(expected)
    # together u has 3 and 3 and v 2 and 2: independent, though neither client is
    plain = dict.fromkeys(OF_SIX, 1.0)
    expected = 1 - STEP * (0.6 * slope(1.0, SIX, plain) + 0.4 * slope(1.0, other, plain))
    assert weight_of(descend(engine, "global", SIX, other)) == near(expected)


def test_local_weights_are_of_all_data_not_of_the_batch(engine: str) -> None:
    w, local = 1.0, eh.LocalSGD(lr=STEP, epochs=2, batch_size=2)
    for batch in by_hand.batches(0, len(SIX), local, round=0, seed=5):
        w -= STEP * slope(w, [SIX[i] for i in batch.tolist()], OF_SIX)
    assert weight_of(descend(engine, "local", SIX, local=local)) == near(w)


@every_scope
def test_afl_compares_weighted_losses(engine: str, scope: str) -> None:
    """Two clients with the same table; lam rises by the weighted losses."""
    rows = (0, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 7)
    state = descend(engine, scope, *rows, inner=eh.AFL(lr_lambda=0.2)).state

    def loss(own: Any) -> float:
        p = 1 / (1 + np.exp(-np.array([binary.X[i] for i in own])))
        squared = 2 * (p - np.array([binary.Y[i] for i in own])) ** 2
        return float(np.mean([OF_SIX[cell(i)] for i in own] * squared))

    one, two = (loss(own) for own in rows)
    expected = by_hand.project_two(0.5 + 0.2 * one, 0.5 + 0.2 * two)
    assert state["lam"].tolist() == near(expected)


def test_counts_of_sampled_cohorts_add_up() -> None:
    method = eh.Reweighed("global")
    state = method.init({"w": torch.zeros(1)}, binary.federation().census())
    assert state["cells"]["weight"].tolist() == [[1, 1], [1, 1]]
    for share in ([[0.25, 0.25], [0.5, 0.0]], [[0.15, 0.15], [0.5, 0.2]]):
        total = {"label_share": torch.tensor(share, dtype=torch.float64)}
        state = method.learn(state, eh.Replies(torch.tensor([0]), total, {}))
    # sums .4, .4, 1, .2 of 2
    expected = [[0.8 * 1.4 / (2 * 0.4), 0.8 * 0.6 / (2 * 0.4)],
                [1.2 * 1.4 / (2 * 1.0), 1.2 * 0.6 / (2 * 0.2)]]  # fmt: skip
    assert state["cells"]["weight"].numpy() == near(np.array(expected))
    nobody = method.learn(state, eh.Replies(torch.zeros(0, dtype=torch.int64), {}, {}))
    assert nobody is state


def test_after_clients_have_joined_counts_start_again() -> None:
    method = eh.Reweighed("global", eh.FairFed(beta=0.1))
    few, many = (binary.federation(sizes).census() for sizes in ((12, 30), (12, 30, 7)))
    before, after = (method.init({"w": torch.zeros(1)}, census) for census in (few, many))
    total = {"label_share": torch.full((2, 2), 0.25, dtype=torch.float64)}
    zero = {"cell_sum": 0 * total["label_share"], "cell_share": total["label_share"]}
    own = torch.zeros(2, 2, 2, dtype=torch.float64)
    each = {"own_sum": own, "own_share": own + 0.25}
    state = method.learn(before, eh.Replies(torch.arange(2), {**total, **zero}, each))
    joined = method.join(state, before, after)
    assert not joined["cells"]["share"].any()
    assert len(joined["omega"]) == 3


# ---- the weights


@pytest.mark.parametrize("groups", [1, 2, 3, 7])
def test_weighted_groups_have_the_same_base_rate(groups: int) -> None:
    count = np.random.default_rng(groups).integers(1, 40, size=(groups, 2))
    weighted = table(count) * count
    assert weighted[:, 1] / weighted.sum(1) == near(
        np.full(groups, count[:, 1].sum() / count.sum())
    )
    # groups and labels keep their sizes
    assert weighted.sum(1) == near(count.sum(1))
    assert weighted.sum(0) == near(count.sum(0))
    if groups == 1:
        assert (table(count) == 1).all()


def test_a_group_that_lacks_a_label() -> None:
    # n = 16, n_1 = 7; group 0 has no sample of label 1
    count = np.array([[4, 0], [3, 5], [2, 2]])
    found = table(count)
    expected = [[4 * 9 / (16 * 4), 1],
                [8 * 9 / (16 * 3), 8 * 7 / (16 * 5)],
                [4 * 9 / (16 * 2), 4 * 7 / (16 * 2)]]  # fmt: skip
    assert found == near(np.array(expected))
    weighted = found * count
    assert weighted[1:, 1] / weighted[1:].sum(1) == near(np.array([7 / 16, 7 / 16]))
    assert weighted.sum() < 16
    assert (table(np.zeros((2, 2))) == 1).all()


def test_samples_are_counted_by_group_and_label_without_padding() -> None:
    y, group = torch.tensor([1, 0, 2, 1, 1]), torch.tensor([0, 0, 1, 2, 2])
    samples = Samples(torch.zeros(5, 1), y, group)
    batch = Batch(samples, torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]))
    assert counted(batch, 3).tolist() == [[1, 1], [1, 0], [0, 1]]  # label 2 is not favourable


# ---- a second implementation: rare cells twice


INNER: dict[str, eh.Algorithm] = {
    "fedavg": eh.FedAvg(),
    "fairfed": eh.FairFed(beta=0.3),
    "fairfed_sums": eh.FairFed(beta=0.3, sums_only=True),
    "afl": eh.AFL(lr_lambda=0.2),
    "qffl": eh.QFFL(q=1.5),
    "qffl_sgd": eh.QFFL(q=1.5, solver="fedsgd"),
    "fedfv": eh.FedFV(alpha=0.3, tau=1),
    "fedmgda": eh.FedMGDA(epsilon=0.3, server_lr=0.1),
    "adafed": eh.AdaFed(server_lr=0.1),
    "fedlf": eh.FedLF(),
    "fedheal": eh.FedHEAL(),
    "ditto": eh.Ditto(lam=0.5),
    "localonly": eh.LocalOnly(),
    "fedprox": eh.FedProx(mu=0.3),
    "fedadam": eh.FedAdam(lr=0.1, inner=eh.FairFed(beta=0.3)),
    "clipped": eh.Clipped(norm=0.05),
    "averaged": eh.Averaged(eh.AFL(lr_lambda=0.2)),
}
every_inner = pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())


def uneven(twice: bool, sizes: tuple[int, ...] = (1, 3, 2)) -> eh.Federation:
    """Clients with 2, 1, 1 and 2 samples per cell, times their size; ``twice`` doubles the rare
    cells. The weights are 9/12 and 9/6, as 1 to 2."""
    rng = np.random.default_rng(11)
    clients = []
    for size in sizes:
        group = np.repeat([0, 0, 0, 1, 1, 1], size)
        y = np.repeat([0, 0, 1, 0, 1, 1], size)
        x = rng.normal(size=(6 * size, 3)) + y[:, None] * [1.0, 0.5, 0.0] + 0.4 * group[:, None]
        rare = np.flatnonzero(group != y)
        rows = np.concatenate([np.arange(6 * size), rare[: len(rare) if twice else 0]])
        clients.append({"x": x[rows], "y": y[rows], "group": group[rows]})
    return eh.Federation.from_arrays(clients)


@every_scope
@every_inner
def test_it_is_the_inner_method_on_data_with_rare_cells_twice(
    engine: str, inner: eh.Algorithm, scope: str
) -> None:
    settings: dict[str, Any] = {"local": eh.LocalSGD(lr=0.3, steps=3), "rounds": 4}
    found = binary.train(eh.Reweighed(scope, inner), engine, uneven(False), **settings)
    expected = binary.train(inner, engine, uneven(True), **settings)
    plain = binary.train(inner, engine, uneven(False), **settings)
    runs = [[run.params, *(run.personal or [])] for run in (found, expected, plain)]
    for one, other in zip(runs[0], runs[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    # the last is a client's own model, if there are such models
    assert limits.distance(runs[0][-1], runs[2][-1]) > 1e-4


# ---- where it is the inner method


@limits.every_local
@every_scope
@every_inner
def test_with_one_group_it_is_the_inner_method(
    engine: str, inner: eh.Algorithm, scope: str, local: eh.LocalSGD
) -> None:
    fed = limits.federation(group=[["u"] * size for size in limits.SIZES])
    found = limits.train(eh.Reweighed(scope, inner), engine, fed, local=local)
    expected = limits.train(inner, engine, fed, local=local)
    if engine == "loop" or scope == "global":
        limits.assert_all_identical(found, expected)
    else:  # all data of a client travel with its batches, which changes how vmap adds
        limits.assert_same(found.params, expected.params)


@limits.every_local
@every_scope
def test_where_label_and_group_are_independent_it_is_the_inner_method(
    engine: str, scope: str, local: eh.LocalSGD
) -> None:
    fed = uneven(True)  # with as many samples in every cell
    found = binary.train(eh.Reweighed(scope), engine, fed, local=local).params
    limits.assert_same(found, binary.train(eh.FedAvg(), engine, fed, local=local).params)


def test_one_group_on_every_client_makes_local_weights_one(engine: str) -> None:
    x, y, group = binary.pooled()
    fed = eh.Federation.from_arrays(
        [
            {"x": x[group == a].numpy(), "y": y[group == a].numpy(), "group": group[group == a]}
            for a in (0, 1)
        ]
    )
    expected = binary.train(eh.FedAvg(), engine, fed).params
    found = {scope: binary.train(eh.Reweighed(scope), engine, fed).params for scope in SCOPES}
    limits.assert_identical(found["local"], expected)
    assert limits.distance(found["global"], expected) > 1e-3


@limits.every_local
def test_for_copies_of_a_client_local_is_global(engine: str, local: eh.LocalSGD) -> None:
    x, y, group = binary.pooled()
    client = {"x": x.numpy(), "y": y.numpy(), "group": group}
    fed = eh.Federation.from_arrays([client] * 3)
    one, other = (
        binary.train(eh.Reweighed(scope), engine, fed, local=local).params for scope in SCOPES
    )
    limits.assert_same(one, other)
    plain = binary.train(eh.FedAvg(), engine, fed, local=local).params
    assert limits.distance(one, plain) > 1e-3
    apart = [
        binary.train(eh.Reweighed(scope), engine, local=local).params for scope in SCOPES
    ]  # of clients that differ
    assert limits.distance(*apart) > 1e-4


@pytest.mark.parametrize("clients", [1, 2, 10, 50])
def test_global_weights_are_those_of_pooled_samples(clients: int) -> None:
    """Descent on the pooled, weighted losses, with weights from masks."""
    order = np.random.default_rng(1).permutation(100)
    fed = binary.federation((100 // clients,) * clients, order=order)
    found = binary.train(eh.Reweighed("global"), fed=fed, rounds=8).params
    x, y, group = binary.pooled((100,))
    weight = np.ones(100)
    for a in (0, 1):
        for label in (0, 1):
            mask = (group == a) & (y.numpy() == label)
            weight[mask] = (group == a).mean() * (y.numpy() == label).mean() / mask.mean()
    assert np.ptp(weight) > 0.3
    linear = binary.module()
    for _ in range(8):
        losses = torch.nn.functional.cross_entropy(linear(x), y, reduction="none")
        slopes = torch.autograd.grad(
            (torch.from_numpy(weight) * losses).mean(), list(linear.parameters())
        )
        with torch.no_grad():
            for parameter, value in zip(linear.parameters(), slopes, strict=True):
                parameter -= 0.3 * value
    limits.assert_same(found, {k: v.detach() for k, v in linear.state_dict().items()})


def test_global_shares_are_weighted_like_clients() -> None:
    """With equal weights, every client's shares of its cells count the same."""
    fed = binary.federation()
    state = binary.train(eh.Reweighed("global"), fed=fed, weights="uniform", rounds=1).state
    _, y, group = binary.pooled()
    owner = np.repeat(np.arange(4), binary.SIZES)
    share = [
        [np.mean([((group == a) & (y.numpy() == label))[owner == i].mean() for i in range(4)])
         for label in (0, 1)] for a in (0, 1)
    ]  # fmt: skip
    assert state["cells"]["share"].numpy() == pytest.approx(np.array(share))


# ---- with FairFed, and messages


@every_scope
@pytest.mark.parametrize("sums_only", [False, True])
def test_the_rates_that_fairfed_compares_are_not_weighted(
    engine: str, scope: str, sums_only: bool
) -> None:
    inner = eh.FairFed(beta=0.3, sums_only=sums_only)
    found, plain = (
        binary.train(method, engine, rounds=1) for method in (eh.Reweighed(scope, inner), inner)
    )
    for name in ("group_gap", "mean_distance"):
        assert found.history_rows[0][name] == near(plain.history_rows[0][name])
    if not sums_only:
        assert found.state["omega"].tolist() == near(plain.state["omega"].tolist())
    assert limits.distance(found.params, plain.params) > 1e-3


def test_local_weights_send_nothing_and_global_ones_sums() -> None:
    local, over_all = eh.Reweighed("local"), eh.Reweighed("global")
    census = binary.federation().census()
    for method in (local, over_all, eh.Reweighed("global", eh.FairFed(sums_only=True))):
        assert eh.algorithm.visible(method, census) == ()
    assert local.question() is None
    assert local.local_work().whole_data
    assert not over_all.local_work().whole_data
    state = over_all.init({"w": torch.zeros(1)}, census)
    survey = over_all.ask(state)
    assert survey is not None
    assert list(survey.shared) == ["cell_weight"]
    task = local.task(state, torch.tensor([0]))
    assert task.shared["cell_weight"].tolist() == [[1, 1], [1, 1]]
    history = binary.train(over_all).history_rows[-1]
    assert history["largest_cell_weight"] > 1.1
    assert "largest_cell_weight" not in binary.train(local).history_rows[-1]


def test_a_client_of_rare_cells_may_move_further() -> None:
    table = torch.tensor([[0.5, 4.0], [0.9, 1.1]])
    own = {"weight": torch.tensor(0.5), "share": torch.tensor(0.5)}
    asked = Asked(Task({"cell_weight": table}, own), torch.tensor([3.0, 3.0]))
    slack = {
        scope: {name: e.slack for name, e in eh.Reweighed(scope).entries(asked).items()}
        for scope in SCOPES
    }
    assert slack["global"] == {"delta": 4.0, "weight": 1.0}
    assert slack["local"] == {"delta": 1.0, "weight": 1.0}


# ---- bad input


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (eh.FedFB(), "FedFB: it weights samples by group itself"),
        (eh.FedMinMax(), "FedMinMax: it weights samples by group itself"),
        (eh.GroupConstraint(), "GroupConstraint: it weights samples by group itself"),
        (eh.FedProx(inner=eh.FedFB()), "FedFB: it weights"),
        (eh.Reweighed(), "Reweighed: it changes models or weights"),
        (eh.FineTuned(), "FineTuned: it changes models or weights after training; put Reweighed"),
        (eh.AFL(order="before"), "AFL: it asks for losses before training"),
        (eh.DeltaFL(), "DeltaFL: it asks for losses before training"),
        (eh.FedGini(), "FedGini: it asks for losses before training"),
        (eh.PropFair(), "PropFair: .* or its clients do not minimise a mean loss"),
    ],
    ids=str,
)
def test_inner_methods_that_do_not_fit_are_refused(inner: eh.Algorithm, why: str) -> None:
    with pytest.raises(ValueError, match=f"cannot weight the samples of {why}.*use one of FedAvg"):
        eh.Reweighed(inner=inner)


def test_fine_tuning_after_it_works() -> None:
    found = binary.train(eh.FineTuned(inner=eh.Reweighed()))
    limits.assert_identical(found.params, binary.train(eh.Reweighed()).params)


def test_a_wrong_scope_regression_and_data_without_groups_are_refused_in_its_name() -> None:
    with pytest.raises(ValueError, match='scope must be "local" or "global"'):
        eh.Reweighed("clients")
    clients: list[dict[str, Any]] = [{"x": np.zeros((3, 1)), "y": np.zeros(3), "group": [0, 1, 1]}]
    model = Model(binary.weight(), "mse")
    model.check(eh.Federation.from_arrays(clients))
    with pytest.raises(ValueError, match=r"^Reweighed .* needs one class per sample; for other"):
        eh.Reweighed(inner=eh.FairFed()).check(model)
    clients = [{"x": np.zeros((3, 3)), "y": np.array([0, 1, 1])}]
    with pytest.raises(ValueError, match=r"^Reweighed needs a group for every training sample"):
        binary.train(eh.Reweighed(inner=eh.FairFed()), fed=eh.Federation.from_arrays(clients))
