"""CoordinateMedian, TrimmedMean, GeometricMedian: numbers by hand, other libraries, where they are
another method, what bad clients can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

import evenhand as eh
from benchmarks.attacks import Attacked
from evenhand.algorithm import visible
from evenhand.algorithms.centres import coordinate_median, geometric_median, trimmed_mean
from evenhand.messages import Asked, Task
from tests.support import limits
from tests.support.by_hand import THREE, F, G, P, at, clients_of, dot, move, near, run, value

CENTRES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "median": coordinate_median,
    "trimmed": lambda points, votes: trimmed_mean(points, votes, 0.2),
    "geometric": lambda points, votes: geometric_median(points, votes, 1e-9, 1e-9, 1000),
}
WRAPPERS: dict[str, Callable[[eh.Algorithm], eh.Algorithm]] = {
    "median": lambda inner: eh.CoordinateMedian(inner=inner),
    "trimmed": lambda inner: eh.TrimmedMean(trim=0.3, inner=inner),
    "geometric": lambda inner: eh.GeometricMedian(inner=inner),
}
every_centre = pytest.mark.parametrize("centre", CENTRES.values(), ids=CENTRES)
every_wrapper = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


def random(points: int, seed: int, size: int = 3) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng(seed)
    votes = generator.uniform(0.2, 1, points)
    return torch.tensor(generator.normal(size=(points, size))), torch.tensor(votes)


# ---- by hand


def test_median_of_three_clients_in_numbers(engine: str) -> None:
    # steps .1 (-2, -16, 6) with weights (3, 1, 2)/6; from below B, A, C: half is reached at A
    found = run(eh.CoordinateMedian(), engine, *THREE, lr=0.1)
    assert value(found.params) == near(1.2)


def test_half_of_the_weight_on_either_side_gives_the_middle(engine: str) -> None:
    # of A, B and C with equal weights A is in the middle; of A and B, the middle of -.2 and -1.6
    three = run(eh.CoordinateMedian(), engine, *THREE, lr=0.1, weights="uniform")
    assert value(three.params) == near(1.2)
    two = run(eh.CoordinateMedian(), engine, lr=0.1, weights="uniform")
    assert value(two.params) == near(1.9)


def test_trimmed_mean_in_numbers(engine: str) -> None:
    # from below B 1/6, A 1/2, C 1/3; a quarter off either end leaves 5/12 of A and 1/12 of C
    mean = (5 * -0.2 + 1 * 0.6) / 6
    found = run(eh.TrimmedMean(trim=0.25), engine, *THREE, lr=0.1)
    assert value(found.params) == pytest.approx(1 - mean, rel=1e-6)


def test_geometric_median_of_four_corners_is_where_the_diagonals_meet(engine: str) -> None:
    # (0, 0) to (4, 2) and (4, 0) to (0, 4) meet at (8/3, 4/3); medians are (2, 1)
    corners = clients_of((1e-9, 0), (4, 0), (4, 2), (0, 4))
    method = eh.GeometricMedian(tolerance=1e-12, iterations=1000)
    assert move(method, engine, corners) == pytest.approx([-8 / 3, -4 / 3], abs=1e-6)
    assert move(eh.CoordinateMedian(), engine, corners) == pytest.approx([-2, -1], abs=1e-8)


def test_votes_are_the_weights_of_the_inner_method(engine: str) -> None:
    # q-FFL: steps g/h' with weights p h, where h = q F^(q-1) g^2 + F^q / lr
    f, g = at(F, 1.0), at(G, 1.0)
    h = [2 * f_i * g_i**2 + 10 * f_i**2 for f_i, g_i in zip(f, g, strict=True)]
    steps = [f_i**2 * g_i / h_i for f_i, g_i, h_i in zip(f, g, h, strict=True)]
    votes = [p * h_i for p, h_i in zip(P, h, strict=True)]
    assert votes[1] > sum(votes) / 2  # B has the largest loss by far
    found = run(eh.CoordinateMedian(cap=1e9, inner=eh.QFFL(q=2.0)), engine, *THREE, lr=0.1)
    assert value(found.params) == pytest.approx(1 - steps[1], rel=1e-8)
    # B has cut off all others at either end
    method = eh.TrimmedMean(trim=0.45, cap=1e9, inner=eh.QFFL(q=2.0))
    trimmed = run(method, engine, *THREE, lr=0.1)
    assert value(trimmed.params) == pytest.approx(1 - steps[1], rel=1e-8)


def test_votes_are_at_most_a_multiple_of_the_median(engine: str) -> None:
    # p = (1/2, 1/6, 1/3): with cap 1 the votes are (1/3, 1/6, 1/3); from below B, A, C with steps
    # -1.6, -.2, .6, a tenth off either end leaves 1/12, 1/3, 1/4 of 5/6
    mean = (1 / 12 * -1.6 + 1 / 3 * -0.2 + 1 / 4 * 0.6) / (2 / 3)
    found = run(eh.TrimmedMean(trim=0.1, cap=1.0), engine, *THREE, lr=0.1)
    assert value(found.params) == pytest.approx(1 - mean, rel=1e-6)


def test_a_client_that_overstates_its_weight_gains_few_votes(engine: str) -> None:
    # in q-FFL a long update makes the weight h long, too: B's is a thousand times the others'
    honest = clients_of((1.0, 2.0), (1.2, 2.1), (0.9, 1.8), (1.1, 1.9), (1.0, 2.0))
    inner = Attacked((4,), -1e4, eh.QFFL(q=1.0))
    whole, capped = (
        move(eh.GeometricMedian(cap=cap, inner=inner), engine, honest) for cap in (1e9, 3.0)
    )
    assert min(whole) > 0  # the opposite of what all others learned
    assert max(capped) < 0
    assert eh.CoordinateMedian(cap=2.0)._capped(torch.tensor([0.0, 1, 9, 2])).tolist() == [
        0,
        1,
        4,
        2,
    ]


def test_the_inner_method_keeps_its_own_state(engine: str) -> None:
    # FAFL's eta is a mean still: 1 - s in every step, s = sigma((f - eta)/mu)/alpha = 2 here
    method = eh.FAFL(alpha=0.5, mu=1e-3, lr_eta=0.1)
    plain, robust = (
        run(algorithm, engine, *THREE, lr=0.01)
        for algorithm in (method, eh.CoordinateMedian(inner=method))
    )
    assert float(plain.state["eta"]) == near(0.1)
    assert float(robust.state["eta"]) == near(0.1)
    assert value(robust.params) == near(1 + 0.02 * 2)
    # momentum of medians: the second one is A's again, .1 * 2 (1.2 - 2)
    found = run(eh.FedAvgM(1.0, 0.5, eh.CoordinateMedian()), engine, *THREE, lr=0.1, rounds=2)
    assert value(found.params) == near(1.2 + 0.5 * 0.2 + 0.16)
    inside = run(eh.CoordinateMedian(inner=eh.FedAvgM(1.0, 0.5)), engine, *THREE, lr=0.1, rounds=2)
    assert value(inside.params) == near(value(found.params))


def test_the_losses_that_afl_sees_are_not_touched(engine: str) -> None:
    found = run(eh.CoordinateMedian(inner=eh.AFL(lr_lambda=0.02)), engine, *THREE, lr=0.1)
    expected = run(eh.AFL(lr_lambda=0.02), engine, *THREE, lr=0.1)
    assert found.state["lam"].tolist() == near(expected.state["lam"].tolist())


def test_the_models_of_drfa_at_its_moment_have_a_centre_too(engine: str) -> None:
    # one local step: the moment is before it, so that the snapshot is the model received
    method = eh.CoordinateMedian(inner=eh.DRFA(lr_lambda=0.1))
    found = run(method, engine, *THREE, lr=0.1)
    assert found.state["snapshot"]["weight"].item() in (near(1.0), near(value(found.params)))


# ---- against other libraries, and by trying


@pytest.mark.parametrize("count", [1, 2, 3, 6, 9])
def test_equal_votes_give_the_median_of_numpy(count: int) -> None:
    points, votes = random(count, seed=count)[0], torch.full((count,), 0.1)
    expected = np.median(points.numpy(), axis=0)
    assert coordinate_median(points, votes.double()).numpy() == pytest.approx(expected, abs=1e-15)


def test_the_weighted_median_has_the_least_weighted_distance() -> None:
    for seed in range(30):
        points, _ = random(2 + seed % 7, seed)
        votes = torch.tensor(np.random.default_rng(seed).integers(0, 4, len(points)) / 7)
        if not votes.sum():
            continue
        sums = (votes[:, None, None] * (points[:, None] - points[None]).abs()).sum(0)
        least = sums.min(0).values
        best = [row[sum_ < low + 1e-12] for row, sum_, low in zip(points.T, sums.T, least)]  # noqa: B905
        middle = [(float(row.min()) + float(row.max())) / 2 for row in best]
        found = coordinate_median(points, votes)
        # a point without votes may lie between the ends, but not beyond them
        assert found.tolist() == pytest.approx(middle, abs=1e-12)


@pytest.mark.parametrize("trim", [0.0, 0.1, 0.25, 0.4])
def test_equal_votes_give_the_trimmed_mean_of_scipy(trim: float) -> None:
    points, _ = random(20, seed=1)
    found = trimmed_mean(points, torch.full((20,), 0.05).double(), trim)
    expected = stats.trim_mean(points.numpy(), trim, axis=0)
    assert found.numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("size", [2, 5, 40])
def test_the_geometric_median_is_the_minimiser_that_scipy_finds(size: int) -> None:
    for seed in range(10):
        points, votes = random(3 + seed, seed, size)

        def distances(z: Any, points: Tensor = points, votes: Tensor = votes) -> float:
            return float(votes.numpy() @ np.linalg.norm(points.numpy() - z, axis=1))

        start = points.mean(0).numpy()
        least = min(
            distances(optimize.minimize(distances, start, method="BFGS").x),
            *(distances(point) for point in points.numpy()),
        )
        found = geometric_median(points, votes, 1e-6, 1e-6, 100).numpy()
        assert distances(found) <= least * (1 + 1e-4)
        found = geometric_median(points, votes, 1e-9, 1e-9, 3000).numpy()
        assert distances(found) <= least * (1 + 1e-9)


def test_the_geometric_median_turns_with_its_points() -> None:
    points, votes = random(7, seed=3)
    turn = torch.linalg.qr(random(3, seed=4)[0]).Q
    found, turned = (geometric_median(p, votes, 1e-9, 1e-9, 3000) for p in (points, points @ turn))
    torch.testing.assert_close(found @ turn, turned, rtol=0, atol=1e-7)


# ---- limits


@every_centre
def test_votes_count_as_so_many_equal_points(centre: Callable[[Tensor, Tensor], Tensor]) -> None:
    points, _ = random(5, seed=2)
    votes = torch.tensor([1, 3, 0, 2, 1])
    repeated = points.repeat_interleave(votes, 0)
    ones = torch.ones(len(repeated)).double()
    torch.testing.assert_close(
        centre(points, votes.double() / 7), centre(repeated, ones), rtol=0, atol=1e-6
    )


@every_centre
def test_nobody_moves_nothing(centre: Callable[[Tensor, Tensor], Tensor]) -> None:
    points, votes = random(3, seed=0)
    assert centre(points[:0], votes[:0]).tolist() == [0, 0, 0]
    assert bool(centre(points, 0 * votes).isfinite().all())
    assert centre(points[:1], votes[:1]).tolist() == near(points[0].tolist())
    assert centre(points[:1].expand(4, 3), random(4, 0)[1]).tolist() == near(points[0].tolist())


MEANS = {
    name: inner
    for name, inner in limits.INNER.items()
    if name not in ("FedMGDA", "FedFV", "AdaFed", "LocalOnly")
}


@pytest.mark.parametrize("name", MEANS)
def test_nothing_trimmed_is_the_inner_method(name: str) -> None:
    inner = MEANS[name]
    group = [np.arange(size) % 2 for size in limits.SIZES]
    fed = limits.federation(team=list(limits.TEAMS), group=group)
    found = limits.train(eh.TrimmedMean(trim=0.0, cap=1e9, inner=inner), fed=fed)
    expected = limits.train(inner, fed=fed)
    limits.assert_same(found.params, expected.params)
    for one, other in zip(found.personal or [], expected.personal or [], strict=True):
        limits.assert_same(one, other)


@every_wrapper
def test_on_identical_clients_every_centre_is_the_mean(
    engine: str, wrap: Callable[[eh.Algorithm], eh.Algorithm]
) -> None:
    limits.assert_same(
        limits.train(wrap(eh.TERM(t=2.0)), engine, limits.copies()).params,
        limits.train(eh.FedAvg(), engine, limits.copies()).params,
    )


@every_wrapper
def test_centres_differ_from_the_mean_where_clients_differ(
    wrap: Callable[[eh.Algorithm], eh.Algorithm],
) -> None:
    plain = limits.train(eh.FedAvg()).params
    assert limits.distance(limits.train(wrap(eh.FedAvg())).params, plain) > 1e-3


# ---- bad clients


@pytest.mark.parametrize("huge", [1e6, -1e6, 1e30])
def test_a_minority_cannot_leave_the_range_of_the_others(huge: float) -> None:
    good, _ = random(11, seed=5)
    for bad in range(1, 11):
        points = torch.cat([good, torch.full((bad, 3), huge).double()])
        share, votes = bad / (11 + bad), torch.full((11 + bad,), 0.1).double()

        def inside(found: Tensor) -> bool:
            return bool(((found >= good.amin(0)) & (found <= good.amax(0))).all())

        assert inside(coordinate_median(points, votes))
        for trim in (0.1, 0.2, 0.45):
            # it breaks down beyond the share that is trimmed
            assert inside(trimmed_mean(points, votes, trim)) == (share <= trim), (bad, trim)
        # Lopuhaa and Rousseeuw (1991): a minority moves it, but not far
        found = geometric_median(points, votes, 1e-6, 1e-6, 1000)
        radius = (good - good.mean(0)).norm(dim=1).max()
        assert (found - good.mean(0)).norm() <= radius * 2 * (1 - share) / (1 - 2 * share)


def test_rounding_leaves_no_trace_of_a_huge_value_on_the_border() -> None:
    for count in range(10, 300, 10):
        points = torch.ones(count, 1).double()
        points[: count // 10] = 1e30
        for vote in (0.1, 1 / 3, 1 / count):
            votes = torch.full((count,), vote, dtype=torch.float64)
            assert trimmed_mean(points, votes, 0.1).tolist() == near([1.0])


def test_half_of_the_clients_can_do_anything() -> None:
    good, votes = random(3, seed=5)[0], torch.ones(6).double()
    points = torch.cat([good, torch.full((3, 3), 1e6).double()])
    for centre in CENTRES.values():
        assert centre(points, votes).max() > 1e4


@every_wrapper
def test_attackers_ruin_the_mean_but_not_the_centre(
    engine: str, wrap: Callable[[eh.Algorithm], eh.Algorithm]
) -> None:
    good = [(1.0, 2.0), (1.2, 2.1), (0.9, 1.8), (1.1, 1.9), (1.0, 2.2)]
    clients = clients_of(*good, (1.0, 2.0), (1.0, 2.0))

    def moved(method: eh.Algorithm) -> list[float]:
        return move(Attacked((5, 6), -1e6, method), engine, clients)

    ruined = moved(eh.FedAvg())
    assert min(ruined) > 1e5
    for found, honest in zip(moved(wrap(eh.FedAvg())), zip(*good, strict=True), strict=True):
        assert -max(honest) <= found <= -min(honest)


def test_a_client_that_most_weight_is_on_decides(engine: str) -> None:
    """What no centre prevents: AFL puts all weight on the worst client."""
    method = eh.CoordinateMedian(inner=eh.AFL(lr_lambda=10.0))
    found = run(method, engine, *THREE, lr=0.1, rounds=2)
    assert found.state["lam"].tolist()[1] == near(1.0)
    guarded = eh.CoordinateMedian(
        inner=eh.LossGuard(mads=1e9, cap=0.4, inner=eh.AFL(lr_lambda=10.0))
    )
    w = 1.2 - dot([0, 0.1, 0], at(G, 1.2))
    assert value(found.params) == near(w)
    assert value(run(guarded, engine, *THREE, lr=0.1, rounds=2).params) != near(w)


# ---- what does not fit, and what is said


@pytest.mark.parametrize(
    "inner", [eh.FedMGDA(), eh.FedFV(), eh.FedMDFG(), eh.CoordinateMedian(), eh.FedLF()], ids=repr
)
@every_wrapper
def test_methods_that_see_updates_themselves_are_refused(
    wrap: Callable[[eh.Algorithm], eh.Algorithm], inner: eh.Algorithm
) -> None:
    name = type(inner).__name__
    with pytest.raises(ValueError, match=f"{name} combines the clients' updates itself"):
        limits.train(wrap(inner))


@pytest.mark.parametrize("inner", [eh.FedHEAL(), eh.LocalOnly()], ids=repr)
def test_methods_without_a_mean_step_are_refused(engine: str, inner: eh.Algorithm) -> None:
    name = type(inner).__name__
    with pytest.raises((ValueError, eh.ClientError), match=f"{name} does not take the mean"):
        limits.train(eh.TrimmedMean(inner=inner), engine)


def test_the_server_sees_updates_and_no_weights_are_certified() -> None:
    method = eh.GeometricMedian(inner=eh.AFL())
    census = limits.federation().census()
    assert visible(method, census) == ("its update", "its weight in the mean", "its loss")
    assert limits.train(method).certificate is None


@pytest.mark.parametrize("value", [-0.1, 0.5, float("nan")])
def test_impossible_shares_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="trim must be in"):
        eh.TrimmedMean(trim=value)


def test_a_step_is_compared_without_its_weight() -> None:
    share, a = torch.tensor(0.25), torch.tensor(0.25)
    shared = {"lr": torch.tensor(0.1), "eta": torch.tensor(0.0)}
    own = {"weight": a, "share": share, "alpha": torch.tensor(0.5), "floor": torch.tensor(0.0)}
    asked = Asked(Task(shared, own), None, 2.0)
    plain = eh.FedAvg().entries(asked)["delta"]
    entry = eh.CoordinateMedian().entries(asked)["delta"]
    assert plain.per == a
    assert callable(entry.per)
    assert entry.per({"weight": share}) == 1
    assert eh.CoordinateMedian(inner=eh.QFFL()).entries(asked)["delta"].per == 1
    # FAFL's slope, from its eta: the mean of 1 - (eta moved) / (a steps lr), here 1 - .02/.05
    robust = eh.CoordinateMedian(inner=eh.FAFL(alpha=0.5)).entries(asked)["delta"]
    assert callable(robust.per)
    assert float(robust.per({"weight": share, "eta": torch.tensor(0.02)})) == pytest.approx(0.6)
    assert float(robust.least) == pytest.approx(0.002)
